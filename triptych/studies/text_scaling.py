"""The scaling law of text alone: an isoFLOP grid of uni-modal models, beside the law of all modalities together.

As in the paper, width and depth follow CompleteP, the batch-size rule is off, and each size has its own batch: the
larger the model, the smaller the batch, as with the memory of one device. The law is compared with the one of a kept
`scaling` study, whose fit is recorded with the runs, and with Quokka's, which is of text, too.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from triptych.data.shards import TokenDataset
from triptych.errors import UserError
from triptych.recipes.proxy import proxy_per_module, scaled_proxy
from triptych.scaling import figures
from triptych.scaling.fit import Fit, compare, fit, interval
from triptych.scaling.held_out import error_interval
from triptych.scaling.law import ADDITIVE, JOINT, Law
from triptych.scaling.optimal import FlopsPerToken, Frontier
from triptych.scaling.published import PUBLISHED
from triptych.scaling.report import coefficients_line, comparison_line, errors_line
from triptych.studies import scaling
from triptych.studies.base import Claim, Study, StudyRecords, read_study
from triptych.studies.verdict import verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.validate import LOSS_VERSION
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import TrialRecords
from triptych.vocab import Task

REFERENCE = "law of all modalities"  # start of the keys of records that hold it; the last one counts
_MAX_ERROR = 0.05  # mean relative error on held-out runs; above it the law does not describe the runs
_QUOKKA = PUBLISHED["Quokka"].frontier


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    scaling.add_arguments(parser, low=5e10, high=2e12, budgets=6, seeds=2)
    parser.add_argument(
        "--scaling",
        type=Path,
        default=Path("studies/scaling"),
        metavar="FOLDER",
        help="folder of a `scaling` study to compare with, if it exists (default: studies/scaling)",
    )


def text_only(run: RunConfig) -> RunConfig:
    """The run on those of its datasets that hold only text."""
    data, validation = _text_folders(run.data), _text_folders(run.validation_data)
    if not data or (run.validation_data and not validation):
        raise UserError(
            f"expected a text dataset to train on and one to validate on, got {', '.join(run.data) or 'none'} and "
            f"{', '.join(run.validation_folders) or 'none'}: give --data FOLDER with a text dataset."
        )
    loader = replace(run.loader, task_weights={Task.TEXT.label: 1.0})
    return replace(run, data=data, validation_data=validation, loader=loader)


def _text_folders(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(folder for folder in folders if TokenDataset(folder).task == Task.TEXT)


def text_model(run: RunConfig, width: int, seed: int = 0) -> RunConfig:
    """The run at another width and the same aspect ratio, by CompleteP without the batch-size rule."""
    base = run.model
    layers = max(1, round(width * base.num_layers / base.width))
    batch = max(1, round(run.loader.global_batch * base.width / width))
    scaled = scaled_proxy(run, width=width, layers=layers, rule="completep", seed=seed)
    transfer = replace(scaled.transfer, base_batch=None, base_steps=None, warmup_mode="steps")
    return replace(scaled, transfer=transfer, loader=replace(scaled.loader, global_batch=batch))


def run(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    if (args.scaling / "study.json").is_file():
        _record_reference(args.scaling, TrialRecords(args.out))
    return scaling.run(args, text_only(config), bundle, text_model)


def _record_reference(folder: Path, records: TrialRecords) -> None:
    """Record the law of a `scaling` study as it is now, unless its losses were computed in another way."""
    if read_study(folder)["loss_version"] != LOSS_VERSION:
        print(f"{folder} is not compared with: its losses were computed by an earlier version")
        return
    runs = list(TrialRecords(folder))
    key = f"{REFERENCE}, {hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()[:12]}"
    with records.claim(key) as is_ours:
        if is_ours and runs:
            records.add({"key": key, "folder": str(folder), **_laws(runs)})


def _missing_runs(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
    return scaling.missing_runs(args, text_only(config), bundle, text_model)


def _laws(records: StudyRecords) -> dict[str, Any]:
    """The laws fitted to the runs of a `scaling` study, and to resamples of them."""
    table = scaling.runs(records)
    fits = [fit(form, table) for form in (JOINT, ADDITIVE)]
    return {each.law.form.name: [law.as_json for law in (each.law, *each.laws)] for each in fits} | {"runs": len(table)}


# -- findings ---------------------------------------------------------------------------------------------------------


def _own(records: StudyRecords) -> list[dict[str, Any]]:
    return [record for record in records if not _is_reference(record)]


def _is_reference(record: dict[str, Any]) -> bool:
    return bool(record["key"].startswith(REFERENCE))


def _reference(records: StudyRecords, form: str) -> list[Law]:
    """The law of all modalities, and those of its resampled runs; empty if none was recorded."""
    recorded = [record for record in records if _is_reference(record)]
    return [Law.from_json(law) for law in recorded[-1][form]] if recorded else []


def _fits(records: StudyRecords) -> list[Fit]:
    table = scaling.runs(_own(records))
    return [fit(form, table) for form in (JOINT, ADDITIVE)]


def _power(law: Law) -> float:
    return Frontier.from_law(law).p


def _tokens_at(size: float, law: Law) -> float:
    return float(Frontier.from_law(law).tokens(size))


def _middle(best: Fit) -> float:
    sizes = best.runs.columns[0]
    return float(f"{np.sqrt(sizes.min() * sizes.max()):.1g}")


def tokens_ratio(best: Fit, reference: list[Law], size: float) -> tuple[float, tuple[float, float]]:
    """Compute-optimal tokens of a size, of all modalities relative to text alone, with its interval."""
    values = [_tokens_at(size, theirs) / _tokens_at(size, ours) for theirs, ours in zip(reference[1:], best.laws)]
    value = _tokens_at(size, reference[0]) / _tokens_at(size, best.law)
    return value, interval(value, values)


def _minima(records: StudyRecords) -> tuple[int, int]:
    """Budgets whose best run is not at an edge of the grid, and all budgets with three sizes or more."""
    minima = scaling.parabola_minima(_own(records))
    return sum(not each.is_on_edge for each in minima.values()), len(minima)


def _findings(records: StudyRecords) -> list[str]:
    own, fits = _own(records), _fits(records)
    finite, comparison = scaling.finite_records(own), compare(*fits)
    best = comparison.better
    sizes, tokens = best.runs.columns
    budgets = sorted({scaling.budget_of(each) for each in finite})
    batches = {each["width"]: each["batch"] for each in sorted(finite, key=lambda each: each["width"])}
    lines = [
        f"{len(own)} runs on text, {len(own) - len(finite)} diverged: {len(budgets)} budgets of {budgets[0]:.3g} to "
        f"{budgets[-1]:.3g} FLOPs, N {sizes.min():,.0f} to {sizes.max():,.0f}, D {tokens.min():.3g} to "
        f"{tokens.max():.3g}; batch by width: {', '.join(f'{width}: {batch}' for width, batch in batches.items())}"
    ]
    for each in fits:
        lines += [coefficients_line(each), errors_line(each)]
    lines += [comparison_line(comparison), *scaling.seed_line(best.runs)]
    lines += scaling.extrapolation_lines(finite, budgets[-1])
    lines.append(scaling.flatness_line(best, budgets, FlopsPerToken.from_runs(best.runs)))
    inside, counted = _minima(records)
    lines.append(f"{inside} of {counted} isoFLOP curves have their minimum inside the grid")
    return [*lines, *_comparison_lines(records, best)]


def _comparison_lines(records: StudyRecords, best: Fit) -> list[str]:
    """Text alone, all modalities, and Quokka, at 6 N FLOPs per token."""
    size, reference = _middle(best), _reference(records, best.law.form.name)
    frontiers = {"text alone": (_power(best.law), best.interval(_power), _tokens_at(size, best.law))}
    if reference:
        ends = interval(_power(reference[0]), [_power(law) for law in reference[1:]])
        frontiers["all modalities"] = (_power(reference[0]), ends, _tokens_at(size, reference[0]))
    lines = [
        f"{name}: D* grows as N^{power:.2f} ({low:.2f} to {high:.2f}), {tokens / size:,.0f} tokens per parameter at "
        f"N = {size:,.0f}"
        for name, (power, (low, high), tokens) in frontiers.items()
    ]
    lines.append(
        f"Quokka, extrapolated: D* grows as N^{_QUOKKA.p:.2f}, {float(_QUOKKA.tokens(size)) / size:,.0f} tokens per "
        f"parameter at N = {size:,.0f}"
    )
    if reference:
        value, (low, high) = tokens_ratio(best, reference, size)
        lines.append(
            f"at N = {size:,.0f}, all modalities together need {value:.2f} ({low:.2f} to {high:.2f}) times the tokens "
            "of text alone"
        )
    return lines


def _claims(records: StudyRecords) -> list[Claim]:
    best = compare(*_fits(records)).better
    error, reach = _error(best)
    inside, counted = _minima(records)
    share = binomtest(inside, counted).proportion_ci(0.95, method="wilson") if counted else None
    claims = [
        Claim(
            "Figure 23 a",
            "A law of the number of parameters and of tokens predicts the losses of models of text alone.",
            f"mean relative error on held-out runs {error:.2%} +- {reach:.2%} ({best.law.form.name} law)",
            verdict((error - reach, error + reach), high=_MAX_ERROR),
        )
    ]
    if share is not None:
        claims.append(
            Claim(
                "Figure 23 b",
                "At each budget a model of intermediate size is the best one.",
                f"{inside} of {counted} isoFLOP curves have their minimum inside the grid",
                verdict((float(share.low), float(share.high)), low=0.5),
            )
        )
    reference = _reference(records, best.law.form.name)
    if reference:
        size = _middle(best)
        value, (low, high) = tokens_ratio(best, reference, size)
        claims.append(
            Claim(
                "Section 5.3",
                "Small tri-modal models should be trained on more tokens than models of text alone (Quokka's).",
                f"{value:.2f} ({low:.2f} to {high:.2f}) times the tokens at N = {size:,.0f}, by the "
                f"{best.law.form.name} law",
                verdict((low, high), low=1.0),
            )
        )
    return claims


def _error(best: Fit) -> tuple[float, float]:
    """Mean relative error on held-out runs, and its 95 % margin over the rounds, corrected for their overlap."""
    error = error_interval(best)
    return error.value, error.value - error.low


def _draw(records: StudyRecords, path: Path) -> None:
    finite, best = scaling.finite_records(_own(records)), compare(*_fits(records)).better
    cost = FlopsPerToken.from_runs(best.runs)
    figure, panels = pyplot().subplots(2, 2, figsize=(10.4, 8.4))
    figures.training_curves(panels[0, 0], scaling.curves(finite), [scaling.budget_of(each) for each in finite])
    figures.predictions(panels[0, 1], best)
    figures.isoflops(panels[1, 0], best, cost)
    _draw_frontiers(panels[1, 1], best, _reference(records, best.law.form.name))
    figure.tight_layout()
    save(figure, path)


def _draw_frontiers(panel: Any, best: Fit, reference: list[Law]) -> None:
    sizes = np.geomspace(best.runs.columns[0].min(), best.runs.columns[0].max(), 20)
    for name, colour, law, laws in (
        ("text alone", "black", best.law, best.laws),
        *((("all modalities", "tab:red", reference[0], reference[1:]),) if reference else ()),
    ):
        panel.plot(sizes, [_tokens_at(size, law) for size in sizes], color=colour, label=name)
        ends = np.array([interval(_tokens_at(n, law), [*map(partial(_tokens_at, n), laws)]) for n in sizes])
        panel.fill_between(sizes, ends[:, 0], ends[:, 1], color=colour, alpha=0.13, lw=0)
    panel.plot(sizes, _QUOKKA.tokens(sizes), "--", color="tab:blue", lw=1, label="Quokka (text), extrapolated")
    panel.set(xscale="log", yscale="log", xlabel="N, non-embedding parameters", ylabel="D*(N), tokens")
    panel.set_title("compute-optimal tokens at 6 N FLOPs per token", fontsize=9)
    panel.legend(fontsize=8)


STUDY = Study(_add_arguments, run, _missing_runs, _findings, _draw, claims=_claims, base=proxy_per_module)
