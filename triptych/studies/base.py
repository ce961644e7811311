"""A study: trials shared by any number of processes, their records, and a figure and findings made from the records."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from triptych.data.loader import Loader
from triptych.errors import DataError, UserError
from triptych.recipes import changed, configure
from triptych.recipes.proxy import SET_BY_STUDIES, proxy
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RESUMABLE_CHANGES, RunConfig
from triptych.training.logging import environment
from triptych.training.setup import check_data, need_data
from triptych.training.validate import LOSS_VERSION, Validator
from triptych.utils.config import changed_keys, fill_in, to_json
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.legacy import with_current_keys
from triptych.utils.trials import Trial, TrialRecords, run_trials

StudyRecords = Sequence[dict[str, Any]]
RunStudy = Callable[[argparse.Namespace, RunConfig, TokenizerBundle], bool]
MissingRuns = Callable[[argparse.Namespace, RunConfig, TokenizerBundle], list[RunConfig]]
Trials = Callable[[argparse.Namespace, RunConfig], list[Trial]]
"""The trials of a study whose trials are all known in advance, from its options and its base run."""

# Keys that change no recorded loss. Data and validation do, and the layout of rows changes the order of sums.
_HELD_OUT = 0.05  # share of the data that is validated on if there is no validation data
_IGNORED = RESUMABLE_CHANGES - {"data", "loader.layout", "tokenizers", "validation", "validation_data"} | {"guard"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper beside what the records of a study say about it, for the page of `triptych paper`."""

    place: str
    """Where the paper makes it, such as "Figure 6" or "Section 4.2"."""
    paper: str
    """The paper's claim, in one sentence of our own."""
    ours: str
    """What the records say, with an interval."""
    verdict: Literal["agrees", "disagrees", "undecided"]
    """From the records alone. "undecided": this size, these seeds or this dataset cannot tell."""


@dataclass(frozen=True)
class Study:
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Adds the arguments that determine the trials."""
    run: RunStudy
    """Runs the trials without a record, from the given base run; returns whether all are finished now."""
    missing_runs: MissingRuns
    """The runs without a record, for an estimate of their duration."""
    findings: Callable[[StudyRecords], list[str]]
    """The results as sentences, one per line, from the records alone."""
    draw: Callable[[StudyRecords, Path], None]
    """Draws the figure, from the records alone."""
    claims: Callable[[StudyRecords], list[Claim]] = lambda records: []
    """The claims of the paper that the study tests."""
    answers: Callable[[argparse.Namespace, StudyRecords], list[str]] = lambda args, records: []
    """Further results, for arguments that change no run."""
    fixed_options: Callable[[argparse.Namespace], dict[str, Any]] = lambda args: {}
    """Arguments that all trials of a folder must share, because the findings do not distinguish them."""
    base: Callable[[], RunConfig] = proxy
    """The base run that trials are scaled from, unless `--recipe` names another one."""
    check: Callable[[RunConfig], None] = lambda run: None
    """Refuses base runs that the study cannot use, before anything is written."""
    needs_data: bool = True
    """Whether it trains. Otherwise it runs where there is no data."""


def multiples(of: int, factors: Sequence[float], unit: int = 1) -> list[int]:
    """Whole multiples of a unit next to `of` times the factors, without repetitions: options relative to a base run."""
    return list(dict.fromkeys(max(1, round(of * factor / unit)) * unit for factor in factors))


def grid_study(
    trials: Trials,
    run: Callable[[Trial, RunConfig, TokenizerBundle], dict[str, Any]],
) -> RunStudy:
    """`Study.run` for a study whose trials are all known in advance."""

    def run_study(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
        wanted = trials(args, config)
        return run_trials(args.out, wanted, lambda trial: run(trial, config, bundle)).keys() == {t.key for t in wanted}

    return run_study


def missing_grid_runs(trials: Trials, configure: Callable[[Trial, RunConfig], RunConfig]) -> MissingRuns:
    """`Study.missing_runs` for a study whose trials are all known in advance."""

    def missing(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
        recorded = TrialRecords(args.out).keys
        return [configure(trial, config) for trial in trials(args, config) if trial.key not in recorded]

    return missing


def base_run(
    study: Study, recipe: str | None, data: str | None, validation_data: str | None, changes: Sequence[str]
) -> RunConfig:
    """The base run of a study: a recipe or the study's own, on the given data, with other fields changed.

    Fields that every study sets itself are refused, because it would overwrite them silently.
    """
    on_data = data_changes(data, validation_data)

    def with_changes(chosen: Sequence[str]) -> RunConfig:
        every = [*on_data, *chosen]
        return changed(study.base(), every) if recipe is None else configure(recipe, every)

    run, default = with_changes(changes), with_changes([change for change in changes if not _is_set_by_studies(change)])
    for name in SET_BY_STUDIES:
        if attrgetter(name)(run) != attrgetter(name)(default):
            raise UserError(f"{name} is set by the study and cannot be changed; see the options of the study.")
    return run


def _is_set_by_studies(change: str) -> bool:
    key = change.partition("=")[0]
    return any(key == name or key.startswith(f"{name}.") for name in SET_BY_STUDIES)


def data_changes(data: str | None, validation_data: str | None) -> list[str]:
    """The changes that make a run train and validate on folders of datasets, separated by commas.

    Without validation data it is FOLDER/validation beside FOLDER/train, or a part of the data that is held out.
    """
    if data is None:
        return [] if validation_data is None else [f"validation_data={validation_data}"]
    train, beside = Path(data) / "train", Path(data) / "validation"
    if validation_data is None and train.is_dir() and beside.is_dir():
        data, validation_data = str(train), str(beside)
    if validation_data is not None:
        return [f"data={data}", f"validation_data={validation_data}"]
    return [f"data={data}", "validation_data=none", f"loader.held_out={_HELD_OUT}"]


def open_data(run: RunConfig) -> TokenizerBundle:
    """The tokenizers of a run, after a check that it can train and validate on its data."""
    need_data(run)
    if not run.validation_folders:
        raise UserError("a study compares validation losses: give --validation-data FOLDER, or loader.held_out=0.05.")
    bundle = TokenizerBundle.load(run.tokenizers)
    check_data(run, bundle)
    Loader(list(run.data), replace(run.loader, num_workers=0, prefetch=0)).close()  # refuses what does not fit
    Validator.of_run(run)
    return bundle


def join(folder: Path, name: str, config: RunConfig, options: dict[str, Any]) -> None:
    """Start a study in a folder, or continue one with the same configuration; records are never mixed."""
    path = folder / "study.json"
    if not path.exists():
        content = {"study": name, "options": options, "config": to_json(config), "environment": environment()}
        content |= {"loss_version": LOSS_VERSION, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
        return
    saved = read_study(folder)
    if saved["loss_version"] != LOSS_VERSION:
        raise UserError(
            f"the losses of the study in {folder} were computed in another way (version {saved['loss_version']}, now "
            f"{LOSS_VERSION}), so it cannot continue: choose another --out."
        )
    before = _comparable(saved["study"], saved["options"], fill_in(with_current_keys(saved["config"]), config))
    now = _comparable(name, options, to_json(config))
    for key, (old, new) in changed_keys(before, now, _IGNORED).items():
        raise UserError(
            f"the study in {folder} was started with {key} = {old} and cannot continue with {new}: choose another "
            "--out."
        )


def _comparable(name: str, options: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    return {"study": name, **{f"--{option}": value for option, value in options.items()}, **config}


def read_study(folder: Path) -> dict[str, Any]:
    """The study in a folder: its name, options, configuration, environment, loss version, and date if recorded."""
    path = folder / "study.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no study: {path.name} is missing.")
    try:
        content = read_json(path)
        described = {name: content[name] for name in ("study", "options", "config", "environment")}
        return described | {"loss_version": content.get("loss_version", 1), "date": content.get("date")}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not describe a study ({error}).") from error
