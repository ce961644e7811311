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
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive_float, positive_int, positive_ints
from triptych.errors import UserError
from triptych.recipes.proxy import BASE_BATCH, BASE_STEPS, scaled_proxy
from triptych.scaling.critical_batch import HUBER_NATS, CriticalBatch, bootstrap
from triptych.studies.base import Study, StudyRecords, grid_study, missing_grid_runs
from triptych.studies.table_runs import pooled_std
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

WAYS = ("none", "no decay", "sde")
DELTAS = (0.01, 0.1)  # rises of exp(loss) that define the critical size; noise between seeds resolves only the second


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batches",
        type=positive_ints,
        default=[2, 4, 8, 16, 32, 64, 128, 256],
        metavar="N,N",
        help="batch sizes, in sequences (default: 2,4,...,256)",
    )
    parser.add_argument(
        "--tokens",
        type=positive_float,
        default=2.0,
        metavar="X",
        help="tokens per run, as a multiple of the proxy's (default: 2)",
    )
    parser.add_argument("--seeds", type=positive_int, default=2, metavar="N", help="seeds per setting (default: 2)")


def trials(args: argparse.Namespace) -> list[Trial]:
    return [
        Trial(
            f"{way} batch {batch} tokens {args.tokens:g} seed {seed}",
            {"way": way, "batch": batch, "tokens": args.tokens, "seed": seed},
        )
        for seed in range(args.seeds)
        for batch in args.batches
        for way in WAYS
    ]


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    settings = trial.settings
    config = scaled_proxy(run, batch=settings["batch"], tokens=settings["tokens"], seed=settings["seed"])
    # The part of kappa due to the number of tokens applies to all ways, so that they agree at the proxy's batch size.
    kappa = scaled_proxy(run, batch=BASE_BATCH, tokens=settings["tokens"]).resolved.kappa
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


def seed_std(records: StudyRecords) -> float:
    """Standard deviation of the loss over seeds under the rule, pooled over batch sizes; NaN with one seed."""
    return pooled_std(list(losses(records, "sde").values())) or math.nan


def _critical(records: StudyRecords, delta: float) -> CriticalBatch:
    finished = [record for record in records if record["way"] == "sde" and record["loss"] is not None]
    if not finished:
        raise UserError("no run with the rule has a finite loss yet, so there is no critical batch size.")
    sequences, noise = finished[0]["tokens"] * BASE_BATCH * BASE_STEPS, seed_std(records)
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
    fixed_options=lambda args: {"tokens": args.tokens},
)
