"""The critical batch size against the size of the model and the number of tokens.

For each of several models on the same tokens, and for one model on several numbers of tokens, a sweep over the batch
size: hyperparameters are transferred, so that small batches end with the same loss, and from the critical batch size
on there are too few steps. The law fitted to all sweeps is in `triptych.scaling.plateau`.

Batch sizes are given by kappa, their ratio to the batch at which the transferred hyperparameters are the tuned ones.
That batch grows with the tokens, as D^g, and with it the range of a sweep. The learning rate grows with kappa. If it
becomes unstable at some kappa, the loss rises there for every D: that looks like a critical batch size that grows as
D^g, and has nothing to do with too few steps. A growth that cannot be told apart from D^g decides nothing.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive_float, positive_floats, positive_int, positive_ints
from triptych.errors import UserError
from triptych.model.flops import count_parameters
from triptych.recipes.proxy import proxy_of_width, proxy_per_module, scaled_proxy
from triptych.scaling.critical_batch import CEILING_NATS
from triptych.scaling.grid import batch_for
from triptych.scaling.plateau import PlateauLaw, PlateauLawFit, Sweeps, fit_plateau_law
from triptych.scaling.plateau_figures import draw_plateau
from triptych.scaling.plateau_report import exponent_text, law_lines, sweep_lines
from triptych.studies.base import Claim, Study, StudyRecords, grid_study, missing_grid_runs, multiples
from triptych.studies.verdict import Verdict, verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.trials import Trial

DELTA = 0.1  # rise of exp(loss) that defines the critical number of steps; noise between seeds hides smaller ones
FLAT = 0.2  # |nu| below this: ten times the parameters change S_crit by less than a factor of 1.6
_WIDTHS = [0.5, 1.0, 1.5]  # of the base run's
_KAPPAS = [0.25, 0.7, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--widths",
        type=positive_ints,
        metavar="N,N",
        help="widths of the models of --size-tokens (default: 1/2, 1 and 3/2 times the proxy's)",
    )
    parser.add_argument(
        "--tokens",
        type=positive_floats,
        default=[0.25, 0.5, 1.0, 2.0, 4.0],
        metavar="X,X",
        help="tokens per run of the base width, as multiples of the proxy's (default: 0.25,0.5,1,2,4)",
    )
    parser.add_argument(
        "--size-tokens",
        type=positive_float,
        default=1.0,
        metavar="X",
        help="tokens per run of the other widths, as a multiple of the proxy's (default: 1)",
    )
    parser.add_argument(
        "--kappas",
        type=positive_floats,
        default=_KAPPAS,
        metavar="X,X",
        help="batch sizes, relative to the one that the hyperparameters are tuned for (default: 0.25 to 13)",
    )
    parser.add_argument("--seeds", type=positive_int, default=2, metavar="N", help="seeds per setting (default: 2)")


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    widths = args.widths or multiples(run.model.width, _WIDTHS, run.model.head_width)
    cells = [(run.model.width, horizon) for horizon in args.tokens] + [(width, args.size_tokens) for width in widths]
    settings = {
        (width, horizon, batch, seed): {"width": width, "horizon": horizon, "batch": batch, "seed": seed}
        for seed in range(args.seeds)
        for width, horizon in cells
        for batch in _batches(run, width, horizon, args.kappas)
    }
    return [
        Trial(f"width {width} tokens {horizon:g} batch {batch} seed {seed}", values)
        for (width, horizon, batch, seed), values in settings.items()
    ]


def _batches(run: RunConfig, width: int, horizon: float, kappas: list[float]) -> list[int]:
    sequences = horizon * run.loader.global_batch * run.num_steps
    return multiples(batch_for(proxy_of_width(run, width), sequences), kappas)


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    settings = trial.settings
    member = proxy_of_width(run, settings["width"])
    return scaled_proxy(member, batch=settings["batch"], tokens=settings["horizon"], seed=settings["seed"])


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    config = configure(trial, run)
    outcome = train_in_memory(config, bundle)
    counted = {"N": count_parameters(config.model, bundle.vocabulary).blocks, "D": outcome.tokens}
    return {**outcome.as_json, **counted, "num_steps": config.num_steps, "kappa": config.resolved.kappa}


# -- findings ---------------------------------------------------------------------------------------------------------


def sweeps(records: StudyRecords) -> Sweeps:
    """All runs. One that diverged counts with the highest loss that the fit distinguishes."""
    finished = [record for record in records if record["loss"] is not None]
    if not finished:
        raise UserError("no run has a finite loss yet, so there is no critical batch size.")
    tokens = {(record["width"], record["horizon"]): record["D"] for record in finished}
    lowest = min(record["loss"] for record in finished)
    usable = [record for record in records if (record["width"], record["horizon"]) in tokens]
    return Sweeps.from_columns(
        [record["N"] for record in usable],
        [tokens[record["width"], record["horizon"]] if record["loss"] is None else record["D"] for record in usable],
        [record["num_steps"] for record in usable],
        [lowest + CEILING_NATS if record["loss"] is None else record["loss"] for record in usable],
    )


def _sequence_tokens(records: StudyRecords) -> float:
    """Mean tokens of a sequence."""
    whole = [record for record in records if record["loss"] is not None]
    return sum(record["D"] for record in whole) / sum(record["num_steps"] * record["batch"] for record in whole)


def _findings(records: StudyRecords) -> list[str]:
    fit = fit_plateau_law(sweeps(records))
    diverged = sum(record["loss"] is None for record in records)
    return [
        f"{len(records)} runs in {fit.sweeps.count} sweeps, {diverged} diverged; standard deviation of the loss over "
        f"seeds {fit.sweeps.seed_std:.4f}, of the runs around the law {fit.scatter:.4f}",
        *law_lines(fit, DELTA),
        *sweep_lines(fit, DELTA, _sequence_tokens(records)),
        _kappa_line(records),
    ]


def _growth_of_kappa_one(records: StudyRecords) -> float:
    """g: the batch at which the hyperparameters are the tuned ones grows as D^g."""
    size = _swept_size(records)
    batches = {each["horizon"]: each["batch"] / each["kappa"] for each in records if each["width"] == size}
    return float(np.polyfit(np.log(list(batches)), np.log(list(batches.values())), 1)[0]) if len(batches) > 1 else 0.0


def _swept_size(records: StudyRecords) -> int:
    """The width with the most numbers of tokens."""
    cells = {(record["width"], record["horizon"]) for record in records}
    return Counter(width for width, _ in cells).most_common(1)[0][0]


def _kappa_line(records: StudyRecords) -> str:
    growth = _growth_of_kappa_one(records)
    return (
        f"the batch of kappa 1 grows as D^{growth:.2f}: learning rates that become unstable at one kappa for all D "
        f"would look like xi = {1 - growth:.2f}"
    )


def _nu(law: PlateauLaw) -> float:
    return law.nu


def _xi(law: PlateauLaw) -> float:
    return law.xi


def _if_bracketed(fit: PlateauLawFit, column: str, decided: Verdict) -> Verdict:
    """Undecided if fewer than three sizes, or numbers of tokens, have their critical batch inside the sweep."""
    inside = [fit.sweeps.take(np.flatnonzero(fit.sweeps.of == number)) for number in fit.bracketed(DELTA)]
    sizes = Counter(float(sweep.N[0]) for sweep in inside)
    # Sweeps of one size differ in their tokens.
    several = len(sizes) if column == "N" else max(sizes.values(), default=0)
    return decided if several >= 3 else "undecided"


def claims(records: StudyRecords) -> list[Claim]:
    fit = fit_plateau_law(sweeps(records))
    nu, xi = fit.interval(_nu), fit.interval(_xi)
    growth = exponent_text(1 - fit.law.xi, (1 - xi[1], 1 - xi[0]))
    artefact = 1 - _growth_of_kappa_one(records)
    is_artefact = xi[0] <= artefact <= xi[1]

    def claim(place: str, paper: str, ours: str, alternative: str, decided: Verdict) -> Claim:
        doubt = f"; unstable learning rates at one kappa would give {alternative}" if is_artefact else ""
        return Claim(place, paper, ours + doubt, "undecided" if is_artefact else decided)

    return [
        claim(
            "Figure 5",
            "At a fixed number of tokens the critical number of steps does not depend on the size of the model.",
            f"S_crit grows as N^{exponent_text(fit.law.nu, nu)}",
            "N^0",
            _if_bracketed(fit, "N", verdict(nu, -FLAT, FLAT)),
        ),
        claim(
            "Figure 6",
            "The critical number of steps grows with the number of tokens, more slowly than in proportion.",
            f"S_crit grows as D^{exponent_text(fit.law.xi, xi)}",
            f"D^{artefact:.2f}",
            _if_bracketed(fit, "D", verdict(xi, 0, 1)),
        ),
        claim(
            "Figure 7",
            "So the critical batch size grows with the number of tokens, and more slowly than in proportion.",
            f"B_crit grows as D^{growth}",
            f"D^{1 - artefact:.2f}",
            _if_bracketed(fit, "D", verdict((1 - xi[1], 1 - xi[0]), 0, 1)),
        ),
    ]


def _draw(records: StudyRecords, path: Path) -> None:
    draw_plateau(fit_plateau_law(sweeps(records)), DELTA, path, _sequence_tokens(records))


STUDY = Study(
    _add_arguments,
    grid_study(trials, run_trial),
    missing_grid_runs(trials, configure),
    _findings,
    _draw,
    claims=claims,
    base=proxy_per_module,
)
