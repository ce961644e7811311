"""Progress of a run: a bar in a terminal, a line every few seconds elsewhere, nothing without a console."""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from triptych.utils.terminal import printable
from triptych.utils.units import human_number

if TYPE_CHECKING:
    from rich.console import Console

_SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class _Counts:
    samples: int = 0
    tokens: int = 0
    bad: int = 0
    fraction: float = 0.0
    time: float = field(default_factory=time.monotonic)


class Progress:
    """Counts and shows samples and tokens. Rates start after the first batch, which includes loading the tokenizers."""

    def __init__(self, console: "Console | None" = None):
        self._console = console
        self._bar: Any = None
        self._first: _Counts | None = None
        self._now = _Counts()
        self._last_line = time.monotonic()

    @classmethod
    def on_stderr(cls) -> "Progress":
        from rich.console import Console

        return cls(Console(stderr=True))

    def __enter__(self) -> "Progress":
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
            self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def advance(self, *, samples: int, tokens: int, bad: int, fraction: float) -> None:
        """Add finished samples, their tokens and bad samples; `fraction` of the source has been read so far."""
        before = self._now
        self._now = _Counts(before.samples + samples, before.tokens + tokens, before.bad + bad, fraction)
        self._first = self._first or self._now
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=fraction, status=self._status())
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.say(f"{fraction:4.0%}  {self._status()}")

    def _status(self) -> str:
        first, now = self._first or self._now, self._now
        parts = [f"{now.samples:,} samples"]
        if now.bad:
            parts.append(f"{now.bad:,} bad")
        if (seconds := now.time - first.time) > 0:
            parts.append(f"{human_number((now.samples - first.samples) / seconds)} samples/s")
            parts.append(f"{human_number((now.tokens - first.tokens) / seconds)} tokens/s")
        if (gained := now.fraction - first.fraction) > 0:
            parts.append(f"{clock(seconds * (1 - now.fraction) / gained)} left")
        return ", ".join(parts)


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
