"""Bodies of requests: read within the limits of size and time before a route sees anything of them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triptych.errors import UserError
from triptych.serve.asgi import header, refuse, send_error
from triptych.serve.errors import RETRY_SECONDS, ApiError, as_api_error
from triptych.serve.json_body import read_json
from triptych.serve.limits import ServeLimits

_MUCH = 2**20
_PARSED = "triptych.json"


class ParsedRoute(APIRoute):
    """A route that takes JSON as `BodyCheck` has parsed it: FastAPI would parse it again, in the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_ParsedRequest(request.scope, request.receive))

        return handle


class _ParsedRequest(Request):
    async def json(self) -> Any:
        return self.scope[_PARSED]


class BodyCheck:
    """Reads the body, and answers 4xx if it is too large, too slow, compressed, or not what its type says."""

    def __init__(self, app: ASGIApp, limits: ServeLimits):
        self._app, self._limits = app, limits
        self._bytes_held = 0  # of all requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, is_whole = bytearray(), False
        try:
            try:
                self._check_head(scope)
                is_whole = await self._read(body, receive)
                if is_whole and len(body) > _MUCH:  # so long that other requests would notice
                    await asyncio.to_thread(self._check_content, scope, body)
                elif is_whole and body:
                    self._check_content(scope, body)
            except (ApiError, UserError) as error:
                await (send_error if is_whole else refuse)(as_api_error(error), scope, receive, send)
                return
            if is_whole:
                await self._app(scope, _again(bytes(body), receive), send)
        finally:
            self._bytes_held -= len(body)

    def _check_head(self, scope: Scope) -> None:
        if (header(scope, b"content-encoding") or "identity").lower() != "identity":
            raise ApiError(415, "compressed bodies are not accepted.")
        declared = header(scope, b"content-length") or "0"
        if not declared.isdecimal() or int(declared[:20]) > self._limits.body_bytes:
            raise self._too_large()

    async def _read(self, body: bytearray, receive: Receive) -> bool:
        """Read into `body`; False if the client went away before its end."""
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return False
                    chunk = message.get("body", b"")
                    if len(body) + len(chunk) > self._limits.body_bytes:
                        raise self._too_large()
                    if self._bytes_held + len(chunk) > self._limits.held_bytes:
                        busy = "the server is busy with other large requests: try again"
                        retry = {"Retry-After": str(RETRY_SECONDS)}
                        raise ApiError(503, busy, type="server_error", code="busy", headers=retry)
                    body += chunk
                    self._bytes_held += len(chunk)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            late = f"the request took longer than {self._limits.head_seconds:g} s to arrive."
            raise ApiError(408, late, type="timeout_error", code="request_timeout") from None

    def _check_content(self, scope: Scope, body: bytearray) -> None:
        kind = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if kind == "application/json":
            scope[_PARSED] = read_json(bytes(body), self._limits)
        elif kind != "multipart/form-data":
            raise ApiError(415, f"expected application/json or multipart/form-data, got {kind[:100]!r}.")

    def _too_large(self) -> ApiError:
        return ApiError(413, f"a body has at most {self._limits.body_bytes} bytes.", code="request_too_large")


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message
