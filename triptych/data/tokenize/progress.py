"""How far a run is: a bar in a terminal, a line every few seconds elsewhere, nothing at all without a console."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Counts what has been done. Rates and the time left count only this run, not what an earlier one finished."""

    def __init__(self, console: "Console | None" = None):
        self._console = console
        self._bar: Any = None
        self.samples = self.tokens = self.bad = 0
        self.fraction = 0.0

    def __enter__(self) -> "Progress":
        self._start = self._last_line = time.monotonic()
        self._first_fraction: float | None = None
        if self._console is not None and self._console.is_terminal:
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.fields[status]}"))
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._bar.add_task("", total=1.0, status="starting")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def advance(self, *, samples: int, tokens: int, bad: int, fraction: float) -> None:
        """`samples` and `tokens` more were made, `bad` more left out; `fraction` of the source is done now."""
        if self._first_fraction is None:  # the first batch also paid for loading, so it does not count either
            self._first_fraction, self._start = fraction, time.monotonic()
        else:
            self.samples, self.tokens = self.samples + samples, self.tokens + tokens
        self.bad, self.fraction = self.bad + bad, fraction
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=fraction, status=self.status())
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.say(f"{fraction:4.0%}  {self.status()}")

    def status(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        gained = self.fraction - (self._first_fraction or 0.0)
        parts = [f"{short(self.samples / seconds)} samples/s", f"{short(self.tokens / seconds)} tokens/s"]
        if self.bad:
            parts.append(f"{self.bad:,} bad")
        if gained > 0:
            parts.append(f"{clock(seconds * (1 - self.fraction) / gained)} left")
        return ", ".join(parts)


def short(number: float) -> str:
    """1,234,567 as 1.2M."""
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.0f}{unit}" if number >= 100 or not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}T"


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
