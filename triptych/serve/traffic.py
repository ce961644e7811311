"""The outermost middleware: every request has an id, a line in the log and a place in the metrics."""

import asyncio
import logging
import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triptych.serve.asgi import header, refuse, send_error
from triptych.serve.errors import as_api_error, unavailable
from triptych.serve.metrics import Metrics
from triptych.serve.service import Service

_log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_CLIENT_HAS_GONE = 499
# While the server stops, these say so themselves and do not hold it up.
_OBSERVING = frozenset({"/health", "/ready", "/metrics"})


class Traffic:
    """Watches requests; refuses new ones while the server stops; makes an unexpected error an answer."""

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics):
        self._app, self._service, self._metrics = app, service, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = header(scope, b"x-request-id") or ""
        scope["request_id"] = name = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope["arrived"] = time.monotonic()
        counts = scope["path"] not in _OBSERVING
        status: list[int] = []

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
                message = {**message, "headers": [*message["headers"], (b"x-request-id", name.encode())]}
            await send(message)

        self._service.num_requests += counts
        try:
            if counts and self._service.is_draining:
                await refuse(unavailable(), scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except Exception as error:
            _log.exception("an error inside the server", extra={"fields": {"id": name}})
            if status:
                raise
            await send_error(as_api_error(error), scope, receive, send_with_id)
        except asyncio.CancelledError:
            if status or not self._service.is_draining:
                raise
            await send_error(unavailable(), scope, receive, send_with_id)
        finally:
            self._service.num_requests -= counts
            if (call := scope.get("call")) is not None:
                call.end()
            self._record(scope, status[0] if status else _CLIENT_HAS_GONE)

    def _record(self, scope: Scope, status: int) -> None:
        seconds = time.monotonic() - scope["arrived"]
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.on_request(route, scope["method"], status, seconds)
        call = scope.get("call")
        fields = {
            "id": scope["request_id"],
            "method": scope["method"][:16],
            "route": route,
            "status": status,
            "seconds": round(seconds, 4),
            "model": call.model if call else None,
        }
        _log.info("request", extra={"fields": fields})
