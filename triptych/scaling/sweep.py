"""Runs a planned grid. Each run is a separate process, so that a crash of one does not affect the others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.recipes import recipe
from triptych.scaling.queue import check_grid_data, read_grid, run_result
from triptych.training.loop import Diverged
from triptych.training.validate import MIXTURE
from triptych.utils.config import override
from triptych.utils.parent import with_parent
from triptych.utils.trials import Trial, TrialRecords, run_trials

_WAIT_SECONDS = 2.0  # between two looks at what other processes have done


@dataclass(frozen=True)
class SweepResult:
    num_runs: int
    num_done: int
    """Runs finished by any process; all that have not failed."""
    failed: dict[str, str]
    """By run, why it ended without a result in this process. Its checkpoints are kept."""


def sweep(folder: Path, options: Sequence[str] = (), report: Callable[[str], None] = print) -> SweepResult:
    """Do the runs that no other process has done or is doing; wait for those that others do, and do them if they end.

    `options` are passed to `triptych train`.
    """
    runs = {run.key: run for run in read_grid(folder)}
    first = next(iter(runs.values()))
    check_grid_data(override(recipe(first.recipe), list(first.changes)))
    _check_records(folder)
    failed: dict[str, str] = {}

    def train(trial: Trial) -> dict[str, Any] | None:
        if trial.key in failed:
            return None
        run = runs[trial.key]
        log = folder / "runs" / f"{run.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        report(f"{run.key}: {run.num_steps:,} steps, {run.D:.3g} tokens; see {log}")
        code, message = _run_logged([sys.executable, "-m", "triptych", *run.command(folder), *options], log)
        if code == 0:
            return {"N": run.N, **run_result(folder, run), "diverged": False}
        if code == Diverged.exit_code:
            return {"N": run.N, "D": run.D, "C": run.C, "loss": None, "diverged": True, "problem": message}
        failed[run.key] = f"{message or 'no output'} (exit code {code}, see {log})"
        report(f"{run.key} failed: {failed[run.key]}")
        return None

    trials = [Trial(run.key, {"budget": run.budget}) for run in runs.values()]
    others = ""
    while len(finished := run_trials(folder, trials, train, report)) + len(failed.keys() - finished) < len(runs):
        workers = "; ".join(TrialRecords(folder).workers)
        if workers and workers != others:
            others = workers
            report(
                f"{len(finished)} of {len(runs)} runs are finished; waiting for the others, which are run by {others}"
            )
        time.sleep(_WAIT_SECONDS)
    return SweepResult(len(runs), len(finished), failed)


def _check_records(folder: Path) -> None:
    """Refuse to add to losses that an earlier version computed: a law must not be fitted to both."""
    for record in TrialRecords(folder):
        if record.get("loss") is not None and MIXTURE not in record.get("held_out", {}):
            raise UserError(
                f"the losses in {folder / 'records.jsonl'} do not follow the training mixture (an earlier version "
                "computed them): plan the grid again, with another --out."
            )


def _run_logged(command: Sequence[str], log: Path) -> tuple[int, str]:
    """Run a command with its output appended to a log; returns the exit code and its error, or last line.

    The command has a session of its own, so that Ctrl-C reaches it only once, from here; a second signal would keep it
    from saving.
    """
    start = log.stat().st_size if log.exists() else 0
    with open(log, "ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=with_parent(os.environ)
        )
    try:
        code = process.wait()
    except BaseException as stop:  # Ctrl-C, or SIGTERM, which the command line turns into an exception
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
        try:
            process.send_signal(number)
            process.wait()
        except BaseException:  # stopped a second time
            process.send_signal(number)
            raise
        raise
    with open(log, "rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("triptych: error: ")]
    return code, (errors or lines or [""])[-1].removeprefix("triptych: error: ")
