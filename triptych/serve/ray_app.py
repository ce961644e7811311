"""The same application on a cluster, under Ray Serve: `triptych serve --ray`.

Every replica is a server of its own, with its models and engine, in a process that Ray places, restarts and routes to.
Models are loaded where a replica runs, so their sources must exist on every node.
"""

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import ray
from fastapi import FastAPI
from ray import serve

from triptych.errors import UserError
from triptych.hub.pipeline import Pipeline
from triptych.serve.app import Access, create_app
from triptych.serve.limits import ServeLimits
from triptych.serve.metrics import Metrics
from triptych.serve.run import with_host
from triptych.serve.service import Service

NAME = "triptych"
SPREAD = ("RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING", "0")
"""Variable of Ray's nodes. By default a node that all clients connect to keeps all requests for itself."""


def serve_on_ray(
    sources: Mapping[str, str],
    limits: ServeLimits,
    access: Access,
    *,
    host: str,
    port: int,
    device: str = "auto",
    replicas: int = 1,
) -> None:
    """Serve on the cluster that this machine belongs to, or on this machine alone, until a signal. Ends with
    KeyboardInterrupt if it was Ctrl-C."""
    if not port:
        raise UserError("with --ray, every node listens on the same port: choose one with --port.")
    ends = threading.Event()
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        received.append(number)
        ends.set()

    os.environ.setdefault(*SPREAD)  # of a cluster that is started here
    # Ray's dashboard runs programs for anyone who reaches it.
    ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        start(sources, limits, access, host=host, port=port, device=device, replicas=replicas)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, end)
        print(f"serving {', '.join(sources)} on http://{host}:{port} with Ray", flush=True)
        ends.wait()
    finally:
        serve.shutdown()
        ray.shutdown()
    if signal.SIGINT in received:
        raise KeyboardInterrupt


def start(
    sources: Mapping[str, str],
    limits: ServeLimits,
    access: Access,
    *,
    host: str,
    port: int,
    device: str = "auto",
    replicas: int = 1,
) -> None:
    """Deploy the application on the cluster that this process is connected to, and wait until it answers."""
    serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    deployment = serve.deployment(
        name=NAME,
        num_replicas=replicas,
        max_ongoing_requests=limits.connections,
        graceful_shutdown_timeout_s=limits.drain_seconds,
        ray_actor_options={"num_cpus": 1, "num_gpus": int(device.startswith("cuda"))},
    )(serve.ingress()(Replica))
    app = deployment.bind(_absolute(sources), limits, with_host(access, host), device)
    serve.run(app, name=NAME, route_prefix="/")


class Replica:
    """A server of its own. Ray asks it for its application once, and every few seconds whether it is healthy."""

    def __init__(self, sources: Mapping[str, str], limits: ServeLimits, access: Access, device: str):
        pipes = {name: Pipeline.from_pretrained(source, device=device) for name, source in sources.items()}
        self._metrics, self._access = Metrics(), access
        self.service = Service(pipes, limits, on_round=self._metrics.on_round)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self.service, self._access, self._metrics)

    def check_health(self) -> None:
        """Fail if an engine has died: Ray then replaces this replica."""
        if self.service.dead:
            raise RuntimeError(f"the engine of {self.service.dead[0]!r} has died")


def _absolute(sources: Mapping[str, str]) -> dict[str, str]:
    """Replicas do not run in this folder."""
    return {name: os.path.abspath(source) if Path(source).exists() else source for name, source in sources.items()}
