"""What a model costs, exactly, without building it: parameters, FLOPs per token, bytes.

    parameters   layers (4 d^2 + 3 d d_ff + 2 d + 2 d_head) + d  + 2 V d (untied) + 3 max_learned_positions d
    forward      2 FLOPs per weight of a matrix, attention 4 layers n_ctx d (bidirectional), unembedding 2 V d
    training     three times the forward

d is the width, V the number of ids, n_ctx the positions of a segment.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from triptych.model.head import chunk_rows
from triptych.model.segments import _SMALL
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
    embedding = (vocabulary.size + 3 * config.max_learned_positions) * d
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
    `predicted` is the share of tokens whose logits are computed: 1 for scaling laws, about half in practice. The others
    end in the last block, before its output projection. `columns` is how many logits a predicted token has, on average:
    the whole vocabulary, unless a softmax is over a modality only.
    """
    d, layers = config.width, config.num_layers
    per_pair = 4 if attention == "bidirectional" else 2
    mlp = 3 * d * config.d_ff
    return Flops(
        matrices=2.0 * (layers * (4 * d**2 + mlp) - (1 - predicted) * (d**2 + mlp)),
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
class MemoryInputs:
    """What one rank holds of a model, and what it computes at a time."""

    rows: int
    """Of the largest micro-batch."""
    row_length: int
    context: float | None = None
    """How many positions one sees, on average: the length of its own sequence. None where every row is one sequence,
    without padding."""
    filled: float = 1.0
    """Share of the positions that are no padding, at most: a CPU computes no others."""
    predicted: float = 1.0
    """Share of these whose logits are computed, at most."""
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
        context: float | None = None,
        filled: float = 1.0,
        predicted: float = 1.0,
        accumulates: bool = False,
        has_ema: bool = False,
        on_gpu: bool = False,
    ) -> "MemoryInputs":
        """Of a rank among so many."""
        return cls(
            rows=rows,
            row_length=row_length,
            context=context,
            filled=filled,
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

    @property
    def computed(self) -> int:
        """Positions."""
        positions = self.rows * self.row_length
        return positions if self.on_gpu else round(positions * self.filled)

    @property
    def asked(self) -> int:
        """Of those, the predicted ones: all that the last block's MLP and the head see."""
        return round(self.computed * self.predicted)


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank at the fullest moment of a step, by what they are for."""

    load: MemoryInputs
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


def memory(config: ModelConfig, vocabulary: Vocabulary, load: MemoryInputs) -> Memory:
    """Bytes of training on one rank: those of the moment at which there are most.

    Gradients appear while activations vanish, so their largest sizes do not add up. What can be the fullest moment:

        head             all activations, and the loss head at work
        head, backward   the same, when its gradients are handed on
        last norm        all activations, and what the backward pass of a norm adds
        last MLP         the same for the MLP of the last block, which sees only what is predicted
        last attention   and for its attention, which sees all
        inner MLP, inner attention, first MLP, first attention
                         the block before the last, and the first: fewer activations, more gradients
        embedding        all gradients

    With several micro-batches, the gradients of those before are there all the time. With FSDP2, weights and gradients
    are divided; gathered are those of the root (embeddings, last norm, unembedding: from its forward to its backward
    pass) and of two blocks, one in use and one on its way; a gradient is there whole, and once more in float32, until
    it is scattered.
    """
    count = parameters(config, vocabulary)
    d, number, layers = config.width, load.number_bytes, config.num_layers
    kept = _kept(config, load)
    root = count.embedding + count.unembedding + d
    block = (count.blocks - d) // layers

    # What is there all the time.
    share = 4 * count.total // load.shards
    gathered = 0
    if load.is_wrapped:
        blocks_there = min(2, layers) if load.reshard_after_forward else layers
        gathered = number * (root + blocks_there * block)

    # Gradients at the beginning, at the last norm, and at the end.
    before = share if load.accumulates else 0
    if load.is_wrapped:
        # Those of the root are not scattered before its backward pass ends.
        at_norm, at_end = before + number * count.unembedding, share + (number + 4) * root
    else:
        # Where there are gradients already, new ones are added at once; those of a table come as a whole.
        at_norm = before or 4 * count.unembedding
        at_end = share + (4 * d * max(map(len, vocabulary.embedding_blocks)) if load.accumulates else 0)

    def within(behind: int, is_past_mlp: bool) -> int:
        """Within a block that so many others are behind."""
        if load.is_wrapped:
            scattered = max(before, 4 * behind * block // load.shards)
            return scattered + number * count.unembedding + (number + 4) * block
        fc2, mlp_and_proj = d * config.d_ff, 3 * d * config.d_ff + d**2  # a block's first matrix to have one is fc2
        if load.accumulates:
            return before + (0 if is_past_mlp else 4 * fc2)
        return at_norm + 4 * (behind * block + (mlp_and_proj if is_past_mlp else fc2))

    table = _HeadBytes(config, vocabulary, load)
    moments = [
        ("head", before, kept.all, table.forward),
        ("head, backward", before, kept.all, table.backward),
        ("last norm", at_norm, kept.in_norm, 0),
        ("embedding", at_end, kept.inputs + load.computed * d * number, 0),
    ]
    for name, index in (("first", 0), ("inner", layers - 2), ("last", layers - 1)):
        if name == "last" or 0 <= index < layers - 1:
            behind = layers - 1 - index
            moments.append((f"{name} MLP", within(behind, False), kept.in_mlp(index), 0))
            moments.append((f"{name} attention", within(behind, True), kept.in_attention(index), 0))
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
class _ActivationBytes:
    """Bytes that autograd keeps from the forward to the backward pass, and what that adds to them where it is."""

    inputs: int
    """Ids, positions, and who sees whom."""
    outside: int
    """Those, which rows of the tables were looked up, and the angles."""
    before_attention: int
    """Of one block: its norm, and the fused projection of all positions."""
    attention: int
    mlp: int
    """Of one block: what the output projection and the MLP keep."""
    last_mlp: int
    """The same of the last one, which has only the positions that are predicted."""
    last_norm: int
    between: int
    """Of one block if its inside is computed again: what goes into it."""
    of_norm: int
    """What the backward pass of the last norm adds."""
    of_mlp: int
    of_last_mlp: int
    of_attention: int
    """What that of attention comes to, with what it kept."""
    num_layers: int
    is_checkpointed: bool

    def block(self, index: int) -> int:
        """Of one block, all of it."""
        is_last = index == self.num_layers - 1
        return self.before_attention + self.attention + (self.last_mlp if is_last else self.mlp)

    def before(self, index: int) -> int:
        """When the forward pass comes to a block."""
        return self.outside + (index * self.between if self.is_checkpointed else sum(map(self.block, range(index))))

    @property
    def all(self) -> int:
        """When the forward pass is over."""
        return self.before(self.num_layers) + self.last_norm

    @property
    def in_norm(self) -> int:
        return self.all + self.of_norm

    def in_mlp(self, index: int) -> int:
        """When the backward pass is in the MLP of a block."""
        added = self.of_last_mlp if index == self.num_layers - 1 else self.of_mlp
        return self.before(index) + self.block(index) + added

    def in_attention(self, index: int) -> int:
        return self.before(index) + self.before_attention + self.of_attention


def _kept(config: ModelConfig, load: MemoryInputs) -> _ActivationBytes:
    """What autograd keeps, in numbers per position. With H heads and L positions in a sequence, on the CPU, of a block:

        4 d + 2       both norms: input, output (which the next product keeps), 1 / rms
        3 d + 2 H     the fused projection, of which queries and keys are normed; 1 / rms per head
        3 d + H L     in short sequences: queries, keys and values in the order of plain products, and the softmax
        d             what the output projection takes
        4 d_ff        the MLP's two branches, the activated gate, the product

    Longer sequences have the fused kernel of attention, which keeps queries and keys (values are those of the
    projection), its result, which the output projection takes as it is, and one log-sum-exp per head: 3 d + H. Where
    rows are cut into sequences, it is given copies of all three and its result is copied back: 5 d + H.

    What the backward pass adds is largest in the middle of the MLP (the gradients of the block's output and of both
    branches) and of attention. There, beside the gradient of the block's input, are those of the result (twice), of
    queries, keys, values, and of the softmax and the scores: 6 d + 2 H L; or else, behind it, upstream gradient, turned
    back, input over rms and product of queries and keys, and the gradient of values: 10 d.

    The last block goes on from attention with the predicted positions alone; then a copy of its result is taken also
    from the fused kernel. Outside of blocks are d + 1 of the last norm, which rows were looked up in which of three
    tables, and the angles' cosines and sines, in float32.

    Below float32 the CPU's norms work in float32 all the same, and keep their input and that over its rms so; a GPU's
    keep the input as it is and 1 / rms. There, sequences of several lengths have a kernel that needs no copies. (Places
    that only fill up a shorter sequence beside a longer one are not counted.)
    """
    d, heads, number = config.width, config.num_heads, load.number_bytes
    computed, asked = load.computed, load.asked
    use_manual_backward, is_cut = number == 4 and not load.on_gpu, load.context is not None
    context = load.row_length if load.context is None else load.context
    norm = number * d + 4 + (number if use_manual_backward or load.on_gpu else 8) * d
    projection = 3 * number * d + 8 * heads
    softmax = heads * context if use_manual_backward and context <= _SMALL else 0
    has_copies = is_cut and not (load.on_gpu and number < 4)
    if softmax:
        attention = 4 * (3 * d + softmax)
    else:
        attention = number * (4 if has_copies else 3) * d + 4 * heads
        if not use_manual_backward and not load.on_gpu:
            projection += 16 * d - (3 * number * d if is_cut else 0)  # queries and keys as norms keep them
    own_result = number * d if softmax or has_copies else 0
    by_hand, plain = 4 * max(9 * d + 3 * softmax, 10 * d), attention + (number + 16) * d
    of_attention = by_hand if use_manual_backward else plain
    inputs = 16 + (24 if is_cut else 0)
    mlp = norm + 4 * number * config.d_ff
    of_mlp = number * (d + 2 * config.d_ff)
    of_norm = 2 * number * d if load.on_gpu else 12 * d if use_manual_backward else 16 * d
    return _ActivationBytes(
        inputs=load.rows * load.row_length * inputs,
        outside=load.rows * load.row_length * inputs + computed * (26 + 4 * config.head_width),
        before_attention=computed * (norm + projection),
        attention=round(computed * attention),
        mlp=computed * (own_result + mlp),
        last_mlp=asked * (number * d + mlp),
        last_norm=asked * (norm - number * d),
        between=computed * number * d,
        of_norm=asked * of_norm,
        of_mlp=computed * of_mlp,
        of_last_mlp=asked * of_mlp,
        of_attention=round(computed * of_attention),
        num_layers=config.num_layers,
        is_checkpointed=load.checkpoint_activations,
    )


class _HeadBytes:
    """Bytes of the loss head: its rows and their gradients, those of all tables in float32, and one chunk of logits."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary, load: MemoryInputs):
        d, number = config.width, load.number_bytes
        sizes = [vocabulary.data_size(modality) + 2 for modality in Modality]
        columns = sum(sizes) if config.softmax_scope == "full" else max(sizes)  # of the largest softmax
        rows = 2 * load.asked * number * d
        tables = vocabulary.size * d
        single_pass = min(chunk_rows(columns), load.asked)
        # Below float32, a table's part of the chunk is there once more and the rows twice: its gradient is summed up in
        # float32, and rounded at the end.
        in_float32, rounded = (4 * (max(sizes) + 2 * d), number * tables) if number < 4 else (0, 0)
        self.forward = rows + 4 * tables + single_pass * (number * columns + in_float32)
        self.backward = rows + 4 * tables + rounded


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
