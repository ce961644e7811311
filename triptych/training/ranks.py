"""Communication between the processes (ranks) that train one model.

`torchrun` or `triptych train --nproc` start several ranks; otherwise there is one, and nothing here has any cost.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from triptych.errors import UserError
from triptych.training.launch import STORE_FILE

T = TypeVar("T")


class RankLost(UserError):
    """Another rank has ended or does not respond. That rank reports its own error."""

    exit_code = 1


def communication_problem(error: BaseException) -> str | None:
    """What went wrong in communication with another rank; None if the error has another cause."""
    signs = ("Connection closed by peer", "Connection reset", "Timed out waiting", "Broken pipe", "NCCL", "gloo")
    problem = next((sign for sign in signs if sign in str(error)), None)
    return type(error).__name__ if problem is None and isinstance(error, dist.DistError) else problem


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one model."""

    rank: int = 0
    """Rank of this process."""
    size: int = 1
    """Number of processes."""
    group: Any = None
    """Process group of torch.distributed; None for the default. Each thread that communicates needs its own."""
    timeout: float = 600.0
    """Seconds a rank waits for another rank before it fails."""

    def new_group(self) -> "Ranks":
        """The same ranks with a process group of their own."""
        if self.size == 1:
            return self
        with _sigterm_kills():
            return replace(self, group=dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout)))

    @property
    def is_rank0(self) -> bool:
        """Whether this rank writes the records and publishes checkpoints."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum of each number over all ranks, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is set on any rank."""
        return [bool(total) for total in self.sum([float(flag) for flag in flags])]

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank. They are pickled, so they should be small."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values  # type: ignore[return-value]

    def broadcast(self, value: T) -> T:
        """Rank 0's value."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def run_on_rank0(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0; all ranks return its result or raise its error."""
        if self.size == 1:
            return function()
        value: T | None = None
        error: UserError | None = None
        if self.is_rank0:
            try:
                value = function()
            except UserError as raised:
                error = raised
            except OSError as raised:
                error = UserError(f"{raised.strerror or raised}: {raised.filename or ''}")
        value, error = self.broadcast((value, error))
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.group)


@contextmanager
def _sigterm_kills() -> Iterator[None]:
    """While ranks connect to each other, SIGTERM ends the process immediately.

    A rank that waits in C++ for a dead rank never runs a signal handler in Python, and an agent that wants to restart
    all ranks would have to wait for it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def init_ranks(timeout: float = 600.0, device: torch.device | None = None) -> Ranks:
    """Connect to the other ranks. A rank that waits longer than `timeout` seconds for another rank fails."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    is_cuda = device is not None and device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        # gloo beside nccl: records, signals and checkpoints are exchanged between CPUs.
        backend, limit = "cpu:gloo,cuda:nccl" if is_cuda else "gloo", timedelta(seconds=timeout)
        with _sigterm_kills():
            if STORE_FILE in os.environ:  # nobody else can write to this file
                store = dist.FileStore(os.environ[STORE_FILE], size)
                store.set_timeout(limit)
                rank = int(os.environ["RANK"])
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
            else:  # of torchrun, or of several machines
                dist.init_process_group(backend, timeout=limit)
    return Ranks(dist.get_rank(), size, timeout=timeout)


def rank_device(name: str) -> str:
    """The device name for this rank: with several ranks, "cuda" is the GPU of this process's LOCAL_RANK."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return name
    uses_gpu = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if uses_gpu else name


def shutdown_ranks() -> None:
    """Disconnect from the other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


def exit_if_connected(code: int) -> None:
    """End a process that failed while it was connected to other ranks.

    Its connections cannot be closed, since the others may wait in them. Without that, Python's own way out destroys
    threads of gloo while they run, and the process may abort instead of exiting with its code.
    """
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
