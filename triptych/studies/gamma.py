"""The drift-horizon trade-off: of more tokens, how many should lower the noise and how many lengthen the way?

The hyperparameters of the base belong to its batch. Run with kappa = B / Bv, a batch of B follows the equation of the
virtual batch Bv, in virtual steps S = tokens / Bv: a larger Bv means less noise and a shorter way. For every number of
tokens there is a best Bv; gamma says how fast it grows: Bv ~ tokens^gamma.

Batches are never larger than the virtual ones: with kappa above 1 or 2 a step is so large that no equation is followed
(studies/batch-size), and what is seen is that.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import numbers, whole_number
from triptych.errors import UserError
from triptych.recipes.proxy import BASE_BATCH, BASE_STEPS, member
from triptych.scaling.drift_horizon import DriftHorizon, direct_gamma, direct_interval, fit_drift_horizon
from triptych.studies.base import Study, StudyRecords, grid
from triptych.studies.in_memory import train_in_memory
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

_DESCRIBES = 0.05  # the largest mean relative error on held-out runs of a law that says something about them


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=numbers, default=[0.5, 1.0, 2.0, 4.0], metavar="N,N", help="in units of the base's"
    )
    parser.add_argument(
        "--virtual", type=numbers, default=[2.0, 4.0, 8.0, 16.0, 32.0, 64.0], metavar="N,N", help="virtual batch sizes"
    )
    parser.add_argument("--seeds", type=whole_number, default=1)


def trials(args: argparse.Namespace) -> list[Trial]:
    return [
        Trial(
            f"tokens {tokens:g} virtual batch {virtual:g} seed {seed}",
            {"tokens": tokens, "virtual_batch": virtual, "seed": seed},
        )
        for seed in range(args.seeds)
        for tokens in args.tokens
        for virtual in args.virtual
    ]


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    asked = trial.settings
    batch = max(1, min(BASE_BATCH, int(asked["virtual_batch"])))
    config = member(run, batch=batch, tokens=asked["tokens"], seed=asked["seed"])
    # With gamma = 0 kappa is the ratio of batches alone.
    config = replace(config, transfer=replace(config.transfer, base_batch=asked["virtual_batch"], gamma=0.0))
    assert config.resolved.sde is not None
    return {**train_in_memory(config, bundle).as_json, "virtual_steps": config.resolved.sde.virtual_steps}


def _columns(records: StudyRecords) -> tuple[list[float], list[float], list[float]]:
    """Virtual steps, virtual batches and losses of the runs that did not diverge."""
    kept = [record for record in records if record["loss"] is not None]
    return tuple([record[name] for record in kept] for name in ("virtual_steps", "virtual_batch", "loss"))  # type: ignore[return-value]


def _direct(columns: tuple[list[float], list[float], list[float]], neighbours: int) -> str:
    value = f"{direct_gamma(*columns, neighbours=neighbours).gamma:.3f}"
    try:
        low, high = direct_interval(*columns, neighbours=neighbours)
    except UserError:  # one seed
        return value
    return f"{value} ({low:.3f} to {high:.3f})"


def _law(columns: tuple[list[float], list[float], list[float]]) -> DriftHorizon | None:
    """The law, if it describes the runs."""
    found = fit_drift_horizon(*columns)
    return found if found.is_identified and found.fit.held_out_mre < _DESCRIBES else None


def _findings(records: StudyRecords) -> list[str]:
    columns = _columns(records)
    law, direct = _law(columns), direct_gamma(*columns, neighbours=1)
    if law is None:
        missed = fit_drift_horizon(*columns).fit.held_out_mre
        found = [
            "the law L = E + A S^-alpha + B B^-beta does not describe these runs: it misses held-out ones by "
            f"{missed:.0%}"
        ]
    else:
        found = [f"gamma of the fitted law: {law}", f"the law: L = {law.fit.law}, misses {law.fit.held_out_mre:.1%}"]
    found.append(
        f"gamma by the best virtual batches alone: {_direct(columns, 1)}, {direct.num_on_edge} of {len(direct.optima)} "
        f"best ones at an edge of the sweep and left out; with parabolas through five points, not three, "
        f"{_direct(columns, 2)}"
    )
    for optimum in direct.optima:
        edge = ", at the edge" if optimum.is_on_edge else ""
        found.append(
            f"{optimum.tokens_in_sequences / (BASE_BATCH * BASE_STEPS):.3g} x the base's tokens: best virtual batch "
            f"{optimum.virtual_batch:.3g}{edge}, loss {optimum.loss:.4f}"
        )
    return found


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(5.6, 3.8))
    columns = _columns(records)
    law, optima = _law(columns), direct_gamma(*columns, neighbours=1).optima
    all_tokens = sorted({record["tokens"] for record in records})
    for number, tokens in enumerate(all_tokens):
        mine: dict[float, list[float]] = {}
        for record in records:
            if record["tokens"] == tokens and record["loss"] is not None:
                mine.setdefault(record["virtual_batch"], []).append(record["loss"])
        colour = plt.cm.viridis(0.85 * number / max(1, len(all_tokens) - 1))
        batches = np.array(sorted(mine))
        means, style = [np.mean(mine[b]) for b in batches], "o-" if law is None else "o"
        panel.plot(batches, means, style, ms=4, lw=1, color=colour, label=f"{tokens:g} x tokens")
        if law is not None:
            line = np.geomspace(batches[0], batches[-1], 50)
            panel.plot(line, law.fit.law.loss(tokens * BASE_BATCH * BASE_STEPS / line, line), "-", color=colour, lw=1)
    inside = [optimum for optimum in optima if not optimum.is_on_edge]
    panel.plot([each.virtual_batch for each in inside], [each.loss for each in inside], "k*--", ms=9, lw=0.8)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for axis, ticks in ((panel.xaxis, sorted(set(columns[1]))), (panel.yaxis, (1, 1.5, 2, 3, 4, 5))):
        axis.set_major_locator(plt.FixedLocator(ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(plt.NullLocator())
    panel.set_xlabel("virtual batch")
    panel.set_ylabel("held-out nats per token")
    panel.legend(loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path)


STUDY = Study(_describe, grid(trials, run_trial), _findings, _draw)
