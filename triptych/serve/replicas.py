"""Several engines in processes of their own, with the interface of one.

    event loop  ->  outbox of a replica  ->  [ process: Engine ]  ->  listening thread  ->  event loop

A job goes to the replica with the least work. The weights are in shared memory, so another replica costs little more
than its activations. A replica that dies takes its jobs with it: they end with `EngineStoppedError`, and another
process takes its place while the others go on. One that says nothing for a while is killed: it hangs. When the server
dies, however it does, its replicas notice that their pipe has closed, and end.
"""

import atexit
import copy
import logging
import multiprocessing
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing  # teaches pickle to pass tensors in shared memory

from triptych.errors import UserError
from triptych.model.transformer import Transformer
from triptych.serve.engine import Engine, RoundObserver, check_room
from triptych.serve.job import Deliver, EngineStoppedError, Event, Failed, Job, JobError, Step
from triptych.serve.messages import Beat, Cancel, FromReplica, Ready, Round, Told, ToReplica, portable

_SHARED_MEMORY = Path("/dev/shm")
_LONG_LIFE = 60.0  # seconds; a replica that died sooner is started again after a pause
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_BEAT_SECONDS = 1.0
_MOST_SILENT = 15  # beats that may fail to come before a replica is killed
_log = logging.getLogger(__name__)


def engine_of(model: Transformer, replicas: int, **options: Any) -> "Engine | Replicas":
    """An engine in this process, or several in others."""
    return Engine(model, **options) if replicas == 1 else Replicas(model, count=replicas, **options)


class Replicas:
    """Fills canvases in several processes. `submit` and `cancel` may be called from any thread."""

    def __init__(
        self,
        model: Transformer,
        *,
        count: int,
        max_running: int = 64,
        max_queue: int = 256,
        max_tokens: int = 2048,
        on_round: RoundObserver | None = None,
    ):
        """`max_running` and `max_tokens` are for each replica, `max_queue` for all of them."""
        self._model, self._on_round = _shared(model), on_round
        self._devices = _devices(model, count)
        self._max_running, self._max_queue = max_running, max_queue
        # What is submitted here has its place; a replica that is alone for a while takes all of it.
        most = count * max_running + max_queue
        self._options = {"max_running": max_running, "max_queue": most, "max_tokens": max_tokens}
        self._workers: list[_Worker | None] = [None] * count
        self._changed = threading.Condition()
        self._has_started = self._is_closing = False
        self._threads = [
            threading.Thread(target=self._main, args=(number,), name=f"replica-{number}", daemon=True)
            for number in range(count)
        ]
        self._threads.append(threading.Thread(target=self._watch, name="replica-watch", daemon=True))

    def start(self) -> None:
        """Start all replicas, and wait until they are ready."""
        if next(self._model.parameters()).device.type == "cpu":
            torch.set_num_threads(1)  # the cores belong to the replicas
        atexit.register(self.close)  # before multiprocessing waits for its processes
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or len(self._ready) == len(self._workers))
            self._has_started = True
        if self._is_closing:
            self.close()
            raise EngineStoppedError("a replica did not start")

    @property
    def is_alive(self) -> bool:
        """Whether any replica takes jobs."""
        return not self._is_closing and bool(self._ready)

    @property
    def has_died(self) -> bool:
        """Never: replicas are started again."""
        return False

    @property
    def pids(self) -> dict[int, int]:
        """Of the replicas that take jobs, by number."""
        workers = {number: worker for number, worker in enumerate(self._workers) if worker in self._ready}
        return {number: worker.process.pid for number, worker in workers.items() if worker is not None}

    @property
    def num_queued(self) -> int:
        return sum(max(0, len(worker.jobs) - self._max_running) for worker in self._ready)

    @property
    def num_running(self) -> int:
        return sum(min(len(worker.jobs), self._max_running) for worker in self._ready)

    @property
    def _ready(self) -> "list[_Worker]":
        return [worker for worker in self._workers if worker is not None and worker.is_ready]

    def submit(self, jobs: Sequence[tuple[Job, Deliver]]) -> None:
        """Take jobs, all or none, each to the replica with the least work. Its events go to what stands beside it."""
        with self._changed:
            ready = self._ready
            if self._is_closing or not ready:
                raise EngineStoppedError("no replica takes jobs")
            num_there = sum(len(worker.jobs) for worker in ready)
            check_room(jobs, num_there, len(ready) * self._max_running, self._max_queue)
            for job, deliver in jobs:
                worker = min(ready, key=lambda each: each.work)
                worker.jobs[job.name] = _Sent(deliver, expected_work(job))
                worker.send(job)

    def cancel(self, name: str) -> None:
        """Stop a job before its next step; nothing if it is not there any more."""
        with self._changed:
            for worker in self._ready:
                if name in worker.jobs:
                    worker.send(Cancel(name))

    def close(self, seconds: float = 0.0) -> None:
        """Take no more jobs, give those there are some seconds to finish, end the others and the processes."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(worker.jobs for worker in self._ready), seconds)
            workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.process.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        atexit.unregister(self.close)

    def _watch(self) -> None:
        """Kill replicas that hang. Their beats are counted, not timed: while this process rests, so does the count."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._is_closing, _BEAT_SECONDS):
                for worker in self._ready:
                    worker.num_silent += 1
                    if worker.num_silent > _MOST_SILENT:
                        _log.error("a replica has said nothing for %g s; it is killed", _MOST_SILENT * _BEAT_SECONDS)
                        worker.process.kill()

    # -- the thread of a replica --------------------------------------------------------------------------------------

    def _main(self, number: int) -> None:
        """Keep a replica running, whatever goes wrong."""
        pause = _FIRST_PAUSE
        while not self._is_closing:
            start = time.monotonic()
            self._run_worker(number)
            pause = _FIRST_PAUSE if time.monotonic() - start > _LONG_LIFE else min(2 * pause, _LONGEST_PAUSE)
            with self._changed:
                if not self._has_started:  # nor will another one
                    self._is_closing = True
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_closing, pause)

    def _run_worker(self, number: int) -> None:
        """Start a replica and listen to it until its end."""
        try:
            worker = _Worker(number, self._model, self._devices[number], self._options)
        except Exception:
            _log.exception("replica %d cannot be started", number)
            return
        with self._changed:
            self._workers[number] = worker
        try:
            if not self._is_closing:
                self._listen(worker)
        except (EOFError, OSError):  # it has died
            pass
        except Exception:
            _log.exception("what replica %d says cannot be read; it is killed", number)
        self._bury(worker)
        if not self._is_closing:
            _log.error("replica %d has died (exit code %s); another is started", number, worker.process.exitcode)

    def _listen(self, worker: "_Worker") -> None:
        """Pass on what a replica says."""
        while True:
            message: FromReplica = worker.connection.recv()
            worker.num_silent = 0
            if isinstance(message, Told):
                self._deliver(worker, message.name, message.event)
            elif isinstance(message, Round):
                if self._on_round is not None:
                    self._on_round(message.num_passes, message.num_tokens, message.seconds)
            elif isinstance(message, Ready):
                with self._changed:
                    worker.is_ready = True
                    self._changed.notify_all()

    def _deliver(self, worker: "_Worker", name: str, event: Event) -> None:
        with self._changed:
            sent = worker.jobs.get(name)
            if not isinstance(event, Step):
                worker.jobs.pop(name, None)
                self._changed.notify_all()
        if sent is None:
            return
        try:
            sent.deliver(event)
        except Exception:  # the listener is gone
            worker.send(Cancel(name))

    def _bury(self, worker: "_Worker") -> None:
        """End the jobs of a replica that has died."""
        with self._changed:
            worker.is_ready = False
            abandoned = list(worker.jobs.values())
            worker.jobs.clear()
            self._changed.notify_all()
        worker.close()
        error = "the server is shutting down" if self._is_closing else "the replica that ran this has died"
        for sent in abandoned:
            with suppress(Exception):
                sent.deliver(Failed(EngineStoppedError(error)))


@dataclass(frozen=True)
class _Sent:
    """A job that a replica has."""

    deliver: Deliver
    work: float


class _Worker:
    """The process of a replica, from its start to its death."""

    def __init__(self, number: int, model: Transformer, device: str, options: dict[str, Any]):
        context = _context()
        self.connection, theirs = context.Pipe()
        self.jobs: dict[str, _Sent] = {}
        self.is_ready = False
        self.num_silent = 0
        """Beats since it said anything."""
        self._outbox = queue.SimpleQueue[ToReplica | None]()
        self.process = context.Process(
            target=_run_replica, args=(theirs, model, device, options), name=f"replica-{number}", daemon=True
        )
        self.process.start()
        theirs.close()  # so that its death closes the pipe
        self._thread = threading.Thread(target=self._post, name=f"to-replica-{number}", daemon=True)
        self._thread.start()

    @property
    def work(self) -> float:
        return sum(sent.work for sent in self.jobs.values())

    def send(self, message: ToReplica) -> None:
        """Without waiting: a replica that hangs must not stop the server."""
        self._outbox.put(message)

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self._outbox.put(None)
        self._thread.join()
        self.connection.close()

    def _post(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self.connection.send(message)
        except OSError:  # it has died
            pass
        except Exception:
            _log.exception("a message cannot be sent to a replica; it is killed")
            self.process.kill()


def expected_work(job: Job) -> float:
    """Tokens in the forward passes of a job, roughly."""
    config = job.config
    num_tokens = sum(span.open_slot or len(span.ids) for span in job.canvas.spans)
    num_masked = sum(span.num_masked + (span.open_slot or 0) for span in job.canvas.spans if not span.unconditional)
    num_steps = min(config.num_steps or num_masked, num_masked)
    return config.best_of * (1 if config.guidance_scale == 1 else 2) * num_steps * num_tokens


def _shared(model: Transformer) -> Transformer:
    """The model with its weights in shared memory; a copy if they are on another device than the CPU."""
    on_cpu = model if next(model.parameters()).device.type == "cpu" else copy.deepcopy(model).to("cpu")
    num_bytes = sum(parameter.nbytes for parameter in on_cpu.parameters() if not parameter.is_shared())
    if _SHARED_MEMORY.is_dir() and num_bytes > (free := shutil.disk_usage(_SHARED_MEMORY).free):
        raise UserError(
            f"replicas share {num_bytes / 2**20:,.0f} MiB of weights, but {_SHARED_MEMORY} has "
            f"{free / 2**20:,.0f} MiB left: make it larger (docker run --shm-size=SIZE), or use --replicas 1."
        )
    return on_cpu.share_memory()


def _devices(model: Transformer, count: int) -> list[str]:
    """The device of every replica: they take the GPUs in turn."""
    kind = next(model.parameters()).device.type
    if kind != "cuda":
        return [kind] * count
    return [f"cuda:{number % torch.cuda.device_count()}" for number in range(count)]


def _context() -> Any:
    """Processes that are forked from one which has imported torch already, where there are such."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


# -- in the process of a replica --------------------------------------------------------------------------------------


def _run_replica(connection: Connection, model: Transformer, device: str, options: dict[str, Any]) -> None:
    # Ctrl-C and service managers signal the whole group. The server lets requests finish, and then ends this process.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    lock = threading.Lock()

    def send(message: FromReplica) -> None:
        with lock:
            connection.send(message)

    engine = Engine(model.to(device), on_round=lambda *numbers: send(Round(*numbers)), **options)
    engine.start()
    send(Ready())
    threading.Thread(target=_beat, args=(send,), daemon=True).start()
    threading.Thread(target=_take_jobs, args=(connection, engine, send), daemon=True).start()
    engine.join()  # it ends only by an error
    os._exit(1)


def _beat(send: Callable[[FromReplica], None]) -> None:
    """Say that this process lives, until the server has gone."""
    with suppress(OSError):
        while True:
            time.sleep(_BEAT_SECONDS)
            send(Beat())


def _take_jobs(connection: Connection, engine: Engine, send: Callable[[FromReplica], None]) -> None:
    """Pass on what the server says, until it has gone."""
    with suppress(EOFError, OSError):
        while True:
            message: ToReplica = connection.recv()
            if isinstance(message, Cancel):
                engine.cancel(message.name)
                continue
            name = message.name

            def deliver(event: Event, name: str = name) -> None:
                send(Told(name, portable(event)))

            try:
                engine.submit([(message, deliver)])
            except JobError as error:
                deliver(Failed(error))
    os._exit(0)
