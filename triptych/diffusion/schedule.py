"""Masking schedules of the forward process.

At time t every token is unmasked with probability alpha(t) and masked with probability u(t) = 1 - alpha(t), from no
masks at t = 0 to only masks at t = 1. The ELBO is an integral over t of the masked tokens' cross-entropy with weight

    w(t) = -alpha'(t) / (1 - alpha(t))    for a mask, and    w_c(t) = -alpha'(t) / alpha(t)    for its complement

(MD4 prints w with the sign that multiplies log p.) Since w dt = du / u, the expected loss does not depend on the
schedule. The variance of its Monte Carlo estimate does: the schedule is the importance distribution over u.

Very small mask rates are cut off, because w is unbounded there. The cut is a rate, not a time, so that it takes the
same part of the integral from every schedule (`TimeRange`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from triptych.errors import UserError


class Schedule(Protocol):
    """A masking schedule. All functions are elementwise and keep the dtype of their input; t lies in [0, 1]."""

    def alpha(self, t: Tensor) -> Tensor:
        """Probability that a token is not masked."""

    def alpha_prime(self, t: Tensor) -> Tensor:
        """Derivative of `alpha`; negative."""

    def weight(self, t: Tensor) -> Tensor:
        """ELBO weight -alpha' / (1 - alpha), in a form without cancellation."""

    def time_of(self, alpha: Tensor) -> Tensor:
        """The inverse of `alpha`."""


def complement_weight(schedule: Schedule, t: Tensor) -> Tensor:
    """ELBO weight of the complement of a mask: -alpha' / alpha."""
    return -schedule.alpha_prime(t) / schedule.alpha(t)


@dataclass(frozen=True)
class TimeRange:
    """The times that are drawn, uniformly: those whose mask rate is not cut off."""

    lowest: float
    highest: float
    factor: float
    """Factor on the ELBO weights of these times: the length of the range over its mask rates.

    With it the expected loss is the integral over the remaining rates, times their inverse length, for every schedule.
    It is exact if the loss of a token does not depend on the rate. For the linear schedule it is 1.
    """


def time_range(schedule: Schedule, smallest_rate: float, both_ends: bool = False) -> TimeRange:
    """The times with a mask rate of at least `smallest_rate` and, with `both_ends`, at most 1 - `smallest_rate`.

    A schedule that starts or ends beyond these rates keeps its own start or end.
    """
    rates = torch.tensor([smallest_rate, 1 - smallest_rate], dtype=torch.float64)
    first, last = schedule.time_of(1 - rates).tolist()
    lowest, highest = max(first, 0.0), min(last, 1.0) if both_ends else 1.0
    start, end = schedule.alpha(torch.tensor([lowest, highest], dtype=torch.float64)).tolist()
    return TimeRange(lowest, highest, (highest - lowest) / (start - end))


@dataclass(frozen=True)
class Polynomial:
    """alpha = 1 - t^power. Power 1 is the linear schedule. On average 1 / (power + 1) of the tokens are masked."""

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
    """alpha = 1 - cos(pi/2 (1 - t)). On average 64 % of the tokens are masked."""

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
    """alpha = exp(-sigma), with sigma geometric from `lowest` to `highest`. On average 25 % of the tokens are masked.

    The weight is bounded. alpha(0) = exp(-lowest) is slightly below 1, and alpha(1) slightly above 0.
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
