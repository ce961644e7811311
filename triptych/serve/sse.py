"""Server-sent events: a stream of JSON objects."""

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


def stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """An answer of these events. An error ends it with an event of its own: the status has been sent already."""
    return StreamingResponse(
        _with_errors(events), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
    )


async def _with_errors(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for each in events:
            yield each
    except Exception as error:
        told = as_api_error(error)
        if told.status == 500:
            _log.exception("an error in a stream")
        yield event({"type": "error", **told.body}, "error")
