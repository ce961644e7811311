"""A step on ranks that do not exist: builds, shards and steps a run of any size in seconds, on tensors without numbers.

What cannot be sharded, does not fit together or has no kernel is found before a cluster is asked for. One rank is acted
out; messages to the others go nowhere.
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
    ranks: int
    mesh: str
    """Copies x shards."""
    weights: int
    """Numbers that one rank keeps of the model."""
    optimizer: int
    """Numbers of its moments."""
    rows: int
    row_length: int
    seconds: float


def rehearse(config: RunConfig, vocabulary: Vocabulary, ranks: int) -> DryRun:
    """Build, shard, and do one step of rank 0 among so many: forward, backward, clipping, update."""
    if dist.is_initialized():
        raise UserError("a rehearsal needs a process of its own: there are real ranks in this one.")
    began, device = time.monotonic(), torch.device("cpu")
    parallel = replace(config.parallel, compile=False)  # there is nothing to be fast at
    rows, length = _micro_batch(config, ranks)
    with _pretended(ranks):
        mesh = build_mesh(parallel, ranks, device.type)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = build_sharded(config.resolved.scaled_shape, vocabulary, parallel, mesh, device)
            optimizer = build_optimizer(model, config.resolved)
            tokens = torch.zeros(rows, length, dtype=torch.int64)
            model(tokens, tokens, None, _targets(rows * length // 2)).total.backward()
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
        seconds=time.monotonic() - began,
    )


def _targets(count: int) -> Targets:
    places = torch.zeros(count, dtype=torch.int64)
    return Targets(places, places, torch.ones(count), torch.ones(count), (count, 0, 0))


def _micro_batch(config: RunConfig, ranks: int) -> tuple[int, int]:
    """Rows of one rank, at most, and their length; of a whole step at most eight, for numbers are not computed."""
    loader, layout = config.loader, config.loader.layout
    if isinstance(layout, Grouped):
        return max(1, layout.max_tokens // loader.seq_len), loader.seq_len
    length = (layout.row_length or 3 * loader.seq_len) if isinstance(layout, Packed) else loader.seq_len
    return layout.micro_batch_rows or min(8, max(1, loader.global_batch // ranks)), length


@contextmanager
def _pretended(ranks: int) -> Iterator[None]:
    """Ranks of which only this one is there."""
    # The only place where torch keeps the store that goes with its "fake" backend.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
