"""Seconds of one training step on a GPU: a roofline for compute and memory, and the communication of FSDP.

    product             the slowest of FLOPs at `matmul_share` of the peak, bytes at the memory's bandwidth, a launch
    attention           FLOPs at half of that share; its backward pass recomputes the scores: 2.5 times the forward
    elementwise         bytes at the memory's bandwidth: norms, rotation, residuals, activation; twice, if not compiled
    loss head           its products, and five passes over float32 logits
    optimizer           weights, gradients and moments are read, weights and moments written, once per step
    communication       a block's weights are gathered while the one before is computed, for the forward pass and again
                        for the backward pass, where gradients are scattered too; what takes longer than the compute is
                        exposed, and so are the root's weights and gradients

It assumes that the host, the data loader and other ranks are never waited for, and that memory suffices. Real runs
are slower where this does not hold. tests/plan/test_roofline.py compares it with published throughput.
"""

from dataclasses import dataclass

from triptych.model.flops import count_parameters
from triptych.model.transformer import ModelConfig
from triptych.plan.collectives import BANDWIDTH_SHARE, LINK_LATENCY, NETWORK_LATENCY, Ring
from triptych.plan.machines import Machine
from triptych.vocab import Vocabulary

LAUNCH_SECONDS = 5e-6  # per kernel
ATTENTION_SHARE = 0.5  # of the speed of products
ATTENTION_BACKWARD = 2.5  # times the forward pass
_ELEMENTWISE = 14  # elements per position and width that the elementwise kernels of a block read and write
_LOGIT_PASSES = 5
_OPTIMIZER_BYTES = 28  # per weight: 4 tensors are read, 3 written
_EMA_BYTES = 12
_ELEMENTWISE_KERNELS = 7  # of a block's forward pass


@dataclass(frozen=True)
class Workload:
    """What one rank computes in a step."""

    model: ModelConfig
    vocabulary: Vocabulary
    positions: float
    """Positions of a micro-batch on this rank, with padding."""
    predicted: float
    """Those with logits: the only ones that reach the last block's projection and MLP, and the head."""
    columns: float
    """Logits of a predicted position."""
    context: float
    """Length of the sequence that a position attends to."""
    micro_batches: int = 1
    """Micro-batches of a step, times views."""
    shards: int = 1
    """Ranks that share one copy of the weights."""
    copies: int = 1
    element: int = 2
    """Bytes of the compute dtype."""
    is_compiled: bool = True
    recomputes: bool = False
    """Whether the backward pass computes each block's forward pass again."""
    reshards: bool = True
    """Whether a block's weights are gathered again for the backward pass."""
    has_ema: bool = False


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step, by what takes them."""

    blocks: float
    """Compute of the blocks."""
    head: float
    optimizer: float
    exposed: float
    """Communication that compute does not hide."""
    hidden: float
    """Communication that it does; not part of the total."""

    @property
    def total(self) -> float:
        return self.blocks + self.head + self.optimizer + self.exposed

    @property
    def items(self) -> dict[str, float]:
        names = ("blocks", "head", "optimizer", "exposed", "hidden")
        return {name: getattr(self, name) for name in names} | {"total": self.total}


def assumptions(machine: Machine) -> list[str]:
    """What the model assumes, to be printed beside its results."""
    products, attention = machine.matmul_share, ATTENTION_SHARE * machine.matmul_share
    return [
        f"matrix products reach {products:.0%} of the peak of {machine.peak / 1e12:,.0f} TFLOP/s, attention "
        f"{attention:.0%}; memory moves {machine.bandwidth / 1e12:.3g} TB/s; a kernel takes at least "
        f"{LAUNCH_SECONDS * 1e6:g} us",
        f"nodes of {machine.per_node} GPUs, {machine.link / 1e9:,.0f} GB/s between them and "
        f"{machine.network / 1e9:,.3g} GB/s per GPU to other nodes, of which {BANDWIDTH_SHARE:.0%} is reached; "
        f"{LINK_LATENCY * 1e6:g} and {NETWORK_LATENCY * 1e6:g} us per hop",
        "no rank waits for the host, for data or for another rank",
    ]


def step_seconds(work: Workload, machine: Machine) -> StepSeconds:
    """The time of one step of a rank."""
    gpu = _Gpu(machine, work)
    count = count_parameters(work.model, work.vocabulary)
    layers = work.model.num_layers
    block_weights, root_weights = (count.blocks - work.model.width) / layers, count.total - count.blocks
    shards, copies = Ring(machine, work.shards), Ring(machine, work.copies, stride=work.shards)

    def gather(weights: float) -> float:
        return shards.gather_seconds(work.element * weights)

    def scatter(weights: float) -> float:
        return shards.gather_seconds(4 * weights) + copies.all_reduce_seconds(4 * weights / work.shards)

    compute = exposed = hidden = 0.0
    for index in range(layers):
        forward = gpu.block(work.predicted if index == layers - 1 else work.positions)
        backward = 2 * forward + (ATTENTION_BACKWARD - 2) * gpu.attention + (forward if work.recomputes else 0)
        again = gather(block_weights) if work.reshards else 0.0
        for seconds, communication in (
            (forward, gather(block_weights)),
            (backward, again + scatter(block_weights)),
        ):
            compute += seconds
            exposed += max(0.0, communication - seconds)
            hidden += min(communication, seconds)
    exposed += gather(root_weights) + gather(block_weights) + scatter(root_weights)
    times = work.micro_batches
    own_weights = count.total / work.shards
    update = own_weights * (_OPTIMIZER_BYTES + (_EMA_BYTES if work.has_ema else 0)) / machine.bandwidth
    return StepSeconds(
        blocks=times * compute,
        head=times * gpu.head(),
        optimizer=update,
        exposed=times * exposed,
        hidden=times * hidden,
    )


class _Gpu:
    """Times of the kernels of a workload."""

    def __init__(self, machine: Machine, work: Workload):
        self.work, self.memory = work, machine.bandwidth
        self.speed = machine.peak * machine.matmul_share
        pairs = work.positions * work.context * work.model.width
        self.attention = max(4 * pairs / (ATTENTION_SHARE * self.speed), LAUNCH_SECONDS)

    def product(self, rows: float, inner: float, columns: float) -> float:
        num_bytes = self.work.element * (rows * inner + inner * columns + rows * columns)
        return max(2 * rows * inner * columns / self.speed, num_bytes / self.memory, LAUNCH_SECONDS)

    def block(self, rows: float) -> float:
        """The forward pass of a block whose projection and MLP see so many rows."""
        work, d, hidden = self.work, self.work.model.width, self.work.model.d_ff
        products = self.product(work.positions, d, 3 * d) + self.product(rows, d, d)
        products += 2 * self.product(rows, d, hidden) + self.product(rows, hidden, d)
        passes = 1 if work.is_compiled else 2
        moved = passes * work.element * (_ELEMENTWISE * work.positions * d + 3 * rows * hidden)
        return products + self.attention + max(moved / self.memory, passes * _ELEMENTWISE_KERNELS * LAUNCH_SECONDS)

    def head(self) -> float:
        """The logits of predicted positions, forward and backward."""
        work = self.work
        logits = _LOGIT_PASSES * 4 * work.predicted * work.columns / self.memory
        return 3 * self.product(work.predicted, work.model.width, work.columns) + logits
