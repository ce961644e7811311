"""What keeps a run safe: one process per folder, signals that wait for the step, a watch over hangs, spikes."""

import contextlib
import faulthandler
import fcntl
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO, Any

from triptych.errors import UserError
from triptych.training.config import GuardConfig

_ECHO_SECONDS = 0.5
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class StoppedAtOnce(KeyboardInterrupt):
    """The run was asked a second time, and has not saved."""

    def __init__(self, number: int):
        super().__init__("stopped at once")
        self.number = number


class Signals:
    """Notes SIGINT, SIGTERM, SIGUSR1 and SIGHUP so that the step in progress can end; a second one stops at once.

    An echo of the first is not a second one: a scheduler signals all processes of a job, and whoever started this one
    passes on what it got.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in STOPS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def flags(self) -> list[bool]:
        """For each of the signals whether it has come."""
        return [self.received == number for number in STOPS]

    def _note(self, number: int, _: Any) -> None:
        if self.received is None:
            self.received, self._when = number, time.monotonic()
        elif number != self.received or time.monotonic() - self._when > _ECHO_SECONDS:
            raise StoppedAtOnce(number)


class FolderLock:
    """Makes sure that one run at a time writes to a folder. The lock dies with its process, however that ends."""

    def __init__(self, folder: Path):
        self.path = folder / "lock"
        self._file: IO[str] | None = None
        self._is_new = not folder.exists()

    def take(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "a+")  # noqa: SIM115 (held until the run ends)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise UserError(
                f"{self.path.parent} is being trained by {owner}: stop that run, or choose another --out."
            ) from None
        except OSError as error:
            file.close()
            raise UserError(
                f"{self.path} cannot be locked ({error.strerror}): has its file system no locks? Choose another --out."
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file

    def release(self, *, undo: bool = False) -> None:
        """Give the folder free; with `undo`, as if it had never been taken."""
        if self._file is None:
            return
        if undo and self._is_new:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()
        self._file.close()


class Watch:
    """Prints where every thread of this process is when nothing has happened for so long.

    It is a timer outside of the interpreter: it also goes off where that is stuck, in a message to another rank say.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __enter__(self) -> "Watch":
        self.beat()
        return self

    def beat(self) -> None:
        """Something has happened."""
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(self.seconds, repeat=True, file=sys.__stderr__)

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()


class LossSpikeDetector:
    """Tells losses that are far above those of late, by a running mean and variance.

    Its state is a few numbers that are saved with the weights, so that a run that goes on decides as one that was not
    interrupted.
    """

    def __init__(self, config: GuardConfig, state: dict[str, float] | None = None):
        self.config = config
        self.count, self.mean, self.variance = 0, 0.0, 0.0
        if state is not None:
            self.count, self.mean, self.variance = int(state["count"]), state["mean"], state["variance"]

    @property
    def state(self) -> dict[str, float]:
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def is_spike(self, loss: float) -> bool:
        """Whether a step with this loss is to be left out; if not, it counts among those of late."""
        limit = self.config.spike_sigmas
        has_seen_enough = self.count >= self.config.spike_window
        if limit is not None and has_seen_enough and loss > self.mean + limit * math.sqrt(self.variance):
            return True
        self.count += 1
        share = 1 / min(self.count, self.config.spike_window)
        above = loss - self.mean
        self.mean += share * above
        self.variance = (1 - share) * (self.variance + share * above**2)
        return False
