"""Name the codes of a `PatchVQ` by two tokens, a pattern and a colour.

    pattern     which pixels are opaque, and where a patch is lighter or darker than its mean
    colour      its hue and how light it is

The red and the blue variant of a patch share a pattern, and all red patches share a colour. So a model of tokens learns
60 kinds and 9 colours, and not 540 things: docs/decisions/0032.
"""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from triptych.errors import UserError
from triptych.tokenizers.kmeans import kmeans, spread_starts
from triptych.tokenizers.patch_vq import PatchVQ

_LUMINANCE = (0.299, 0.587, 0.114)
_MIN_CONTRAST = 0.04  # standard deviation of lightness below which a patch counts as flat
_MIN_CHROMA = 0.04  # below which a colour is grey
_OPACITY_WEIGHT, _LIGHTNESS_WEIGHT = 3.0, 0.3  # against lightness within a pattern, and hue

# K codes, P pixels of a patch


def name_by_pattern_and_color(tokenizer: PatchVQ, patterns: int, colors: int, seed: int = 0) -> PatchVQ:
    """The same codebook with two tokens per patch, about `patterns` of one kind and `colors` of the other.

    Every code keeps a pair of its own, so images keep their quality.
    """
    if not 0 < patterns <= tokenizer.config.codes or not 0 < colors <= tokenizer.config.codes:
        raise UserError(
            f"{tokenizer.config.codes} codes take between 1 and as many patterns and colours, "
            f"got {patterns} and {colors}."
        )
    generator = torch.Generator().manual_seed(seed)
    pattern_features, color_features = _features(tokenizer)
    pattern_K = _clusters(pattern_features, patterns, generator)[1]
    centres, nearest_K = _clusters(color_features, colors, generator)
    centres = centres[nearest_K.unique()]
    while int((count := pattern_K.bincount()).max()) > len(centres):  # more codes than colours: half of them move
        codes = (pattern_K == count.argmax()).nonzero()[:, 0]
        part = _clusters(pattern_features[codes], 2, generator)[1]
        if not part.any():  # equal patterns: one of them moves
            part[-1] = 1
        pattern_K[codes[part == 1]] = len(count)
    pattern_K = _compact(pattern_K)
    color_K = torch.empty_like(pattern_K)
    for pattern in range(int(pattern_K.max()) + 1):
        codes = (pattern_K == pattern).nonzero()[:, 0]
        # One colour cannot name two codes of a pattern: the assignment of least total distance.
        rows, columns = linear_sum_assignment(torch.cdist(color_features[codes], centres).square().numpy())
        color_K[codes[torch.from_numpy(rows)]] = torch.from_numpy(columns)
    return tokenizer.with_names(torch.stack([pattern_K, _compact(color_K)], 1).numpy())


def _clusters(points: Tensor, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = spread_starts(points, number, generator)
    return kmeans(points, len(starts), generator, rounds=40, starts=starts)


def _compact(labels: Tensor) -> Tensor:
    """Labels without gaps."""
    return labels.unique(return_inverse=True)[1]


def _features(tokenizer: PatchVQ) -> tuple[Tensor, Tensor]:
    """Of every code: opacity and lightness relative to the patch's mean [K, 2 P]; hue and mean lightness [K, 4]."""
    color_K3P, opacity_K1P = tokenizer.codebook_KL.cpu().unflatten(1, (4, -1)).split([3, 1], 1)
    color_K3P, opaque_KP = (color_K3P + 1) / 2, (opacity_K1P[:, 0] > 0.5).float()
    area_K1 = opaque_KP.sum(1, keepdim=True).clamp(min=1)
    luminance = torch.tensor(_LUMINANCE)
    lightness_KP = torch.einsum("kcp,c->kp", color_K3P, luminance)
    relative_KP = (lightness_KP - (lightness_KP * opaque_KP).sum(1, keepdim=True) / area_K1) * opaque_KP
    contrast_K1 = (relative_KP.square().sum(1, keepdim=True) / area_K1).sqrt()
    patterns = torch.cat([_OPACITY_WEIGHT * opaque_KP, relative_KP / contrast_K1.clamp(min=_MIN_CONTRAST)], 1)
    mean_K3 = (color_K3P * opaque_KP[:, None]).sum(2) / area_K1
    lightness_K1 = (mean_K3 @ luminance)[:, None]
    chroma_K3 = mean_K3 - lightness_K1
    hue_K3 = chroma_K3 / chroma_K3.norm(dim=1, keepdim=True).clamp(min=_MIN_CHROMA)
    return patterns, torch.cat([hue_K3, _LIGHTNESS_WEIGHT * lightness_K1], 1)
