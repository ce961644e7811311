"""Run commands in processes with a limit on their memory, and measure what they take.

The processes are forked from a server that has imported what they need, so that one costs milliseconds.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADDRESS_SPACE = 6_000_000_000
"""Bytes of address space that a tested process may have: far above what it should need, below what a machine has."""
EXIT_CODES = (0, 2, 3, 4)

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["triptych.cli.main", "triptych.data.tokenize", "torch", "pyarrow.parquet"])


@dataclass(frozen=True)
class Outcome:
    code: int
    """Exit code; negative: the signal that ended it."""
    out: str
    err: str
    peak: int
    """Largest resident memory in bytes."""
    seconds: float
    hung: bool = False

    @property
    def fault(self) -> str:
        """What is wrong with the way it ended; empty if it ended by itself, with a documented code and one line."""
        if self.hung:
            return "hung"
        if "Traceback" in self.err:
            return "traceback"
        return "" if self.code in EXIT_CODES else f"exit code {self.code}"


def run(words: Sequence[str | Path], *, seconds: float = 120.0) -> Outcome:
    """Run `triptych WORDS` in a process of its own."""
    return call(_triptych, list(map(str, words)), seconds=seconds)


def call(function: Callable[..., Any], *args: Any, seconds: float = 120.0) -> Outcome:
    """Call a function of a module in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = _CONTEXT.Process(target=_limited, args=(folder, function, *args))
        begin = time.monotonic()
        process.start()
        peak, hung = 0, False
        while process.is_alive():
            peak = max(peak, peak_of(process.pid))
            if time.monotonic() - begin > seconds:
                hung = True
                process.kill()
            process.join(0.01)
        out, err = ((folder / each).read_text(errors="replace") for each in ("out", "err"))
        if (folder / "peak").exists():
            peak = int((folder / "peak").read_text())
        return Outcome(process.exitcode or 0, out, err, peak, time.monotonic() - begin, hung)


def peak_of(pid: int | None) -> int:
    """Largest resident memory of a process so far, in bytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def _triptych(words: list[str]) -> int:
    from triptych.cli.main import main

    return main(words)


def _limited(folder: Path, function: Callable[..., Any], *args: Any) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    code = 1
    try:
        code = function(*args) or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (folder / "peak").write_text(str(peak_of(os.getpid())))
        os._exit(code)
