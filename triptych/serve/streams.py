"""Several streams of events as one."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merged(streams: Sequence[AsyncIterable[T]]) -> AsyncIterator[tuple[int, T]]:
    """The events of all streams as they come, with the number of their stream. An error in one ends all.

    A stream is read when there is room for its event: what comes of it faster than it is read waits inside it.
    """
    queue = asyncio.Queue[tuple[int, T] | Exception | None](maxsize=1)

    async def forward(number: int, stream: AsyncIterable[T]) -> None:
        try:
            async for each in stream:
                await queue.put((number, each))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(forward(number, stream)) for number, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            each = await queue.get()
            if isinstance(each, Exception):
                raise each
            if each is None:
                running -= 1
            else:
                yield each
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
