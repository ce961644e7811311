"""Anti-masking at equal compute: one epoch with complementary masks against two epochs with one mask each.

Both kinds of runs have the same steps, masked copies per step, unique data and hyperparameters:

    complements     half the batch, every sequence twice in a step with complementary masks, one epoch
    two epochs      the whole batch, every sequence once in an epoch, in another order and with other masks in each

The rule for batch size counts masked copies, so kappa is the same. Runs of a seed have the same initial weights and the
same unique data, and are compared in pairs.

At the end of the runs with two epochs the variance of the gradient is measured (`gradient_variance`).
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.cli.args import positive_floats, positive_int
from triptych.data.shards import TokenDataset
from triptych.errors import UserError, did_you_mean
from triptych.recipes.proxy import proxy_per_module, scaled_proxy
from triptych.scaling.intervals import Interval, mean_interval, ratio_interval
from triptych.studies.base import Claim, Study, StudyRecords, grid_study, missing_grid_runs
from triptych.studies.gradient_variance import ALL, gradient_variance_ratios
from triptych.studies.verdict import verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_model
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial
from triptych.vocab import Task

ARMS = ("complements", "two epochs")
MIXED = "mixed"  # the tasks of the base run, in its shares
TASKS = (MIXED, *(task.label for task in Task))
TERMS = {MIXED: ("text", "image", "audio"), "text": (), "image-text": ("image",), "audio-text": ("audio",)}
"""By tasks: the modalities whose losses are compared beside that of the mixture."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks",
        type=_tasks,
        default=[MIXED, "text"],
        metavar="NAME,NAME",
        help=f"what runs train on: {', '.join(TASKS)} (default: mixed, as the base run, and text)",
    )
    parser.add_argument(
        "--tokens",
        type=positive_floats,
        default=[1.0, 4.0],
        metavar="X,X",
        help="tokens per run with all masked copies, as multiples of the proxy's (default: 1,4)",
    )
    parser.add_argument("--seeds", type=positive_int, default=4, metavar="N", help="seeds per setting (default: 4)")
    parser.add_argument(
        "--draws",
        type=positive_int,
        default=32,
        metavar="N",
        help="draws of each gradient for its variance, at least 2 (default: 32)",
    )


def _tasks(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in TASKS:
            raise argparse.ArgumentTypeError(f"unknown tasks {name!r}.{did_you_mean(name, list(TASKS))}")
    return names


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    if run.masked_copies % 2:
        raise UserError(f"the base run must have an even batch, to halve it; got {run.masked_copies}.")
    if args.draws < 2:
        raise UserError(f"a variance needs at least 2 draws, got --draws {args.draws}.")
    return [
        Trial(
            f"{tasks} tokens {tokens:g} {arm} seed {seed}",
            {"tasks": tasks, "tokens": tokens, "arm": arm, "draws": args.draws, "seed": seed},
        )
        for seed in range(args.seeds)
        for tokens in args.tokens
        for tasks in args.tasks
        for arm in ARMS
    ]


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    settings, copies = trial.settings, run.masked_copies
    plain = replace(run, complementary_masks=False, loader=replace(run.loader, global_batch=copies))
    config = scaled_proxy(plain, batch=copies, tokens=settings["tokens"], seed=settings["seed"])
    if settings["tasks"] != MIXED:
        config = _on_task(config, settings["tasks"])
    has_complements = settings["arm"] == "complements"
    loader = replace(
        config.loader,
        global_batch=copies // 2 if has_complements else copies,
        unique_sequences=config.num_steps * copies // 2,
    )
    return replace(config, loader=loader, complementary_masks=has_complements)


def _on_task(config: RunConfig, label: str) -> RunConfig:
    """The run with the data of one task only."""

    def of_task(folders: Sequence[str]) -> tuple[str, ...]:
        return tuple(folder for folder in folders if TokenDataset(folder).task.label == label)

    data, validation_data = of_task(config.data), of_task(config.validation_data)
    for kind, given, left in (("", config.data, data), ("validation ", config.validation_data, validation_data)):
        if given and not left:
            raise UserError(f"there are no {kind}data of the task {label!r}: add some, or leave it out of --tasks.")
    return replace(
        config,
        data=data,
        validation_data=validation_data,
        loader=replace(config.loader, task_weights={label: 1.0}, dataset_weights={}),
    )


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    config = configure(trial, run)
    model, outcome = train_model(config, bundle)
    result = outcome.as_json
    if trial.settings["arm"] == "two epochs" and not outcome.diverged:
        draws, device = trial.settings["draws"], torch.device("cpu")
        result["variance_ratios"] = gradient_variance_ratios(model, config, bundle.vocabulary, draws, device)
    return result


# -- results ----------------------------------------------------------------------------------------------------------


class Comparison:
    """All pairs of runs with the same tasks and tokens."""

    def __init__(self, tasks: str, tokens: float, records: StudyRecords):
        self.tasks, self.tokens = tasks, tokens
        by_seed: dict[int, dict[str, dict[str, Any]]] = {}
        for record in records:
            by_seed.setdefault(record["seed"], {})[record["arm"]] = record
        complete = [pair for _, pair in sorted(by_seed.items()) if len(pair) == len(ARMS)]
        self.pairs = [pair for pair in complete if all(pair[arm]["loss"] is not None for arm in ARMS)]
        self.num_diverged = {arm: sum(pair[arm]["loss"] is None for pair in complete) for arm in ARMS}

    @property
    def name(self) -> str:
        return f"{self.tasks}, {self.tokens:g} x tokens"

    def gain(self, term: str = "all") -> Interval:
        """How much lower the loss is with complements, paired by seed."""
        losses = np.array([[pair[arm]["held_out"][term] for arm in ARMS] for pair in self.pairs])
        return mean_interval(losses[:, 1] - losses[:, 0])

    @property
    def relative_gain(self) -> Interval:
        losses = np.array([[pair[arm]["loss"] for arm in ARMS] for pair in self.pairs])
        return mean_interval(1 - losses[:, 0] / losses[:, 1])

    def mean(self, arm: str) -> float:
        return float(np.mean([pair[arm]["loss"] for pair in self.pairs]))

    def variance_ratio(self, name: str, module: str = ALL) -> Interval:
        """Over seeds: variance of the gradient with complementary masks over that of the alternative."""
        return ratio_interval(np.array([pair["two epochs"]["variance_ratios"][name][module] for pair in self.pairs]))

    @property
    def modules(self) -> list[str]:
        return [module for module in self.pairs[0]["two epochs"]["variance_ratios"]["masks"] if module != ALL]


def comparisons(records: StudyRecords) -> list[Comparison]:
    """Those with at least one pair of finite losses."""
    settings = dict.fromkeys((record["tasks"], record["tokens"]) for record in records)
    in_order = sorted(settings, key=lambda setting: (TASKS.index(setting[0]), setting[1]))
    every = [
        Comparison(
            tasks, tokens, [record for record in records if (record["tasks"], record["tokens"]) == (tasks, tokens)]
        )
        for tasks, tokens in in_order
    ]
    complete = [each for each in every if each.pairs]
    if not complete:
        raise UserError("no seed has finite losses of both kinds of runs yet.")
    return complete


def _findings(records: StudyRecords) -> list[str]:
    lines = []
    for each in comparisons(records):
        by_term = [f"{term} {each.gain(term).shown('+.4f')}" for term in TERMS[each.tasks]]
        diverged = ", ".join(f"{count} diverged with {arm}" for arm, count in each.num_diverged.items() if count)
        lines.append(
            f"{each.name}: loss {each.mean('complements'):.4f} with complements, {each.mean('two epochs'):.4f} with "
            f"two epochs; gain {each.gain().shown('+.4f')} nats per token, {each.relative_gain.shown('+.2%')}, over "
            f"{len(each.pairs)} seeds" + (f" ({diverged})" if diverged else "")
        )
        if by_term:
            lines.append(f"{each.name}, gain by modality: {', '.join(by_term)}")
        modules = ", ".join(f"{module} {each.variance_ratio('masks', module).value:.2f}" for module in each.modules)
        lines.append(
            f"{each.name}, variance of the gradient over masks of the same sequences, complementary pairs over "
            f"independent pairs: {each.variance_ratio('masks').shown('.3f')}; by module: {modules}"
        )
        lines.append(
            f"{each.name}, variance of the gradient of a training step, complements over plain masks of twice as many "
            f"sequences: {each.variance_ratio('steps').shown('.3f')}"
        )
    return lines


_PLACES = {MIXED: "Table 1", "text": "Table 2"}
_MODELS = {MIXED: "tri-modal", "text": "text-only"}


def _claims(records: StudyRecords) -> list[Claim]:
    """At the longest runs: there the claim is about models that have learned the most."""
    longest = {each.tasks: each for each in comparisons(records) if each.tasks in _PLACES}
    claims = [
        Claim(
            _PLACES[tasks],
            f"At equal compute, one epoch with anti-masking gives a better {_MODELS[tasks]} model than two epochs "
            "without.",
            f"The validation loss is lower by {each.gain().shown('+.4f')} nats per token "
            f"({each.relative_gain.value:+.2%}) over {len(each.pairs)} seeds; the paper compares generated samples and "
            "tasks.",
            verdict(each.gain().ends, low=0.0),
        )
        for tasks, each in longest.items()
    ]
    return claims + [
        Claim(
            "Section 7.4",
            f"Anti-masking lowers the variance of the gradient ({_MODELS[tasks]}).",
            f"Over masks of the same sequences it is {each.variance_ratio('masks').shown('.2f')} times that of "
            f"independent masks. Of a training step, which sees half as many sequences, it is "
            f"{each.variance_ratio('steps').shown('.2f')} times.",
            verdict(each.variance_ratio("masks").ends, high=1.0),
        )
        for tasks, each in longest.items()
    ]


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    every = comparisons(records)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 1.4 + 0.55 * len(every)))
    for number, each in enumerate(every):
        gains = [1 - pair["complements"]["loss"] / pair["two epochs"]["loss"] for pair in each.pairs]
        left.plot(np.multiply(100, gains), [number + 0.2] * len(gains), ".", ms=4, color="#8d99ae")
        _draw_interval(left, number, each.relative_gain, "#1f5f8b", scale=100)
    left.axvline(0, color="black", lw=0.8)
    left.set_xlabel("lower loss with complements, percent (95 % interval)")
    for shift, (name, colour, label) in enumerate(
        (("masks", "#1f5f8b", "masks of the same sequences"), ("steps", "#d1495b", "training steps"))
    ):
        for number, each in enumerate(every):
            place = number + 0.12 * (1 - 2 * shift)
            _draw_interval(right, place, each.variance_ratio(name), colour, label=label if not number else None)
    right.axvline(1, color="black", lw=0.8)
    right.set_xlabel("variance of the gradient, complements over the alternative")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=2)
    left.set_yticks(range(len(every)), [each.name for each in every])
    right.set_yticks(range(len(every)), [])
    for panel in (left, right):
        panel.set_ylim(len(every) - 0.5, -0.5)
    figure.tight_layout()
    save(figure, path)


def _draw_interval(
    panel: Any, y: float, interval: Interval, colour: str, scale: float = 1.0, label: str | None = None
) -> None:
    ends = np.multiply(scale, interval.ends)
    panel.plot(ends, [y, y], "-", lw=2, color=colour)
    panel.plot([scale * interval.value], [y], "o", ms=5, color=colour, label=label)


STUDY = Study(
    _add_arguments,
    grid_study(trials, run_trial),
    missing_grid_runs(trials, configure),
    _findings,
    _draw,
    _claims,
    fixed_options=lambda args: {"draws": args.draws},
    base=proxy_per_module,
)
