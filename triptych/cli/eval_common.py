"""What the commands of `triptych eval` have in common: which model, where results go, and how they are shown."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.cli.args import processes
from triptych.cli.command import add_device, add_json, one_of, write_json
from triptych.errors import UserError

if TYPE_CHECKING:
    from triptych.eval.run_suites import EvaluationResult

OUT_HELP = "folder of the results (default: out/eval/NAME of the model)"
STOPPED = "stopped; the same command resumes."


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Options that all suites have."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=OUT_HELP)
    parser.add_argument(
        "--nproc", type=processes, default=1, metavar="N", help="processes, each with its own model (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    add_device(parser)
    add_json(parser)


def add_positional_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="built-in name, folder of a saved model or of a run, or hf://OWNER/NAME"
    )


def add_split(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument("--split", **one_of(["train", "validation", "test"]), default="test", help="default: test")


def check_run(args: argparse.Namespace) -> None:
    """Refuse what is wrong before anything heavy is imported."""
    from triptych.hub.source import check_source

    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}.")
    check_source(args.model)


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given, by the names of the settings."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def run(args: argparse.Namespace, jobs: Any, missing: Any = ()) -> None:
    """Run suites as the options say, and show the result."""
    from triptych.eval.run_suites import run_suites
    from triptych.training.logging import environment

    result = run_suites(
        args.model,
        jobs,
        out=args.out,
        seed=args.seed,
        nproc=args.nproc,
        device=args.device,
        progress=progress,
        environment=environment(),
        missing=missing,
    )
    show(result, args.json)


def show(result: "EvaluationResult", json: str | None) -> None:
    """The table on standard output, or JSON; an error if there is no metric at all."""
    if not result.entries:
        for line in result.not_measured:
            progress(line)
    result.check()
    if json != "-":
        print(result.table)
        progress(f"results: {result.folder}; `triptych eval report {result.folder}` makes a page of them")
    if json is not None:
        write_json(result.as_json, json)
