"""Signals that stop a run after the current step, and the exception that reports it. Imports nothing heavy."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
ECHO_SECONDS = 0.5
"""A repetition of a signal within this time is not a second signal."""


class RunStopped(KeyboardInterrupt):
    """A signal stopped the run. The same command resumes it.

    Derived from KeyboardInterrupt, so that no `except Exception` swallows it.
    """

    def __init__(self, number: int, step: int, saved: bool):
        super().__init__(f"stopped at step {step}, {'saved' if saved else 'not saved'}")
        self.signal = number
        """Number of the signal."""
        self.step = step
        """Last finished step."""
        self.saved = saved
        """Whether there is a checkpoint of that step; False after a second signal."""

    @property
    def exit_code(self) -> int:
        return exit_code_after(self.signal)


def exit_code_after(number: int) -> int:
    """130 after Ctrl-C; 75, which means "run the same command again", after any other signal."""
    return 130 if number == signal.SIGINT else 75


def handled_signals() -> list[signal.Signals]:
    """The stop signals that this process does not ignore: `nohup` makes it ignore SIGHUP."""
    return [
        number for number in STOP_SIGNALS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


class StopSignals:
    """Remembers the first stop signal, so that the current step can finish; a second one raises `RunStopped`.

    A repetition within half a second is not a second signal: a scheduler signals all processes of a job, and a parent
    process forwards what it receives.
    """

    def __init__(self, current_step: Callable[[], int]):
        self.received: int | None = None
        self._current_step = current_step
        self._time = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python delivers signals to the main thread only
        for number in handled_signals():
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def flags(self) -> list[bool]:
        """For each of STOP_SIGNALS, whether it was the first to arrive."""
        return [self.received == number for number in STOP_SIGNALS]

    def _handle(self, number: int, _: Any) -> None:
        if self.received is None:
            self.received, self._time = number, time.monotonic()
        elif number != self.received or time.monotonic() - self._time > ECHO_SECONDS:
            raise RunStopped(number, self._current_step(), saved=False)
