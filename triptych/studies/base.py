"""A study: trials shared by any number of processes, their records, and a figure and findings made from the records."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import DataError, UserError
from triptych.recipes.proxy import proxy
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RESUMABLE_CHANGES, RunConfig
from triptych.training.logging import environment
from triptych.training.validate import LOSS_VERSION
from triptych.utils.config import changed_keys, fill_in, to_json
from triptych.utils.files import write_atomically
from triptych.utils.legacy import with_current_keys
from triptych.utils.trials import Trial, TrialRecords, run_trials

StudyRecords = Sequence[dict[str, Any]]
RunStudy = Callable[[argparse.Namespace, RunConfig, TokenizerBundle], bool]
MissingRuns = Callable[[argparse.Namespace, RunConfig, TokenizerBundle], list[RunConfig]]

# Keys that change no recorded loss. Data and validation do, and the layout of rows changes the order of sums.
_IGNORED = RESUMABLE_CHANGES - {"data", "loader.layout", "tokenizers", "validation", "validation_data"} | {"guard"}


@dataclass(frozen=True)
class Study:
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Adds the arguments that determine the trials."""
    run: RunStudy
    """Runs the trials without a record, from the given proxy configuration; returns whether all are finished now."""
    missing_runs: MissingRuns
    """The runs without a record, for an estimate of their duration."""
    findings: Callable[[StudyRecords], list[str]]
    """The results as sentences, one per line, from the records alone."""
    draw: Callable[[StudyRecords, Path], None]
    """Draws the figure, from the records alone."""
    fixed_options: Callable[[argparse.Namespace], dict[str, Any]] = lambda args: {}
    """Arguments that all trials of a folder must share, because the findings do not distinguish them."""
    base: Callable[[], RunConfig] = proxy
    """The proxy configuration that trials are scaled from."""


def grid_study(
    trials: Callable[[argparse.Namespace], list[Trial]],
    run: Callable[[Trial, RunConfig, TokenizerBundle], dict[str, Any]],
) -> RunStudy:
    """`Study.run` for a study whose trials are all known in advance."""

    def run_study(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
        wanted = trials(args)
        return run_trials(args.out, wanted, lambda trial: run(trial, config, bundle)).keys() == {t.key for t in wanted}

    return run_study


def missing_grid_runs(
    trials: Callable[[argparse.Namespace], list[Trial]], configure: Callable[[Trial, RunConfig], RunConfig]
) -> MissingRuns:
    """`Study.missing_runs` for a study whose trials are all known in advance."""

    def missing(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
        recorded = TrialRecords(args.out).keys
        return [configure(trial, config) for trial in trials(args) if trial.key not in recorded]

    return missing


def join(folder: Path, name: str, config: RunConfig, options: dict[str, Any]) -> None:
    """Start a study in a folder, or continue one with the same configuration; records are never mixed."""
    path = folder / "study.json"
    if not path.exists():
        content = {"study": name, "options": options, "config": to_json(config), "environment": environment()}
        content["loss_version"] = LOSS_VERSION
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
    """The description of the study in a folder: its name, options, configuration, environment and loss version."""
    path = folder / "study.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no study: {path.name} is missing.")
    try:
        content = json.loads(path.read_text())
        described = {name: content[name] for name in ("study", "options", "config", "environment")}
        return described | {"loss_version": content.get("loss_version", 1)}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not describe a study ({error}).") from error
