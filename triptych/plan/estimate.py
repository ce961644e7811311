"""Tokens, compute, memory, disk, time and cost of a run on given hardware, before it starts."""

from dataclasses import asdict, dataclass
from typing import Any

from triptych.errors import UserError
from triptych.model.flops import ParameterCount, count_parameters, flops
from triptych.model.memory import Memory, MemoryInputs, memory
from triptych.plan.lengths import BatchSample, sample_batches
from triptych.plan.machines import Machine
from triptych.plan.roofline import StepSeconds, Workload, step_seconds
from triptych.plan.step_layout import StepLayout, lay_out_step
from triptych.training.config import RunConfig
from triptych.vocab import Vocabulary

CPU_MFU = 0.4  # of a CPU's measured peak, if no other share is given


@dataclass(frozen=True)
class RunEstimate:
    """What a run takes on a number of ranks."""

    config: RunConfig
    vocabulary: Vocabulary
    machine: Machine
    ranks: int
    mfu: float
    """Model FLOPs utilisation: the share of the peak that is reached."""
    price: float | None
    """Dollars per hour for the hardware of one rank."""
    count: ParameterCount
    batches: BatchSample
    step_layout: StepLayout
    memory: Memory
    flops_per_token: float
    """Training FLOPs with logits over the whole vocabulary for every token, as scaling laws count them."""
    flops_per_token_predicted: float
    """Training FLOPs with logits of predicted tokens only, as they are computed."""
    step_flops: float
    """FLOPs of a step on all ranks, including padding and recomputed activations."""
    step_seconds: StepSeconds | None = None
    """What a step takes by the model of the GPU, which the MFU follows from; None if the MFU is given."""

    @property
    def views(self) -> int:
        """How often a token passes through the model in one step."""
        return self.config.num_views

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
        """MFU without padding and recomputed activations, as `triptych train` reports it."""
        return self.mfu * self.flops_predicted / (self.step_flops * self.config.num_steps)

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.price * self.hours * self.ranks

    @property
    def checkpoint_bytes(self) -> int:
        """Weights, two moments, and the EMA if there is one."""
        return 4 * self.count.total * (3 if self.config.ema_decay is None else 4)

    @property
    def needed(self) -> float:
        """Bytes of memory per rank. A CPU rank also holds the copy that a checkpoint is written from."""
        copy = 0 if self.machine.is_gpu else self.checkpoint_bytes // self.memory.inputs.shards
        return self.memory.total + copy

    @property
    def fits(self) -> bool:
        return self.needed <= self.machine.memory

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "machine": {**asdict(self.machine), "ranks": self.ranks},
            "step": {
                "origin": self.batches.origin,
                "predicted": self.batches.predicted,
                **asdict(self.step_layout),
            },
            "num_steps": self.config.num_steps,
            "tokens": self.tokens,
            "positions": self.positions,
            "padding": 1 - self.tokens / self.positions,
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
                "phase": self.memory.phase,
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
                "step_seconds": None if self.step_seconds is None else self.step_seconds.items,
                "hours": self.hours,
                "rank_hours": self.hours * self.ranks,
                "cost": self.cost,
            },
        }


def estimate(
    config: RunConfig,
    vocabulary: Vocabulary,
    machine: Machine,
    ranks: int,
    *,
    mfu: float | None = None,
    price: float | None = None,
    batches: BatchSample | None = None,
) -> RunEstimate:
    """Estimate a run on `ranks` copies of `machine`; `batches` are sampled unless given.

    Without `mfu`, the time of a step on a GPU is modelled (triptych.plan.roofline); a CPU reaches CPU_MFU.
    """
    shard = config.parallel.shard
    if shard is not None and ranks % shard:
        raise UserError(f"parallel.shard={shard} must divide the number of ranks, {ranks}.")
    batches = batches or sample_batches(config, vocabulary)
    step_layout = lay_out_step(batches, config.loader.layout, config.loader.seq_len, ranks)
    views = config.num_views
    inputs = MemoryInputs(
        rows=step_layout.micro_batch_rows,
        row_length=step_layout.row_length,
        context=step_layout.context if step_layout.has_mask else None,
        filled=step_layout.max_fill,
        accumulates=step_layout.micro_batches * views > 1,
        has_ema=config.ema_decay is not None,
        on_gpu=machine.is_gpu,
    ).with_parallel(config.parallel, ranks)
    full_head = flops(config.model, vocabulary, step_layout.context)
    predicted_head = flops(
        config.model, vocabulary, step_layout.context, predicted=batches.predicted, columns=batches.columns
    )
    passes = 4 if config.parallel.checkpoint_activations else 3  # forward, backward (twice), recomputed forward
    computed = step_layout.positions if machine.is_gpu else step_layout.tokens  # a CPU skips padding
    share = batches.predicted * step_layout.tokens / computed
    blocks = flops(config.model, vocabulary, step_layout.context, predicted=share)
    block_flops = passes * (blocks.matrices + blocks.attention) * computed
    step_flops = views * (block_flops + 3 * predicted_head.unembedding * step_layout.tokens)
    seconds = None
    if mfu is None and machine.is_gpu:
        seconds = step_seconds(_workload(config, vocabulary, batches, step_layout, ranks), machine)
        mfu = step_flops / (ranks * machine.peak * seconds.total)
    return RunEstimate(
        config=config,
        vocabulary=vocabulary,
        machine=machine,
        ranks=ranks,
        mfu=CPU_MFU if mfu is None else mfu,
        price=price,
        count=count_parameters(config.model, vocabulary),
        batches=batches,
        step_layout=step_layout,
        memory=memory(config.model, vocabulary, inputs),
        flops_per_token=full_head.training,
        flops_per_token_predicted=predicted_head.training,
        step_flops=step_flops,
        step_seconds=seconds,
    )


def _workload(
    config: RunConfig, vocabulary: Vocabulary, batches: BatchSample, step_layout: StepLayout, ranks: int
) -> Workload:
    """A rank's share of a step, in equal micro-batches."""
    parallel, shards = config.parallel, config.parallel.shard or ranks
    share = 1 / (ranks * step_layout.micro_batches)
    return Workload(
        model=config.model,
        vocabulary=vocabulary,
        positions=step_layout.positions * share,
        predicted=batches.predicted * step_layout.tokens * share,
        columns=vocabulary.size if batches.columns is None else batches.columns,
        context=step_layout.context,
        micro_batches=step_layout.micro_batches * config.num_views,
        shards=shards,
        copies=ranks // shards,
        element=2 if parallel.precision == "bfloat16" else 4,
        is_compiled=parallel.compile,
        recomputes=parallel.checkpoint_activations,
        reshards=parallel.reshard_after_forward,
        has_ema=config.ema_decay is not None,
    )
