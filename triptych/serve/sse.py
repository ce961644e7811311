"""Server-sent events: a stream of JSON objects."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

from triptych.serve.errors import as_api_error

_log = logging.getLogger(__name__)


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, allow_nan=False)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
_BEAT = b": still here\n\n"
_BEAT_SECONDS = 15.0


def stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """An answer of these events. An error ends it with an event of its own: the status has been sent already."""
    # Proxies keep answers back until they are complete, unless they are told not to.
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_with_beats(_with_errors(events)), media_type="text/event-stream", headers=headers)


async def _with_errors(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for each in events:
            yield each
    except Exception as error:
        told = as_api_error(error)
        if told.status == 500:
            _log.exception("an error in a stream")
        yield event({"type": "error", **told.body}, "error")


async def _with_beats(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events, and comments in long pauses: proxies and clients give up a connection on which nothing comes."""
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({coming}, timeout=_BEAT_SECONDS)
            if not done:
                yield _BEAT
                continue
            try:
                each = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield each
    finally:
        if coming is not None:
            coming.cancel()
