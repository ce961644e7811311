"""One training step on simulated ranks: a run of any size is built, sharded and stepped in seconds, on fake tensors.

It finds shapes that do not match, weights that cannot be sharded and missing kernels before a cluster is reserved. Only
rank 0 is simulated; messages to other ranks are dropped.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from triptych.data.pack import Grouped, Packed
from triptych.errors import UserError
from triptych.model.transformer import Targets
from triptych.training.config import RunConfig
from triptych.training.distributed import build_mesh, build_sharded, local
from triptych.training.step import build_optimizer
from triptych.vocab import Vocabulary


@dataclass(frozen=True)
class DryRun:
    """What rank 0 held in the simulated step."""

    ranks: int
    mesh: str
    """Copies of the model x shards of each."""
    weights: int
    """Elements of the weights on one rank."""
    optimizer: int
    """Elements of the optimizer's moments on one rank."""
    rows: int
    row_length: int
    seconds: float


def dry_run(config: RunConfig, vocabulary: Vocabulary, ranks: int) -> DryRun:
    """Build and shard the model for `ranks` ranks and take one step of rank 0: forward, backward, clipping, update."""
    if dist.is_initialized():
        raise UserError("a dry run needs its own process: torch.distributed is already initialized in this one.")
    started, device = time.monotonic(), torch.device("cpu")
    parallel = replace(config.parallel, compile=False)  # fake tensors compute nothing
    rows, length = _micro_batch(config, ranks)
    with _simulated(ranks):
        mesh = build_mesh(parallel, ranks, device.type)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = build_sharded(config.resolved.scaled_shape, vocabulary, parallel, mesh, device)
            optimizer = build_optimizer(model, config.resolved)
            tokens = torch.zeros(rows, length, dtype=torch.int64)
            model.loss(tokens, tokens, None, _targets(rows * length // 2)).total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or float("inf"))
            optimizer.step()
        shards = 1 if mesh is None else mesh.size(mesh.ndim - 1)
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return DryRun(
        ranks=ranks,
        mesh=f"{ranks // shards} x {shards}",
        weights=sum(local(parameter).numel() for parameter in model.parameters()),
        optimizer=sum(local(moment).numel() for moment in moments),
        rows=rows,
        row_length=length,
        seconds=time.monotonic() - started,
    )


def _targets(count: int) -> Targets:
    zeros = torch.zeros(count, dtype=torch.int64)
    return Targets(zeros, zeros, torch.ones(count), torch.ones(count), (count, 0, 0))


def _micro_batch(config: RunConfig, ranks: int) -> tuple[int, int]:
    """Rows of the largest micro-batch of one rank, at most 8 unless the layout sets them, and the row length."""
    loader, layout = config.loader, config.loader.layout
    if isinstance(layout, Grouped):
        return max(1, layout.max_tokens // loader.seq_len), loader.seq_len
    length = (layout.row_length or 3 * loader.seq_len) if isinstance(layout, Packed) else loader.seq_len
    return layout.micro_batch_rows or min(8, max(1, loader.global_batch // ranks)), length


@contextmanager
def _simulated(ranks: int) -> Iterator[None]:
    """A process group of which only this rank exists."""
    # torch has the store of its "fake" backend only here.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
