"""Batch size at a fixed number of tokens: with the batch-size rule, the final loss is constant up to a critical size.

Three ways to set hyperparameters for a batch size other than the proxy's:

    none        keep all hyperparameters of the proxy
    no decay    the rule as the paper prints it: learning rate, betas and epsilon scale with kappa, not weight decay
    sde         the rule including weight decay

Beyond the critical batch size there are too few steps to follow the stochastic differential equation of the rule.
"""

import argparse
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import studentized_range

from triptych.cli.args import positive_float, positive_int, positive_ints
from triptych.errors import UserError
from triptych.recipes.proxy import scaled_proxy
from triptych.scaling.critical_batch import HUBER_NATS, CriticalBatch, bootstrap
from triptych.scaling.intervals import Interval
from triptych.studies.base import Claim, Study, StudyRecords, grid_study, missing_grid_runs, multiples
from triptych.studies.table_runs import pooled_std
from triptych.studies.verdict import all_of, verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

_BATCHES = [2.0**exponent for exponent in range(-3, 5)]  # of the base run's
WAYS = ("none", "no decay", "sde")
DELTAS = (0.01, 0.1)  # rises of exp(loss) that define the critical size; noise between seeds resolves only the second


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batches",
        type=positive_ints,
        metavar="N,N",
        help="batch sizes, in sequences (default: 1/8, 1/4, ..., 16 times the proxy's)",
    )
    parser.add_argument(
        "--tokens",
        type=positive_float,
        default=2.0,
        metavar="X",
        help="tokens per run, as a multiple of the proxy's (default: 2)",
    )
    parser.add_argument("--seeds", type=positive_int, default=2, metavar="N", help="seeds per setting (default: 2)")


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    batches = args.batches or multiples(run.loader.global_batch, _BATCHES)
    return [
        Trial(
            f"{way} batch {batch} tokens {args.tokens:g} seed {seed}",
            {"way": way, "batch": batch, "tokens": args.tokens, "seed": seed},
        )
        for seed in range(args.seeds)
        for batch in batches
        for way in WAYS
    ]


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    settings = trial.settings
    config = scaled_proxy(run, batch=settings["batch"], tokens=settings["tokens"], seed=settings["seed"])
    # The part of kappa due to the number of tokens applies to all ways, so that they agree at the proxy's batch size.
    kappa = scaled_proxy(run, batch=run.loader.global_batch, tokens=settings["tokens"]).resolved.kappa
    values = config.optimizer
    if settings["way"] == "none":
        config = replace(
            config,
            transfer=replace(config.transfer, base_batch=None, base_steps=None),
            optimizer=replace(
                values,
                lr=values.lr * kappa**0.5,
                beta1=values.beta1**kappa,
                beta2=values.beta2**kappa,
                eps=values.eps * kappa**-0.5,
                weight_decay=values.weight_decay * kappa**0.5,
                clip=None if values.clip is None else values.clip * kappa**-0.5,
            ),
        )
    elif settings["way"] == "no decay":
        config = replace(
            config,
            transfer=replace(config.transfer, scales_decay=False),
            optimizer=replace(values, weight_decay=values.weight_decay * kappa**0.5),
        )
    return config


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    config = configure(trial, run)
    return {**train_in_memory(config, bundle).as_json, "num_steps": config.num_steps}


def losses(records: StudyRecords, way: str) -> dict[int, list[float]]:
    """Losses of all seeds by batch size; infinite where a run diverged."""
    by_batch: dict[int, list[float]] = {}
    for record in records:
        if record["way"] == way:
            by_batch.setdefault(record["batch"], []).append(math.inf if record["loss"] is None else record["loss"])
    return dict(sorted(by_batch.items()))


def spread(by_batch: dict[int, list[float]], largest: float) -> float:
    """Largest minus smallest mean loss among batches up to `largest`."""
    means = [float(np.mean(values)) for batch, values in by_batch.items() if batch <= largest]
    return max(means) - min(means)


def spread_interval(by_batch: dict[int, list[float]], largest: float) -> Interval:
    """The spread with its 95 % interval, by the studentized range; without one if there is one seed."""
    groups = [values for batch, values in by_batch.items() if batch <= largest and all(map(math.isfinite, values))]
    value, freedom = spread(by_batch, largest), sum(len(values) - 1 for values in groups)
    if not freedom or len(groups) < 2:
        return Interval(value, math.nan, math.nan)
    error = pooled_std(groups) / min(map(len, groups)) ** 0.5
    margin = _range_quantile(len(groups), freedom) * error
    return Interval(value, max(0.0, value - margin), value + margin)


@cache
def _range_quantile(num_groups: int, freedom: int) -> float:
    return float(studentized_range.ppf(0.95, num_groups, freedom))  # takes a third of a second


def rise_interval(by_batch: dict[int, list[float]], batch: int) -> Interval:
    """How much higher the mean loss is at this batch size than at the best one, with a 95 % interval."""
    best = min(by_batch, key=lambda each: float(np.mean(by_batch[each])))
    value, groups = float(np.mean(by_batch[batch]) - np.mean(by_batch[best])), list(by_batch.values())
    freedom = sum(len(values) - 1 for values in groups if all(map(math.isfinite, values)))
    if not freedom or not math.isfinite(value):  # one seed, or a diverged run, whose loss is worse than any
        return Interval(value, *((value, value) if value == math.inf else (math.nan, math.nan)))
    error = pooled_std(groups) * ((1 / len(by_batch[batch]) + 1 / len(by_batch[best])) / 2) ** 0.5
    margin = _range_quantile(len(groups), freedom) * error  # the best of several noisy means is too low
    return Interval(value, value - margin, value + margin)


def seed_std(records: StudyRecords) -> float:
    """Standard deviation of the loss over seeds under the rule, pooled over batch sizes; NaN with one seed."""
    return pooled_std(list(losses(records, "sde").values())) or math.nan


def _critical(records: StudyRecords, delta: float) -> CriticalBatch:
    finished = [record for record in records if record["way"] == "sde" and record["loss"] is not None]
    if not finished:
        raise UserError("no run with the rule has a finite loss yet, so there is no critical batch size.")
    # Numbers of steps are whole, so the run with most of them has nearest to the number of sequences asked for.
    longest = max(finished, key=lambda record: record["num_steps"])
    sequences, noise = longest["batch"] * longest["num_steps"], seed_std(records)
    steps, nats = [record["num_steps"] for record in finished], [record["loss"] for record in finished]
    return bootstrap(sequences, steps, nats, delta, huber=noise if noise > 0 else HUBER_NATS)


def _findings(records: StudyRecords) -> list[str]:
    lines = [f"critical batch size at {delta:.0%}, in sequences: {_critical(records, delta)}" for delta in DELTAS]
    critical = _critical(records, DELTAS[-1])
    largest, up_to = math.inf, "all batch sizes"
    if critical.is_bracketed:
        largest, up_to = critical.value, f"batch sizes up to {critical.value:.3g}"
    noise = seed_std(records)
    lines.append(f"standard deviation of the loss over seeds, with the rule: {noise:.4f}")
    for way in WAYS:
        by_batch = losses(records, way)
        means = ", ".join(f"{batch}: {np.mean(values):.4f}" for batch, values in by_batch.items())
        lines.append(f"{way}: spread of the mean losses {spread(by_batch, largest):.4f} over {up_to} ({means})")
    return lines


def claims(records: StudyRecords) -> list[Claim]:
    critical = _critical(records, DELTAS[-1])
    with_rule, without = losses(records, "sde"), losses(records, "none")
    largest = critical.value if critical.is_bracketed else math.inf
    flat = spread_interval(with_rule, largest)
    made = [
        Claim(
            "Figure 4",
            "With the batch-size rule the final loss is the same for all batch sizes below the critical one.",
            f"mean losses differ by {flat} nats over batches up to {largest:.3g}; up to {DELTAS[-1]:g} counts as equal",
            verdict((flat.low, flat.high), high=DELTAS[-1]),
        ),
        Claim(
            "Figure 4",
            "Above a critical batch size the loss rises at a fixed number of tokens, because steps become too few.",
            f"the loss is {DELTAS[-1]:.0%} higher in exp(loss) at {critical} sequences",
            "agrees" if critical.is_bracketed else "undecided",
        ),
    ]
    if len(without) > 2:
        ends = {batch: rise_interval(without, batch) for batch in (min(without), max(without))}
        made.append(
            Claim(
                "Figure 4",
                "Without the rule the loss has a valley over batch sizes.",
                "above the best batch size the loss rises by "
                + " and ".join(f"{rise} nats at {batch}" for batch, rise in ends.items()),
                all_of([verdict((rise.low, rise.high), low=0) for rise in ends.values()]),
            )
        )
    return made


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(5.6, 3.6))
    names = {
        "none": "hyperparameters of the proxy",
        "no decay": "rule without weight decay",
        "sde": "rule with weight decay",
    }
    for way in WAYS:
        by_batch = losses(records, way)
        means = np.array([np.mean(values) for values in by_batch.values()])
        (line,) = panel.plot(list(by_batch), means, "o-", ms=4, label=names[way])
        for batch, values in by_batch.items():
            panel.plot([batch] * len(values), values, ".", ms=3, alpha=0.5, color=line.get_color())
    critical = _critical(records, DELTAS[-1])
    if critical.is_bracketed:
        panel.axvline(critical.value, color="grey", lw=1, ls="--")
        panel.axvspan(max(critical.low, 1e-3), critical.high, color="grey", alpha=0.12, lw=0)
    panel.set_xscale("log", base=2)
    panel.set_xlim(min(losses(records, "sde")) / 1.3, max(losses(records, "sde")) * 1.3)
    finite = [record["loss"] for record in records if record["loss"] is not None]
    panel.set_ylim(min(finite) * 0.97, min(max(finite), 1.6 * min(finite)))
    panel.set_xlabel("batch size in sequences, at a fixed number of tokens")
    panel.set_ylabel("validation loss, nats per token")
    panel.legend()
    save(figure, path)


STUDY = Study(
    _add_arguments,
    grid_study(trials, run_trial),
    missing_grid_runs(trials, configure),
    _findings,
    _draw,
    claims,
    fixed_options=lambda args: {"tokens": args.tokens},
)
