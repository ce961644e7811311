"""One canvas on its way: a job in the engine, and its events in the event loop."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

from triptych.sample.canvas import Canvas
from triptych.serve.job import DeadlineError, Done, Event, Failed, Job, JobError, SlowReaderError, Step

_GRACE_SECONDS = 2.0  # after the deadline: for the engine, which looks at it between steps


class Filling:
    """The events of one job: any number of steps, then `Done`. To be made in the event loop."""

    def __init__(self, job: Job, cancel: Callable[[str], None], max_bytes: int, errors: Counter[str]):
        """`cancel` stops a job by name. Steps that nobody reads take at most `max_bytes`."""
        self.job = job
        self._cancel, self._max_bytes, self._errors = cancel, max_bytes, errors
        self._loop = asyncio.get_running_loop()
        self._events = asyncio.Queue[Event]()
        self._num_bytes = 0
        self._is_over = False

    def deliver(self, event: Event) -> None:
        """Take an event, on any thread."""
        self._loop.call_soon_threadsafe(self._take, event)

    def cancel(self) -> None:
        """Stop the job, if it is not over."""
        if not self._is_over:
            self._is_over = True
            self._cancel(self.job.name)

    async def __aiter__(self) -> AsyncIterator[Step | Done]:
        while True:
            event = await self._next()
            if isinstance(event, Failed):
                self._errors[_kind_of(event.error)] += 1
                raise event.error
            yield event
            if isinstance(event, Done):
                return

    async def canvas(self) -> Canvas:
        """The filled canvas."""
        async for event in self:
            if isinstance(event, Done):
                return event.canvas
        raise AssertionError("a job ended without a canvas")

    async def _next(self) -> Event:
        deadline = self.job.deadline
        left = None if deadline is None else max(0.0, deadline + _GRACE_SECONDS - time.monotonic())
        try:
            async with asyncio.timeout(left):
                event = await self._events.get()
        except TimeoutError:  # the engine hangs
            self.cancel()
            return Failed(DeadlineError("the deadline has passed"))
        self._num_bytes -= _size_of(event)
        return event

    def _take(self, event: Event) -> None:
        if self._is_over:
            return
        self._num_bytes += _size_of(event)
        if self._num_bytes > self._max_bytes:
            self.cancel()
            self._events = asyncio.Queue()
            event = Failed(SlowReaderError("the steps are not read"))
        self._is_over = not isinstance(event, Step)
        self._events.put_nowait(event)


def _size_of(event: Event) -> int:
    return event.nbytes if isinstance(event, Step) else 0


def _kind_of(error: Exception) -> str:
    """One of a few words."""
    return type(error).__name__.removesuffix("Error").lower() if isinstance(error, JobError) else "other"
