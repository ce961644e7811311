"""What a study is: trials that anyone may join, records, and a figure and findings made from the records alone."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.data.shards import write_atomically
from triptych.errors import DataError, UserError
from triptych.recipes.proxy import family
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig, to_json
from triptych.training.logging import environment
from triptych.utils.trials import Trial, run_trials

StudyRecords = Sequence[dict[str, Any]]
RunStudy = Callable[[argparse.Namespace, RunConfig, TokenizerBundle], bool]


@dataclass(frozen=True)
class Study:
    describe: Callable[[argparse.ArgumentParser], None]
    """Adds the arguments that decide which trials there are."""
    run: RunStudy
    """Does what is not recorded yet, with runs of the family whose base is given; returns whether all is there now."""
    findings: Callable[[StudyRecords], list[str]]
    """What the records say, a sentence a line."""
    draw: Callable[[StudyRecords, Path], None]
    fixed: Callable[[argparse.Namespace], dict[str, Any]] = lambda args: {}
    """Of the arguments, those that all trials of a folder must share, for findings do not tell them apart."""
    base: Callable[[], RunConfig] = family
    """Where the family's values are tuned."""


def grid(
    trials: Callable[[argparse.Namespace], list[Trial]],
    run: Callable[[Trial, RunConfig, TokenizerBundle], dict[str, Any]],
) -> RunStudy:
    """A study whose trials are all known from the beginning."""

    def run_grid(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
        wanted = trials(args)
        return run_trials(args.out, wanted, lambda trial: run(trial, config, bundle)).keys() == {t.key for t in wanted}

    return run_grid


def join(folder: Path, name: str, config: RunConfig, options: dict[str, Any]) -> None:
    """Begin a study in a folder, or go on with it: records that findings could not tell apart are never mixed."""
    path = folder / "study.json"
    content = {"study": name, "options": options, "config": to_json(config), "environment": environment()}
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
        return
    wanted, began_with = _decisive(content), _decisive(about(folder))
    for key in sorted(wanted.keys() | began_with.keys()):
        if wanted.get(key) != began_with.get(key):
            raise UserError(
                f"the study in {folder} began with {key} = {began_with.get(key)}, and cannot go on with "
                f"{wanted.get(key)}: choose another --out."
            )


def about(folder: Path) -> dict[str, Any]:
    """Which study a folder holds, of which family, made where."""
    path = folder / "study.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no study: there is no {path.name} in it.")
    try:
        found = json.loads(path.read_text())
        return {name: found[name] for name in ("study", "options", "config", "environment")}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not describe a study ({error}).") from error


def _decisive(content: dict[str, Any]) -> dict[str, Any]:
    options = {f"--{name}": value for name, value in content["options"].items()}
    return {"study": content["study"], **options, **_flat(content["config"])}


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= _flat(value, f"{prefix}.{name}" if prefix else name)
    return found
