"""Panels of the critical batch size: the sweeps with the law, S_crit and B_crit against the number of tokens."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from triptych.scaling.critical_batch import CEILING_NATS
from triptych.scaling.groups import group_close
from triptych.scaling.law import Floats
from triptych.scaling.plateau import SAME_TOKENS, PlateauLaw, PlateauLawFit
from triptych.scaling.plateau_report import sweep_rows
from triptych.utils.plotting import pyplot, save
from triptych.utils.units import human_number


def draw_plateau(fit: PlateauLawFit, delta: float, path: Path, sequence_tokens: float = 1.0) -> None:
    """The sweeps over sizes and over numbers of tokens, and S_crit and B_crit with the law; batches in sequences."""
    members = [np.flatnonzero(fit.sweeps.of == number)[0] for number in range(fit.sweeps.count)]
    sizes, tokens = fit.sweeps.N[members], fit.sweeps.D[members]
    by_size = max(np.unique(sizes), key=lambda size: int((sizes == size).sum()))
    by_tokens = max(group_close(tokens, SAME_TOKENS), key=len)
    figure, panels = pyplot().subplots(2, 2, figsize=(10.4, 7.6))
    sweeps_panel(panels[0, 0], fit, by_tokens, "N", delta)
    sweeps_panel(panels[0, 1], fit, np.flatnonzero(sizes == by_size), "D", delta)
    steps_panel(panels[1, 0], fit, float(by_size), delta)
    batch_panel(panels[1, 1], fit, float(by_size), delta, sequence_tokens)
    figure.tight_layout()
    save(figure, path)


def sweeps_panel(panel: Any, fit: PlateauLawFit, numbers: Iterable[int], by: str, delta: float) -> None:
    """exp(loss) over the number of steps, one curve per sweep, relative to its plateau; `by` is N or D."""
    numbers = sorted(numbers, key=lambda number: float(getattr(fit.sweeps, by)[fit.sweeps.of == number][0]))
    colours = pyplot().get_cmap("viridis")(np.linspace(0, 0.85, len(numbers)))
    for number, colour in zip(numbers, colours):
        sweep = fit.sweeps.take(np.flatnonzero(fit.sweeps.of == number))
        curve = fit.fit_of(number)
        steps = np.geomspace(sweep.steps.min() / 1.2, sweep.steps.max() * 1.2, 200)
        value = human_number(float(getattr(sweep, by)[0]))
        panel.plot(steps, np.exp(curve.loss(steps) - curve.c), color=colour, lw=1.1)
        panel.plot(
            sweep.steps, np.exp(sweep.loss - curve.c), "o", ms=3.5, color=colour, alpha=0.8, label=f"{by} = {value}"
        )
        panel.axvline(curve.steps_within(delta), color=colour, lw=0.8, ls="--", alpha=0.8)
    panel.axhline(1 + delta, color="0.5", lw=0.7, ls=":")
    panel.set(xscale="log", yscale="log", xlabel="steps S", ylabel="exp(loss), relative to the plateau")
    panel.set_ylim(0.8, np.exp(CEILING_NATS))
    panel.set_title(f"sweeps over {'sizes at one D' if by == 'N' else 'tokens at one N'} (dashed: S_crit)", fontsize=9)
    panel.legend(fontsize=7.5)


def steps_panel(panel: Any, fit: PlateauLawFit, size: float, delta: float) -> None:
    """S_crit over D: the law with its band, and each sweep by itself."""
    _over_tokens(panel, fit, size, lambda law, tokens: law.critical_steps(size, tokens, delta))
    for row in sweep_rows(fit, delta):
        if row["S_crit_alone"] is not None:
            _point(panel, row, row["S_crit_alone"], size)
    low, high = fit.interval(lambda law: law.xi)
    panel.set(xscale="log", yscale="log", xlabel="D, tokens", ylabel=f"S_crit at {delta:.0%}, steps")
    panel.plot([], [], "o", color="tab:red", label="each sweep by itself (triangles: other sizes)")
    panel.set_title(f"S_crit grows as D^{fit.law.xi:.2f} ({low:.2f} to {high:.2f})", fontsize=9)
    panel.legend(fontsize=7.5)


def batch_panel(panel: Any, fit: PlateauLawFit, size: float, delta: float, sequence_tokens: float = 1.0) -> None:
    """B_crit over D, in sequences of so many tokens."""
    _over_tokens(panel, fit, size, lambda law, tokens: law.critical_tokens(size, tokens, delta) / sequence_tokens)
    for row in sweep_rows(fit, delta):
        if row["S_crit_alone"] is not None:
            _point(panel, row, row["D"] / row["S_crit_alone"] / sequence_tokens, size)
    low, high = fit.interval(lambda law: 1 - law.xi)
    unit = "tokens" if sequence_tokens == 1 else "sequences"
    panel.set(xscale="log", yscale="log", xlabel="D, tokens", ylabel=f"B_crit at {delta:.0%}, {unit}")
    panel.set_title(f"B_crit grows as D^{1 - fit.law.xi:.2f} ({low:.2f} to {high:.2f})", fontsize=9)


def _over_tokens(panel: Any, fit: PlateauLawFit, size: float, quantity: Any) -> None:
    tokens = np.geomspace(fit.sweeps.D.min() / 1.3, fit.sweeps.D.max() * 1.3, 25)
    ends: Floats = np.array([fit.log_interval(partial(_at, quantity, each)) for each in tokens])
    panel.fill_between(tokens, ends[:, 0], ends[:, 1], color="tab:blue", alpha=0.15, lw=0)
    panel.plot(
        tokens, [quantity(fit.law, each) for each in tokens], label=f"law of all sweeps, at N = {human_number(size)}"
    )


def _at(quantity: Any, tokens: float, law: PlateauLaw) -> float:
    return float(quantity(law, tokens))


def _point(panel: Any, row: dict[str, Any], value: float, size: float) -> None:
    """A sweep by itself; hollow if its critical batch is not inside the sweep, a triangle for another size."""
    marker = "o" if row["N"] == size else "^"
    panel.plot(row["D"], value, marker, ms=5, color="tab:red", mfc="tab:red" if row["is_bracketed"] else "none")
