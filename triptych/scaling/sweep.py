"""Does the runs of a planned grid, each a process of its own: what one of them breaks, the others do not notice."""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.recipes import recipe
from triptych.scaling.queue import check_run, read_grid, result
from triptych.training.config import override
from triptych.training.loop import Diverged
from triptych.utils.trials import Trial, run_trials


@dataclass(frozen=True)
class SweepResult:
    num_runs: int
    num_done: int
    """By anyone."""
    failed: dict[str, str]
    """By run, why it ended without a result here. Its checkpoints are kept."""


def sweep(folder: Path, options: Sequence[str] = (), report: Callable[[str], None] = print) -> SweepResult:
    """Take runs until none is left that nobody is at. `options` are those of `triptych train`."""
    runs = {run.key: run for run in read_grid(folder)}
    first = next(iter(runs.values()))
    check_run(override(recipe(first.recipe), list(first.changes)))
    failed: dict[str, str] = {}

    def train(trial: Trial) -> dict[str, Any] | None:
        run = runs[trial.key]
        log = folder / "runs" / f"{run.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        report(f"{run.key}: {run.num_steps:,} steps, {run.D:.3g} tokens; see {log}")
        code, said = _do([sys.executable, "-m", "triptych", *run.command(folder), *options], log)
        if code == 0:
            return {"N": run.N, **result(folder, run), "diverged": False}
        if code == Diverged.exit_code:
            return {"N": run.N, "D": run.D, "C": run.C, "loss": None, "diverged": True, "problem": said}
        failed[run.key] = f"{said or 'no word'} (code {code}, see {log})"
        report(f"{run.key} is left: {failed[run.key]}")
        return None

    trials = [Trial(run.key, {"budget": run.budget}) for run in runs.values()]
    done = run_trials(folder, trials, train, report)
    return SweepResult(len(runs), len(done), failed)


def _do(command: Sequence[str], log: Path) -> tuple[int, str]:
    """The exit code, and the last line that was said in this attempt.

    In a session of its own, so that Ctrl-C reaches it once, from here: the second one would not let it save.
    """
    begin = log.stat().st_size if log.exists() else 0
    with open(log, "ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = process.wait()
    except BaseException as stop:  # Ctrl-C, or SIGTERM as the command line turns it into an exception
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
        try:
            process.send_signal(number)
            process.wait()
        except BaseException:  # asked a second time
            process.send_signal(number)
            raise
        raise
    with open(log, "rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("triptych: error: ")]
    return code, (errors or lines or [""])[-1].removeprefix("triptych: error: ")
