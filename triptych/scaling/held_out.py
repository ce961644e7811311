"""The error of a fitted law on held-out runs, with an interval."""

import numpy as np
from scipy.stats import t

from triptych.scaling.fit import Fit
from triptych.scaling.intervals import Interval


def error_interval(fit: Fit, level: float = 0.95) -> Interval:
    """The mean relative error over the rounds of a fit, corrected for their overlap (Nadeau and Bengio, 2003)."""
    errors, held_out = fit.errors, len(fit.rounds[0].picks)
    overlap = held_out / (len(fit.runs) - held_out)
    error, standard = float(errors.mean()), float(np.sqrt(errors.var(ddof=1) * (1 / len(errors) + overlap)))
    reach = standard * float(t.ppf((1 + level) / 2, len(errors) - 1))
    return Interval(error, error - reach, error + reach)
