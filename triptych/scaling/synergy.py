"""Synergy: does the loss on one part of a mixture depend on the ratio of the other two, at the same own share?

Runs on a lattice have few different own shares, so every own share gets a level of its own and the curve over it needs
no formula. Within a level, with r = log(share of the first other / share of the second other):

    loss = level(own share) + slope r + curvature r^2

The F test compares it with the levels alone, in units of the noise between seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import f

from triptych.errors import UserError
from triptych.scaling.critical_batch import widened_interval
from triptych.scaling.intervals import Interval
from triptych.scaling.law import Floats
from triptych.scaling.simplex import counted_fits, without_seed_offsets

_LOG_2 = float(np.log(2))


@dataclass(frozen=True)
class RatioEffect:
    """What the ratio of the other two parts does to the loss of a part."""

    swap: Interval
    """Loss with twice as much of the first other as of the second, minus the loss with half as much."""
    imbalance: Interval
    """Mean of these two losses, minus the loss with as much of both."""
    own: Interval
    """For comparison, what the own share does: the loss at its smallest value minus that at its largest."""
    p: float
    """Of the hypothesis that the ratio does not matter; NaN without several seeds."""

    @property
    def effects(self) -> tuple[Interval, Interval]:
        return self.swap, self.imbalance


def ratio_effect(
    shares: Floats,
    losses: Floats,
    seeds: Sequence[int],
    part: int,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> RatioEffect:
    """The effect on the loss of part 0, 1 or 2, with intervals over runs, resampled within every own share."""
    adjusted = without_seed_offsets(shares, losses, seeds)
    first, second = (other for other in range(3) if other != part)
    ratio = np.log(shares[:, first] / shares[:, second])
    level_of_run = np.unique(np.round(shares[:, part], 9), return_inverse=True)[1].reshape(-1)
    num_levels = int(level_of_run.max()) + 1
    levels = np.eye(num_levels)[level_of_run]
    design = np.column_stack([levels, ratio, ratio**2])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise UserError("a test of synergy needs several ratios of the other two parts at the same own share.")

    rng = np.random.default_rng(seed)
    counts = np.zeros((resamples, len(losses)))  # how often every run is drawn
    for number in range(num_levels):
        mine = np.flatnonzero(level_of_run == number)
        counts[:, mine] = rng.multinomial(len(mine), np.full(len(mine), 1 / len(mine)), size=resamples)
    fitted = counted_fits(design, adjusted.losses, np.ones((1, len(losses))))[0]
    resampled = counted_fits(design, adjusted.losses, counts)

    def interval(factors: dict[int, float]) -> Interval:
        """Of a sum of coefficients times factors."""
        value = sum(factor * float(fitted[index]) for index, factor in factors.items())
        spread = np.sum([factor * resampled[:, index] for index, factor in factors.items()], axis=0)
        num_coefficients = design.shape[1] + len(set(seeds)) - 1
        return Interval(value, *widened_interval(value, spread, len(losses), num_coefficients, level))

    squares = [
        float(np.sum((adjusted.losses - columns @ np.linalg.lstsq(columns, adjusted.losses, rcond=None)[0]) ** 2))
        for columns in (levels, design)
    ]
    statistic = (squares[0] - squares[1]) / 2 / adjusted.noise**2 if adjusted.freedom else float("nan")
    return RatioEffect(
        swap=interval({-2: 2 * _LOG_2}),
        imbalance=interval({-1: _LOG_2**2}),
        own=interval({0: 1.0, num_levels - 1: -1.0}),
        p=float(f.sf(statistic, 2, adjusted.freedom)) if adjusted.freedom else float("nan"),
    )
