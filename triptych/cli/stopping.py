"""Signals that stop a command: the first is an exception, a second ends the process at once; exit code 75 or 130."""

import atexit
import os
import signal
import threading
import time
from typing import Any

from triptych.training.signals import ECHO_SECONDS, exit_code_after, handled_signals


class Terminated(BaseException):
    """SIGTERM, SIGUSR1 or SIGHUP as an exception: like Ctrl-C it must pass through everything that catches errors."""


class StopHandlers:
    """Handlers from now on; a signal ends the process at once until `begin`, and then raises an exception.

    `restore` ends them. With `until_exit`, they stay until the process has ended.
    A training run handles its signals itself meanwhile, because it saves first (`StopSignals`).
    """

    def __init__(self, *, until_exit: bool = False) -> None:
        self._has_begun = False
        self._first: int | None = None
        self._time = 0.0
        self._exit_code: int | None = None
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # Python delivers signals to it only
            self._previous = {number: signal.signal(number, self._handle) for number in handled_signals()}
        if until_exit:
            # After what the command registers. Then Python sets its handlers to the default, which would kill, but
            # leaves ignored signals ignored, while libraries still clean up.
            atexit.register(self._ignore)

    def begin(self) -> None:
        """A command begins, which may have something to clean up."""
        self._has_begun = True

    @property
    def exit_code(self) -> int:
        """Of a command that was stopped by the first signal."""
        return exit_code_after(self._first or signal.SIGINT)

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def exits_with(self, code: int) -> None:
        """The process is about to exit with this code: a signal ends it at once, with the same code."""
        self._exit_code = code

    def _ignore(self) -> None:
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _: Any) -> None:
        if self._exit_code is not None:
            os._exit(self._exit_code)
        if not self._has_begun:
            os._exit(exit_code_after(number))
        if self._first is None:
            self._first, self._time = number, time.monotonic()
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        if time.monotonic() - self._time > ECHO_SECONDS:
            os._exit(self.exit_code)
