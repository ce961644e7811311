"""What a model costs, exactly, without building it: parameters, FLOPs per token, bytes.

    parameters   layers (4 d^2 + 3 d d_ff + 2 d + 2 d_head) + d  + 2 V d (untied) + 3 places d
    forward      2 FLOPs per weight of a matrix, attention 4 layers n_ctx d (bidirectional), unembedding 2 V d
    training     three times the forward

d is the width, V the number of ids, n_ctx the positions of a segment, N the number of heads.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from triptych.model.head import _CHUNK_BYTES, _LEAST_ROWS
from triptych.model.transformer import ModelConfig
from triptych.vocab import Modality, Vocabulary

AttentionFlops = Literal["bidirectional", "busbridge_h1"]


@dataclass(frozen=True)
class Parameters:
    blocks: int
    """Of the transformer blocks and the last norm: what scaling laws call N."""
    embedding: int
    unembedding: int

    @property
    def total(self) -> int:
        return self.blocks + self.embedding + self.unembedding


def parameters(config: ModelConfig, vocabulary: Vocabulary) -> Parameters:
    d = config.width
    block = 4 * d**2 + 3 * d * config.d_ff + 2 * d + 2 * config.head_width
    embedding = (vocabulary.size + 3 * config.places) * d
    return Parameters(config.num_layers * block + d, embedding, vocabulary.size * d)


@dataclass(frozen=True)
class Flops:
    """Of one token's forward pass, by part."""

    matrices: float
    """Query, key, value, output and MLP."""
    attention: float
    """Scores and mixing of values."""
    unembedding: float

    @property
    def forward(self) -> float:
        return self.matrices + self.attention + self.unembedding

    @property
    def training(self) -> float:
        """Forward and backward."""
        return 3 * self.forward


def flops(
    config: ModelConfig,
    vocabulary: Vocabulary,
    context: float,
    *,
    attention: AttentionFlops = "bidirectional",
    predicted: float = 1.0,
    columns: float | None = None,
) -> Flops:
    """FLOPs per token with so many tokens in a segment.

    `busbridge_h1` counts attention as if it were causal, half as much: what the paper's compute axis uses.
    `predicted` is the share of tokens whose logits are computed: 1 for scaling laws, about half in practice. `columns`
    is how many logits such a token has, on average: the whole vocabulary, unless a softmax is over a modality only.
    """
    d, layers = config.width, config.num_layers
    per_pair = 4 if attention == "bidirectional" else 2
    return Flops(
        matrices=2.0 * layers * (4 * d**2 + 3 * d * config.d_ff),
        attention=float(per_pair * layers * context * d),
        unembedding=2.0 * (vocabulary.size if columns is None else columns) * d * predicted,
    )


# -- bytes ------------------------------------------------------------------------------------------------------------


class Spread(Protocol):
    """How a run spreads a model over its ranks: `ParallelConfig` of the training."""

    @property
    def shard(self) -> int | None: ...
    @property
    def precision(self) -> str: ...
    @property
    def checkpoint_activations(self) -> bool: ...
    @property
    def reshard_after_forward(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one rank holds of a model, and what it computes at a time."""

    rows: int
    """Of the largest micro-batch."""
    row_length: int
    has_mask: bool = False
    """Whether attention needs a mask: rows of several segments, or with padding."""
    predicted: float = 1.0
    """Share of the positions whose logits are computed, at most."""
    accumulates: bool = False
    """Whether a step has several micro-batches: then gradients are there while the next is computed."""
    has_ema: bool = False
    on_gpu: bool = False
    """A GPU's kernels for norms keep less than the CPU's."""
    is_wrapped: bool = False
    """Whether FSDP2 is at work: weights are gathered before they are used, gradients scattered."""
    shards: int = 1
    """Ranks that one copy of the weights is divided among."""
    number_bytes: int = 4
    """Of a number that is computed with; weights, moments and sums of gradients have 4."""
    checkpoint_activations: bool = False
    reshard_after_forward: bool = True

    @classmethod
    def of(
        cls,
        spread: Spread,
        ranks: int,
        *,
        rows: int,
        row_length: int,
        has_mask: bool = False,
        predicted: float = 1.0,
        accumulates: bool = False,
        has_ema: bool = False,
        on_gpu: bool = False,
    ) -> "Load":
        """Of a rank among so many."""
        return cls(
            rows=rows,
            row_length=row_length,
            has_mask=has_mask,
            predicted=predicted,
            accumulates=accumulates,
            has_ema=has_ema,
            on_gpu=on_gpu,
            is_wrapped=ranks > 1 or spread.precision != "float32",
            shards=ranks if spread.shard is None else spread.shard,
            number_bytes=4 if spread.precision == "float32" else 2,
            checkpoint_activations=spread.checkpoint_activations,
            reshard_after_forward=spread.reshard_after_forward,
        )


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank at the fullest moment of a step, by what they are for."""

    load: Load
    moment: str
    """What is being computed then."""
    weights: int
    gradients: int
    """This rank's part, and what is not yet scattered."""
    optimizer: int
    ema: int
    gathered: int
    """Weights of all ranks, for the layers that are about to be used."""
    activations: int
    """What autograd keeps, and what a block's backward pass adds to it."""
    head: int

    @property
    def items(self) -> dict[str, int]:
        names = ("weights", "gradients", "optimizer", "ema", "gathered", "activations", "head")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        return sum(self.items.values())


def memory(config: ModelConfig, vocabulary: Vocabulary, load: Load) -> Memory:
    """Bytes of training on one rank: those of the moment at which there are most.

    Gradients appear while activations vanish, so their largest sizes do not add up. What can be the fullest moment:

        head            all activations, and the loss head at work
        head, backward  the same, when its gradients are handed on
        last norm       all activations, and what the backward pass of a norm adds
        last block      the same for the first block that the backward pass comes to, when it is in the MLP
        first block     one block's activations, nearly all gradients
        embedding       all gradients

    With several micro-batches, the gradients of those before are there all the time. With FSDP2, weights and gradients
    are divided; gathered are those of the root (embeddings, last norm, unembedding: from its forward to its backward
    pass) and of two blocks, one in use and one on its way; a gradient is there whole, and once more in float32, until
    it is scattered.
    """
    count = parameters(config, vocabulary)
    d, positions, number = config.width, load.rows * load.row_length, load.number_bytes
    kept = _kept(config, load)
    root = count.embedding + count.unembedding + d
    block = (count.blocks - d) // config.num_layers

    # What is there all the time.
    share = 4 * count.total // load.shards
    gathered = 0
    if load.is_wrapped:
        blocks_there = min(2, config.num_layers) if load.reshard_after_forward else config.num_layers
        gathered = number * (root + blocks_there * block)

    # Gradients at the beginning, at the last norm, within the last block, within the first, and at the end.
    before = share if load.accumulates else 0
    if load.is_wrapped:
        # Those of the root are not scattered before its backward pass ends.
        unembed, in_block, in_root = number * count.unembedding, (number + 4) * block, (number + 4) * root
        at_norm = before + unembed
        at_last = at_norm + in_block
        at_first = max(before, 4 * (count.blocks - d) // load.shards) + unembed + in_block
        at_end = share + in_root
    else:
        fc2 = 4 * d * config.d_ff  # the first of a block's matrices to have one
        # Where there are gradients already, new ones are added at once; those of a table come as a whole.
        at_norm = before or 4 * count.unembedding
        at_last = at_norm + fc2
        at_first = at_last + (0 if load.accumulates else 4 * (count.blocks - d - block))
        at_end = share + (4 * count.embedding if load.accumulates else 0)

    table = _Table(config, vocabulary, load)
    in_mlp = positions * number * (d + 2 * config.d_ff)  # the gradients of the block's output and of both branches
    # Four times its input, in float32, while the gradients of its factors are made; a GPU has one kernel for it all.
    in_norm = positions * d * (2 * number if load.on_gpu else 16)
    everything, last_norm = kept.all, kept.last_norm
    moments = [
        ("head", before, everything, table.forward),
        ("head, backward", before, everything, table.backward),
        ("last norm", at_norm, everything + in_norm, 0),
        ("last block", at_last, everything - last_norm + kept.again + in_mlp, 0),
        ("first block", at_first, kept.outside + kept.block + in_mlp, 0),
        ("embedding", at_end, kept.inputs + positions * d * number, 0),
    ]
    moment, gradients, activations, head = max(moments, key=lambda each: sum(each[1:]))
    return Memory(
        load=load,
        moment=moment,
        weights=share,
        gradients=gradients,
        optimizer=2 * share,
        ema=share if load.has_ema else 0,
        gathered=gathered,
        activations=activations,
        head=head,
    )


@dataclass(frozen=True)
class _Kept:
    """Bytes that autograd keeps from the forward to the backward pass."""

    inputs: int
    """Ids, positions, and who sees whom."""
    outside: int
    """Those, the angles, and the mask as numbers."""
    last_norm: int
    block: int
    """Of one block."""
    between: int
    """Of one block if its inside is computed again: what goes into it."""
    num_layers: int
    is_checkpointed: bool

    @property
    def all(self) -> int:
        """When the forward pass is over."""
        return self.outside + self.last_norm + self.num_layers * (self.between if self.is_checkpointed else self.block)

    @property
    def again(self) -> int:
        """What is computed again for one block."""
        return self.block - self.between if self.is_checkpointed else 0


def _kept(config: ModelConfig, load: Load) -> _Kept:
    """What autograd keeps, in numbers per position. On the CPU, of a block:

        6 d + 2       both norms: input, input over its rms, output (which the next product keeps), 1 / rms
        3 d           the fused projection: queries and keys for their norms, values for attention
        4 d + 2 N     queries and keys over their rms, and turned; 1 / rms per head
        2 d + N       what attention returns, the same in the order of the output projection, one log-sum-exp per head
        4 d_ff        the MLP's two branches, the activated gate, the product

    and outside of blocks 2 d + 1 of the last norm, the angles' cosines and sines (in float32), and the mask as numbers
    (row_length), kept once. The CPU's norms work in float32 whatever comes in, and keep their input and that over its
    rms so; a GPU's keep the input as it is and 1 / rms.
    """
    d, heads, number = config.width, config.num_heads, load.number_bytes
    positions = load.rows * load.row_length
    if load.on_gpu:
        norm, normed_heads = number * d, 0
    else:
        norm, normed_heads = 8 * d, (8 if number == 4 else 16) * d  # below float32, the heads' inputs once more
    scalars = 4 * (2 + 3 * heads)
    block = 2 * (norm + number * d) + normed_heads + 7 * number * d + 4 * number * config.d_ff + scalars
    mask = load.row_length if load.has_mask else 0
    inputs = 16 + mask
    return _Kept(
        inputs=positions * inputs,
        outside=positions * (inputs + 4 * config.head_width + number * mask),
        last_norm=positions * (norm + 4),
        block=positions * block,
        between=positions * number * d,
        num_layers=config.num_layers,
        is_checkpointed=load.checkpoint_activations,
    )


class _Table:
    """Bytes of the loss head: gradients of its rows and of the whole unembedding, and chunks of logits.

    With one softmax over all ids the unembedding is there once more, as one table instead of three.
    """

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary, load: Load):
        d, number = config.width, load.number_bytes
        sizes = [vocabulary.data_size(modality) + 2 for modality in Modality]
        is_whole = config.softmax_scope == "full"
        columns = sum(sizes) if is_whole else max(sizes)  # of the largest softmax
        positions = load.rows * load.row_length
        predicted = round(positions * load.predicted)
        rows = 2 * predicted * number * d  # what is predicted, and its gradient
        chunk_rows = max(_LEAST_ROWS, _CHUNK_BYTES // (4 * columns))  # as the head does
        first = min(chunk_rows, predicted)
        second = min(chunk_rows, predicted - first)
        # Logits and what their log-sum-exp is made of; from the second chunk on, the gradient of the one before.
        chunks = 4 * columns * max(2 * first, first + 2 * second)
        copy = columns * d * number if is_whole else 0
        rounded = columns * d * number if number < 4 else 0  # the gradient is summed in float32, then rounded
        others = 0 if is_whole else (sum(sizes) - columns) * d * number
        self.forward = positions * number * d + rows + copy + others + columns * d * 4 + max(chunks, rounded)
        # A gradient and that times the loss's own; then that, and the gradient of the parameters it was cut from.
        self.backward = rows + others + 2 * columns * d * number


_DIVIDE = "more ranks to divide it among (parallel.shard=none)"


def advice(found: Memory) -> str:
    """The end of a line for who runs out of memory: how much it is, what most of it is for, and what shrinks that."""
    name = max(found.items, key=lambda item: found.items[item])
    load, settings = found.load, []
    if name == "activations" and not load.checkpoint_activations:
        settings.append("parallel.checkpoint_activations=true")
    if name == "activations" and load.rows > 1:
        rows = load.rows // 2
        grouped = f"loader.layout.max_tokens={rows * load.row_length} if grouped"
        settings.append(f"loader.layout.micro_batch_rows={rows} ({grouped})")
    if name == "gathered" and not load.reshard_after_forward:
        settings.append("parallel.reshard_after_forward=true")
    if name == "ema":
        settings.append("ema_decay=none")
    if name == "head":
        settings.append("model.softmax_scope=modality, another model whose softmax is smaller")
    if name in ("activations", "gathered", "head") and load.number_bytes == 4:
        settings.append("parallel.precision=bfloat16")
    if name in ("weights", "gradients", "optimizer", "ema"):
        settings.append(_DIVIDE)
    if not settings:
        smaller = f"rows shorter than {load.row_length:,} positions" if name == "activations" else "a narrower model"
        settings.append(f"{smaller}, for all settings that shrink it are made")
    *first, last = settings
    tried = f"{', '.join(first)} or {last}" if first else last
    return f"{_gb(found.total)}, most of it {name} ({_gb(found.items[name])}); try {tried}."


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
