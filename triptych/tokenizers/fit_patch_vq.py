"""Fit the codebook of a `PatchVQ` to images by k-means."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from triptych.errors import UserError
from triptych.tokenizers.backdrop import separate
from triptych.tokenizers.patch_vq import (
    PatchVQ,
    PatchVQConfig,
    enlarge_chroma,
    nearest_code,
    quantize_codes,
    squared_length,
    to_patches,
)
from triptych.tokenizers.pixels import to_pixels

Report = Callable[[str], None]


def different_patches(
    images: Iterable[Image.Image], config: PatchVQConfig, max_patches: int = 2**20
) -> tuple[Tensor, Tensor]:
    """Every patch once [N, L], without its background, with a weight [N] that grows with its frequency.

    Of more than `max_patches`, a random sample.
    """
    pixels = (torch.from_numpy(to_pixels([image])) for image in images)
    layers = torch.cat([separate(to_patches(image, config.patch))[0].half() for image in pixels])
    if len(layers) > max_patches:
        generator = torch.Generator().manual_seed(0)
        layers = layers[torch.randperm(len(layers), generator=generator)[:max_patches].sort().values]
    _, first, count = np.unique(layers.numpy().view(np.uint16), axis=0, return_index=True, return_counts=True)
    return layers[torch.from_numpy(first)].float(), torch.from_numpy(np.sqrt(count).clip(max=200)).float()


def fit_patch_vq(
    config: PatchVQConfig,
    layers: Tensor,
    weights: Tensor | None = None,
    rounds: int = 8,
    seed: int = 0,
    report: Report = print,
) -> PatchVQ:
    """Fit the codebook to patches [N, L] of `separate` with weights [N].

    k-means, begun with patches that are far from each other (k-means++). An empty code is drawn again from the
    patches, those with a large weighted error first.
    """
    if len(layers) < config.codes:
        raise UserError(f"{config.codes} codes need at least as many different patches, got {len(layers)}.")
    generator = torch.Generator().manual_seed(seed)
    weights = torch.ones(len(layers)) if weights is None else weights
    codes = layers[_distant(layers, weights, config.codes, generator)]
    report(f"codes: {len(codes)} of {len(layers)} different patches to begin with")
    for number in range(rounds):
        squares = squared_length(codes)
        nearest = torch.cat([nearest_code(part, codes, squares) for part in layers.split(4096)])
        rest = layers - codes[nearest]
        count = torch.zeros(len(codes)).index_add_(0, nearest, weights)
        codes = torch.zeros_like(codes).index_add_(0, nearest, weights[:, None] * layers)
        codes /= count.clamp(min=1e-6)[:, None]
        empty = (count == 0).nonzero()[:, 0]
        if len(empty) and number < rounds - 1:
            drawn = torch.multinomial(weights * squared_length(rest) + 1e-12, len(empty), generator=generator)
            codes[empty] = layers[drawn]
        squared = float((weights * rest.square().mean(1)).sum() / weights.sum())
        report(
            f"codes, round {number + 1}: {10 * math.log10(4 / max(1e-9, squared)):.2f} dB on patches, "
            f"{len(empty)} empty"
        )
    return PatchVQ(quantize_codes(codes), config)


_DRAWN_AT_ONCE = 16  # one matrix product for all of them; a few may be alike


def _distant(layers: Tensor, weights: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Indices of patches, each drawn with a probability that grows with the squared distance to those before it."""
    squares, scaled = squared_length(layers), enlarge_chroma(layers)
    chosen = torch.multinomial(weights, 1, generator=generator)
    distance, new = torch.full_like(squares, torch.inf), chosen
    while len(chosen) < number:
        to_new = squares[:, None] - 2 * scaled @ layers[new].T + squares[new]
        distance = torch.minimum(distance, to_new.amin(1).clamp(min=0))
        drawn = min(_DRAWN_AT_ONCE, number - len(chosen))
        new = torch.multinomial(weights * distance + 1e-12, drawn, generator=generator)
        chosen = torch.cat([chosen, new])
    return chosen
