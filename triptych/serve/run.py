"""Run the server until it is told to stop."""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType

import uvicorn

from triptych.errors import UserError
from triptych.hub.pipeline import Pipeline
from triptych.serve.app import Access, create_app
from triptych.serve.errors import ServerError
from triptych.serve.limits import ServeLimits
from triptych.serve.logs import log_as_json
from triptych.serve.metrics import Metrics
from triptych.serve.protocol import protocol_with
from triptych.serve.service import Service

_ECHO_SECONDS = 0.5  # a terminal and a launcher send one signal each
_DEAD_SECONDS = 5.0  # in which a server whose engine has died says so
_END_SECONDS = 2  # for answers that say that the server stops
_EVERYWHERE = ("", "0.0.0.0", "::")


def serve(
    pipes: Mapping[str, Pipeline],
    limits: ServeLimits,
    access: Access,
    listener: socket.socket,
    *,
    host: str,
    replicas: int = 1,
) -> None:
    """Serve until a signal. Ends with KeyboardInterrupt if it was Ctrl-C, and with `ServerError` if an engine died."""
    log_as_json()
    metrics = Metrics()
    service = Service(pipes, limits, on_round=metrics.on_round, replicas=replicas)
    app = create_app(service, with_host(access, host), metrics)
    config = uvicorn.Config(
        app,
        http=protocol_with(limits),
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_END_SECONDS,
    )
    server = _Server(config, service, f"serving {', '.join(pipes)} on {address_of(listener)}")
    server.run(sockets=[listener])
    if server.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if not server.started:
        raise ServerError("the server could not start: see the log.")
    if service.dead and server.signal is None:
        raise ServerError(f"the engine of {service.dead[0]!r} has died: see the log.")


class _Server(uvicorn.Server):
    """Stops in two stages, so that a balancer notices: first it refuses what is new, then it closes its socket.

    It stops at a signal, and by itself when an engine has died, which nothing in this process starts again.
    """

    def __init__(self, config: uvicorn.Config, service: Service, message: str):
        super().__init__(config)
        self.signal: int | None = None
        self._service, self._message = service, message
        self._stops_since: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._message, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = sig
            self._stop()
        elif self._seconds_stopping > _ECHO_SECONDS:
            os._exit(128 + sig)

    async def on_tick(self, counter: int) -> bool:
        if self._stops_since is None and self._service.dead:
            self._stop()
        if self._stops_since is not None:
            if self._seconds_stopping > self._service.limits.drain_seconds:
                await self._service.close()
                self.should_exit = True
            is_seen = self.signal is not None or self._seconds_stopping > _DEAD_SECONDS
            self.should_exit |= is_seen and self._service.num_requests == 0
        return await super().on_tick(counter)

    def _stop(self) -> None:
        self._service.is_draining = True
        self._stops_since = time.monotonic()

    @property
    def _seconds_stopping(self) -> float:
        return 0.0 if self._stops_since is None else time.monotonic() - self._stops_since


def listen(host: str, port: int) -> socket.socket:
    """A socket for the server. Before any model answers, say that the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --port or --host."
        ) from None
    return listener


def with_host(access: Access, host: str) -> Access:
    """The address that a server listens on is one of its names."""
    return access if host in _EVERYWHERE else replace(access, hosts=(*access.hosts, host))


def warn_if_open(listener: socket.socket, access: Access) -> None:
    if not access.keys and not _is_local(listener):
        host = listener.getsockname()[0]
        print(f"warning: anyone who reaches {host} can use this server: give it an --api-key.", file=sys.stderr)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_local(listener: socket.socket) -> bool:
    host = listener.getsockname()[0]
    return host == "::1" or host.startswith("127.")
