"""The difference between two scores with its 95 % interval and a p-value, in pairs where that is possible.

paired_difference      both models answered the same samples: bootstrap interval, permutation test
unpaired_difference    from the two intervals only
holm                   p-values of several differences, corrected for their number
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from triptych.eval.scores import Score

_Z = 1.96
_MOST_EXACT = 14  # samples that differ: below this, all swaps are enumerated
_CHUNK = 4_000_000  # numbers per block of resamples
Method = Literal["paired", "unpaired", "paired features"]


@dataclass(frozen=True)
class Difference:
    """Value of the first model minus that of the second."""

    value: float
    low: float
    high: float
    p: float
    """Of the hypothesis that both models are equally good."""
    n: int
    """Samples of the smaller set."""
    method: Method


def paired_difference(
    first: Sequence[tuple[float, float]],
    second: Sequence[tuple[float, float]],
    *,
    resamples: int = 2000,
    swaps: int = 10_000,
    seed: int = 0,
) -> Difference:
    """The difference of two quotients of sums over the same samples.

    Interval: the samples are drawn again with replacement, the same ones for both models, and the quantiles are moved
    apart as Student's t and the n / (n - 1) of a variance require, which matters for few samples only. Two models that
    differ in no sample, or in all of them, get Wilson's margin: an outcome that was not observed may still happen.

    p-value: if both models were equally good, swapping what they did on a sample would change nothing. The p-value is
    the share of swaps that lead to a difference as large as the observed one; all swaps are enumerated if few samples
    differ. With right and wrong answers this is the exact McNemar test.
    """
    one, other = np.asarray(first, float), np.asarray(second, float)
    assert one.shape == other.shape == (len(one), 2), (one.shape, other.shape)
    n = len(one)
    value = float(_quotient(one.sum(0)) - _quotient(other.sum(0)))
    p = _swap_test(one, other, swaps, seed)
    low, high = _bootstrap_interval(one, other, value, resamples, seed)
    return Difference(value, low, high, p, n, "paired")


def _quotient(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / np.maximum(sums[..., 1], 1e-12)


def _bootstrap_interval(
    one: np.ndarray, other: np.ndarray, value: float, resamples: int, seed: int
) -> tuple[float, float]:
    n = len(one)
    changes = one[:, 0] - other[:, 0]
    is_share = bool((one[:, 1] == 1).all() and (other[:, 1] == 1).all() and np.isin(changes, (-1, 0, 1)).all())
    if is_share and np.ptp(changes) == 0:
        margin = _Z**2 / (n + _Z**2)
        return max(-1.0, value - margin), min(1.0, value + margin)
    if n < 2:
        return -np.inf, np.inf
    rng = np.random.default_rng(seed)
    # How often each distinct outcome is drawn again, instead of the samples one by one: right and wrong answers of two
    # models have four outcomes, however many samples there are.
    outcomes, counts = np.unique(np.hstack([one, other]), axis=0, return_counts=True)
    values = []
    for size in _chunks(resamples, len(outcomes)):
        sums = rng.multinomial(n, counts / n, size=size) @ outcomes
        values.append(_quotient(sums[:, :2]) - _quotient(sums[:, 2:]))
    low, high = np.quantile(np.concatenate(values), (0.025, 0.975))
    widened = float(stats.t.ppf(0.975, n - 1)) / _Z * np.sqrt(n / (n - 1))
    return value - (value - float(low)) * widened, value + (float(high) - value) * widened


def _swap_test(one: np.ndarray, other: np.ndarray, swaps: int, seed: int) -> float:
    """Two-sided p-value of the swap test."""
    differ = (one != other).any(1)
    same_counts = bool((one[:, 1] == other[:, 1]).all())
    total, half = (one + other).sum(0) / 2, ((one - other) / 2)[differ]
    k = len(half)
    if k == 0:
        return 1.0
    observed = abs(_gap(total, half.sum(0))) * (1 - 1e-9)
    if same_counts and np.unique(np.abs(half[:, 0])).size == 1:  # how many samples each model won: a binomial test
        wins = int((half[:, 0] > 0).sum())
        return float(stats.binomtest(wins, k, 0.5).pvalue)
    if k < _MOST_EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2**k)[:, None] >> np.arange(k)) & 1)
        return float((np.abs(_gap(total, signs @ half)) >= observed).mean())
    rng = np.random.default_rng([seed, 1])
    larger = 0
    for size in _chunks(swaps, k):
        signs = 1.0 - 2.0 * rng.integers(2, size=(size, k), dtype=np.int8)
        larger += int((np.abs(_gap(total, signs @ half)) >= observed).sum())
    return (1 + larger) / (1 + swaps)


def _gap(total: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The difference of the quotients whose sums are total + half and total - half."""
    return _quotient(total + half) - _quotient(total - half)


def _chunks(count: int, width: int) -> list[int]:
    size = max(1, _CHUNK // max(1, width))
    return [min(size, count - start) for start in range(0, count, size)]


def unpaired_difference(first: Score, second: Score) -> Difference:
    """The difference from two intervals alone, as if the models had answered different samples.

    The margins on the sides that face each other are added in squares (Zou and Donner 2008), so that intervals which
    are not symmetric, such as Wilson's, are used as they are. Where models answered the same samples in truth, the
    interval is too wide.
    """
    value = first.value - second.value
    below = float(np.hypot(first.value - first.low, second.high - second.value))
    above = float(np.hypot(first.high - first.value, second.value - second.low))
    n = min(first.n, second.n)
    margin = below if value > 0 else above  # on the side of zero
    if not np.isfinite([below, above]).all() or (value and not margin):  # facts without intervals show nothing
        return Difference(value, -np.inf, np.inf, 1.0, n, "unpaired")
    p = 1.0 if value == 0 else float(2 * stats.norm.sf(_Z * abs(value) / margin))
    return Difference(value, value - below, value + above, p, n, "unpaired")


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the chance that any verdict at level p is false stays below p, however many there are."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[int(index)]))
        adjusted[int(index)] = largest
    return adjusted
