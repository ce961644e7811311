"""Losses as smooth functions of a mixture of three parts, and the mixture with the lowest weighted loss.

Mixtures are points of a simplex: shares that sum to 1. A loss is fitted with one of a few polynomials, linear in their
coefficients; leave-one-out chooses, with all runs of a mixture left out together. Runs with the same seed have a common
offset, which is subtracted first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triptych.errors import UserError
from triptych.scaling.critical_batch import widened_interval
from triptych.scaling.intervals import Interval
from triptych.scaling.law import Floats

CENTRE = (1 / 3, 1 / 3, 1 / 3)
_GRID_STEPS = 40  # of the mixtures among which the best one is sought, along an edge


def simplex_lattice(divisions: int, smallest: float) -> Floats:
    """[n, 3]: evenly spaced mixtures with at least `smallest` of each part, `divisions` steps along an edge."""
    if divisions < 1 or not 0 <= smallest < 1 / 3:
        raise UserError(
            "a lattice of mixtures needs at least one division and a smallest share of at least 0 and below 1/3, got "
            f"{divisions} and {smallest:g}."
        )
    counts = [(i, j, divisions - i - j) for i in range(divisions + 1) for j in range(divisions + 1 - i)]
    return smallest + (1 - 3 * smallest) * np.array(counts) / divisions


# -- polynomials ------------------------------------------------------------------------------------------------------


def _scheffe_linear(shares: Floats) -> Floats:
    return shares


def _scheffe_quadratic(shares: Floats) -> Floats:
    a, b, c = shares.T
    return np.column_stack([shares, a * b, a * c, b * c])


def _log_ratios(shares: Floats) -> Floats:
    logs = np.log(shares)
    return np.column_stack([logs[:, 0] - logs[:, 2], logs[:, 1] - logs[:, 2]])


def _log_ratio_linear(shares: Floats) -> Floats:
    return np.column_stack([np.ones(len(shares)), _log_ratios(shares)])


def _log_ratio_quadratic(shares: Floats) -> Floats:
    x, y = _log_ratios(shares).T
    return np.column_stack([np.ones(len(x)), x, y, x * x, x * y, y * y])


FORMS: dict[str, Callable[[Floats], Floats]] = {
    "Scheffe, linear": _scheffe_linear,
    "Scheffe, quadratic": _scheffe_quadratic,
    "log-ratios, linear": _log_ratio_linear,
    "log-ratios, quadratic": _log_ratio_quadratic,
}


# -- fits -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdjustedLosses:
    """The losses of runs without the common offset of their seed, and the noise that is left."""

    losses: Floats
    noise: float
    """Standard deviation over the seeds of a mixture; NaN if no mixture has several."""
    freedom: int
    """Degrees of freedom of the noise."""


def mixture_numbers(shares: Floats) -> NDArray[np.int64]:
    """[n]: equal numbers for equal mixtures."""
    return np.unique(np.round(shares, 9), axis=0, return_inverse=True)[1].reshape(-1)


def without_seed_offsets(shares: Floats, losses: Floats, seeds: Sequence[int]) -> AdjustedLosses:
    """Least squares with a mean for every mixture and an offset for every seed; the offsets sum to 0."""
    mixture_columns, seed_columns = (_indicators(values) for values in (mixture_numbers(shares), np.asarray(seeds)))
    seed_columns = seed_columns[:, :-1] - seed_columns[:, -1:]
    design = np.column_stack([mixture_columns, seed_columns])
    coefficients, _, rank, _ = np.linalg.lstsq(design, losses, rcond=None)
    freedom = len(losses) - int(rank)
    squares = float(np.sum((losses - design @ coefficients) ** 2))
    noise = float(np.sqrt(squares / freedom)) if freedom else float("nan")
    return AdjustedLosses(losses - seed_columns @ coefficients[mixture_columns.shape[1] :], noise, freedom)


def _indicators(values: NDArray[np.int64]) -> Floats:
    """[n, number of different values]: 1 where a run has the value."""
    return (values[:, None] == np.unique(values)).astype(float)


@dataclass(frozen=True)
class SimplexFit:
    """A loss as a function of the mixture."""

    form: str
    coefficients: Floats
    error: float
    """Root mean square error of the mixtures that were left out, in nats."""

    def loss(self, shares: Floats) -> Floats:
        return FORMS[self.form](np.atleast_2d(shares)) @ self.coefficients


def fit_form(form: str, shares: Floats, losses: Floats) -> Floats:
    """The coefficients of a polynomial, by least squares."""
    return np.asarray(np.linalg.lstsq(FORMS[form](shares), losses, rcond=None)[0], np.float64)


def counted_fits(design: Floats, losses: Floats, counts: Floats) -> Floats:
    """[k, coefficients]: a regression for each row of `counts`, which says how often every run counts."""
    normal = np.einsum("kn,ni,nj->kij", counts, design, design, optimize=True)
    inverse = np.linalg.pinv(normal, hermitian=True)
    return np.asarray(np.einsum("kij,kn,ni,n->kj", inverse, counts, design, losses, optimize=True), np.float64)


def fit_simplex(shares: Floats, losses: Floats) -> SimplexFit:
    """The polynomial with the lowest leave-one-out error, fitted to all runs."""
    number_of_run, smallest = mixture_numbers(shares), 1 + max(FORMS[form](shares).shape[1] for form in FORMS)
    if len(np.unique(number_of_run)) < smallest:
        raise UserError(
            f"a smooth fit needs runs of at least {smallest} mixtures, got {len(np.unique(number_of_run))}."
        )
    errors = {form: _left_out_error(form, shares, losses, number_of_run) for form in FORMS}
    best = min(errors, key=errors.__getitem__)
    return SimplexFit(best, fit_form(best, shares, losses), errors[best])


def _left_out_error(form: str, shares: Floats, losses: Floats, number_of_run: NDArray[np.int64]) -> float:
    squares = []
    for number in np.unique(number_of_run):
        out = number_of_run == number
        predicted = FORMS[form](shares[out][:1]) @ fit_form(form, shares[~out], losses[~out])
        squares.append(float(predicted[0] - losses[out].mean()) ** 2)
    return float(np.sqrt(np.mean(squares)))


# -- the best mixture -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BestMixture:
    """The mixture with the lowest weighted mean of the losses, each relative to its value at equal shares."""

    shares: tuple[float, ...]
    low: tuple[float, ...]
    """Lower ends of the 95 % intervals of the shares, over resampled runs."""
    high: tuple[float, ...]
    change: Interval
    """Weighted mean of the relative changes of the losses from equal shares; not positive."""
    is_on_edge: bool
    """Whether a share is the smallest that was run; then the best mixture may lie beyond."""


def best_mixture(
    shares: Floats, losses: Floats, weights: Sequence[float], resamples: int = 500, seed: int = 0
) -> BestMixture:
    """`losses` is [n, 3], one column for each part.

    Mixtures beyond the smallest share that was run are not considered, because there the fits are guesses.
    """
    forms = [fit_simplex(shares, column).form for column in losses.T]
    smallest = float(shares.min())
    candidates = np.concatenate([[CENTRE], simplex_lattice(_GRID_STEPS, smallest)])
    columns = [FORMS[form](candidates) for form in forms]
    importance = np.asarray(weights) / sum(weights)
    draws = np.random.default_rng(seed).multinomial(len(shares), np.full(len(shares), 1 / len(shares)), size=resamples)
    counts = np.concatenate([np.ones((1, len(shares))), draws])  # first all runs, then how often each is drawn

    changes = np.zeros((len(counts), len(candidates)))
    for column, form, loss, share in zip(columns, forms, losses.T, importance):
        values = counted_fits(FORMS[form](shares), loss, counts) @ column.T
        changes += share * (values / values[:, :1] - 1)  # from equal shares, the first candidate
    best, change = int(changes[0].argmin()), float(changes[0].min())
    low, high = np.quantile(candidates[changes[1:].argmin(axis=1)], (0.025, 0.975), axis=0)
    return BestMixture(
        tuple(candidates[best].tolist()),
        tuple(np.minimum(low, candidates[best]).tolist()),
        tuple(np.maximum(high, candidates[best]).tolist()),
        Interval(change, *widened_interval(change, changes[1:, best], len(shares), 6)),
        bool(candidates[best].min() < smallest + 1e-9),
    )
