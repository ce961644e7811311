"""A function over batches in several processes, with the results in order.

Every process has one pipe and one batch at a time. So nothing is shared that a killed process could leave locked:
when a process dies its pipe ends, on either side, and the other side notices at once (FAULTS 25).
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

from triptych.data.tokenize.settings import RunFailed

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per process, here and in those started meanwhile: sums come out alike, cores are not fought over."""
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
        if torch := sys.modules.get("torch"):  # a tokenizer may have brought it in the meantime
            torch.set_num_threads(threads)


def map_in_order(
    build: Callable[[], Callable[[Batch], Result]], batches: Iterable[Batch], workers: int
) -> Generator[Result, None, None]:
    """`map(build(), batches)`, in `workers` processes; in this one if 0. `build` must be picklable."""
    if workers == 0:
        yield from map(build(), batches)
        return
    pool = _Pool[Batch, Result](build, workers)
    try:
        yield from pool.map(batches)
        pool.close()
    finally:
        pool.kill()


class _Pool(Generic[Batch, Result]):
    """Processes are started when there is work for them: a small input does not pay for many."""

    def __init__(self, build: Callable[[], Callable[[Batch], Result]], workers: int):
        self._build, self._workers = build, workers
        self._processes: dict[Connection, SpawnProcess] = {}

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._build), daemon=True)
        # Ctrl-C in a terminal goes to the whole process group, but only this process shall answer it. A blocked signal
        # stays blocked in a process started meanwhile, from its first instruction on. (The tracker comes first, because
        # starting it unblocks the signal.)
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self._processes[ours] = process
        return ours

    def map(self, batches: Iterable[Batch]) -> Iterator[Result]:
        idle: list[Connection] = []
        numbers: dict[Connection, int] = {}  # which batch a process works on
        done: dict[int, Result] = {}
        due = 0  # the number of the result to yield next
        for number, batch in enumerate(batches):
            if not idle and len(self._processes) < self._workers:
                idle.append(self._start())
            # One slow batch must not make results pile up behind it without end.
            while not idle or number - due > 8 * self._workers:
                idle += self._collect(numbers, done)
                while due in done:
                    yield done.pop(due)
                    due += 1
            connection = idle.pop()
            numbers[connection] = number
            self._send(connection, batch)
        while numbers:
            self._collect(numbers, done)
            while due in done:
                yield done.pop(due)
                due += 1

    def _send(self, connection: Connection, batch: Batch) -> None:
        try:
            connection.send(batch)
        except OSError as error:
            raise self._death_of(connection) from error

    def _collect(self, numbers: dict[Connection, int], done: dict[int, Result]) -> list[Connection]:
        """Wait for some results; which processes are idle now."""
        ready = [connection for connection in wait(list(numbers)) if isinstance(connection, Connection)]
        for connection in ready:
            try:
                result = connection.recv()
            except (EOFError, OSError) as error:
                raise self._death_of(connection) from error
            if isinstance(result, _Failure):
                raise result.error
            done[numbers.pop(connection)] = result
        return ready

    def _death_of(self, connection: Connection) -> RunFailed:
        process = self._processes[connection]
        process.join(5)
        return RunFailed(
            f"a worker process died (exit code {process.exitcode}), perhaps killed for lack of memory. Finished shards "
            "are kept: run the same command again to go on, with fewer --workers if it happens again."
        )

    def close(self) -> None:
        """Let the processes end by themselves."""
        for connection, process in self._processes.items():
            connection.close()
            process.join(5)

    def kill(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()


class _Failure:
    """An exception of a worker on its way here."""

    def __init__(self, error: Exception):
        self.error = error


def _work(connection: Connection, build: Callable[[], Callable[[Any], Any]]) -> None:
    """Answer batches until the other side is gone."""
    function = None
    try:
        while True:
            batch = connection.recv()
            try:
                function = function or build()
                answer = function(batch)
            except Exception as error:
                error.add_note(traceback.format_exc())  # the traceback itself does not travel
                answer = _Failure(error)
            connection.send(answer)
    except (EOFError, OSError):
        return
