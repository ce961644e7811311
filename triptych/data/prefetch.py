"""Prefetching: calls of a function of a number, in order, ahead of time, in a thread or in worker processes.

grain runs the calls. This module adds a clean end: a killed worker is an error instead of a hang, workers never
outlive their parent, and exit is silent.
"""

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from triptych.errors import UserError

T = TypeVar("T")


class LoaderWorkerDied(UserError):
    """A worker process of the loader ended without a result."""

    exit_code = 1


class LoaderOutOfMemory(UserError):
    """The prefetched steps do not fit into memory."""


class Prefetcher(Generic[T]):
    """An iterator over make(first), make(first + 1), ... that computes up to `prefetch` results ahead, per worker.

    Without workers, one thread computes them, or, with `prefetch=0`, the caller. An exception of `make` is raised in
    place of its result, with the same type and message.
    """

    def __init__(self, make: Callable[[int], T], first: int, stop: int | None, num_workers: int, prefetch: int):
        grain = _import_grain()
        numbers = grain.MapDataset.range(first, sys.maxsize if stop is None else stop)
        self._advice = _how_to_need_less(num_workers, prefetch)
        self._folder = _memory_folder() if num_workers else None
        if self._folder is None:
            threads = grain.ReadOptions(num_threads=min(1, prefetch), prefetch_buffer_size=prefetch)
            results = numbers.map(make).to_iter_dataset(threads)
        else:
            no_threads = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            workers = grain.MultiprocessingOptions(num_workers, per_worker_buffer_size=prefetch)
            results = numbers.map(_ToFile(make, self._folder)).to_iter_dataset(no_threads)
            results = results.mp_prefetch(workers, partial(_prepare_worker, self._folder))
        self._running = [iter(results)]
        self._finalize = weakref.finalize(self, _stop, self._running, self._folder)

    def __next__(self) -> T:
        try:
            result = next(self._running[0])
            return result if self._folder is None else _take_file(self._folder / str(result))
        except BaseException as error:
            self.close()
            explained = self._explained(error)
            if explained is not None:
                raise explained from error
            raise

    def _explained(self, error: BaseException) -> UserError | None:
        """What a user has to know about an error that is not of `make`; None if it is."""
        if isinstance(error, MemoryError):
            return LoaderOutOfMemory(f"memory ran out in the data loader: {self._advice}.")
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and self._folder is not None:
            return LoaderOutOfMemory(f"{self._folder.parent} is full of prefetched steps: {self._advice}.")
        if not isinstance(error, RuntimeError) or "terminated unexpectedly" not in str(error):
            return None
        died = f"a loader worker died ({' '.join(str(error).split())})"
        if f"exit code {-signal.SIGKILL}" in died:
            return LoaderOutOfMemory(f"{died}, most likely because memory ran out: {self._advice}.")
        return LoaderWorkerDied(died)

    def close(self) -> None:
        """Stop the workers. The iterator cannot be used afterwards."""
        self._finalize()


def _how_to_need_less(num_workers: int, prefetch: int) -> str:
    changes = [f"a smaller loader.prefetch (it is {prefetch})"] if prefetch else []
    changes += [f"fewer workers (loader.num_workers is {num_workers})"] if num_workers else []
    return f"use {' or '.join(changes or ['a smaller loader.global_batch'])}"


def _stop(running: list[Any], folder: Path | None) -> None:
    # The list drops the iterator now. Collected at exit, it would print errors.
    while running:
        running.pop().close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _ToFile:
    """Writes a result to a file for the parent; only its number goes through grain's pipe.

    A worker that is killed during a long message leaves its reader waiting forever. grain can pass arrays in shared
    memory instead, but leaks unfetched ones at exit, and dies of SIGBUS when shared memory is full.
    """

    make: Callable[[int], Any]
    folder: Path

    def __call__(self, number: int) -> int:
        (self.folder / str(number)).write_bytes(pickle.dumps(self.make(number), protocol=5))
        return number


def _take_file(path: Path) -> Any:
    result = pickle.loads(path.read_bytes())
    path.unlink()
    return result


def _memory_folder() -> Path:
    """A new temporary folder, in memory (/dev/shm) if possible."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="triptych-", dir=memory if os.access(memory, os.W_OK) else None))


def _prepare_worker(folder: Path, index: int, count: int) -> None:
    """Ignore signals to the process group, which the parent handles, and end when the parent ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def follow_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()


def _import_grain() -> Any:
    """Import grain without its warning about JAX's profiler."""
    from absl import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        import grain
    finally:
        logging.set_verbosity(verbosity)
    return grain
