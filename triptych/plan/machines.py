"""The hardware that a run is planned for: GPUs by name, or this machine's CPU."""

import os
from dataclasses import dataclass

import torch

from triptych.errors import UserError, did_you_mean
from triptych.training.peak import matmul_peak

CPU = "cpu"


@dataclass(frozen=True)
class Machine:
    """The hardware of one rank. Speeds that are 0 are not known."""

    name: str
    memory: float
    """Bytes. GPUs have their nominal size, with 1 GB = 10^9 bytes."""
    peak: float
    """Peak FLOP/s of dense matrix products: bfloat16 on a GPU, the precision of the run on a CPU."""
    bandwidth: float = 0.0
    """Bytes per second of its memory."""
    matmul_share: float = 0.0
    """Share of the peak that large matrix products reach within a run."""
    link: float = 0.0
    """Bytes per second, in each direction, to the other GPUs of a node."""
    network: float = 0.0
    """Bytes per second, in each direction, to other nodes: the share of one GPU."""
    per_node: int = 8
    """GPUs of a node."""

    @property
    def is_gpu(self) -> bool:
        return self.name != CPU


# From data sheets, except for two columns. The shares of the A100 and H100 are fitted to published throughput
# (tests/plan/test_roofline.py); those of the others are assumed. The networks are those usually sold with the GPU: 400
# Gbit/s per GPU, 200 with an A100, 100 with an L40S; a node of gaming GPUs shares 200.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Machine("h100", 80e9, 989e12, 3.35e12, 0.53, 450e9, 50e9),
        Machine("h200", 141e9, 989e12, 4.8e12, 0.53, 450e9, 50e9),
        Machine("a100", 80e9, 312e12, 2.04e12, 0.73, 300e9, 25e9),
        Machine("b200", 192e9, 2250e12, 8.0e12, 0.53, 900e9, 50e9),
        Machine("l40s", 48e9, 362e12, 0.864e12, 0.6, 32e9, 12.5e9),
        Machine("rtx4090", 24e9, 165e12, 1.01e12, 0.75, 32e9, 3.1e9),
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
