"""`/metrics`, as Prometheus reads it. Labels are bounded: routes by template, models by name, errors by kind."""

import os
from collections.abc import Iterator
from pathlib import Path

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from triptych.serve.service import Service

_METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}


class Metrics:
    """The numbers of one server. `on_round` may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "triptych_requests", "Answered requests.", ["route", "method", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "triptych_request_seconds",
            "Time from a request to the end of its answer.",
            ["route"],
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
            registry=registry,
        )
        self._round_seconds = Histogram(
            "triptych_round_seconds",
            "Time of a round of the engine: one denoising step of every request in it.",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
            registry=registry,
        )
        self._batch_size = Histogram(
            "triptych_batch_size",
            "Forward passes in a round.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self._tokens = Counter("triptych_tokens", "Tokens of all forward passes.", registry=registry)

    def watch(self, service: Service) -> None:
        """Report the engines of a service too."""
        self._registry.register(_Engines(service))

    def on_round(self, num_passes: int, num_tokens: int, seconds: float) -> None:
        self._batch_size.observe(num_passes)
        self._round_seconds.observe(seconds)
        self._tokens.inc(num_tokens)

    def on_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method if method in _METHODS else "other", str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    @property
    def router(self) -> APIRouter:
        router = APIRouter()

        @router.get("/metrics", response_class=Response)
        async def metrics() -> Response:
            """Numbers of the server, for Prometheus."""
            return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

        return router


class _Engines(Collector):
    """What engines know themselves, read when it is asked for."""

    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[Metric]:
        queued = GaugeMetricFamily("triptych_queued", "Results that wait.", labels=["model"])
        running = GaugeMetricFamily("triptych_running", "Results that share forward passes.", labels=["model"])
        ready = GaugeMetricFamily("triptych_ready", "Whether the engine takes requests.", labels=["model"])
        errors = CounterMetricFamily("triptych_errors", "Results that were not finished.", labels=["model", "kind"])
        memory = GaugeMetricFamily(
            "triptych_replica_memory_bytes",
            "Resident memory of a replica, with the weights that all share.",
            labels=["model", "replica"],
        )
        for name, model in self._service.models.items():
            for number, pid in model.engine.pids.items():
                if (num_bytes := _resident(pid)) is not None:
                    memory.add_metric([name, str(number)], num_bytes)
            queued.add_metric([name], model.engine.num_queued)
            running.add_metric([name], model.engine.num_running)
            ready.add_metric([name], model.engine.is_alive)
            for kind, count in list(model.errors.items()):
                errors.add_metric([name, kind], count)
        yield from (queued, running, ready, errors, memory)


def _resident(pid: int) -> int | None:
    """Resident memory of a process in bytes; None if it has ended, or the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, LookupError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
