"""Peak memory of a training step on one rank, from the shape of the model and of its micro-batches."""

from dataclasses import dataclass, replace
from typing import Protocol

from triptych.model.flops import count_parameters
from triptych.model.head import chunk_rows
from triptych.model.segments import MAX_UNFUSED_LENGTH
from triptych.model.transformer import ModelConfig
from triptych.vocab import Modality, Vocabulary


class ParallelSettings(Protocol):
    """How a model is sharded and computed; `training.config.ParallelConfig` implements it."""

    @property
    def shard(self) -> int | None: ...
    @property
    def precision(self) -> str: ...
    @property
    def checkpoint_activations(self) -> bool: ...
    @property
    def reshard_after_forward(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class MemoryInputs:
    """What memory depends on besides the model: the micro-batches of one rank, the device, and sharding."""

    rows: int
    """Rows of the largest micro-batch."""
    row_length: int
    """Positions per row."""
    context: float | None = None
    """Mean length of a sequence, weighted by its tokens. None if every row is one sequence without padding."""
    filled: float = 1.0
    """Largest share of positions that are not padding. A CPU computes only these."""
    predicted: float = 1.0
    """Largest share of the computed positions that have logits."""
    accumulates: bool = False
    """Whether a step has several micro-batches, so that gradients exist while the next one is computed."""
    has_ema: bool = False
    on_gpu: bool = False
    """A GPU's kernels for norms save less for the backward pass than the CPU's."""
    uses_fsdp: bool = False
    """Whether FSDP2 gathers weights before their use and scatters gradients."""
    shards: int = 1
    """Number of ranks that share one copy of the weights."""
    compute_bytes: int = 4
    """Bytes per element of the compute dtype. Weights, optimizer moments and accumulated gradients take 4."""
    checkpoint_activations: bool = False
    reshard_after_forward: bool = True

    def with_parallel(self, parallel: ParallelSettings, world_size: int) -> "MemoryInputs":
        """The same micro-batches, with a model that is sharded over `world_size` ranks as `parallel` says."""
        return replace(
            self,
            uses_fsdp=world_size > 1 or parallel.precision == "bfloat16",
            shards=world_size if parallel.shard is None else parallel.shard,
            compute_bytes=2 if parallel.precision == "bfloat16" else 4,
            checkpoint_activations=parallel.checkpoint_activations,
            reshard_after_forward=parallel.reshard_after_forward,
        )

    @property
    def num_computed(self) -> int:
        """Positions that are computed."""
        positions = self.rows * self.row_length
        return positions if self.on_gpu else round(positions * self.filled)

    @property
    def num_predicted(self) -> int:
        """Positions with logits: the only ones that reach the last block's MLP and the loss head."""
        return round(self.num_computed * self.predicted)


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank when memory peaks, by purpose."""

    inputs: MemoryInputs
    phase: str
    """Part of the training step at which memory peaks."""
    weights: int
    gradients: int
    """This rank's shard, and gradients that are not scattered yet."""
    optimizer: int
    ema: int
    gathered: int
    """Full weights of the layers in use, under FSDP2."""
    activations: int
    """Tensors saved for the backward pass, and its temporary tensors."""
    head: int
    """The loss head: logits of one chunk, and gradients."""

    @property
    def items(self) -> dict[str, int]:
        names = ("weights", "gradients", "optimizer", "ema", "gathered", "activations", "head")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        return sum(self.items.values())


def memory(config: ModelConfig, vocabulary: Vocabulary, inputs: MemoryInputs) -> Memory:
    """Peak bytes of a training step on one rank.

    Gradients are allocated while activations are freed, so their maxima do not add up. The peak is in one of these
    phases:

        head             all activations, and the forward pass of the loss head
        head, backward   all activations, and the gradients of the loss head
        last norm        all activations, and the temporary tensors of a norm's backward pass
        last MLP         backward pass of the last block's MLP, on predicted positions only
        last attention   backward pass of the last block's attention, on all positions
        inner MLP, inner attention, first MLP, first attention
                         the second to last block, and the first one: fewer activations, more gradients
        embedding        all gradients

    With several micro-batches, accumulated gradients exist in every phase. FSDP2 shards weights and gradients. Gathered
    weights are those of the root module (embeddings, last norm, unembedding; from its forward to its backward pass) and
    of two blocks, one in use and one being prefetched. A gradient exists in full, in the compute dtype and in float32,
    until it is scattered.
    """
    count = count_parameters(config, vocabulary)
    d, element, layers = config.width, inputs.compute_bytes, config.num_layers
    activations = activation_bytes(config, inputs)
    root = count.embedding + count.unembedding + d
    block = (count.blocks - d) // layers

    # Present in every phase.
    own_shard = 4 * count.total // inputs.shards
    gathered = 0
    if inputs.uses_fsdp:
        gathered_blocks = min(2, layers) if inputs.reshard_after_forward else layers
        gathered = element * (root + gathered_blocks * block)

    # Gradients before the backward pass, at the last norm, and at the end.
    accumulated = own_shard if inputs.accumulates else 0
    if inputs.uses_fsdp:
        # Gradients of the root module are scattered at the end of its backward pass.
        at_norm, at_end = accumulated + element * count.unembedding, own_shard + (element + 4) * root
    else:
        # If gradients exist, new ones are added to them and freed; that of an embedding table comes in one tensor.
        at_norm = accumulated or 4 * count.unembedding
        at_end = own_shard + (4 * d * max(map(len, vocabulary.embedding_blocks)) if inputs.accumulates else 0)

    def gradients_within(blocks_done: int, is_mlp_done: bool) -> int:
        """Gradients in the backward pass of a block, after that of `blocks_done` others."""
        if inputs.uses_fsdp:
            scattered = max(accumulated, 4 * blocks_done * block // inputs.shards)
            return scattered + element * count.unembedding + (element + 4) * block
        fc2, mlp_and_proj = d * config.d_ff, 3 * d * config.d_ff + d**2  # the backward pass of a block starts with fc2
        if inputs.accumulates:
            return accumulated + (0 if is_mlp_done else 4 * fc2)
        return at_norm + 4 * (blocks_done * block + (mlp_and_proj if is_mlp_done else fc2))

    head_bytes = _HeadBytes(config, vocabulary, inputs)
    # phase, gradients, activations, head
    phases = [
        ("head", accumulated, activations.all, head_bytes.forward),
        ("head, backward", accumulated, activations.all, head_bytes.backward),
        ("last norm", at_norm, activations.in_norm, 0),
        ("embedding", at_end, activations.inputs + inputs.num_computed * d * element, 0),
    ]
    for name, index in (("first", 0), ("inner", layers - 2), ("last", layers - 1)):
        if name == "last" or 0 <= index < layers - 1:
            in_mlp, in_attention = (gradients_within(layers - 1 - index, is_mlp_done) for is_mlp_done in (False, True))
            phases.append((f"{name} MLP", in_mlp, activations.in_mlp(index), 0))
            phases.append((f"{name} attention", in_attention, activations.in_attention(index), 0))
    phase, gradients, saved, head = max(phases, key=lambda row: sum(row[1:]))
    return Memory(
        inputs=inputs,
        phase=phase,
        weights=own_shard,
        gradients=gradients,
        optimizer=2 * own_shard,
        ema=own_shard if inputs.has_ema else 0,
        gathered=gathered,
        activations=saved,
        head=head,
    )


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes saved for the backward pass, by part of the model, and the largest temporary tensors of backward passes."""

    inputs: int
    """Ids, positions and segments."""
    outside_blocks: int
    """The inputs, the rows looked up in the embedding tables, and the rotary angles."""
    before_attention: int
    """Per block: the first norm and the fused QKV projection."""
    attention: int
    """Per block: attention itself."""
    mlp: int
    """Per block: the output projection, the second norm and the MLP."""
    last_mlp: int
    """As `mlp`, for the last block, which has only predicted positions there."""
    last_norm: int
    block_input: int
    """Per block, if activations are checkpointed: its input."""
    norm_backward: int
    """Temporary tensors in the backward pass of the last norm."""
    mlp_backward: int
    last_mlp_backward: int
    attention_backward: int
    """Temporary tensors in the backward pass of attention, with what attention saved."""
    num_layers: int
    is_checkpointed: bool

    def block(self, index: int) -> int:
        """Saved by one block if it is not checkpointed."""
        is_last = index == self.num_layers - 1
        return self.before_attention + self.attention + (self.last_mlp if is_last else self.mlp)

    def before(self, index: int) -> int:
        """Saved when the forward pass reaches a block."""
        blocks = index * self.block_input if self.is_checkpointed else sum(map(self.block, range(index)))
        return self.outside_blocks + blocks

    @property
    def all(self) -> int:
        """Saved when the forward pass ends."""
        return self.before(self.num_layers) + self.last_norm

    @property
    def in_norm(self) -> int:
        """Present in the backward pass of the last norm."""
        return self.all + self.norm_backward

    def in_mlp(self, index: int) -> int:
        """Present in the backward pass of a block's MLP."""
        temporary = self.last_mlp_backward if index == self.num_layers - 1 else self.mlp_backward
        return self.before(index) + self.block(index) + temporary

    def in_attention(self, index: int) -> int:
        """Present in the backward pass of a block's attention."""
        return self.before(index) + self.before_attention + self.attention_backward


def activation_bytes(config: ModelConfig, inputs: MemoryInputs) -> ActivationBytes:
    """Activation memory of a model.

    A block on the CPU saves, in elements per position, with H heads and sequences of L positions:

        4 d + 2       both norms: input, output (saved by the next matrix product), 1 / rms
        3 d + 2 H     the fused QKV projection, whose queries and keys are normed; 1 / rms per head
        3 d + H L     short sequences: contiguous queries, keys and values for plain products, and the softmax
        d             input of the output projection
        4 d_ff        the MLP's two branches, the activated gate, their product

    Longer sequences use the fused attention kernel. It saves queries, keys (values are a view of the projection), its
    output, which is also the input of the output projection, and one log-sum-exp per head: 3 d + H. If rows hold
    several sequences, it works on copies of all three, and its output is copied back: 5 d + H.

    Temporary tensors of the backward pass peak within the MLP (gradients of the block's output and of both branches)
    and within attention. Beside the gradient of the block's input, attention needs those of its output (twice), of
    queries, keys and values, and of the softmax and the scores: 6 d + 2 H L. After that, the backward pass of QK-norm
    and rotation needs 10 d: incoming gradient, gradient rotated back, normed input and their product, for queries and
    keys, and the gradient of the values.

    After attention the last block continues with the predicted positions only; the fused kernel's output is then copied
    too. Outside the blocks, the last norm saves d + 1, and the embeddings the looked-up rows of three tables and the
    rotary cosines and sines in float32.

    Below float32 the CPU's norms still compute in float32, and save their input and the normed input in float32. A
    GPU's norms save the input as it is and 1 / rms. Its kernel for sequences of different lengths needs no copies.
    (Padding within the CPU's buckets is not counted.)
    """
    d, heads, element = config.width, config.num_heads, inputs.compute_bytes
    computed, predicted = inputs.num_computed, inputs.num_predicted
    use_manual_backward, has_segments = element == 4 and not inputs.on_gpu, inputs.context is not None
    context = inputs.row_length if inputs.context is None else inputs.context
    norm = element * d + 4 + (element if use_manual_backward or inputs.on_gpu else 8) * d
    projection = 3 * element * d + 8 * heads
    softmax = heads * context if use_manual_backward and context <= MAX_UNFUSED_LENGTH else 0
    has_copies = has_segments and not (inputs.on_gpu and element < 4)
    if softmax:
        attention = 4 * (3 * d + softmax)
    else:
        attention = element * (4 if has_copies else 3) * d + 4 * heads
        if not use_manual_backward and not inputs.on_gpu:
            projection += 16 * d - (3 * element * d if has_segments else 0)  # queries and keys, as saved by their norms
    output_copy = element * d if softmax or has_copies else 0
    manual, autograd = 4 * max(9 * d + 3 * softmax, 10 * d), attention + (element + 16) * d
    attention_backward = manual if use_manual_backward else autograd
    input_bytes = 16 + (24 if has_segments else 0)
    mlp = norm + 4 * element * config.d_ff
    mlp_backward = element * (d + 2 * config.d_ff)
    norm_backward = 2 * element * d if inputs.on_gpu else 12 * d if use_manual_backward else 16 * d
    return ActivationBytes(
        inputs=inputs.rows * inputs.row_length * input_bytes,
        outside_blocks=inputs.rows * inputs.row_length * input_bytes + computed * (26 + 4 * config.head_width),
        before_attention=computed * (norm + projection),
        attention=round(computed * attention),
        mlp=computed * (output_copy + mlp),
        last_mlp=predicted * (element * d + mlp),
        last_norm=predicted * (norm - element * d),
        block_input=computed * element * d,
        norm_backward=predicted * norm_backward,
        mlp_backward=computed * mlp_backward,
        last_mlp_backward=predicted * mlp_backward,
        attention_backward=round(computed * attention_backward),
        num_layers=config.num_layers,
        is_checkpointed=inputs.checkpoint_activations,
    )


class _HeadBytes:
    """Bytes of the loss head: hidden states and their gradients, table gradients in float32, one chunk of logits."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary, inputs: MemoryInputs):
        d, element = config.width, inputs.compute_bytes
        sizes = [vocabulary.num_logits(modality) for modality in Modality]
        columns = sum(sizes) if config.softmax_scope == "full" else max(sizes)  # of the largest softmax
        hidden = 2 * inputs.num_predicted * element * d
        tables = vocabulary.size * d
        chunk = min(chunk_rows(columns), inputs.num_predicted)
        # Below float32, table gradients accumulate in float32 and are rounded at the end. That takes a float32 copy of
        # a table's part of the chunk, and two of the hidden states.
        in_float32, rounded = (4 * (max(sizes) + 2 * d), element * tables) if element < 4 else (0, 0)
        self.forward = hidden + 4 * tables + chunk * (element * columns + in_float32)
        self.backward = hidden + 4 * tables + rounded
