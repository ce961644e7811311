"""The hardware that a run is planned for: GPUs by name, or this machine's CPU."""

import os
from dataclasses import dataclass

import torch

from triptych.errors import UserError, did_you_mean
from triptych.training.peak import matmul_peak

CPU = "cpu"


@dataclass(frozen=True)
class Machine:
    """The hardware of one rank."""

    name: str
    memory: float
    """Bytes. GPUs have their nominal size, with 1 GB = 10^9 bytes."""
    peak: float
    """Peak FLOP/s of dense matrix products: bfloat16 on a GPU, the precision of the run on a CPU."""

    @property
    def is_gpu(self) -> bool:
        return self.name != CPU


GPUS = {
    gpu.name: gpu
    for gpu in (
        Machine("h100", 80e9, 989e12),
        Machine("h200", 141e9, 989e12),
        Machine("a100", 80e9, 312e12),
        Machine("b200", 192e9, 2250e12),
        Machine("l40s", 48e9, 362e12),
        Machine("rtx4090", 24e9, 165e12),
    )
}


def find_machine(name: str, ranks: int, products: torch.dtype = torch.float32) -> Machine:
    """A GPU by name, in any case, or `cpu`: an equal share of this machine for each rank, with its measured speed.

    `products` is the precision that a CPU is measured in.
    """
    key = name.lower()
    if key in GPUS:
        return GPUS[key]
    if key != CPU:
        raise UserError(f"unknown GPU {name!r}.{did_you_mean(name, [*GPUS, CPU])}")
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(CPU, installed / ranks, matmul_peak(torch.device(CPU), products) / ranks)
