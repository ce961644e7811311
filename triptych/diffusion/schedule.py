"""Masking schedules: how many tokens are still there at time t, from all at t = 0 to none at t = 1.

alpha(t) is the probability that a token is kept, u(t) = 1 - alpha(t) that it is masked. The ELBO weighs the loss at
time t by

    w(t) = -alpha'(t) / (1 - alpha(t))            and the complement of a mask by   w_c(t) = -alpha'(t) / alpha(t)

(MD4 prints w with the sign that multiplies log p). Since w dt = du / u, the expected loss does not depend
on the schedule; only the variance of its estimate does.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from triptych.errors import UserError


class Schedule(Protocol):
    """All functions take and return tensors of times in [0, 1], elementwise, in the precision they are given."""

    def alpha(self, t: Tensor) -> Tensor:
        """Probability that a token is kept."""

    def alpha_prime(self, t: Tensor) -> Tensor:
        """Its derivative; negative."""

    def weight(self, t: Tensor) -> Tensor:
        """-alpha' / (1 - alpha), written so that it does not cancel."""

    def time_of(self, alpha: Tensor) -> Tensor:
        """The inverse of `alpha`."""


def complement_weight(schedule: Schedule, t: Tensor) -> Tensor:
    """What predicting the complement of a mask is worth: -alpha' / alpha."""
    return -schedule.alpha_prime(t) / schedule.alpha(t)


@dataclass(frozen=True)
class Polynomial:
    """alpha = 1 - t^power. Power 1 is the linear schedule; a mean of 1 / (power + 1) of the tokens is masked."""

    power: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.power < math.inf:
            raise UserError(f"the power of a polynomial schedule must be positive, got {self.power!r}.")

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t**self.power

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -self.power * t ** (self.power - 1)

    def weight(self, t: Tensor) -> Tensor:
        return self.power / t

    def time_of(self, alpha: Tensor) -> Tensor:
        return (1 - alpha) ** (1 / self.power)


@dataclass(frozen=True)
class Linear:
    """alpha = 1 - t: every number of masked tokens is equally likely."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -torch.ones_like(t)

    def weight(self, t: Tensor) -> Tensor:
        return 1 / t

    def time_of(self, alpha: Tensor) -> Tensor:
        return 1 - alpha


@dataclass(frozen=True)
class Cosine:
    """alpha = 1 - cos(pi/2 (1 - t)): most tokens are masked most of the time, 64 % on average."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - torch.cos(torch.pi / 2 * (1 - t))

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -torch.pi / 2 * torch.sin(torch.pi / 2 * (1 - t))

    def weight(self, t: Tensor) -> Tensor:
        return torch.pi / 2 * torch.tan(torch.pi / 2 * (1 - t))

    def time_of(self, alpha: Tensor) -> Tensor:
        return 1 - 2 / torch.pi * torch.acos(1 - alpha)


@dataclass(frozen=True)
class Geometric:
    """alpha = exp(-sigma), sigma geometric from `lowest` to `highest`: the weight stays bounded, 25 % are masked.

    It starts at alpha(0) = exp(-lowest), a hair below 1, and ends a hair above 0.
    """

    lowest: float = 1e-5
    highest: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.lowest < self.highest < math.inf:
            raise UserError(f"a geometric schedule needs 0 < lowest < highest, got {self.lowest} and {self.highest}.")

    @property
    def _rate(self) -> float:
        return math.log(self.highest / self.lowest)

    def _sigma(self, t: Tensor) -> Tensor:
        return self.lowest * torch.exp(self._rate * t)

    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-self._sigma(t))

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -self._rate * self._sigma(t) * self.alpha(t)

    def weight(self, t: Tensor) -> Tensor:
        sigma = self._sigma(t)
        return self._rate * sigma / torch.expm1(sigma)

    def time_of(self, alpha: Tensor) -> Tensor:
        return torch.log(-torch.log(alpha) / self.lowest) / self._rate


SCHEDULES = (Linear, Cosine, Polynomial, Geometric)
