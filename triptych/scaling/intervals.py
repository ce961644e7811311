"""Student intervals of means and of mean ratios, for the few seeds of a study."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from triptych.scaling.law import Floats


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval. The ends are NaN if there are too few values for one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.shown(".4f")

    def shown(self, form: str) -> str:
        if math.isnan(self.low):
            return f"{self.value:{form}} (no interval)"
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high


def mean_interval(values: Floats, level: float = 0.95) -> Interval:
    """The mean of independent values, with Student's interval."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return Interval(mean, np.nan, np.nan)
    reach = float(t.ppf((1 + level) / 2, count - 1) * np.std(values, ddof=1) / np.sqrt(count))
    return Interval(mean, mean - reach, mean + reach)


def ratio_interval(ratios: Floats, level: float = 0.95) -> Interval:
    """The geometric mean of independent ratios, with the interval of the mean of their logarithms."""
    logs = mean_interval(np.log(ratios), level)
    return Interval(*np.exp([logs.value, logs.low, logs.high]).tolist())
