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
from triptych.serve.limits import ServeLimits
from triptych.serve.logs import log_as_json
from triptych.serve.metrics import Metrics
from triptych.serve.protocol import protocol_with
from triptych.serve.service import Service

_ECHO_SECONDS = 0.5  # a terminal and a launcher send one signal each
_END_SECONDS = 2  # for answers that say that the server stops
_EVERYWHERE = ("", "0.0.0.0", "::")


def serve(
    pipes: Mapping[str, Pipeline], limits: ServeLimits, access: Access, *, host: str, port: int, replicas: int = 1
) -> None:
    """Serve until a signal. Ends with KeyboardInterrupt if it was Ctrl-C."""
    listener = listen(host, port)
    warn_if_open(listener, access)
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


class _Server(uvicorn.Server):
    """Stops in two stages, so that a balancer notices: first it refuses what is new, then it closes its socket."""

    def __init__(self, config: uvicorn.Config, service: Service, message: str):
        super().__init__(config)
        self.signal: int | None = None
        self._service, self._message, self._time = service, message, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._message, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._time = sig, time.monotonic()
            self._service.is_draining = True
        elif time.monotonic() - self._time > _ECHO_SECONDS:
            os._exit(128 + sig)

    async def on_tick(self, counter: int) -> bool:
        if self.signal is not None:
            if time.monotonic() - self._time > self._service.limits.drain_seconds:
                await self._service.close()
                self.should_exit = True
            self.should_exit |= self._service.num_requests == 0
        return await super().on_tick(counter)


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
