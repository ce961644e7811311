"""Several processes that train one model: what they tell each other.

Started by `torchrun` or `triptych train --nproc`; without them there is one rank, and nothing here costs anything.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from triptych.errors import UserError

T = TypeVar("T")


class RankLost(UserError):
    """Another rank has ended or does not answer; whatever is wrong with it, it says itself."""

    exit_code = 1


def is_of_another_rank(error: BaseException) -> bool:
    """Whether an error is that a message did not get through."""
    text = str(error)
    signs = ("Connection closed by peer", "Connection reset", "Timed out waiting", "NCCL", "gloo", "Broken pipe")
    return isinstance(error, dist.DistError) or any(sign in text for sign in signs)


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    group: Any = None
    """Of torch.distributed, over all ranks; None for the default. Threads that talk at the same time need one each."""

    timeout: float = 600.0
    """Seconds after which a rank gives up waiting for another."""

    def new_group(self) -> "Ranks":
        """The same ranks with a group of their own."""
        if self.size == 1:
            return self
        with _mortal():
            return replace(self, group=dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout)))

    @property
    def is_rank0(self) -> bool:
        """Whether this rank writes records and publishes checkpoints."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum over ranks of each number, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Of each flag whether any rank has it."""
        return [bool(total) for total in self.sum([float(flag) for flag in flags])]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in order. For small things: they are pickled."""
        if self.size == 1:
            return [value]
        found: list[T | None] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found  # type: ignore[return-value]

    def broadcast(self, value: T) -> T:
        """The first rank's value."""
        if self.size == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0, group=self.group)
        return found[0]

    def run_on_rank0(self, make: Callable[[], T]) -> T:
        """What the first rank alone finds, or the error it runs into, for all."""
        if self.size == 1:
            return make()
        value: T | None = None
        error: UserError | None = None
        if self.is_rank0:
            try:
                value = make()
            except UserError as found:
                error = found
            except OSError as found:
                error = UserError(f"{found.strerror or found}: {found.filename or ''}")
        value, error = self.broadcast((value, error))
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.group)


@contextmanager
def _mortal() -> Iterator[None]:
    """While ranks look for each other, SIGTERM ends the process at once.

    A rank that waits there for one that is gone hears of no signal in Python, and an agent that wants to begin again
    would have to wait for it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def join(timeout: float = 600.0, device: torch.device | None = None) -> Ranks:
    """The ranks this process was started among. A rank that waits longer than this for another gives up."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    is_cuda = device is not None and device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        # gloo beside nccl: sums of records, signals and checkpoints travel between CPUs.
        with _mortal():
            dist.init_process_group("cpu:gloo,cuda:nccl" if is_cuda else "gloo", timeout=timedelta(seconds=timeout))
    return Ranks(dist.get_rank(), size, timeout=timeout)


def device_name(name: str) -> str:
    """What this process is to compute on: of several, `cuda` is to each the one that torchrun numbered it for."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if several and name == "cuda" else name


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
