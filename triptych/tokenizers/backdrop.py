"""The background colour of an image, and patches without it: the same object has the same codes on every background.

A patch is flat if it has one colour. The colour of most flat patches is the background. Its pixels are transparent in
the patches that are not flat: such a patch says what lies in front, and the flat patches say what lies behind.

Images without flat areas, as photographs, have no background, and their patches are opaque.
"""

import torch
from torch import Tensor

TOLERANCE = 0.06  # of a channel in [-1, 1], about 8 levels of 256
_MIN_SHARE = 0.1  # of all patches: a smaller flat area is a part of an object

# B images, N patches of one image, P pixels of a patch


def flat_patches(patches_N3P: Tensor) -> Tensor:
    """[N] whether a patch has one colour."""
    return (patches_N3P.amax(-1) - patches_N3P.amin(-1)).amax(-1) <= TOLERANCE


def background(colors_N3: Tensor, is_flat_N: Tensor) -> Tensor | None:
    """The background colour [3] of an image, from the colours of its flat patches; None if it has none."""
    flat = colors_N3[is_flat_N]
    if not len(flat):
        return None
    is_equal = (flat[:, None] - flat).abs().amax(-1) <= TOLERANCE
    count, most_frequent = is_equal.sum(1).max(0)
    return flat[is_equal[most_frequent]].mean(0) if count >= _MIN_SHARE * len(colors_N3) else None


def separate(patches_BNC: Tensor) -> Tensor:
    """[B, N, 3 P] colours in [-1, 1] -> [B, N, 4 P]: colours, 0 where a pixel is transparent, then opacity 0 or 1."""
    return torch.stack([_separate_one(patches.unflatten(1, (3, -1))) for patches in patches_BNC])


def _separate_one(patches_N3P: Tensor) -> Tensor:
    is_flat_N = flat_patches(patches_N3P)
    behind_3 = background(patches_N3P.mean(-1), is_flat_N)
    opacity_NP = torch.ones_like(patches_N3P[:, 0])
    if behind_3 is not None:
        is_behind_NP = (patches_N3P - behind_3[:, None]).abs().amax(1) <= TOLERANCE
        opacity_NP[is_behind_NP & ~is_flat_N[:, None]] = 0
    return torch.cat([patches_N3P * opacity_NP[:, None], opacity_NP[:, None]], 1).flatten(1)


def combine(layers_BNC: Tensor) -> Tensor:
    """[B, N, 4 P] colours and opacity -> [B, N, 3 P]: the inverse of `separate`; white where nothing lies behind."""
    return torch.stack([_combine_one(layers.unflatten(1, (4, -1))) for layers in layers_BNC])


def _combine_one(layers_N4P: Tensor) -> Tensor:
    front_N3P, opacity_N1P = layers_N4P.split([3, 1], 1)
    is_opaque_N = (opacity_N1P > 0.9).flatten(1).all(1)
    behind_3 = background(front_N3P.mean(-1), flat_patches(front_N3P) & is_opaque_N)
    behind_3 = torch.ones_like(front_N3P[0, :, 0]) if behind_3 is None else behind_3
    return (front_N3P + (1 - opacity_N1P) * behind_3[:, None]).flatten(1)
