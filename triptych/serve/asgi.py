"""What our ASGI middleware has in common. All of it is plain ASGI: starlette's BaseHTTPMiddleware breaks streams."""

import asyncio
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from triptych.serve.errors import ApiError

_LINGER_SECONDS = 2.0


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; of several, the first."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


async def send_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request whose body is not wanted.

    The connection ends, or the rest of the body would still come. It ends a while after the answer: closed at once,
    many clients would not see it.
    """
    if (header(scope, b"content-length") or "0") == "0" and header(scope, b"transfer-encoding") is None:
        await send_error(error, scope, receive, send)
        return
    error.headers = {**error.headers, "Connection": "close"}

    async def send_and_linger(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    while (got := await receive())["type"] == "http.request" and got.get("more_body", False):
                        pass
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    await send_error(error, scope, receive, send_and_linger)
