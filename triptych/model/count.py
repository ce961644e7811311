"""What a model costs, exactly, without building it: parameters, FLOPs per token, bytes.

    parameters   layers (4 d^2 + 3 d d_ff + 2 d + 2 d_head) + d  + 2 V d (untied) + 3 places d
    forward      2 FLOPs per weight of a matrix, attention 4 layers n_ctx d (bidirectional), unembedding 2 V d
    training     three times the forward

d is the width, V the number of ids, n_ctx the positions of a segment, N the number of heads.
"""

from dataclasses import dataclass
from typing import Literal

from triptych.model.transformer import ModelConfig
from triptych.vocab import Vocabulary

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


@dataclass(frozen=True)
class Memory:
    """Bytes of training on one device in one precision, without sharding."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    head: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.head


def memory(
    config: ModelConfig,
    vocabulary: Vocabulary,
    tokens: int,
    *,
    bytes_per_number: int = 4,
    head_chunk: int = 16 * 2**20,
    row_length: int = 0,
) -> Memory:
    """Bytes for a micro-batch of so many positions; `row_length` if a mask keeps the segments of its rows apart.

    Activations are the numbers that autograd keeps. Per position and block:

        6 d + 2       both norms: input, input over its rms, output (which the next product keeps), 1 / rms
        3 d           the fused projection: queries and keys for their norms, values for attention
        4 d + 2 N     queries and keys over their rms, and turned; 1 / rms per head
        2 d + N       what attention returns, the same in the order of the output projection, one log-sum-exp per head
        4 d_ff        the MLP's two branches, the activated gate, the product

    and outside of blocks 2 d + 1 of the last norm, the angles' cosines and sines, the mask as numbers (row_length),
    kept once, and the token's id in 8 bytes.
    The head keeps the gradients of its rows and of the whole unembedding, and one chunk of logits.
    """
    count = parameters(config, vocabulary).total
    d, heads = config.width, config.num_heads
    per_block = 15 * d + 4 * config.d_ff + 3 * heads + 2
    numbers = config.num_layers * per_block + 2 * d + 1 + config.head_width + row_length
    return Memory(
        weights=count * bytes_per_number,
        gradients=count * bytes_per_number,
        optimizer=2 * count * 4,
        activations=tokens * (numbers * bytes_per_number + 8),
        head=2 * tokens * d * bytes_per_number + vocabulary.size * d * 4 + 2 * head_chunk,
    )
