"""Names of weights: from the original MoVQGAN code to diffusers' `VQModel`, for any depth."""

import re
from collections.abc import Mapping

from torch import Tensor

# Applied in this order to every name. Levels of the decoder count from the picture in the original and from the latents
# in diffusers, so `up_blocks` is turned around afterwards.
_RENAMES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\.(down|up)\.(\d+)\.block\.", r".\1_blocks.\2.resnets."),
        (r"\.(down|up)\.(\d+)\.attn\.", r".\1_blocks.\2.attentions."),
        (r"\.(down|up)\.(\d+)\.\1sample\.", r".\1_blocks.\2.\1samplers.0."),
        (r"\.mid\.block_1\.", r".mid_block.resnets.0."),
        (r"\.mid\.block_2\.", r".mid_block.resnets.1."),
        (r"\.mid\.attn_1\.", r".mid_block.attentions.0."),
        (r"\.nin_shortcut\.", r".conv_shortcut."),
        (r"\.norm_out\.", r".conv_norm_out."),
        (r"(\.attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
        (r"(\.attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
        (r"^(encoder\..*\.attentions\.\d+)\.norm\.", r"\1.group_norm."),
        (r"^(decoder\..*\.attentions\.\d+)\.norm\.", r"\1.spatial_norm."),
    ]
]
_TRAINING_ONLY = ("loss.", "ema_")  # the discriminator and the averaged copies
_ATTENTION_WEIGHT = re.compile(r"\.to_(q|k|v|out\.0)\.weight$")


def to_diffusers(original: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of an encoder, a decoder and a codebook; leave out what only training needs."""
    kept = {name: weight for name, weight in original.items() if not name.startswith(_TRAINING_ONLY)}
    levels = 1 + max((int(found[1]) for name in kept if (found := re.match(r"decoder\.up\.(\d+)\.", name))), default=0)
    renamed = {}
    for name, weight in kept.items():
        for pattern, replacement in _RENAMES:
            name = pattern.sub(replacement, name)
        name = re.sub(r"\.up_blocks\.(\d+)\.", lambda found: f".up_blocks.{levels - 1 - int(found[1])}.", name)
        if _ATTENTION_WEIGHT.search(name):
            weight = weight.reshape(weight.shape[:2])  # a 1x1 convolution is a linear map
        renamed[name] = weight
    return renamed
