"""Streams of events: comments in long pauses, errors as events, headers that keep proxies from holding them back."""

import asyncio
import json
from collections.abc import AsyncIterator

from triptych.serve import sse
from triptych.serve.job import QueueFullError


def sent(events: AsyncIterator[bytes]) -> list[bytes]:
    async def run() -> list[bytes]:
        return [each async for each in sse.stream(events).body_iterator]

    return asyncio.run(run())


async def events(*pauses: float) -> AsyncIterator[bytes]:
    for pause in pauses:
        await asyncio.sleep(pause)
        yield b"event"


def test_comments_fill_long_pauses(monkeypatch):
    monkeypatch.setattr(sse, "_BEAT_SECONDS", 0.1)
    made = sent(events(0, 0.35, 0))
    assert [each for each in made if each == b"event"] == [b"event"] * 3
    assert made[0] == made[-1] == b"event"
    assert made[1:-2] == [b": still here\n\n"] * len(made[1:-2])
    assert len(made[1:-2]) >= 2


def test_an_error_is_the_last_event():
    async def failing() -> AsyncIterator[bytes]:
        yield b"event"
        raise QueueFullError

    first, last = sent(failing())
    assert first == b"event"
    name, data = last.decode().strip().splitlines()
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "queue_full"


def test_leaving_a_stream_ends_its_events():
    ended = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"event"
                await asyncio.sleep(1000)
        finally:
            ended.append(True)

    async def run() -> None:
        answer = aiter(sse.stream(endless()).body_iterator)
        await anext(answer)
        waiting = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert ended == [True]

    asyncio.run(run())


def test_proxies_are_told_not_to_wait():
    headers = sse.stream(events()).headers
    assert (headers["X-Accel-Buffering"], headers["Cache-Control"]) == ("no", "no-cache")
