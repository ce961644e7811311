"""Batch sizes at a fixed number of tokens: with the rule, where a run ends does not depend on them, up to a point.

Three ways to train with another batch size than the base's:

    none        all hyperparameters as at the base
    no decay    the rule as the paper prints it: learning rate, betas and epsilon follow kappa, weight decay does not
    sde         the rule with weight decay

The point is the critical batch size: beyond it there are too few steps for the equation to be followed.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive, whole_number, whole_numbers
from triptych.errors import UserError
from triptych.recipes.proxy import BASE_BATCH, BASE_STEPS, member
from triptych.scaling.critical_batch import HUBER_NATS, CriticalBatch, bootstrap
from triptych.studies.base import Study, StudyRecords, grid
from triptych.studies.in_memory import train_in_memory
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

WAYS = ("none", "no decay", "sde")
DELTAS = (0.01, 0.1)  # how far exp(loss) may rise; the second is what seeds let one see, and what spreads are taken to


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=whole_numbers, default=[2, 4, 8, 16, 32, 64, 128, 256], metavar="N,N")
    parser.add_argument("--tokens", type=positive, default=2.0, help="of every run, in units of the base's")
    parser.add_argument("--seeds", type=whole_number, default=2)


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


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    asked = trial.settings
    config = member(run, batch=asked["batch"], tokens=asked["tokens"], seed=asked["seed"])
    # The horizon's share of kappa is everyone's, so that all ways are one at the base's batch.
    kappa = member(run, batch=BASE_BATCH, tokens=asked["tokens"]).resolved.kappa
    values = config.optimizer
    if asked["way"] == "none":
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
    elif asked["way"] == "no decay":
        config = replace(
            config,
            transfer=replace(config.transfer, scales_decay=False),
            optimizer=replace(values, weight_decay=values.weight_decay * kappa**0.5),
        )
    return {**train_in_memory(config, bundle).as_json, "num_steps": config.num_steps}


def losses(records: StudyRecords, way: str) -> dict[int, list[float]]:
    """By batch size, of all seeds."""
    found: dict[int, list[float]] = {}
    for record in records:
        if record["way"] == way:
            found.setdefault(record["batch"], []).append(math.inf if record["loss"] is None else record["loss"])
    return dict(sorted(found.items()))


def spread(by_batch: dict[int, list[float]], largest: float) -> float:
    """Largest minus smallest mean loss among batches up to `largest`."""
    means = [float(np.mean(values)) for batch, values in by_batch.items() if batch <= largest]
    return max(means) - min(means)


def seed_std(records: StudyRecords) -> float:
    """How much a loss changes with the seed, with the rule: pooled over batches, without runs that diverged."""
    groups = losses(records, "sde").values()
    finite = [values for values in groups if len(values) > 1 and all(map(math.isfinite, values))]
    freedom = sum(len(values) - 1 for values in finite)
    return math.sqrt(sum(float(np.var(values)) * len(values) for values in finite) / freedom) if freedom else math.nan


def _critical(records: StudyRecords, delta: float) -> CriticalBatch:
    mine = [record for record in records if record["way"] == "sde" and record["loss"] is not None]
    if not mine:
        raise UserError("no run with the rule has ended well: there is no critical batch size to find yet.")
    sequences, noise = mine[0]["tokens"] * BASE_BATCH * BASE_STEPS, seed_std(records)
    steps, nats = [record["num_steps"] for record in mine], [record["loss"] for record in mine]
    return bootstrap(sequences, steps, nats, delta, huber=noise if noise > 0 else HUBER_NATS)


def _findings(records: StudyRecords) -> list[str]:
    found = [f"critical batch size at {delta:.0%}, in sequences: {_critical(records, delta)}" for delta in DELTAS]
    critical = _critical(records, DELTAS[-1])
    largest, up_to = math.inf, "all batch sizes"
    if critical.is_bracketed:
        largest, up_to = critical.value, f"batch sizes up to {critical.value:.3g}"
    noise = seed_std(records)
    found.append(f"with the rule, a loss changes by {noise:.4f} (standard deviation) with the seed")
    for way in WAYS:
        by_batch = losses(records, way)
        means = ", ".join(f"{batch}: {np.mean(values):.4f}" for batch, values in by_batch.items())
        found.append(f"{way}: spread {spread(by_batch, largest):.4f} over {up_to} ({means})")
    return found


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(5.6, 3.6))
    names = {
        "none": "hyperparameters of the base",
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
    panel.set_xlabel("sequences in a batch, the same number in all")
    panel.set_ylabel("held-out nats per token")
    panel.legend()
    save(figure, path)


STUDY = Study(_describe, grid(trials, run_trial), _findings, _draw, fixed=lambda args: {"tokens": args.tokens})
