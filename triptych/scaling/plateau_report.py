"""The critical numbers of steps of several sweeps as sentences and as JSON."""

from functools import partial
from typing import Any

import numpy as np

from triptych.errors import UserError
from triptych.scaling.critical_batch import PlateauFit, fit_plateau
from triptych.scaling.plateau import PlateauLaw, PlateauLawFit
from triptych.scaling.report import Interval, interval_json
from triptych.utils.units import human_number


def exponent_text(value: float, ends: Interval) -> str:
    if np.isnan(value):
        return "(not determined)"
    return f"{value:.2f} ({ends[0]:.2f} to {ends[1]:.2f})"


def _steps_at(size: float, tokens: float, delta: float, law: PlateauLaw) -> float:
    return law.critical_steps(size, tokens, delta)


def _alone(fit: PlateauLawFit, number: int) -> PlateauFit | None:
    """The plateau of one sweep fitted by itself; None if it cannot be."""
    sweep = fit.sweeps.take(np.flatnonzero(fit.sweeps.of == number))
    try:
        return fit_plateau(sweep.steps, sweep.loss, fit.sweeps.huber)
    except UserError:
        return None


def law_lines(fit: PlateauLawFit, delta: float) -> list[str]:
    law = fit.law
    lines = [
        f"S_crit at {delta:.0%}: {law.critical_steps(law.N0, law.D0, delta):,.0f} steps at N = "
        f"{human_number(law.N0)} and D = {human_number(law.D0)}; the bend q is {law.q:.2f}; 95% intervals from "
        f"{len(fit.laws)} resamples of the runs within each sweep"
    ]
    for name, symbol, value, quantity in (
        ("sizes", "N", law.nu, lambda law: law.nu),
        ("numbers of tokens", "D", law.xi, lambda law: law.xi),
    ):
        if np.isnan(value):
            lines.append(f"all runs have one of the {name}, so the exponent of {symbol} is not determined")
        else:
            lines.append(f"S_crit grows as {symbol}^{exponent_text(value, fit.interval(quantity))}")
    if not np.isnan(law.xi):
        low, high = fit.interval(lambda law: 1 - law.xi)
        lines.append(f"B_crit grows as D^{exponent_text(1 - law.xi, (low, high))}")
    return lines


def sweep_lines(fit: PlateauLawFit, delta: float, sequence_tokens: float = 1.0) -> list[str]:
    """One line per sweep; batch sizes in sequences of so many tokens, or in tokens."""
    unit = "tokens" if sequence_tokens == 1 else "sequences"
    lines = []
    for row in sweep_rows(fit, delta):
        batch = row["D"] / row["S_crit"] / sequence_tokens
        ends = [row["D"] / end / sequence_tokens for end in reversed(row["interval"])]
        alone = "none" if row["S_crit_alone"] is None else human_number(row["S_crit_alone"])
        outside = "" if row["is_bracketed"] else "; not bracketed by the sweep"
        lines.append(
            f"N {human_number(row['N'])}, D {human_number(row['D'])}: S_crit {human_number(row['S_crit'])} "
            f"({human_number(row['interval'][0])} to {human_number(row['interval'][1])}), by this sweep alone {alone}; "
            f"B_crit {human_number(batch)} {unit} ({human_number(ends[0])} to {human_number(ends[1])}){outside}"
        )
    return lines


def sweep_rows(fit: PlateauLawFit, delta: float) -> list[dict[str, Any]]:
    """S_crit of each sweep by the law, with its interval, and by the sweep alone."""
    bracketed, rows = fit.bracketed(delta), []
    for number in range(fit.sweeps.count):
        sweep = fit.sweeps.take(np.flatnonzero(fit.sweeps.of == number))
        size, tokens = float(sweep.N[0]), float(sweep.D[0])
        quantity = partial(_steps_at, size, tokens, delta)
        alone = _alone(fit, number)
        rows.append(
            {
                "N": size,
                "D": tokens,
                "runs": len(sweep),
                "plateau": fit.law.c[number],
                "S_crit": quantity(fit.law),
                "interval": list(fit.log_interval(quantity)),
                "S_crit_alone": None if alone is None else alone.steps_within(delta),
                "is_bracketed": number in bracketed,
            }
        )
    return rows


def plateau_json(fit: PlateauLawFit, delta: float) -> dict[str, Any]:
    law = fit.law
    numbers = {"s": law.s, "nu": law.nu, "xi": law.xi, "q": law.q, "N0": law.N0, "D0": law.D0}
    rows = sweep_rows(fit, delta)
    return {
        "runs": len(fit.sweeps),
        "law": {name: None if np.isnan(value) else value for name, value in numbers.items()},
        "delta": delta,
        "intervals": {
            "nu": interval_json(fit.interval(lambda law: law.nu)),
            "xi": interval_json(fit.interval(lambda law: law.xi)),
        },
        "scatter": fit.scatter,
        "sweeps": [{**row, "interval": interval_json(tuple(row["interval"]))} for row in rows],
    }
