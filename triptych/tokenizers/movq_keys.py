"""Weight names of the original MoVQGAN code as names of diffusers' `VQModel`, for any depth."""

import re
from collections.abc import Mapping

from torch import Tensor

# Applied in this order to every name. Decoder levels count from the image in the original and from the latents in
# diffusers, so the order of `up_blocks` is reversed afterwards.
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
    """Rename the weights of the encoder, the decoder and the codebook; drop those that only training needs."""
    weights = {name: weight for name, weight in original.items() if not name.startswith(_TRAINING_ONLY)}
    matches = (re.match(r"decoder\.up\.(\d+)\.", name) for name in weights)
    levels = 1 + max((int(match[1]) for match in matches if match), default=0)
    renamed = {}
    for name, weight in weights.items():
        for pattern, replacement in _RENAMES:
            name = pattern.sub(replacement, name)
        name = re.sub(r"\.up_blocks\.(\d+)\.", lambda match: f".up_blocks.{levels - 1 - int(match[1])}.", name)
        if _ATTENTION_WEIGHT.search(name):
            weight = weight.reshape(weight.shape[:2])  # a 1x1 convolution is a linear map
        renamed[name] = weight
    return renamed
