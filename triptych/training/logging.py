"""Records first: one JSON line per event in RUN/records.jsonl. Console, TensorBoard and plots read the same events."""

import contextlib
import json
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


class Listener(Protocol):
    """Hears every event as it is recorded."""

    def __call__(self, event: dict[str, Any]) -> None: ...


class RunLog:
    """Appends events to a file and tells the listeners.

    After a resume the file still holds what came behind the checkpoint; `rewind` drops that, so that every step is
    there once.
    """

    def __init__(self, path: Path, listeners: list[Listener]):
        self.path, self.listeners = path, list(listeners)
        self._unwritten: list[str] = []
        self._is_failing = False
        path.parent.mkdir(parents=True, exist_ok=True)

    def rewind(self, step: int) -> None:
        if not self.path.exists():
            return
        kept = [event for event in read_records(self.path) if event.get("step", 0) <= step]
        temporary = self.path.with_suffix(".partial")
        temporary.write_text("".join(json.dumps(_plain(event), allow_nan=False) + "\n" for event in kept))
        os.replace(temporary, self.path)

    def __call__(self, kind: str, **fields: Any) -> None:
        event = _plain({"kind": kind, "time": round(time.time(), 3), **fields})
        self._unwritten.append(json.dumps(event, allow_nan=False) + "\n")
        self._write()
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception as error:  # whatever a tracker is made of: training does not depend on it
                self.listeners.remove(listener)
                _warn(f"{type(listener).__name__} no longer hears of this run: it failed with {error!r}")

    def _write(self) -> None:
        """What cannot be written now, as on a full disk, is written with what comes next."""
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with open(self.path, "a") as file:
                file.write("".join(self._unwritten))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, size)  # half a line would spoil the next
            if not self._is_failing:
                _warn(f"{self.path} cannot be written ({error.strerror}); going on")
            self._is_failing = True
            return
        self._unwritten, self._is_failing = [], False


def _warn(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # where not even that can be said, training goes on
        print(f"triptych: {text}", file=sys.stderr)


def _plain(value: Any) -> Any:
    """The value with None for every number that JSON does not know: NaN and the infinities."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class NullLog:
    """The records of ranks that keep none."""

    def __call__(self, kind: str, **fields: Any) -> None: ...


def read_records(path: Path) -> list[dict[str, Any]]:
    """All events; a last line that was cut off by a crash is left out."""
    events = []
    for line in path.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def environment() -> dict[str, Any]:
    """What a result depends on besides its configuration."""
    return {
        "triptych": triptych.__version__,
        "commit": _git_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "threads": torch.get_num_threads(),
    }


def _git_commit() -> str | None:
    """Of the source tree, marked if it has changes; None if the package does not lie in one."""
    folder = Path(triptych.__file__).parent.parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class Console:
    """A line for every logged step and validation; on a terminal, steps overwrite each other, but not those
    that were skipped."""

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
        f"{speed}, {_duration(event['seconds_left'])} left"
    )


def _skipped_line(event: dict[str, Any]) -> str:
    what = [name for name, key in (("loss", "loss"), ("gradient", "grad_norm")) if event[key] is None]
    why = f"because not finite: {', '.join(what)}" if what else f"a spike: loss {event['loss']:.3f}"
    return f"step {event['step']:>6}/{event['num_steps']}  skipped, {why}"


def _validation_line(event: dict[str, Any]) -> str:
    parts = ", ".join(
        f"{name} not finite"
        if None in value.values()
        else f"{name} {value['nats_per_token']:.3f} ± {value['margin']:.3f}"
        for name, value in event["nelbo"].items()
    )
    return f"step {event['step']:>6}  held out, nats per token: {parts}"


_LINES = {
    "validation": _validation_line,
    "run": lambda event: (
        f"{event['recipe']}: {event['parameters'] / 1e6:.1f}M parameters "
        f"({event['non_embedding'] / 1e6:.1f}M without embeddings), {event['num_steps']:,} steps, "
        f"into {event['folder']}"
    ),
    "saved": lambda event: f"step {event['step']:>6}  saved {event['path']}",
    "not saved": lambda event: (
        f"step {event['step']:>6}  NOT saved ({event['problem']}); the one before is kept, and saving is tried again"
    ),
    "rolled back": lambda event: (
        f"step {event['step']:>6}  rolled back to the weights of step {event['weights_of']} after a series of spikes"
    ),
    "end": lambda event: f"done: {event['step']:,} steps in {_duration(event['seconds'])}",
    "note": lambda event: event["text"],
}


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
