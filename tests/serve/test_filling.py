"""What comes of the engine faster than it is read, or does not come at all, has bounds."""

import asyncio
import itertools
import time
from collections import Counter

import numpy as np
import pytest

from triptych.sample.canvas import Canvas, unconditional
from triptych.sample.config import SamplingConfig
from triptych.serve import filling as filling_module
from triptych.serve.filling import Filling
from triptych.serve.job import DeadlineError, Done, Failed, Job, SlowReaderError, Step
from triptych.serve.streams import merged
from triptych.vocab import Modality

CANVAS = Canvas(unconditional(Modality.TEXT, 4))
STEP = Step(0, 9, np.zeros(100, np.int64))


class Made:
    """A filling without an engine."""

    def __init__(self, seconds: float = 60.0, max_bytes: int = 10 * STEP.nbytes):
        job = Job("job", CANVAS, SamplingConfig(), 0, time.monotonic() + seconds)
        self.cancelled, self.errors = list[str](), Counter[str]()
        self.filling = Filling(job, self.cancelled.append, max_bytes, self.errors)

    async def read(self) -> list[Step | Done]:
        return [event async for event in self.filling]


def test_steps_come_in_order_and_nothing_is_cancelled_after_the_end():
    async def run() -> None:
        made, steps = Made(), [Step(i, 9, np.zeros(4, np.int64)) for i in range(9)]
        for event in (*steps, Done(CANVAS)):
            made.filling.deliver(event)
        assert await made.read() == [*steps, Done(CANVAS)]
        made.filling.cancel()
        assert (made.cancelled, made.errors) == ([], {})

    asyncio.run(run())


def test_a_reader_that_is_too_slow_ends_the_job():
    async def run() -> None:
        made = Made()
        for _ in range(11):
            made.filling.deliver(STEP)
        with pytest.raises(SlowReaderError):
            await made.read()
        assert made.cancelled == ["job"]
        made.filling.deliver(STEP)
        await asyncio.sleep(0.01)
        assert made.filling._events.empty()
        assert made.errors == {"slowreader": 1}

    asyncio.run(run())


def test_what_was_read_does_not_count():
    async def run() -> None:
        made = Made()
        events = aiter(made.filling)
        for _ in range(100):
            made.filling.deliver(STEP)
            assert await anext(events) == STEP
        assert made.cancelled == []

    asyncio.run(run())


def test_an_engine_that_hangs_does_not_hold_a_request(monkeypatch):
    monkeypatch.setattr(filling_module, "_GRACE_SECONDS", 0.1)

    async def run() -> None:
        made, start = Made(seconds=0.1), time.monotonic()
        with pytest.raises(DeadlineError):
            await made.filling.canvas()
        assert 0.2 <= time.monotonic() - start < 10
        assert made.cancelled == ["job"]
        assert made.errors == {"deadline": 1}

    asyncio.run(run())


def test_an_error_of_the_engine_is_raised_and_counted():
    async def run() -> None:
        made = Made()
        made.filling.deliver(Failed(ZeroDivisionError()))
        with pytest.raises(ZeroDivisionError):
            await made.filling.canvas()
        assert made.errors == {"other": 1}
        assert made.cancelled == []

    asyncio.run(run())


def test_merged_streams_are_read_no_faster_than_their_events():
    async def run() -> None:
        taken = 0

        async def stream():
            nonlocal taken
            for number in itertools.count():
                taken += 1
                yield number

        events = merged([stream(), stream()])
        for _ in range(5):
            await anext(events)
            await asyncio.sleep(0.01)
        assert taken <= 5 + 1 + 2
        await events.aclose()

    asyncio.run(run())
