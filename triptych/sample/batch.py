"""What samplers work on: a batch of requests of equal length, each with its own random numbers.

A random number depends on the request's seed, the step, its purpose and the position, never on the other requests of
the batch. So a request gives the same result in any batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from triptych.sample.canvas import Canvas, CanvasTokens, lay_out
from triptych.sample.forward import MAX_TOKENS_PER_PASS
from triptych.utils.rng import SampleStream, random_bits, to_uniform
from triptych.vocab import Vocabulary

# B requests, T positions


@dataclass(frozen=True)
class RequestBatch:
    """Requests of equal length."""

    tokens: Tensor
    """[B, T] int64, ids of the unified vocabulary; MASK of its modality at positions to generate."""
    masked: Tensor
    """[B, T] bool, positions to generate. All others are given and never change."""
    mask_ids: Tensor
    """[B, T] int64, the MASK id of each position's modality."""
    seeds: tuple[int, ...]
    """One seed per request."""

    @classmethod
    def from_layouts(
        cls,
        layouts: Sequence[CanvasTokens],
        seeds: Sequence[int],
        vocabulary: Vocabulary,
        device: torch.device | str = "cpu",
    ) -> "RequestBatch":
        return cls(
            tokens=torch.from_numpy(np.stack([layout.tokens for layout in layouts])).to(device),
            masked=torch.from_numpy(np.stack([layout.masked for layout in layouts])).to(device),
            mask_ids=torch.from_numpy(np.stack([vocabulary.mask_ids[layout.modality] for layout in layouts])).to(
                device
            ),
            seeds=tuple(seeds),
        )

    def uniform(self, step: int, stream: SampleStream) -> Tensor:
        """[B, T] float64 in [0, 1), with all 53 bits of a double."""
        positions = np.arange(self.tokens.shape[1])
        bits = random_bits(np.array(self.seeds, np.uint64)[:, None], int(stream), step, positions[None, :])
        return torch.from_numpy(to_uniform(bits)).to(self.tokens.device)


def group_by_length(
    canvases: Sequence[Canvas], vocabulary: Vocabulary, copies: int = 1
) -> list[tuple[list[int], list[CanvasTokens]]]:
    """Split canvases into groups of equal length that fit one forward pass: their indices and their layouts.

    `copies` is how often a forward pass holds each canvas: 2 with guidance.
    """
    layouts = [lay_out(canvas, vocabulary) for canvas in canvases]
    by_length: dict[int, list[int]] = {}
    for i, layout in enumerate(layouts):
        by_length.setdefault(len(layout.tokens), []).append(i)
    groups = []
    for length, members in by_length.items():
        size = max(1, MAX_TOKENS_PER_PASS // (length * copies))
        for start in range(0, len(members), size):
            part = members[start : start + size]
            groups.append((part, [layouts[i] for i in part]))
    return groups


@dataclass(frozen=True)
class Proposals:
    """The model's draws at the requested positions; values at other positions are undefined."""

    ids: Tensor
    """[B, T] int64, drawn after guidance, temperature and top-p."""
    log_prob: Tensor
    """[B, T] float64, of the drawn id after guidance, before temperature and top-p; only with need="confidence"."""
    entropy: Tensor
    """[B, T] float64, in nats, of the same distribution as `log_prob`; only with need="entropy"."""


Need = Literal["ids", "confidence", "entropy"]
"""What a sampler needs besides the drawn ids. Each extra costs another pass over all logits."""


class Predictor(Protocol):
    """One forward pass of a batch: draws for the positions `where` [B, T], given tokens [B, T].

    Only positions in `where` pass the output head, so samplers that choose positions at random choose them first.
    """

    def __call__(self, tokens: Tensor, where: Tensor, step: int, need: Need) -> Proposals: ...


class Callback(Protocol):
    """Called after every step of a batch.

    `step` counts from 0. `num_steps` is the number of steps of this batch: exact for samplers with a fixed number of
    steps, otherwise an upper bound that never grows and is exact at the last step. So the last call of a batch has
    step + 1 == num_steps. `tokens` [B, T] are the tokens after the step.
    """

    def __call__(self, step: int, num_steps: int, tokens: Tensor) -> None: ...
