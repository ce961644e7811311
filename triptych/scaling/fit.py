"""Fits a law to runs, and again to resampled runs for confidence intervals and held-out errors.

The objective is the mean Huber loss of the residuals of log L, which are relative errors. Residuals beyond `huber`
count linearly, so an outlier has bounded influence. Basin hopping over L-BFGS-B minimises it with the analytic gradient
(triptych.scaling.law), starting from the best of a lattice of starting points.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import basinhopping, minimize, nnls
from scipy.stats import t
from threadpoolctl import threadpool_limits

from triptych.errors import UserError
from triptych.scaling.law import LARGEST_EXPONENT, SMALLEST_EXPONENT, Floats, Form, Law, Theta
from triptych.scaling.runs import MIN_RESAMPLED, Runs

HUBER = 1e-3
ROUNDS = 20
LEVEL = 0.9
HOPS = 30
_ROUND_HOPS = 2  # a round starts at the fit to all runs, so it needs few
_STARTS = 4
_HELD_OUT = 0.1
_EXPONENTS = (0.03, 0.1, 0.3, 0.8, 2.0)
_AT_BOUND = 0.02  # distance to a bound, in logs
_TRIES = 100
_NAMES = ("E", "A", "B", "a", "b")


# -- one fit ----------------------------------------------------------------------------------------------------------


class Problem:
    """The objective for one table of runs, with bounds on theta.

    The bounds hold for every form: a term is never much larger than the loss, and below e^-10 of it has no effect.
    """

    def __init__(self, form: Form, runs: Runs, huber: float):
        logs = [np.log(column) for column in runs.columns]
        self.form, self.means = form, (float(logs[0].mean()), float(logs[1].mean()))
        self.x, self.z = (log - mean for log, mean in zip(logs, self.means))
        self.log_loss, self.huber = np.log(runs.loss), huber
        low, high = float(self.log_loss.min()), float(self.log_loss.max())
        exponents = (np.log(SMALLEST_EXPONENT), np.log(LARGEST_EXPONENT))
        self.bounds = [(low - 10, high), (low - 10, high + 5), (low - 10, high + 5), exponents, exponents]

    def __call__(self, theta: Theta) -> tuple[float, Floats]:
        """The objective, in units of huber^2, and its gradient."""
        value, slopes = self.form.log_loss(theta, self.x, self.z)
        miss = (value - self.log_loss) / self.huber
        size = np.abs(miss)
        cost = np.where(size < 1, miss**2 / 2, size - 0.5)
        return float(cost.mean()), slopes @ np.clip(miss, -1, 1) / (self.huber * len(miss))

    def at_bound(self, theta: Theta) -> tuple[str, ...]:
        near = (min(value - low, high - value) < _AT_BOUND for value, (low, high) in zip(theta, self.bounds))
        return tuple(name for name, is_near in zip(_NAMES, near) if is_near)

    def inside(self, theta: Theta) -> Theta:
        low, high = np.array(self.bounds).T
        return np.clip(theta, low, high)

    def starts(self) -> list[Theta]:
        """For each pair of exponents, E, X and Y by linear least squares of the additive law; best first.

        They start the joint law too: it differs by a factor where X and Y are similar, which the hops correct.
        """
        loss, starts = np.exp(self.log_loss), []
        for a, b in product(_EXPONENTS, repeat=2):
            parts = np.stack([np.ones_like(loss), np.exp(-a * self.x), np.exp(-b * self.z)], 1)
            sizes = np.maximum(nnls(parts / loss[:, None], np.ones_like(loss))[0], 1e-2 * loss.min())
            starts.append(self.inside(np.log([*sizes, a, b])))
        return sorted(starts, key=lambda theta: self(theta)[0])

    def theta_of(self, law: Law) -> Theta:
        n, d = (np.exp(mean) / law.form.unit for mean in self.means)
        power = law.shape[2]
        log_x = power * np.log(law.A) - law.a * np.log(n)
        log_y = power * np.log(law.B) - law.b * np.log(d)
        return self.inside(np.array([np.log(law.E), log_x, log_y, np.log(law.a), np.log(law.b)]))

    def descend(self, theta: Theta) -> tuple[float, Theta]:
        end = minimize(self, theta, **self._minimizer)
        return float(end.fun), end.x

    def hop(self, theta: Theta, hops: int, seed: int) -> tuple[float, Theta]:
        rng = np.random.default_rng(seed)

        def step(at: Theta) -> Theta:
            return self.inside(at + rng.uniform(-1, 1, len(at)))

        end = basinhopping(self, theta, hops, take_step=step, rng=rng, minimizer_kwargs=self._minimizer)
        return float(end.fun), end.x

    @property
    def _minimizer(self) -> dict[str, Any]:
        # Tight tolerances: the minimum lies in a long valley with a small slope along it.
        options = {"maxiter": 2000, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-9}
        return {"method": "L-BFGS-B", "jac": True, "bounds": self.bounds, "options": options}


# -- fits with intervals ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """A fit to resampled runs, and its predictions for the held-out runs."""

    law: Law
    at_bound: tuple[str, ...]
    picks: NDArray[np.int64]
    """Indices of the held-out runs."""
    predicted: Floats
    """Predicted losses of the held-out runs."""


@dataclass(frozen=True)
class Fit:
    """A law fitted to runs, and to resamples of them."""

    law: Law
    runs: Runs
    at_bound: tuple[str, ...]
    """Coefficients that ended at a bound: the runs do not determine them."""
    rounds: tuple[Round, ...] = field(repr=False)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Coefficients that the runs do not determine: at a bound here, or in more than a tenth of the rounds."""
        often = [name for name in _NAMES if sum(name in each.at_bound for each in self.rounds) > 0.1 * len(self.rounds)]
        return tuple(name for name in _NAMES if name in self.at_bound or name in often)

    @property
    def predicted(self) -> Floats:
        return self.law.loss(*self.runs.columns)

    @property
    def scatter(self) -> float:
        """Standard deviation of log L around the law."""
        residuals = np.log(self.predicted / self.runs.loss)
        return float(np.sqrt(np.square(residuals).sum() / max(1, len(residuals) - 5)))

    @property
    def r2(self) -> float:
        return _r2(self.predicted, self.runs.loss, self.runs.loss)

    @property
    def mre(self) -> float:
        """Mean relative error."""
        return float(np.mean(np.abs(self.predicted / self.runs.loss - 1)))

    @property
    def held_out_r2(self) -> float:
        picks, predicted = self.held_out
        return _r2(predicted, self.runs.loss[picks], self.runs.loss)

    @property
    def held_out_mre(self) -> float:
        picks, predicted = self.held_out
        return float(np.mean(np.abs(predicted / self.runs.loss[picks] - 1)))

    @property
    def held_out(self) -> tuple[NDArray[np.int64], Floats]:
        """Indices of the held-out runs of all rounds, and their predicted losses."""
        if not self.rounds:
            return np.zeros(0, np.int64), np.zeros(0)
        return np.concatenate([each.picks for each in self.rounds]), np.concatenate([r.predicted for r in self.rounds])

    @property
    def errors(self) -> Floats:
        """Mean relative error on the held-out runs of each round."""
        return np.array([np.mean(np.abs(each.predicted / self.runs.loss[each.picks] - 1)) for each in self.rounds])

    @property
    def laws(self) -> list[Law]:
        """The laws of the rounds."""
        return [each.law for each in self.rounds]

    def interval(self, quantity: Callable[[Law], float], level: float = LEVEL) -> tuple[float, float]:
        """Confidence interval of a positive quantity that is computed from the law."""
        return interval(quantity(self.law), [quantity(each) for each in self.laws], level)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Confidence intervals of the coefficients; NaN for undetermined ones. E is at most the lowest loss."""
        unknown = float("nan"), float("nan")
        intervals = {
            name: unknown if {*name.split("/")} & {*self.undecided} else self.interval(partial(_coefficient, name))
            for name in self.law.coefficients
        }
        low, high = intervals["E"]
        return intervals | {"E": (low, max(min(high, float(self.runs.loss.min())), self.law.E) if low == low else high)}


def interval(value: float, values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Confidence interval of a positive quantity, from the fit to all runs and the fits to resampled runs.

    It is a Student interval with the standard deviation of the log over the rounds; quantiles of 20 rounds would be far
    noisier. Each round has 90 % of the runs, which makes the interval 5 % too wide.
    """
    with np.errstate(divide="ignore"):
        logs, centre = np.log(values), float(np.log(value))
    if len(logs) < 2 or not np.isfinite(logs).all():  # undefined for one of the laws
        return float("nan"), float("nan")
    with np.errstate(over="ignore"):
        reach = float(logs.std(ddof=1) * t.ppf((1 + level) / 2, len(logs) - 1))
        return float(np.exp(centre - reach)), float(np.exp(centre + reach))


def fit(form: Form, runs: Runs, *, rounds: int = ROUNDS, huber: float = HUBER, hops: int = HOPS, seed: int = 0) -> Fit:
    """Fit a law to all runs, then once per round: a tenth is held out and the rest resampled with replacement.

    Runs that differ only in their seed are drawn and held out together.
    """
    reason = runs.spread_problem()
    if reason:
        raise UserError(f"{reason}.")
    if not 0 < huber <= 1:
        raise UserError(f"huber is a relative error, above 0 and at most 1, got {huber!r}.")
    problem = Problem(form, runs, huber)
    with threadpool_limits(1):  # L-BFGS does many tiny products, which threads only slow down
        cost, theta = min((problem.descend(start) for start in problem.starts()[:_STARTS]), key=itemgetter(0))
        theta = min((cost, theta), problem.hop(theta, hops, seed), key=itemgetter(0))[1]
        law = Law.from_theta(form, theta, problem.means)
        resampled = [_round(form, runs, huber, law, seed, number) for number in range(rounds)]
    return Fit(law, runs, problem.at_bound(theta), tuple(resampled))


def _coefficient(name: str, law: Law) -> float:
    return law.coefficients[name]


def _round(form: Form, runs: Runs, huber: float, law: Law, seed: int, number: int) -> Round:
    rng = np.random.default_rng((seed, number))  # the same runs for every form
    groups = runs.seed_groups
    count = int(groups.max()) + 1
    for _ in range(_TRIES):
        order = rng.permutation(count)
        held_out = order[: max(1, round(_HELD_OUT * count))]
        drawn = rng.choice(order[len(held_out) :], count - len(held_out))
        sample = runs.take(np.concatenate([np.flatnonzero(groups == group) for group in drawn]))
        reason = sample.spread_problem(MIN_RESAMPLED)
        if reason is None:
            break
    else:
        raise UserError(f"{count} different runs are too few to resample: {reason}.")
    problem = Problem(form, sample, huber)
    starts = [problem.theta_of(law), *problem.starts()[:1]]
    cost, theta = min((problem.descend(start) for start in starts), key=itemgetter(0))
    theta = min((cost, theta), problem.hop(theta, _ROUND_HOPS, number), key=itemgetter(0))[1]
    fitted = Law.from_theta(form, theta, problem.means)
    picks = np.flatnonzero(np.isin(groups, held_out))
    return Round(fitted, problem.at_bound(theta), picks, fitted.loss(*(column[picks] for column in runs.columns)))


def _r2(predicted: Floats, loss: Floats, all_losses: Floats) -> float:
    if not len(loss):
        return float("nan")
    return 1 - float(np.square(predicted - loss).mean() / all_losses.var()) if all_losses.var() else float("nan")


@dataclass(frozen=True)
class Comparison:
    """Which of two laws predicts held-out runs better."""

    better: Fit
    worse: Fit
    difference: float
    """Difference of their mean relative errors on held-out runs."""
    error: float
    """Standard error of the difference, corrected for the overlap of the rounds (Nadeau and Bengio, 2003)."""

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant at the 5 % level, two-sided."""
        return bool(0 < self.error * t.ppf(0.975, len(self.better.rounds) - 1) < self.difference)


def compare(one: Fit, other: Fit) -> Comparison:
    """Compare two laws fitted to the same runs with the same seed."""
    better, worse = sorted((one, other), key=lambda each: float(each.errors.mean()))
    gaps = worse.errors - better.errors
    share = len(better.rounds[0].picks) / (len(better.runs) - len(better.rounds[0].picks))
    error = float(np.sqrt(gaps.var(ddof=1) * (1 / len(gaps) + share)))
    return Comparison(better, worse, float(gaps.mean()), error)
