"""What samplers work on: requests of equal length side by side, each with randomness of its own.

A request's random numbers depend on its seed, the step, what they are for and the position: never on its neighbours
in the group. So a request gives the same result alone or in any batch.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from triptych.utils.rng import SampleStream, random_bits, to_uniform

# B requests, T positions


@dataclass(frozen=True)
class RequestBatch:
    """Requests of equal length."""

    tokens: Tensor
    """[B, T] int64, ids of the unified vocabulary, MASK of its modality where something is to be generated."""
    masked: Tensor
    """[B, T] bool, the positions to generate. All others are given, and stay."""
    mask_ids: Tensor
    """[B, T] int64, the MASK of each position's modality."""
    seeds: tuple[int, ...]
    """One per request."""

    def uniform(self, step: int, stream: SampleStream) -> Tensor:
        """[B, T] float64 in [0, 1), of all the 53 bits a double has."""
        positions = np.arange(self.tokens.shape[1])
        bits = random_bits(np.array(self.seeds, np.uint64)[:, None], int(stream), step, positions[None, :])
        return torch.from_numpy(to_uniform(bits)).to(self.tokens.device)


@dataclass(frozen=True)
class Proposals:
    """What the model would put at the positions that were asked for; anything elsewhere."""

    ids: Tensor
    """[B, T] int64, drawn from the model's law after guidance, temperature and top-p."""
    log_prob: Tensor
    """[B, T] float64, of the drawn id under the law after guidance, before temperature and top-p; if it was wanted."""
    entropy: Tensor
    """[B, T] float64, of that law, in nats; if it was wanted."""


Wants = Literal["ids", "confidence", "entropy"]
"""What a sampler is to know of the draws, besides them: each costs another pass over all columns."""


class Propose(Protocol):
    """One look of the model at a group: draws for the positions `where` [B, T], given tokens [B, T].

    Only needed positions cost head and draw, so samplers that choose positions at random choose them first.
    """

    def __call__(self, tokens: Tensor, where: Tensor, step: int, wants: Wants) -> Proposals: ...


class Callback(Protocol):
    """Told after every step: its number (from 0), how many there will be at most, and the tokens [B, T]."""

    def __call__(self, step: int, steps: int, tokens: Tensor) -> None: ...
