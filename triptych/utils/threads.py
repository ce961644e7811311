"""Share independent calls among threads that compute with one core each.

Torch divides every operation among its threads and waits for the last one. Hundreds of short operations then wait
hundreds of times for a thread that is not running, because another process has its core. Here a thread runs whole calls
and takes the next one when it is ready, so there is one wait at the end.
"""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], device: torch.device | str = "cpu"
) -> list[Result]:
    """`list(map(function, items))` on a CPU in as many threads as torch has here, in each of which torch has one.

    No call may depend on another one. With one item, or one thread, or another device, the calls are made here.
    """
    items = list(items)
    num_threads = min(torch.get_num_threads(), len(items))
    if num_threads < 2 or torch.device(device).type != "cpu":
        return [function(item) for item in items]
    is_inference, is_grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    pending = list(enumerate(items))[::-1]
    results: dict[int, Result] = {}

    def work() -> None:
        with torch.inference_mode(is_inference), torch.set_grad_enabled(is_grad):
            while True:
                try:
                    number, item = pending.pop()
                except IndexError:  # another thread has taken the last one
                    return
                try:
                    results[number] = function(item)
                except BaseException:
                    pending.clear()  # the others need not go on
                    raise

    _run(work, num_threads, pending)
    return [results[number] for number in range(len(items))]


def _run(work: Callable[[], None], num_threads: int, pending: list[tuple[int, Item]]) -> None:
    """Call `work`, which empties `pending`, in this many threads."""
    futures = _pool_of(num_threads).start(work, num_threads)
    try:
        for future in futures:
            future.result()
    finally:  # after an interrupt, nothing may be written any more
        pending.clear()
        wait(futures)


class _Pool:
    """Threads in which torch has one thread of its own."""

    def __init__(self, size: int):
        self.size = size
        self._executor = ThreadPoolExecutor(size, "one-core")
        num_threads = torch.get_num_threads()
        all_started = threading.Barrier(size)

        def use_one_core() -> None:
            torch.get_num_threads()  # the first use in a thread sets the number of the process, so not a later one
            torch.set_num_threads(1)
            all_started.wait()

        wait(self.start(use_one_core, size))
        torch.set_num_threads(num_threads)  # the last number set is also that of all threads that start later

    def start(self, work: Callable[[], None], times: int) -> list[Future[None]]:
        return [self._executor.submit(work) for _ in range(times)]


_pools: list[_Pool] = []
_lock = threading.Lock()


def _pool_of(size: int) -> _Pool:
    """The pool of this process, with at least `size` threads."""
    with _lock:
        if not _pools or _pools[-1].size < size:
            _pools.append(_Pool(size))
        return _pools[-1]


def _forget_pools() -> None:
    """Threads do not exist in a forked process, and the lock may be held by one of them."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)
