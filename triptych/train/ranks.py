"""Several processes that train one model: each takes its part of every global batch, gradients are summed.

Started by `torchrun`; without it there is one rank and nothing here costs anything.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank writes records and checkpoints."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum over ranks of each number, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its sum over ranks, in one message. A rank that had no part in it counts as 0."""
        if self.size == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
            parameter.grad = part.view_as(parameter)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def join() -> Ranks:
    """The ranks this process was started among."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return Ranks(dist.get_rank(), size)


def device_name(name: str) -> str:
    """What this process is to compute on: of several, `cuda` is to each the one that torchrun numbered it for."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if several and name == "cuda" else name


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
