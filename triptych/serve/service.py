"""Models by name, each with an engine, and what routes do with them: prepare a request, fill its canvas, read it.

Preparing and reading (decoding files, tokenizers, input checks) run on a few threads, so that the event loop and the
engine go on.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from triptych.errors import UserError, did_you_mean
from triptych.hub.checker import collect_checks
from triptych.hub.directions import Kind
from triptych.hub.input_checks import InputCheck
from triptych.hub.keywords import seeds_of
from triptych.hub.pipeline import Pipeline
from triptych.hub.requests import Request, check_length
from triptych.sample.canvas import Canvas
from triptych.sample.config import SamplingConfig, Use
from triptych.sample.generate import check_canvas
from triptych.serve.engine import RoundObserver
from triptych.serve.errors import ApiError
from triptych.serve.filling import Filling
from triptych.serve.job import Done, Job
from triptych.serve.limits import ServeLimits
from triptych.serve.replicas import engine_of
from triptych.serve.streams import merged
from triptych.vocab import Modality

T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """A request that was checked, with its sampling."""

    request: Request
    config: SamplingConfig
    seeds: tuple[int, ...]
    """One per result."""
    warnings: tuple[InputCheck, ...] = ()
    """Inputs that are unlike the training data."""


@dataclass
class Call:
    """One HTTP request, as the service sees it."""

    name: str
    deadline: float
    """By `time.monotonic`."""
    model: str | None = None
    """Name of the model that answers, once it is known."""
    fillings: list[Filling] = field(default_factory=list)
    """Everything that the engine does or did for it."""

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def end(self) -> None:
        """Stop what is still done for it: its answer is complete, or nobody waits for it any more."""
        for filling in self.fillings:
            filling.cancel()


class ServedModel:
    """A model with its engine."""

    def __init__(
        self,
        name: str,
        pipe: Pipeline,
        limits: ServeLimits,
        pool: ThreadPoolExecutor,
        on_round: RoundObserver | None = None,
        replicas: int = 1,
    ):
        self.name, self.pipe, self.limits, self._pool = name, pipe, limits, pool
        for modality in self.modalities:
            pipe.bundle[modality]  # load tokenizers now: what is damaged is said before the server starts
        self.created = int(time.time())
        self.errors = Counter[str]()
        """Results that were not finished, by kind."""
        self.engine = engine_of(
            pipe.model, replicas, max_running=limits.running, max_queue=limits.queue, on_round=on_round
        )

    @property
    def modalities(self) -> list[Modality]:
        """Those that the model has."""
        return [modality for modality in Modality if modality in self.pipe.bundle]

    @property
    def kinds(self) -> list[str]:
        """The names of the modalities."""
        return [modality.name.lower() for modality in self.modalities]

    def check_kinds(self, needed: Iterable[Kind]) -> None:
        """Refuse what takes or makes a kind that the model does not have."""
        for kind in sorted(set(needed).difference(self.kinds)):
            raise ApiError(
                400, f"the model {self.name!r} has no {kind}, only {' and '.join(self.kinds)}.", param="model"
            )

    async def in_thread(self, call: Call, function: Callable[[], T]) -> T:
        """Run something slow on a thread, until the deadline of the call."""
        call.model = self.name
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.run_in_executor(self._pool, function), max(0.0, call.seconds_left))

    async def prepare(
        self, call: Call, make: Callable[[], Request], sampling: Mapping[str, Any], count: int = 1
    ) -> Prepared:
        """Make a request with `make`, and check it and its sampling. `sampling` may hold a seed."""

        def run() -> Prepared:
            # Cheap checks first: a wrong number must not wait for a photo to be decoded.
            if count > self.limits.results:
                raise UserError(f"n must be at most {self.limits.results}, got {count}.")
            changes = dict(sampling)
            seeds = tuple(seeds_of(changes.pop("seed", 0), count))
            with collect_checks() as checks:
                request = make()
            check_length(request.canvas, self.pipe.limits)
            config = self.sampling_config(request.target, request.use, {**request.defaults, **changes}, count)
            check_canvas(request.canvas, config)  # here rather than in the engine: a stream has its status by then
            return Prepared(request, config, seeds, tuple(check for check in checks if check.is_unusual))

        return await self.in_thread(call, run)

    def sampling_config(
        self, target: Modality, use: Use | None, changes: Mapping[str, Any], count: int
    ) -> SamplingConfig:
        """The sampling of `count` results, within the limits."""
        config = self.pipe.sampling_config(target, use, **changes)
        if config.num_steps is not None and config.num_steps > self.limits.num_steps:
            raise UserError(f"num_steps must be at most {self.limits.num_steps}, got {config.num_steps}.")
        if count * config.best_of > self.limits.results:
            raise UserError(
                f"n times best_of must be at most {self.limits.results}, got {count * config.best_of}: "
                f"n is {count}, and best_of {config.best_of}{'' if 'best_of' in changes else ' by the preset'}."
            )
        return config

    def submit(self, call: Call, *requests: Prepared, wants_steps: bool = False, top_k: int = 1) -> list[Filling]:
        """Begin to fill the canvases of requests, one per seed; all of them, or none if there is no room for all.

        To be called before an answer begins: a full queue has a status of its own.
        """
        call.model = self.name
        made: list[Filling] = []
        for prepared in requests:
            for seed in prepared.seeds:
                name = f"{call.name}-{len(call.fillings) + len(made)}"
                canvas, config = prepared.request.canvas, prepared.config
                job = Job(name, canvas, config, seed, call.deadline, wants_steps, top_k)
                made.append(Filling(job, self.engine.cancel, self.limits.backlog_bytes, self.errors))
        self.engine.submit([(filling.job, filling.deliver) for filling in made])
        call.fillings += made
        return made

    async def fill(self, call: Call, prepared: Prepared) -> list[Canvas]:
        """The filled canvases of a request, one per seed."""
        filled: dict[int, Canvas] = {}
        async for index, event in merged(self.submit(call, prepared)):
            if isinstance(event, Done):
                filled[index] = event.canvas
        return [filled[index] for index in sorted(filled)]

    async def results(self, call: Call, prepared: Prepared) -> list[Any]:
        """The results of a request (texts, images or audio), one per seed."""
        filled = await self.fill(call, prepared)
        return await self.in_thread(call, lambda: [prepared.request.read(canvas) for canvas in filled])


class Service:
    """The models of a server."""

    def __init__(
        self,
        pipes: Mapping[str, Pipeline],
        limits: ServeLimits,
        on_round: RoundObserver | None = None,
        workers: int = 2,
        replicas: int = 1,
    ):
        self.limits = limits
        self.is_draining = False
        """Whether the server stops: it finishes what it has, and takes nothing new."""
        self.num_requests = 0
        """Requests in flight."""
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="media")
        self.models = {
            name: ServedModel(name, pipe, limits, self._pool, on_round, replicas) for name, pipe in pipes.items()
        }

    def start(self) -> None:
        for model in self.models.values():
            model.engine.start()

    @property
    def is_ready(self) -> bool:
        return not self.is_draining and all(model.engine.is_alive for model in self.models.values())

    @property
    def dead(self) -> list[str]:
        """Names of models whose engine has died for good."""
        return [name for name, model in self.models.items() if model.engine.has_died]

    def model(self, name: str | None) -> ServedModel:
        """A model by name; without a name, the first."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            hint = did_you_mean(name[:100], list(self.models))
            raise ApiError(404, f"there is no model {name[:100]!r}.{hint}", param="model", code="model_not_found")
        return self.models[name]

    async def close(self) -> None:
        """End what is in flight. To let it finish, wait until there are no requests (`num_requests`)."""
        self.is_draining = True
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, model.engine.close) for model in self.models.values()))
        with suppress(RuntimeError):
            self._pool.shutdown(wait=False, cancel_futures=True)


def unusual(checks: Sequence[InputCheck]) -> list[dict[str, Any]]:
    """Input checks as the API shows them."""
    return [{**check.as_json, "message": check.message} for check in checks]
