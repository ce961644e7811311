"""`triptych sweep`: do the runs of a planned grid."""

import argparse
from pathlib import Path

from triptych.cli.args import processes
from triptych.cli.command import PLAN, Command
from triptych.errors import UserError


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Do the runs of a planned grid, one after the other, until none is left. Several processes can share a grid, also on
other machines that share the folder: each run is done once. A process that finds no free run waits for the others, and
takes over a run whose process was killed, a minute later. A stopped run resumes from its last checkpoint.

examples:
  triptych plan grid proxy --low 1e11 --high 2e13 --budgets 9 --out runs/grid
  triptych sweep runs/grid
  triptych sweep /shared/grid --device cuda --nproc 8     train each run on the 8 GPUs of this machine
  triptych fit runs/grid/records.jsonl --skip-diverged"""
    parser.add_argument("grid", metavar="FOLDER", type=Path, help="folder that `triptych plan grid --out` wrote")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--nproc", metavar="N", type=processes, help="train each run in N processes on this machine")


def _run(args: argparse.Namespace) -> None:
    from functools import partial

    from triptych.scaling.sweep import sweep

    options = ["--device", args.device, *(["--nproc", str(args.nproc)] if args.nproc is not None else [])]
    result = sweep(args.grid, options, partial(print, flush=True))
    if result.failed:
        key, reason = next(iter(result.failed.items()))
        raise UserError(
            f"{result.num_done} of {result.num_runs} runs are finished, {len(result.failed)} failed; {key}: {reason}."
        )
    print(f"all {result.num_runs} runs are finished: triptych fit {args.grid / 'records.jsonl'}")


COMMANDS = {
    "sweep": Command(
        "do the runs of a planned grid, on any number of machines",
        _describe,
        _run,
        group=PLAN,
        when_stopped="stopped; finished runs are recorded, and the same command resumes the others.",
    )
}
