"""What a run comes to before it is started: tokens, compute, memory, disk, time, money, and what may go wrong.

deal      where the sequences of a few global batches (triptych.plan.lengths) stand on so many ranks
estimate  what follows from that for a machine
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from triptych.data.pack import Grouped, Packed, Padded, RowLayout
from triptych.errors import UserError, did_you_mean
from triptych.model.count import Memory, MemoryInputs, Parameters, advice, flops, memory, parameters
from triptych.plan.lengths import Batches, gather
from triptych.scaling.published import PAPER
from triptych.training.config import RunConfig, override
from triptych.training.peak import matmul_peak
from triptych.vocab import Vocabulary

# -- machines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """What a rank computes on."""

    name: str
    memory: float
    """Bytes; GPUs as they are sold, a GB being 10^9."""
    peak: float
    """FLOP/s of dense products: GPUs in bfloat16, a CPU in float32."""

    @property
    def is_gpu(self) -> bool:
        return self.name != CPU


CPU = "cpu"
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


def machine_named(name: str, ranks: int) -> Machine:
    """A GPU by name, or `cpu`: this machine, measured, a part of it for every rank."""
    if name in GPUS:
        return GPUS[name]
    if name != CPU:
        raise UserError(f"unknown GPU {name!r}.{did_you_mean(name, [*GPUS, CPU])}")
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(CPU, installed / ranks, matmul_peak(torch.device(CPU)) / ranks)


# -- on so many ranks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepLayout:
    """How a step lies on the ranks; means over the batches, but the largest micro-batch of all."""

    sequences: int
    tokens: float
    positions: float
    """Those that are computed, padding and empty rows included."""
    context: float
    """How many positions a token sees: the length of its own sequence, on average over tokens."""
    rows: float
    """With something in them."""
    rows_dealt: float
    """The same number to every rank."""
    micro_batches: int
    micro_batch_rows: int
    """On one rank, of the largest micro-batch."""
    row_length: int
    filled: float
    """Share of its positions that are no padding, at most: on the fullest rank, of any micro-batch."""
    has_mask: bool
    """Whether rows hold several sequences, or padding."""


def deal(batches: Batches, layout: RowLayout, seq_len: int, ranks: int) -> StepLayout:
    placed = [(lengths, layout.arrange(lengths, seq_len, ranks)) for lengths in batches.lengths]
    every = [placement for _, placements in placed for placement in placements]
    largest = max(every, key=lambda placement: placement.num_rows * placement.width)
    tokens, steps = sum(int(lengths.sum()) for lengths in batches.lengths), len(placed)
    most_tokens = max(
        np.bincount(placement.rows % ranks, weights=lengths[placement.slots]).max(initial=0)
        for lengths, placements in placed
        for placement in placements
    )
    return StepLayout(
        sequences=len(batches.lengths[0]),
        tokens=tokens / steps,
        positions=sum(placement.num_rows * placement.width for placement in every) / steps,
        context=sum(float(np.square(lengths.astype(np.float64)).sum()) for lengths in batches.lengths) / tokens,
        rows=sum(len(np.unique(placement.rows)) for placement in every) / steps,
        rows_dealt=sum(placement.num_rows for placement in every) / steps,
        micro_batches=max(len(placements) for _, placements in placed),
        micro_batch_rows=largest.num_rows // ranks,
        row_length=largest.width,
        filled=float(most_tokens) / (largest.num_rows // ranks * largest.width),
        # A row that is one whole sequence, or empty, needs none.
        has_mask=any(
            bool((lengths[placement.slots] < placement.width).any()) for lengths, all_ in placed for placement in all_
        ),
    )


# -- the estimate -----------------------------------------------------------------------------------------------------

# studies/batch-size: kappa at which exp(loss) had risen by 1 % and by 10 %. Those were batches of 26 and 47 sequences,
# over the base's 16, times 2^-0.44 for twice its tokens.
KAPPA_1_PERCENT, KAPPA_10_PERCENT = 1.2, 2.2
_ROOM = 0.9  # of a GPU's memory; contexts, buffers of messages and holes between tensors need the rest
_NOTABLE = 0.02  # positions that stay empty, as a share


def optimal_tokens(non_embedding: float) -> float:
    """How many tokens are compute-optimal for a model, by the paper's law."""
    return float(PAPER.tokens(non_embedding))


@dataclass(frozen=True)
class RunEstimate:
    """What a run comes to on a machine."""

    config: RunConfig
    vocabulary: Vocabulary
    machine: Machine
    ranks: int
    mfu: float
    price: float | None
    """Dollars for an hour of one rank's machine."""
    count: Parameters
    batches: Batches
    step_layout: StepLayout
    memory: Memory
    flops_per_token: float
    """Of training, with the whole head for every token: what scaling laws count."""
    flops_per_token_predicted: float
    """The same with logits of predicted tokens only: what is computed."""
    step_flops: float
    """Of all ranks, with padding and what is computed again."""

    @property
    def views(self) -> int:
        """How often a token passes the model in a step."""
        return 2 if self.config.complementary_masks else 1

    @property
    def tokens(self) -> float:
        return self.step_layout.tokens * self.config.num_steps

    @property
    def positions(self) -> float:
        return self.step_layout.positions * self.config.num_steps

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens * self.views

    @property
    def flops_predicted(self) -> float:
        return self.flops_per_token_predicted * self.tokens * self.views

    @property
    def hours(self) -> float:
        speed = self.ranks * self.machine.peak * self.mfu
        return self.step_flops * self.config.num_steps / speed / 3600

    @property
    def mfu_of_tokens(self) -> float:
        """The share of the peak that `triptych train` will show: without padding and what is computed again."""
        return self.mfu * self.flops_predicted / (self.step_flops * self.config.num_steps)

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.price * self.hours * self.ranks

    @property
    def checkpoint_bytes(self) -> int:
        """Weights, two moments, and the running mean if there is one."""
        return 4 * self.count.total * (3 if self.config.ema_decay is None else 4)

    @property
    def needed(self) -> float:
        """Bytes of a rank's memory; a CPU's holds the copy of what is being saved, too."""
        copy = 0 if self.machine.is_gpu else self.checkpoint_bytes // self.memory.load.shards
        return self.memory.total + copy

    @property
    def fits(self) -> bool:
        return self.needed <= self.machine.memory

    @property
    def as_json(self) -> dict[str, Any]:
        step_layout = asdict(self.step_layout)
        return {
            "machine": {**asdict(self.machine), "ranks": self.ranks},
            "step": {"origin": self.batches.origin, "predicted": self.batches.predicted, **step_layout},
            "num_steps": self.config.num_steps,
            "tokens": self.tokens,
            "positions": self.positions,
            "padding": 1 - self.tokens / self.positions,
            "optimal_tokens": optimal_tokens(self.count.blocks),
            "flops": {
                "per_token": self.flops_per_token,
                "per_token_predicted": self.flops_per_token_predicted,
                "total": self.flops,
                "total_predicted": self.flops_predicted,
                "computed": self.step_flops * self.config.num_steps,
            },
            "memory": {
                **self.memory.items,
                "total": self.memory.total,
                "needed": self.needed,
                "moment": self.memory.moment,
                "fits": self.fits,
            },
            "checkpoint": {
                "bytes": self.checkpoint_bytes,
                "bytes_per_rank": self.checkpoint_bytes / self.ranks,
                "kept": self.config.keep_last_checkpoints,
            },
            "time": {
                "mfu": self.mfu,
                "mfu_of_tokens": self.mfu_of_tokens,
                "hours": self.hours,
                "rank_hours": self.hours * self.ranks,
                "cost": self.cost,
            },
            "warnings": warnings(self),
        }


def estimate(
    config: RunConfig,
    vocabulary: Vocabulary,
    machine: Machine,
    ranks: int,
    *,
    mfu: float = 0.4,
    price: float | None = None,
    batches: Batches | None = None,
) -> RunEstimate:
    """What the run comes to; `batches` if they were gathered before."""
    shard = config.parallel.shard
    if shard is not None and ranks % shard:
        raise UserError(f"parallel.shard={shard} must divide the number of ranks, {ranks}.")
    batches = batches or gather(config, vocabulary)
    step_layout = deal(batches, config.loader.layout, config.loader.seq_len, ranks)
    views = 2 if config.complementary_masks else 1
    load = MemoryInputs.of(
        config.parallel,
        ranks,
        rows=step_layout.micro_batch_rows,
        row_length=step_layout.row_length,
        context=step_layout.context if step_layout.has_mask else None,
        filled=step_layout.filled,
        accumulates=step_layout.micro_batches * views > 1,
        has_ema=config.ema_decay is not None,
        on_gpu=machine.is_gpu,
    )
    whole = flops(config.model, vocabulary, step_layout.context)
    real = flops(config.model, vocabulary, step_layout.context, predicted=batches.predicted, columns=batches.columns)
    passes = 4 if config.parallel.checkpoint_activations else 3  # forward, backward twice, and forward again
    computed = step_layout.positions if machine.is_gpu else step_layout.tokens  # a CPU leaves padding out
    share = batches.predicted * step_layout.tokens / computed
    blocks = flops(config.model, vocabulary, step_layout.context, predicted=share)
    in_blocks = passes * (blocks.matrices + blocks.attention) * computed
    return RunEstimate(
        config=config,
        vocabulary=vocabulary,
        machine=machine,
        ranks=ranks,
        mfu=mfu,
        price=price,
        count=parameters(config.model, vocabulary),
        batches=batches,
        step_layout=step_layout,
        memory=memory(config.model, vocabulary, load),
        flops_per_token=whole.training,
        flops_per_token_predicted=real.training,
        step_flops=views * (in_blocks + 3 * real.unembedding * step_layout.tokens),
    )


# -- what may go wrong ------------------------------------------------------------------------------------------------


def warnings(found: RunEstimate) -> list[str]:
    """One line for everything that should be looked at before the run is started."""
    return [line for line in (*_of_batch(found), *_of_tokens(found), *_of_memory(found), *_of_rows(found)) if line]


def _of_batch(found: RunEstimate) -> Iterator[str]:
    sde, batch = found.config.resolved.sde, found.config.loader.global_batch
    if sde is not None and sde.kappa > 1 + 1e-6:
        yield (
            f"kappa is {sde.kappa:.3g}: at this number of tokens the base's values are for batches of "
            f"{sde.virtual_batch:,.1f} sequences, not {batch:,}. The critical batch size is not known here (the paper "
            f"gives no number); in studies/batch-size, exp(loss) had risen by 1 % at kappa {KAPPA_1_PERCENT} and by "
            f"10 % at {KAPPA_10_PERCENT}."
        )


def _of_tokens(found: RunEstimate) -> Iterator[str]:
    best = optimal_tokens(found.count.blocks)
    if found.tokens < best:
        yield (
            f"{found.tokens:.3g} tokens are fewer than the {best:.3g} that are compute-optimal for "
            f"{found.count.blocks:.3g} parameters without embeddings (the paper's law): with the same compute, a "
            "smaller model would end better."
        )


def _of_memory(found: RunEstimate) -> Iterator[str]:
    if found.machine.is_gpu and found.config.parallel.precision == "float32":
        yield (
            "the peak is that of bfloat16, but the run computes in float32, which is several times slower: set "
            "parallel.precision=bfloat16."
        )
    have = f"{found.machine.memory / 1e9:,.1f} GB"
    if found.fits and (not found.machine.is_gpu or found.needed <= _ROOM * found.machine.memory):
        return
    if found.fits:
        yield (
            f"memory is tight, {found.needed / 1e9:,.1f} of {have} per rank: contexts, buffers of messages and holes "
            f"between tensors need some, too. {_remedy(found)}"
        )
    else:
        yield f"does not fit in the {have} of a rank: it needs {advice(found.memory)} {_remedy(found)}"


def _remedy(found: RunEstimate) -> str:
    """The first change, from cheap to dear, with which there is room."""
    for changes in _changes(found):
        there = _changed(found, changes)
        if there.needed <= _ROOM * there.machine.memory:
            return f"It fits with {' '.join(changes)} ({there.needed / 1e9:,.1f} GB)."
    return "No setting makes it fit: take more ranks to divide it among, a larger GPU or a smaller model."


def _changes(found: RunEstimate) -> Iterator[list[str]]:
    """Settings that need less memory: first those that cost nothing, then what is computed again, then shorter rows."""
    parallel, layout, step_layout = found.config.parallel, found.config.loader.layout, found.step_layout
    first = []
    if found.machine.is_gpu and parallel.precision == "float32":
        first.append("parallel.precision=bfloat16")
    if not parallel.reshard_after_forward:
        first.append("parallel.reshard_after_forward=true")
    if parallel.shard is not None and parallel.shard < found.ranks:
        first.append("parallel.shard=none")
    fewer: list[list[str]] = [[]]
    rows = step_layout.micro_batch_rows
    while rows > 1:
        rows //= 2
        name = (
            f"max_tokens={rows * step_layout.row_length}" if isinstance(layout, Grouped) else f"micro_batch_rows={rows}"
        )
        fewer.append([f"loader.layout.{name}"])
    again = [] if parallel.checkpoint_activations else ["parallel.checkpoint_activations=true"]
    for more in ([], again) if again else ([],):
        for each in fewer:
            if first or more or each:
                yield [*first, *more, *each]
    if isinstance(layout, Packed) and step_layout.row_length > found.config.loader.seq_len:
        shorter = [f"loader.layout.row_length={found.config.loader.seq_len}", "loader.layout.micro_batch_rows=1"]
        yield [*first, *shorter]
        yield [*first, *again, *shorter]


def _changed(found: RunEstimate, changes: list[str]) -> RunEstimate:
    """The same with some settings changed."""
    return estimate(
        override(found.config, changes),
        found.vocabulary,
        found.machine,
        found.ranks,
        mfu=found.mfu,
        price=found.price,
        batches=found.batches,
    )


def _of_rows(found: RunEstimate) -> Iterator[str]:
    step_layout, ranks, layout = found.step_layout, found.ranks, found.config.loader.layout
    empty = step_layout.rows_dealt - step_layout.rows
    shorter = ", or shorter rows" if isinstance(layout, Packed) else ""
    if step_layout.rows < ranks:
        yield (
            f"a step has {step_layout.rows:,.0f} rows for {ranks:,} ranks: {ranks - step_layout.rows:,.0f} have nothing to do. "
            f"Take fewer ranks, or a larger loader.global_batch{shorter}."
        )
    elif empty > _NOTABLE * step_layout.rows_dealt:
        yield (
            f"the rows of a step do not divide evenly: {step_layout.rows:,.0f} are dealt to {ranks:,} ranks as "
            f"{step_layout.rows_dealt:,.0f}, of which {empty / step_layout.rows_dealt:.0%} stay empty. {_better_division(found)}"
        )


def _better_division(found: RunEstimate) -> str:
    layout, seq_len, batch, ranks = (
        found.config.loader.layout, found.config.loader.seq_len, found.config.loader.global_batch, found.ranks
    )  # fmt: skip
    if isinstance(layout, Packed):
        others = {
            length: deal(found.batches, replace(layout, row_length=length), seq_len, ranks).positions
            for length in (seq_len * times for times in (1, 2, 3, 4, 6))
        }
        best = min(others, key=lambda length: others[length])
        saved = 1 - others[best] / found.step_layout.positions
        if saved > _NOTABLE:
            return f"loader.layout.row_length={best} would take {saved:.0%} fewer positions."
    if isinstance(layout, Padded):
        below, above = batch // ranks * ranks, -(-batch // ranks) * ranks
        return f"loader.global_batch={below} or {above} would divide."
    return "Another number of ranks or sequences may divide better."
