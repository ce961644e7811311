"""The drift-horizon trade-off: with more tokens, how fast should the batch grow?

The proxy's hyperparameters are tuned for its batch size. With kappa = B / Bv, a batch of B follows the stochastic
differential equation of a virtual batch Bv for S = tokens / Bv virtual steps: a larger Bv means less gradient noise and
fewer steps. For every number of tokens there is a best Bv, and gamma is its growth rate: Bv ~ tokens^gamma.

Real batches are never larger than virtual ones. With kappa above 1 or 2 the steps are too large to follow the equation
(studies/batch-size), and the loss would measure that instead.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive_floats, positive_int
from triptych.errors import UserError
from triptych.recipes.proxy import proxy_per_module, scaled_proxy
from triptych.scaling.drift_horizon import DriftHorizon, direct_gamma, direct_interval, fit_drift_horizon
from triptych.scaling.held_out import error_interval
from triptych.scaling.intervals import Interval
from triptych.studies.base import Claim, Study, StudyRecords, grid_study, missing_grid_runs
from triptych.studies.verdict import verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

_VIRTUAL = [2.0**exponent for exponent in range(-3, 3)]  # of the batch that hyperparameters are tuned for
PAPER_GAMMA, NEAR = 0.44, 0.1  # a whole interval within this distance agrees with the paper's value
_MAX_ERROR = 0.05  # mean relative error on held-out runs; above it the law does not describe the runs


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens",
        type=positive_floats,
        default=[0.5, 1.0, 2.0, 4.0],
        metavar="X,X",
        help="tokens per run, as multiples of the proxy's (default: 0.5,1,2,4)",
    )
    parser.add_argument(
        "--virtual",
        type=positive_floats,
        metavar="N,N",
        help="virtual batch sizes (default: 1/8, 1/4, ..., 4 times the proxy's)",
    )
    parser.add_argument("--seeds", type=positive_int, default=2, metavar="N", help="seeds per setting (default: 2)")


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    tuned_batch = run.transfer.base_batch or run.masked_copies
    all_virtual = args.virtual or [tuned_batch * factor for factor in _VIRTUAL]
    return [
        Trial(
            f"tokens {tokens:g} virtual batch {virtual:g} seed {seed}",
            {"tokens": tokens, "virtual_batch": virtual, "seed": seed},
        )
        for seed in range(args.seeds)
        for tokens in args.tokens
        for virtual in all_virtual
    ]


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    settings = trial.settings
    largest = settings["virtual_batch"] / run.length_ratio / run.num_views
    batch = max(1, min(run.loader.global_batch, int(largest)))
    config = scaled_proxy(run, batch=batch, tokens=settings["tokens"], seed=settings["seed"])
    # With gamma = 0, kappa is the ratio of the batches.
    return replace(config, transfer=replace(config.transfer, base_batch=settings["virtual_batch"], gamma=0.0))


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    config = configure(trial, run)
    assert config.resolved.sde is not None
    return {**train_in_memory(config, bundle).as_json, "virtual_steps": config.resolved.sde.virtual_steps}


def _columns(records: StudyRecords) -> tuple[list[float], list[float], list[float]]:
    """Virtual steps, virtual batches and losses of the runs that did not diverge."""
    finite = [record for record in records if record["loss"] is not None]
    return tuple([record[name] for record in finite] for name in ("virtual_steps", "virtual_batch", "loss"))  # type: ignore[return-value]


def _base_sequences(records: StudyRecords) -> float:
    """Sequences of the base run. Numbers of steps are whole, so the run with most of them has the least rounding."""
    longest = max(records, key=lambda record: record["virtual_steps"])
    return longest["virtual_steps"] * longest["virtual_batch"] / longest["tokens"]


def _direct(columns: tuple[list[float], list[float], list[float]], neighbours: int) -> str:
    value = f"{direct_gamma(*columns, neighbours=neighbours).gamma:.3f}"
    try:
        low, high = direct_interval(*columns, neighbours=neighbours)
    except UserError:  # one seed
        return value
    return f"{value} ({low:.3f} to {high:.3f})"


def _law(columns: tuple[list[float], list[float], list[float]]) -> DriftHorizon | None:
    """The fitted law; None if it does not describe the runs."""
    fitted = fit_drift_horizon(*columns)
    return fitted if fitted.is_identified and fitted.fit.held_out_mre < _MAX_ERROR else None


def _findings(records: StudyRecords) -> list[str]:
    columns = _columns(records)
    law, direct, base = _law(columns), direct_gamma(*columns, neighbours=1), _base_sequences(records)
    if law is None:
        error = fit_drift_horizon(*columns).fit.held_out_mre
        lines = [
            "the law L = E + A S^-alpha + B Bv^-beta does not describe these runs: its mean relative error on held-out "
            f"runs is {error:.0%}"
        ]
    else:
        lines = [
            f"gamma of the fitted law: {law}",
            f"the law: L = {law.fit.law}, mean relative error on held-out runs {law.fit.held_out_mre:.1%}",
        ]
    lines.append(
        f"gamma from the best virtual batches, without the law: {_direct(columns, 1)} with parabolas through three "
        f"points, {_direct(columns, 2)} through five; left out, because they are at an edge of the sweep: "
        f"{direct.num_on_edge} of {len(direct.optima)} optima"
    )
    for optimum in direct.optima:
        edge = ", at the edge" if optimum.is_on_edge else ""
        lines.append(
            f"{optimum.tokens_in_sequences / base:.3g} x the proxy's tokens: best virtual batch "
            f"{optimum.virtual_batch:.3g}{edge}, loss {optimum.loss:.4f}"
        )
    return lines


def gamma_interval(records: StudyRecords) -> Interval:
    """gamma with its 95 % interval: of the law if it describes the runs, else from the best virtual batches."""
    columns = _columns(records)
    if law := _law(columns):
        return Interval(law.gamma, *law.interval)
    value = direct_gamma(*columns, neighbours=1).gamma
    try:
        return Interval(value, *direct_interval(*columns, neighbours=1))
    except UserError:  # one seed
        return Interval(value, math.nan, math.nan)


def claims(records: StudyRecords) -> list[Claim]:
    value = gamma_interval(records)
    fitted = fit_drift_horizon(*_columns(records)).fit
    error = error_interval(fitted)
    ends, shown = (value.low, value.high), value.shown(".2f")
    return [
        Claim(
            "Figure 8",
            "With more tokens it is best to use some of them against noise and some for more steps: gamma lies between "
            "0 and 1.",
            f"gamma {shown}",
            verdict(ends, 0, 1),
        ),
        Claim(
            "Figure 9",
            f"The best virtual batch grows with the tokens to the power of gamma = {PAPER_GAMMA:g}.",
            f"gamma {shown}; within {NEAR:g} of the paper's counts as equal",
            verdict(ends, PAPER_GAMMA - NEAR, PAPER_GAMMA + NEAR),
        ),
        Claim(
            "Section 5.2",
            "A sum of a power of the virtual steps and a power of the virtual batch describes the final loss.",
            f"relative error on held-out runs {error.shown('.1%')}; up to {_MAX_ERROR:.0%} counts as described",
            verdict((error.low, error.high), high=_MAX_ERROR),
        ),
    ]


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(5.6, 3.8))
    columns = _columns(records)
    law, optima, base = _law(columns), direct_gamma(*columns, neighbours=1).optima, _base_sequences(records)
    all_tokens = sorted({record["tokens"] for record in records})
    for number, tokens in enumerate(all_tokens):
        by_batch: dict[float, list[float]] = {}
        for record in records:
            if record["tokens"] == tokens and record["loss"] is not None:
                by_batch.setdefault(record["virtual_batch"], []).append(record["loss"])
        colour = plt.cm.viridis(0.85 * number / max(1, len(all_tokens) - 1))
        batches = np.array(sorted(by_batch))
        means, style = [np.mean(by_batch[b]) for b in batches], "o-" if law is None else "o"
        panel.plot(batches, means, style, ms=4, lw=1, color=colour, label=f"{tokens:g} x tokens")
        if law is not None:
            line = np.geomspace(batches[0], batches[-1], 50)
            panel.plot(line, law.fit.law.loss(tokens * base / line, line), "-", color=colour, lw=1)
    inside = [optimum for optimum in optima if not optimum.is_on_edge]
    panel.plot([each.virtual_batch for each in inside], [each.loss for each in inside], "k*--", ms=9, lw=0.8)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for axis, ticks in ((panel.xaxis, sorted(set(columns[1]))), (panel.yaxis, (1, 1.5, 2, 3, 4, 5))):
        axis.set_major_locator(plt.FixedLocator(ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(plt.NullLocator())
    panel.set_xlabel("virtual batch")
    panel.set_ylabel("validation loss, nats per token")
    panel.legend(loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path)


STUDY = Study(
    _add_arguments,
    grid_study(trials, run_trial),
    missing_grid_runs(trials, configure),
    _findings,
    _draw,
    claims,
    base=proxy_per_module,
)
