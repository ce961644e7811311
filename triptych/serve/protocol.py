"""HTTP connections with limits that uvicorn does not have: time for the head of a request, and for reading answers."""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from triptych.serve.errors import ApiError, unavailable
from triptych.serve.limits import ServeLimits


def protocol_with(limits: ServeLimits) -> type[H11Protocol]:
    """The protocol class for uvicorn."""

    class Protocol(_TimedProtocol):
        seconds, max_connections = limits.head_seconds, limits.connections

    return Protocol


class _TimedProtocol(H11Protocol):
    seconds: float
    max_connections: int
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._answer(unavailable())
        else:
            self._start_head()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and self._is_idle:
            self._start_head()
        super().data_received(data)
        if not self._is_idle:
            self._stop_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head()
        self.resume_writing()
        super().connection_lost(exc)

    # A client that does not read its answer must not keep the connection for ever.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        self._answer(ApiError(400, msg))

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _start_head(self) -> None:
        late = ApiError(408, f"the request took longer than {self.seconds:g} s to arrive.", type="timeout_error")
        self._head_timer = self.loop.call_later(self.seconds, self._answer, late)

    def _stop_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _answer(self, error: ApiError) -> None:
        """Answer without the application, and close."""
        self._stop_head()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=error.status, headers=list({**headers, **error.headers}.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
