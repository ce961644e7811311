"""Scores with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

_Z = 1.96  # 95 % of a normal distribution lie within this many standard deviations of the mean
_PICKS = 1 << 20  # samples that are drawn at once in a bootstrap, which bounds its memory


@dataclass(frozen=True)
class Score:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    """Number of samples."""

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def as_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def ratio_score(hits: Sequence[float], counts: Sequence[float] | None = None, resamples: int = 1000) -> Score:
    """sum(hits) / sum(counts), by default the mean of hits, with a bootstrap interval over samples.

    A proportion (all counts are 1) with only hits or only misses has Wilson's interval, because all its resamples are
    equal. A WER without errors has an interval of zero width: no error was observed, which does not prove that the
    error rate is zero.
    """
    top = np.asarray(hits, float)
    bottom = np.ones_like(top) if counts is None else np.asarray(counts, float)
    value = float(top.sum() / bottom.sum())
    if value in (0, 1) and np.ptp(top) == 0 and (bottom == 1).all():
        margin = _Z**2 / (len(top) + _Z**2)  # an outcome that was not observed may still be this frequent
        return Score(value, *((1 - margin, 1.0) if value else (0.0, margin)), len(top))
    rng = np.random.default_rng(0)
    values = np.empty(resamples)
    rows = max(1, _PICKS // len(top))
    for start in range(0, resamples, rows):  # blocks of the same random stream
        block = slice(start, min(start + rows, resamples))
        picks = rng.integers(len(top), size=(block.stop - block.start, len(top)))
        values[block] = top[picks].sum(1) / np.maximum(bottom[picks].sum(1), 1e-12)
    low, high = np.quantile(values, (0.025, 0.975))
    return Score(value, float(low), float(high), len(top))


def interval_or_nan(score: Score) -> Score:
    """The score; if its interval has no width, because nothing varies in the sample, with NaN in place of the interval.

    One sample, or samples that are all equal, do not say how far the value would move with others.
    """
    return replace(score, low=math.nan, high=math.nan) if score.low == score.high else score


def category_score(right: dict[str, list[bool]], draws: int = 10_000) -> Score:
    """The mean over categories of the share of right answers, with a Bayesian interval.

    The rate of each category has the posterior Beta(hits + a, misses + a), which has a spread even if all answers are
    right. The categories share the 1/2 of Jeffreys' prior, a = 1/2 / categories: with 1/2 for each, the interval of
    several good categories would be too low. The interval is widened to include the mean if necessary.
    """
    rng = np.random.default_rng(0)
    a = 0.5 / len(right)
    hits = np.array([sum(answers) for answers in right.values()])
    counts = np.array([len(answers) for answers in right.values()])
    value = float((hits / counts).mean())
    means = rng.beta(hits + a, counts - hits + a, size=(draws, len(hits))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Score(value, min(float(low), value), max(float(high), value), int(counts.sum()))


def auroc(usual: Sequence[float] | np.ndarray, unusual: Sequence[float] | np.ndarray) -> float:
    """Area under the ROC curve: the probability that an unusual input scores above a usual one; ties count half."""
    ordered, others = np.sort(np.asarray(usual, float)), np.asarray(unusual, float)
    below, not_above = (np.searchsorted(ordered, others, side=side) for side in ("left", "right"))
    return float((below + not_above).mean() / (2 * len(ordered)))
