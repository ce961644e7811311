"""Map a function over batches in several processes, with the results in order.

Every process has one pipe and one batch at a time, so a killed process cannot leave a shared lock behind. When a
process dies, its pipe closes and the other side notices at once.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from triptych.errors import UserError

Batch = TypeVar("Batch")
Result = TypeVar("Result")


MOST_WORKERS = 1024
"""Far more than a machine has cores for."""


class WorkerDied(UserError):
    """A worker process ended without an answer."""

    exit_code = 1


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per process, here and in processes started meanwhile: same sums everywhere, no contention."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else int(before["OMP_NUM_THREADS"] or os.cpu_count() or 1)
    os.environ.update(_ONE_THREAD)
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if torch := sys.modules.get("torch"):  # a tokenizer may have imported it meanwhile
            torch.set_num_threads(threads)


def map_in_order(
    build: Callable[[], Callable[[Batch], Result]],
    batches: Iterable[Batch],
    workers: int,
    *,
    size_of: Callable[[Batch], int] = lambda batch: 0,
    max_ahead: int = 0,
) -> Generator[Result, None, None]:
    """`map(build(), batches)` in `workers` processes, or in this one if 0. `build` must be picklable.

    Batches are taken while the sizes of those whose results have not been yielded sum to at most `max_ahead`.
    """
    if workers == 0:
        yield from map(build(), batches)
        return
    pool = _Pool[Batch, Result](build, workers)
    try:
        yield from pool.map(batches, size_of, max_ahead)
        pool.close()
    finally:
        pool.kill()


class _Pool(Generic[Batch, Result]):
    """Processes start when there is a batch for them, so a small input starts few."""

    def __init__(self, build: Callable[[], Callable[[Batch], Result]], workers: int):
        self._build, self._workers = build, workers
        self._processes: dict[Connection, SpawnProcess] = {}

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        connection, worker_end = context.Pipe()
        process = context.Process(target=_work, args=(worker_end, self._build), daemon=True)
        # Ctrl-C in a terminal goes to the whole process group, but only this process handles it. A signal that is
        # blocked here stays blocked in the new process from its first instruction on. (The resource tracker starts
        # first, because starting it unblocks the signal.)
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        worker_end.close()
        self._processes[connection] = process
        return connection

    def map(self, batches: Iterable[Batch], size_of: Callable[[Batch], int], max_ahead: int) -> Iterator[Result]:
        idle: list[Connection] = []
        sizes: dict[int, int] = {}  # of the batches whose results are not yielded
        numbers: dict[Connection, int] = {}  # which batch a process works on
        ready: dict[int, Result] = {}
        due = 0  # number of the result to yield next
        for number, batch in enumerate(batches):
            if not idle and len(self._processes) < self._workers:
                idle.append(self._start())
            # Bounds the results that wait for one slow batch.
            while not idle or number - due > 8 * self._workers or (numbers and sum(sizes.values()) > max_ahead):
                idle += self._collect(numbers, ready)
                while due in ready:
                    yield ready.pop(due)
                    del sizes[due]
                    due += 1
            connection = idle.pop()
            numbers[connection], sizes[number] = number, size_of(batch)
            self._send(connection, batch)
        while numbers:
            self._collect(numbers, ready)
            while due in ready:
                yield ready.pop(due)
                due += 1

    def _send(self, connection: Connection, batch: Batch) -> None:
        try:
            connection.send(batch)
        except OSError as error:
            raise self._death_of(connection) from error

    def _collect(self, numbers: dict[Connection, int], results: dict[int, Result]) -> list[Connection]:
        """Wait for at least one result; returns the processes that are idle now."""
        ready = [connection for connection in wait(list(numbers)) if isinstance(connection, Connection)]
        for connection in ready:
            try:
                result = connection.recv()
            except (EOFError, OSError) as error:
                raise self._death_of(connection) from error
            if isinstance(result, _Failure):
                raise result.error
            results[numbers.pop(connection)] = result
        return ready

    def _death_of(self, connection: Connection) -> WorkerDied:
        process = self._processes[connection]
        process.join(5)
        return WorkerDied(
            f"a worker process died (exit code {process.exitcode}), perhaps because memory ran out. Finished work is "
            "kept: run the same command again to resume, with fewer processes if it happens again."
        )

    def close(self) -> None:
        """Close the pipes and wait until the processes end."""
        for connection, process in self._processes.items():
            connection.close()
            process.join(5)

    def kill(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()


class _Failure:
    """An exception that a worker sends to this process."""

    def __init__(self, error: Exception):
        self.error = error


def _work(connection: Connection, build: Callable[[], Callable[[Any], Any]]) -> None:
    """The worker's loop: one result per batch, until the pipe closes."""
    function = None
    try:
        while True:
            batch = connection.recv()
            try:
                function = function or build()
                answer = function(batch)
            except Exception as error:
                error.add_note(traceback.format_exc())  # a traceback cannot be pickled
                answer = _Failure(error)
            connection.send(answer)
    except (EOFError, OSError):
        return
