"""What a fit says: in sentences, and as JSON (triptych.scaling.fit_file reads it again)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.scaling.fit import LEVEL, Comparison, Fit, interval
from triptych.scaling.law import Law
from triptych.scaling.optimal import FlopsPerToken, line_search

Ends = tuple[float, float]


def coefficients_line(fit: Fit) -> str:
    """The law and its coefficients with their intervals."""
    form = fit.law.form
    unit = " for N and D in billions" if form.unit != 1 else ""
    values = ", ".join(
        f"{name} {value:.4g} " + (f"({low:.4g} to {high:.4g})" if low == low else "(not decided by the runs)")
        for (name, value), (low, high) in zip(fit.law.coefficients.items(), fit.intervals.values())
    )
    return f"{form.name} law L = {form.formula}{unit}: {values}, {LEVEL:.0%} intervals"


def errors_line(fit: Fit) -> str:
    return (
        f"{fit.law.form.name} law on the runs it was fitted to: R2 {fit.r2:.4f}, MRE {fit.mre:.2%}; on runs held out: "
        f"R2 {fit.held_out_r2:.4f}, MRE {fit.held_out_mre:.2%}"
    )


def comparison_line(found: Comparison) -> str:
    better, worse = found.better.law.form.name, found.worse.law.form.name
    low, high = (f"{each.errors.mean():.2%}" for each in (found.better, found.worse))
    gap = f"difference {found.difference:.2%} +- {found.error:.2%}"
    if not found.is_clear:
        return f"held-out errors do not tell the laws apart: {better} {low}, {worse} {high}, {gap}"
    return f"the {better} law predicts held-out runs better than the {worse} one: error {low} against {high}, {gap}"


# -- the best for a budget --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Best:
    """What suits a budget by a law, with intervals where the law was fitted to resampled runs too."""

    flops: float
    N: float
    D: float
    loss: float
    intervals: Mapping[str, Ends]

    @property
    def as_json(self) -> dict[str, Any]:
        values = {"flops": self.flops, "N": self.N, "D": self.D, "tokens_per_parameter": self.D / self.N}
        return values | {"loss": self.loss, "intervals": {name: finite(ends) for name, ends in self.intervals.items()}}


def best_for(law: Law, laws: Sequence[Law], budget: float, per_token: FlopsPerToken) -> Best | None:
    """None if no size is best by the law."""
    values = _best(law, budget, per_token)
    if not np.isfinite(values).all():
        return None
    again = [_best(each, budget, per_token) for each in laws]
    ends = {name: interval(value, each) for name, value, each in zip(_BEST, values, zip(*again))}
    return Best(budget, *values, intervals=ends)


_BEST = ("N", "D", "loss")


def _best(law: Law, budget: float, per_token: FlopsPerToken) -> tuple[float, float, float]:
    found = line_search(law, budget, per_token)
    if found is None:
        return float("nan"), float("nan"), float("nan")
    return found.N, found.D, float(law.loss(found.N, found.D))


# -- JSON -------------------------------------------------------------------------------------------------------------


def as_json(
    fits: Sequence[Fit],
    comparison: Comparison | None,
    chosen: Fit,
    per_token: FlopsPerToken | None,
    best: Sequence[Best],
) -> dict[str, Any]:
    compared = None
    if comparison is not None:
        compared = {"difference": comparison.difference, "error": comparison.error, "is_clear": comparison.is_clear}
    return {
        "runs": len(chosen.runs),
        "chosen": chosen.law.form.name,
        "comparison": compared,
        "fits": {each.law.form.name: _fit_json(each) for each in fits},
        "flops_per_token": None if per_token is None else per_token.as_json,
        "best": [each.as_json for each in best],
    }


def _fit_json(fit: Fit) -> dict[str, Any]:
    return {
        "law": fit.law.as_json,
        "intervals": {name: finite(ends) for name, ends in fit.intervals.items()},
        "level": LEVEL,
        "undecided": list(fit.undecided),
        "fitted": {"r2": _number(fit.r2), "mre": fit.mre},
        "held_out": {"r2": _number(fit.held_out_r2), "mre": _number(fit.held_out_mre)},
        "rounds": [law.as_json for law in fit.laws],
    }


def finite(ends: Ends) -> list[float | None]:
    """For JSON, which has no numbers that are none."""
    return [_number(end) for end in ends]


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
