"""Times of training steps on several processes of this machine, each one rank with one thread."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from triptych.data.loader import Loader
from triptych.errors import UserError
from triptych.training.config import RunConfig
from triptych.training.distributed import build_mesh
from triptych.training.ranks import Ranks
from triptych.training.rendezvous import LOOPBACK_INTERFACE
from triptych.training.step import build_model, build_optimizer, train_step
from triptych.vocab import Vocabulary

UNTIMED_STEPS, TIMED_STEPS = 2, 8
_TIMED_SECONDS = 4.0  # of one batch size; whichever ends first, but at least two steps
_TIMEOUT = 600.0

StepTime = tuple[float, float]
"""Median seconds of a step, and mean tokens of a step on all ranks."""


def step_times(runs: Sequence[RunConfig], vocabulary: Vocabulary, ranks: int) -> list[StepTime]:
    """Time a few steps of each run on so many ranks, which communicate through gloo."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe(duplex=False)
        processes = [
            context.Process(
                target=_rank,
                args=(list(runs), vocabulary, rank, ranks, str(Path(folder) / "store"), theirs),
                daemon=True,
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        theirs.close()
        try:
            return [ours.recv() for _ in runs]
        except EOFError:
            raise UserError(f"one of {ranks} processes ended before it had timed all batch sizes.") from None
        finally:
            for process in processes:
                process.join(timeout=10)
                process.kill()


def _rank(runs: list[RunConfig], vocabulary: Vocabulary, rank: int, size: int, store: str, results: Connection) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank, size, timeout=_TIMEOUT)
    if size > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE  # gloo would listen on the address of the host's name
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        for run in runs:
            timed = _timed_steps(run, vocabulary, ranks)
            if ranks.is_rank0:
                results.send(timed)
    finally:
        if size > 1:
            dist.destroy_process_group()


def _timed_steps(run: RunConfig, vocabulary: Vocabulary, ranks: Ranks) -> StepTime:
    device = torch.device("cpu")
    mesh = build_mesh(run.parallel, ranks.size, device.type)
    model = build_model(run, vocabulary, device, mesh)
    optimizer = build_optimizer(model, run.resolved)
    seconds, tokens, num_steps = list[float](), list[float](), UNTIMED_STEPS + TIMED_STEPS
    loader_config = replace(run.loader, num_workers=0, prefetch=0)
    with Loader(list(run.data), loader_config, ranks.rank, ranks.size, start_step=0, num_steps=num_steps) as loader:
        started = time.perf_counter()
        for number, step in enumerate(loader):
            train_step(model, optimizer, step, run, vocabulary, device, ranks)
            ranks.barrier()
            now = time.perf_counter()
            if number >= UNTIMED_STEPS:
                seconds.append(now - started)
                tokens.append(float(step.num_tokens))
            # All ranks must stop at the same step.
            if len(seconds) >= 2 and ranks.broadcast(sum(seconds) > _TIMED_SECONDS):
                break
            started = time.perf_counter()
    return median(seconds), sum(tokens) / len(tokens)
