"""Figures of a fit: predictions, isoFLOP curves, loss contours, and compute-optimal tokens.

Each function draws one panel, so that a study can combine them with its own.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from triptych.scaling.fit import Fit
from triptych.scaling.groups import group_close
from triptych.scaling.law import Floats, Law
from triptych.scaling.optimal import SIX_N, FlopsPerToken, Frontier, line_search
from triptych.scaling.published import PUBLISHED
from triptych.utils.plotting import pyplot, save

_SAME_BUDGET = 0.1  # runs whose log FLOPs differ by less belong to one budget
_MAX_CURVES = 12
_STYLES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)))


def draw_fit(fit: Fit, per_token: FlopsPerToken, path: Path) -> None:
    """All panels that need only a table of runs; laws of other columns than N and D have one."""
    plt = pyplot()
    has_sizes = fit.runs.names == ("N", "D")
    figure, panels = plt.subplots(2, 2, figsize=(10.4, 8.2)) if has_sizes else plt.subplots(figsize=(4.8, 4))
    if not has_sizes:
        predictions(panels, fit)
    else:
        predictions(panels[0, 0], fit)
        isoflops(panels[0, 1], fit, per_token)
        contours(panels[1, 0], fit, per_token)
        frontiers(panels[1, 1], fit, per_token)
    figure.tight_layout()
    save(figure, path)


def predictions(panel: Any, fit: Fit) -> None:
    """Predicted against measured losses, for all runs and for held-out ones."""
    loss = fit.runs.loss
    picks, held_out = fit.held_out
    ends = [min(loss.min(), fit.predicted.min()) * 0.97, max(loss.max(), fit.predicted.max()) * 1.03]
    panel.plot(ends, ends, color="0.6", lw=1)
    panel.scatter(loss, fit.predicted, s=16, color="tab:blue", label=f"fitted: R² {fit.r2:.4f}, MRE {fit.mre:.2%}")
    if len(held_out):
        label = f"held out: R² {fit.held_out_r2:.4f}, MRE {fit.held_out_mre:.2%}"
        panel.scatter(loss[picks], held_out, s=14, marker="x", lw=0.8, color="tab:orange", label=label)
    panel.set(xscale="log", yscale="log", xlabel="measured loss, nats per token", ylabel="predicted loss")
    panel.set_title(f"{fit.law.form.name} law: {fit.law.form.formula}", fontsize=9)
    _plain_ticks(panel.xaxis)
    _plain_ticks(panel.yaxis)
    panel.legend(loc="upper left", fontsize=8)


def isoflops(panel: Any, fit: Fit, per_token: FlopsPerToken) -> None:
    """Loss over model size at equal compute; lines show the law, stars its optimum."""
    sizes = fit.runs.columns[0]
    groups = budgets(per_token(sizes) * fit.runs.columns[1] if fit.runs.flops is None else fit.runs.flops)
    colours = _colours(len(groups))
    shown = groups if len(groups) <= _MAX_CURVES else groups[:: -(-len(groups) // _MAX_CURVES)]
    n = np.geomspace(sizes.min() / 1.6, sizes.max() * 1.6, 200)
    for (budget, members), colour in zip(groups, colours):
        panel.scatter(sizes[members], fit.runs.loss[members], s=13, color=colour)
        if not any(budget == other for other, _ in shown):
            continue
        panel.plot(n, fit.law.loss(n, budget / per_token(n)), color=colour, lw=1.1)
        best = line_search(fit.law, budget, per_token)
        if best is not None and n[0] <= best.N <= n[-1]:
            height = float(fit.law.loss(best.N, best.D))
            panel.plot(best.N, height, "*", ms=10, color=colour, mec="black", mew=0.5)
            panel.annotate(
                f"{budget:.2g}",
                (best.N, height),
                (0, -7),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=6.5,
            )
    losses = fit.runs.loss
    panel.set(xscale="log", yscale="log", xlabel="N, non-embedding parameters", ylabel="loss, nats per token")
    panel.set_ylim(losses.min() * 0.86, losses.max() * 1.1)
    _plain_ticks(panel.yaxis)
    panel.set_title("isoFLOP curves: runs, law, and optimum (stars, with the budget)", fontsize=9)


def contours(panel: Any, fit: Fit, per_token: FlopsPerToken) -> None:
    """Contours of equal loss, and the compute-optimal frontier through them."""
    sizes, tokens = fit.runs.columns
    n = np.geomspace(sizes.min() / 2, sizes.max() * 2, 120)
    d = np.geomspace(tokens.min() / 2, tokens.max() * 2, 120)
    surface = fit.law.loss(n[None, :], d[:, None])
    low, high = fit.runs.loss.min() * 0.97, fit.runs.loss.max()
    levels = np.geomspace(low, high, 10)
    lines = panel.contour(n, d, surface, levels=levels, cmap="viridis_r", linewidths=1)
    panel.clabel(lines, fontsize=6.5, fmt="%.3g")
    panel.scatter(sizes, tokens, s=8, color="0.35", label="runs")
    optimal = Frontier.from_law(fit.law).tokens(n, per_token)
    inside = (optimal > d[0]) & (optimal < d[-1])
    panel.plot(n[inside], optimal[inside], color="tab:red", lw=1.8, label="D*(N), compute-optimal")
    panel.set(xscale="log", yscale="log", xlabel="N, non-embedding parameters", ylabel="D, tokens")
    panel.set_title("contours of equal loss", fontsize=9)
    panel.legend(fontsize=8, loc="lower right", frameon=True, framealpha=0.9, edgecolor="none")


def frontiers(panel: Any, fit: Fit, per_token: FlopsPerToken) -> None:
    """Compute-optimal tokens by this fit and by published laws, at 6 N FLOPs per token; by this fit also with the
    counted FLOPs. Lines are bold within the range of the fitted runs."""
    sizes, own = fit.runs.columns[0], Frontier.from_law(fit.law)
    n = np.geomspace(min(sizes.min(), 1e7), max(sizes.max(), 1e11), 300)
    for style, (name, law) in zip(_STYLES, PUBLISHED.items()):
        known = n[(n >= law.sizes[0]) & (n <= law.sizes[1])]
        colour = panel.plot(n, law.frontier.tokens(n), ls=style, lw=0.9, label=name)[0].get_color()
        panel.plot(known, law.frontier.tokens(known), color=colour, lw=2.2, alpha=0.8)
    inside = np.geomspace(sizes.min(), sizes.max(), 100)
    panel.plot(n, own.tokens(n), color="black", lw=0.9, ls="--")
    panel.plot(inside, own.tokens(inside), color="black", lw=2.4, label="these runs")
    if fit.rounds:
        ends = np.array([fit.interval(partial(_optimal_tokens, size)) for size in inside[::9]])
        panel.fill_between(inside[::9], ends[:, 0], ends[:, 1], color="black", alpha=0.13, lw=0)
    if per_token != SIX_N:
        panel.plot(inside, own.tokens(inside, per_token), color="0.45", lw=1.4, label="these runs, FLOPs as counted")
    panel.set(xscale="log", yscale="log", xlabel="N, non-embedding parameters", ylabel="D*(N), tokens")
    panel.set_title("compute-optimal tokens at 6 N FLOPs per token (bold: range of the runs)", fontsize=9)
    panel.legend(fontsize=7.5, loc="upper left")


def _optimal_tokens(size: float, law: Law) -> float:
    return float(Frontier.from_law(law).tokens(size))


def training_curves(
    panel: Any, curves: Sequence[tuple[Sequence[float], Sequence[float]]], of_budget: Sequence[float]
) -> None:
    """Training loss over FLOPs, one line per run."""
    order = sorted(set(of_budget))
    colours = dict(zip(order, _colours(len(order))))
    for (compute, loss), budget in zip(curves, of_budget):
        panel.plot(compute, loss, color=colours[budget], lw=0.8, alpha=0.8)
        panel.plot(compute[-1], loss[-1], ".", ms=4, color=colours[budget])
    panel.set(xscale="log", yscale="log", xlabel="FLOPs", ylabel="training loss, nats per token")
    _plain_ticks(panel.yaxis)
    panel.set_title("training curves (colour: budget)", fontsize=9)


def by_modality(panel: Any, compute: Sequence[float], losses: Mapping[str, Sequence[float]]) -> None:
    """Validation loss by modality, for the best run of each budget."""
    for name, values in losses.items():
        panel.plot(compute, values, "o-", ms=3.5, lw=1.1, label=name)
    panel.set(xscale="log", yscale="log", xlabel="FLOPs", ylabel="validation loss, nats per token")
    _plain_ticks(panel.yaxis)
    panel.set_title("best run of each budget, by modality", fontsize=9)
    panel.legend(fontsize=8)


def budgets(compute: Floats) -> list[tuple[float, Any]]:
    """Groups of runs with nearly the same FLOPs, each with its geometric mean."""
    groups = group_close(compute, _SAME_BUDGET)
    return [(float(np.exp(np.log(compute[group]).mean())), group) for group in groups]


def _colours(count: int) -> list[Any]:
    return list(pyplot().get_cmap("plasma")(np.linspace(0.0, 0.88, max(1, count))))


def _plain_ticks(axis: Any) -> None:
    """Ticks like 1, 2, 3 instead of 10^0, for a log scale of about one decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
