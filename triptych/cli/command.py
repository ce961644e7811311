"""What a command is, and what the arguments of several commands have in common."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import UserError, did_you_mean

USE, TRAIN, DATA, PLAN, STUDY = "use a model", "train", "data", "plan and scale", "study"
GROUPS = (USE, TRAIN, DATA, PLAN, STUDY)
"""Sections of `triptych --help`, in order."""


@dataclass(frozen=True)
class Command:
    summary: str
    """One line for the overview."""
    describe: Callable[[argparse.ArgumentParser], None]
    """Adds the description and the arguments. Imports nothing heavy."""
    run: Callable[[argparse.Namespace], None]
    """Runs the command. Imports what it needs itself, so that `triptych --help` answers at once."""
    group: str = USE
    """Section of the overview."""
    when_stopped: str = "stopped."
    """Message after Ctrl-C or SIGTERM."""


def one_of(known: list[str]) -> dict[str, Any]:
    """Like `choices` of argparse, but the error suggests the nearest known name."""

    def parse(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown name {name!r}.{did_you_mean(name, known)}")
        return name

    return {"type": parse, "metavar": "{" + ",".join(known) + "}"}


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")


def add_model(parser: argparse.ArgumentParser, default: str = "scenes") -> None:
    parser.add_argument(
        "--model",
        default=default,
        metavar="MODEL",
        help=f"built-in name, folder of a saved model or of a run, or hf://OWNER/NAME (default: {default})",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json means the same in every command: the result as JSON, on standard output or in a file."""
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        type=_json_target,
        metavar="FILE",
        help="print the result as JSON, or write it to FILE.json",
    )


def _json_target(text: str) -> str:
    if text != "-" and not text.lower().endswith(".json"):  # most likely the next argument
        raise argparse.ArgumentTypeError(f"expected the name of a .json file or -, got {text!r}; put --json last")
    return text


def write_json(result: Any, target: str) -> None:
    """What `--json` asks for; "-" is standard output."""
    import json

    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        print(text, end="")
        return
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(text)


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_path_free(path: Path, *, force: bool) -> None:
    """Existing files are replaced only with --force."""
    if path.exists() and not force:
        raise UserError(f"{path} exists; use --force to replace it, or another --out.")
