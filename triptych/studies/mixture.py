"""Mixtures: how the loss of each modality depends on the shares of text, image-text and audio-text.

The mixtures are a lattice with a smallest share of each, as in the paper. A share counts sequences (`task_weights`),
and all runs have the same number of sequences. So a run with a given share of text sees the same amount of text,
whatever the rest is made of: that allows a test of synergy without a formula for the loss. The number of tokens
differs, because sequences of different tasks have different lengths. Hyperparameters are the same in all runs.

A loss is nats per token on validation sequences of the modality's task, which are the same for all mixtures.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive_float, positive_floats, positive_int
from triptych.errors import UserError
from triptych.recipes.proxy import proxy_per_module, scaled_proxy
from triptych.scaling.law import Floats
from triptych.scaling.simplex import CENTRE, BestMixture, best_mixture, fit_simplex, simplex_lattice
from triptych.scaling.simplex import without_seed_offsets as adjusted
from triptych.scaling.synergy import RatioEffect, ratio_effect
from triptych.studies.base import Claim, Study, StudyRecords, grid_study, missing_grid_runs
from triptych.studies.ternary import draw_ternary
from triptych.studies.verdict import all_of, verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial
from triptych.vocab import Task

PARTS = tuple(task.label for task in Task)
TERMS = ("text", "image", "audio")
"""Validation losses, one for each part of the mixture."""
NEGLIGIBLE = 0.1
"""The ratio of the others does not matter if it does less than this share of what the own share does."""
REASONABLE = 0.01
"""Equal shares are reasonable if no mixture has losses that are lower by this share, on average."""
_PLACE = "Figure 16"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--divisions",
        type=positive_int,
        default=4,
        metavar="N",
        help="steps between the smallest and the largest share (default: 4, which is 15 mixtures)",
    )
    parser.add_argument(
        "--smallest", type=positive_float, default=0.2, metavar="X", help="smallest share of each part (default: 0.2)"
    )
    parser.add_argument(
        "--tokens",
        type=positive_float,
        default=2.0,
        metavar="X",
        help="sequences per run, as a multiple of the proxy's (default: 2)",
    )
    parser.add_argument("--seeds", type=positive_int, default=4, metavar="N", help="seeds per mixture (default: 4)")
    parser.add_argument(
        "--weights",
        type=_weights,
        metavar="T,I,A",
        help="how much the losses of text, images and audio matter, for a recommended mixture; changes no run",
    )


def _weights(text: str) -> list[float]:
    weights = positive_floats(text)
    if len(weights) != len(PARTS):
        raise argparse.ArgumentTypeError(f"expected three positive numbers separated by commas, got {text!r}")
    return weights


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    mixtures = np.round(simplex_lattice(args.divisions, args.smallest), 6).tolist()
    return [
        Trial(
            f"{_shown(shares)} tokens {args.tokens:g} seed {seed}",
            {"shares": shares, "tokens": args.tokens, "seed": seed},
        )
        for seed in range(args.seeds)
        for shares in mixtures
    ]


def _shown(shares: Sequence[float]) -> str:
    return " ".join(f"{part} {share:.3g}" for part, share in zip(PARTS, shares))


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    settings = trial.settings
    config = scaled_proxy(run, batch=run.loader.global_batch, tokens=settings["tokens"], seed=settings["seed"])
    return replace(config, loader=replace(config.loader, task_weights=dict(zip(PARTS, settings["shares"]))))


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    return train_in_memory(configure(trial, run), bundle).as_json


# -- results ----------------------------------------------------------------------------------------------------------


class MixtureRuns:
    """The runs that did not diverge, as arrays."""

    def __init__(self, records: StudyRecords):
        finished = [record for record in records if record["loss"] is not None]
        missing = sorted({term for record in finished for term in TERMS if term not in record["held_out"]})
        if missing:
            raise UserError(
                f"a mixture needs validation losses of {', '.join(TERMS)}, but runs have none of {', '.join(missing)}: "
                "add validation data of that task."
            )
        if not finished:
            raise UserError("no run has a finite loss yet.")
        self.num_diverged = len(records) - len(finished)
        self.shares: Floats = np.array([record["shares"] for record in finished])
        self.losses: Floats = np.array([[record["held_out"][term] for term in TERMS] for record in finished])
        self.seeds = [int(record["seed"]) for record in finished]
        without_offsets = [adjusted(self.shares, column, self.seeds) for column in self.losses.T]
        self.noise = [each.noise for each in without_offsets]
        """Standard deviation over seeds, by part."""
        self.fitted_losses: Floats = np.column_stack([each.losses for each in without_offsets])
        self.fits = [fit_simplex(self.shares, column) for column in self.fitted_losses.T]

    def best(self, weights: Sequence[float]) -> BestMixture:
        return best_mixture(self.shares, self.fitted_losses, weights)

    def effect(self, part: int, level: float = 0.95) -> RatioEffect:
        return ratio_effect(self.shares, self.losses[:, part], self.seeds, part, level=level)


def _others(part: int) -> tuple[str, str]:
    first, second = (name for name in PARTS if name != PARTS[part])
    return first, second


def _findings(records: StudyRecords) -> list[str]:
    runs = MixtureRuns(records)
    lines = [
        f"{len(runs.shares)} runs of {len(np.unique(runs.shares, axis=0))} mixtures, {runs.num_diverged} diverged; "
        "shares count sequences"
    ]
    for part, (term, fit) in enumerate(zip(TERMS, runs.fits)):
        effect = runs.effect(part)
        low, high = runs.shares[:, part].min(), runs.shares[:, part].max()
        lines.append(
            f"{term}: {fit.loss(np.array(CENTRE))[0]:.4f} nats per token at equal shares; from {low:.0%} to "
            f"{high:.0%} of {PARTS[part]} the loss falls by {effect.own}; fit: {fit.form}, leave-one-out error "
            f"{fit.error:.4f}, standard deviation over seeds {runs.noise[part]:.4f}"
        )
    for part, term in enumerate(TERMS):
        effect, (first, second) = runs.effect(part), _others(part)
        lines.append(
            f"{term}, at the same share of {PARTS[part]}: {first} to {second} as 2:1 instead of 1:2 changes the loss "
            f"by {effect.swap.shown('+.4f')}, both of these instead of 1:1 by {effect.imbalance.shown('+.4f')}; "
            f"{_shown_p(effect.p)} that the ratio does not matter"
        )
    twice = [[2.0 if part == heavy else 1.0 for part in range(len(PARTS))] for heavy in range(len(PARTS))]
    return [*lines, *(_recommendation(runs, weights) for weights in ([1.0, 1.0, 1.0], *twice))]


def _shown_p(p: float) -> str:
    return "p unknown with one seed" if math.isnan(p) else f"p = {p:.2g}"


def _recommendation(runs: MixtureRuns, weights: Sequence[float]) -> str:
    best = runs.best(weights)
    shares = ", ".join(
        f"{share:.0%} {part} ({low:.0%} to {high:.0%})"
        for share, part, low, high in zip(best.shares, PARTS, best.low, best.high)
    )
    importance = ", ".join(f"{term} {weight:g}" for term, weight in zip(TERMS, weights))
    edge = "; at the edge of the mixtures that were run" if best.is_on_edge else ""
    return (
        f"best mixture if the losses count as {importance}: {shares}{edge}; weighted mean of the relative losses "
        f"{best.change.shown('+.2%')} from equal shares"
    )


def _answers(args: argparse.Namespace, records: StudyRecords) -> list[str]:
    return [] if args.weights is None else [_recommendation(MixtureRuns(records), args.weights)]


def _claims(records: StudyRecords) -> list[Claim]:
    runs = MixtureRuns(records)
    # Six effects are tested together.
    effects = [runs.effect(part, level=1 - 0.05 / 6) for part in range(len(PARTS))]
    return [_own_share(effects), _no_synergy(effects), _equal_shares(runs.best([1.0] * len(PARTS)))]


def _own_share(effects: Sequence[RatioEffect]) -> Claim:
    return Claim(
        _PLACE,
        "The loss of a modality falls as its share of the mixture grows.",
        "From its smallest to its largest share the loss falls by "
        + ", ".join(f"{effect.own} ({term})" for term, effect in zip(TERMS, effects))
        + " nats per token.",
        all_of([verdict(effect.own.ends, low=0.0) for effect in effects]),
    )


def _no_synergy(effects: Sequence[RatioEffect]) -> Claim:
    verdicts = []
    for effect in effects:
        negligible = NEGLIGIBLE * abs(effect.own.value)
        verdicts += [verdict(each.ends, -negligible, negligible) for each in effect.effects]
    return Claim(
        _PLACE,
        "There is no synergy: at a fixed own share, the loss of a modality does not depend on the ratio of the others.",
        "Twice as much of one other modality instead of half as much changes the loss by "
        + ", ".join(f"{effect.swap.shown('+.4f')} ({term})" for term, effect in zip(TERMS, effects))
        + f" nats per token; {', '.join(_shown_p(effect.p) for effect in effects)}. Less than {NEGLIGIBLE:.0%} of "
        "what the own share does counts as none.",
        all_of(verdicts),
    )


def _equal_shares(best: BestMixture) -> Claim:
    return Claim(
        _PLACE,
        "Equal shares of the three parts are a reasonable mixture.",
        f"The best mixture for equally important losses is {_shown(best.shares)}; its relative losses are "
        f"{best.change.shown('+.2%')} from equal shares, and up to {REASONABLE:.0%} counts as reasonable.",
        verdict(best.change.ends, low=-REASONABLE),
    )


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    runs = MixtureRuns(records)
    figure, panels = plt.subplots(1, len(PARTS), figsize=(12, 3.9))
    divisions = len(np.unique(np.round(runs.shares[:, 0], 6))) - 1
    for panel, term, fit in zip(panels, TERMS, runs.fits):
        draw_ternary(panel, fit.loss, runs.shares, names=PARTS, smallest=float(runs.shares.min()), divisions=divisions)
        panel.set_title(f"loss of {term}, nats per token from equal shares", fontsize=9, pad=4)
    figure.tight_layout()
    save(figure, path)


STUDY = Study(
    _add_arguments,
    grid_study(trials, run_trial),
    missing_grid_runs(trials, configure),
    _findings,
    _draw,
    _claims,
    _answers,
    fixed_options=lambda args: {"tokens": args.tokens},
    base=proxy_per_module,
)
