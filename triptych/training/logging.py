"""Records of a run: one JSON line per event in RUN/records.jsonl. Console, TensorBoard and plots use these events."""

import contextlib
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import torch

import triptych
from triptych.utils.files import write_atomically
from triptych.utils.json_lines import read_lines, to_line, warn_of_damage
from triptych.utils.legacy import with_current_keys
from triptych.utils.units import human_duration


class Logger(Protocol):
    """Receives every event as it is recorded."""

    def __call__(self, event: dict[str, Any]) -> None: ...


class RunLog:
    """Appends events to a file and passes them to loggers.

    When a run resumes, the file may hold events after the checkpoint; `rewind` drops them, so that no step is in it
    twice.
    """

    def __init__(self, path: Path, loggers: list[Logger]):
        self.path, self.loggers = path, list(loggers)
        self._unwritten: list[str] = []
        self._is_failing = False
        path.parent.mkdir(parents=True, exist_ok=True)

    def rewind(self, step: int) -> list[int]:
        """Drop the events after a step; returns the numbers of damaged lines, which are dropped, too."""
        if not self.path.exists():
            return []
        events, damaged = read_lines(self.path)
        damaged += [number for number, event in events.items() if not _is_event(event)]
        kept = [event for event in events.values() if _is_event(event) and event.get("step", 0) <= step]
        write_atomically(self.path, "".join(to_line(_finite(event)) for event in kept).encode())
        return sorted(damaged)

    def __call__(self, kind: str, **fields: Any) -> None:
        event = _finite({"kind": kind, "time": round(time.time(), 3), **fields})
        self._unwritten.append(to_line(event))
        self._write()
        for logger in list(self.loggers):
            try:
                logger(event)
            except Exception as error:  # training does not depend on a logger
                self.loggers.remove(logger)
                _warn(f"{type(logger).__name__} gets no more events of this run: it failed with {error!r}")

    def _write(self) -> None:
        """Write pending events; those that cannot be written now, as on a full disk, are written with the next ones."""
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with open(self.path, "a") as file:
                file.write("".join(self._unwritten))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, size)  # half a line would corrupt the next
            if not self._is_failing:
                _warn(f"{self.path} cannot be written ({error.strerror}); training continues")
            self._is_failing = True
            return
        self._unwritten, self._is_failing = [], False


def _warn(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # training does not depend on a terminal
        print(f"triptych: {text}", file=sys.stderr)


def _finite(value: Any) -> Any:
    """The value with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class NullLog:
    """Discards events: the log of all ranks but rank 0."""

    def __call__(self, kind: str, **fields: Any) -> None: ...


def read_records(path: Path) -> list[dict[str, Any]]:
    """All events, with current configuration keys; there is a warning of damaged lines, which are left out.

    A last line that a crash cut off is ignored.
    """
    events, damaged = read_lines(path)
    damaged += [number for number, event in events.items() if not _is_event(event)]
    warn_of_damage(path, sorted(damaged))
    return [
        {**event, "config": with_current_keys(event["config"])} if isinstance(event.get("config"), dict) else event
        for event in events.values()
        if _is_event(event)
    ]


def _is_event(event: dict[str, Any]) -> bool:
    """Whether a record has what all readers rely on; earlier versions wrote no checksums, so a flip may hide here."""
    return isinstance(event.get("kind"), str) and isinstance(event.get("step", 0), int)


def environment() -> dict[str, Any]:
    """Versions and machine: what a result depends on besides its configuration."""
    return {
        "triptych": triptych.__version__,
        "commit": _git_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "threads": torch.get_num_threads(),
    }


def _git_commit() -> str | None:
    """Commit of the source tree, marked if it has changes; None if the package is not in a git repository."""
    folder = Path(triptych.__file__).parent.parent
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
        return described.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class Console:
    """Prints a line per event to stderr. On a terminal, each step overwrites the previous one, except skipped steps."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "step":
            skipped = event.get("skipped", False)
            text, live = (_skipped_line if skipped else _step_line)(event), self._live and not skipped
        elif event["kind"] in ("validation", "run", "saved", "not saved", "rolled back", "end", "note"):
            text, live = _LINES[event["kind"]](event), False
        else:
            return
        if self._live:
            print(f"\r\x1b[2K{text}", end="" if live else "\n", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _step_line(event: dict[str, Any]) -> str:
    parts = " ".join(f"{name} {value:.2f}" for name, value in event["nll"].items() if value is not None)
    speed = f"{event['tokens_per_second']:,.0f} tokens/s"
    if event.get("mfu") is not None:
        speed += f", {event['mfu']:.0%} of peak"
    return (
        f"step {event['step']:>6}/{event['num_steps']}  loss {event['loss']:.3f} ({parts})  lr {event['lr']:.1e}  "
        f"{speed}, {human_duration(event['seconds_left'])} left"
    )


def _skipped_line(event: dict[str, Any]) -> str:
    what = [name for name, key in (("loss", "loss"), ("gradient", "grad_norm")) if event[key] is None]
    why = f"not finite: {', '.join(what)}" if what else f"loss spike: {event['loss']:.3f}"
    return f"step {event['step']:>6}/{event['num_steps']}  skipped, {why}"


def _validation_line(event: dict[str, Any]) -> str:
    parts = ", ".join(
        f"{name} not finite"
        if None in value.values()
        else f"{name} {value['nats_per_token']:.3f} ± {value['margin']:.3f}"
        for name, value in event["nelbo"].items()
    )
    return f"step {event['step']:>6}  validation, nats per token: {parts}"


_LINES = {
    "validation": _validation_line,
    "run": lambda event: (
        f"{event['recipe']}: {event['parameters'] / 1e6:.1f}M parameters "
        f"({event['non_embedding'] / 1e6:.1f}M without embeddings), {event['num_steps']:,} steps, "
        f"into {event['folder']}"
    ),
    "saved": lambda event: f"step {event['step']:>6}  saved {event['path']}",
    "not saved": lambda event: (
        f"step {event['step']:>6}  NOT saved ({event['problem']}); the previous checkpoint is kept; will try again"
    ),
    "rolled back": lambda event: (
        f"step {event['step']:>6}  rolled back to the weights of step {event['weights_of']} after a series of spikes"
    ),
    "end": lambda event: f"done: {event['step']:,} steps in {human_duration(event['seconds'])}",
    "note": lambda event: event["text"],
}
