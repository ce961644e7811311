"""The results of a fit as sentences and as JSON (triptych.scaling.fit_file reads the JSON)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.scaling.fit import LEVEL, Comparison, Fit, interval
from triptych.scaling.law import Law
from triptych.scaling.optimal import FlopsPerToken, line_search

Interval = tuple[float, float]


def coefficients_line(fit: Fit) -> str:
    """The law and its coefficients with their intervals."""
    form = fit.law.form
    unit = " for N and D in billions" if form.unit != 1 else ""
    values = ", ".join(
        f"{name} {value:.4g} " + (f"({low:.4g} to {high:.4g})" if low == low else "(not determined by the runs)")
        for (name, value), (low, high) in zip(fit.law.coefficients.items(), fit.intervals.values())
    )
    return f"{form.name} law L = {form.formula}{unit}: {values}, {LEVEL:.0%} intervals"


def errors_line(fit: Fit) -> str:
    return (
        f"{fit.law.form.name} law: R2 {fit.r2:.4f} and MRE {fit.mre:.2%} on the fitted runs, "
        f"R2 {fit.held_out_r2:.4f} and MRE {fit.held_out_mre:.2%} on held-out runs"
    )


def comparison_line(comparison: Comparison) -> str:
    better, worse = comparison.better.law.form.name, comparison.worse.law.form.name
    low, high = (f"{fit.errors.mean():.2%}" for fit in (comparison.better, comparison.worse))
    gap = f"difference {comparison.difference:.2%} +- {comparison.error:.2%}"
    if not comparison.is_clear:
        return f"the held-out errors of the laws do not differ significantly: {better} {low}, {worse} {high}, {gap}"
    return f"the {better} law predicts held-out runs better than the {worse} law: error {low} against {high}, {gap}"


# -- the optimum for a budget -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BudgetOptimum:
    """The compute-optimal model for a budget by a law, with intervals over the laws of resampled runs."""

    flops: float
    N: float
    D: float
    loss: float
    intervals: Mapping[str, Interval]

    @property
    def as_json(self) -> dict[str, Any]:
        values = {"flops": self.flops, "N": self.N, "D": self.D, "tokens_per_parameter": self.D / self.N}
        intervals = {name: interval_json(ends) for name, ends in self.intervals.items()}
        return values | {"loss": self.loss, "intervals": intervals}


def optimum_for_budget(law: Law, laws: Sequence[Law], budget: float, per_token: FlopsPerToken) -> BudgetOptimum | None:
    """The optimum by `law`, with intervals over `laws`; None if the law has no optimum."""
    values = _optimum(law, budget, per_token)
    if not np.isfinite(values).all():
        return None
    resampled = [_optimum(each, budget, per_token) for each in laws]
    intervals = {name: interval(value, each) for name, value, each in zip(_QUANTITIES, values, zip(*resampled))}
    return BudgetOptimum(budget, *values, intervals=intervals)


_QUANTITIES = ("N", "D", "loss")


def _optimum(law: Law, budget: float, per_token: FlopsPerToken) -> tuple[float, float, float]:
    best = line_search(law, budget, per_token)
    if best is None:
        return float("nan"), float("nan"), float("nan")
    return best.N, best.D, float(law.loss(best.N, best.D))


# -- JSON -------------------------------------------------------------------------------------------------------------


def as_json(
    fits: Sequence[Fit],
    comparison: Comparison | None,
    chosen: Fit,
    per_token: FlopsPerToken | None,
    optima: Sequence[BudgetOptimum],
) -> dict[str, Any]:
    compared = None
    if comparison is not None:
        compared = {"difference": comparison.difference, "error": comparison.error, "is_clear": comparison.is_clear}
    return {
        "runs": len(chosen.runs),
        "chosen": chosen.law.form.name,
        "comparison": compared,
        "fits": {fit.law.form.name: _fit_json(fit) for fit in fits},
        "flops_per_token": None if per_token is None else per_token.as_json,
        "best": [optimum.as_json for optimum in optima],
    }


def _fit_json(fit: Fit) -> dict[str, Any]:
    return {
        "law": fit.law.as_json,
        "intervals": {name: interval_json(ends) for name, ends in fit.intervals.items()},
        "level": LEVEL,
        "undecided": list(fit.undecided),
        "fitted": {"r2": _number(fit.r2), "mre": fit.mre},
        "held_out": {"r2": _number(fit.held_out_r2), "mre": _number(fit.held_out_mre)},
        "rounds": [law.as_json for law in fit.laws],
    }


def interval_json(interval: Interval) -> list[float | None]:
    """The ends of an interval; None where they are not finite, because JSON has no NaN."""
    return [_number(end) for end in interval]


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
