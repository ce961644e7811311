"""Parameters and FLOPs of a model, from its shape alone.

    parameters   layers (4 d^2 + 3 d d_ff + 2 d + 2 d_head) + d  + 2 V d (untied) + 3 max_learned_positions d
    forward      2 FLOPs per matrix weight, attention 4 layers n_ctx d (bidirectional), unembedding 2 V d
    training     three times the forward

d is the width, V the number of ids, n_ctx the length of a sequence.
"""

from dataclasses import dataclass

from triptych.model.transformer import ModelConfig
from triptych.vocab import Vocabulary


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters, by part."""

    blocks: int
    """Transformer blocks and the last norm: N of the scaling laws."""
    embedding: int
    unembedding: int

    @property
    def total(self) -> int:
        return self.blocks + self.embedding + self.unembedding


def count_parameters(config: ModelConfig, vocabulary: Vocabulary) -> ParameterCount:
    d = config.width
    block = 4 * d**2 + 3 * d * config.d_ff + 2 * d + 2 * config.head_width
    embedding = (vocabulary.size + 3 * config.max_learned_positions) * d
    return ParameterCount(config.num_layers * block + d, embedding, vocabulary.size * d)


@dataclass(frozen=True)
class Flops:
    """FLOPs of the forward pass of one token, by part."""

    matrices: float
    """Query, key, value and output projections, and the MLP."""
    attention: float
    """Attention scores, and the weighted sum of values."""
    unembedding: float

    @property
    def forward(self) -> float:
        return self.matrices + self.attention + self.unembedding

    @property
    def training(self) -> float:
        """Forward and backward pass."""
        return 3 * self.forward


def flops(
    config: ModelConfig,
    vocabulary: Vocabulary,
    context: float,
    *,
    predicted: float = 1.0,
    columns: float | None = None,
    count_causal: bool = False,
) -> Flops:
    """FLOPs per token in sequences of `context` tokens.

    `predicted` is the share of tokens whose logits are computed: 1 for scaling laws, about 0.5 in training. The other
    tokens skip the output projection and the MLP of the last block. `columns` is the mean number of logits of a
    predicted token; None means the whole vocabulary.

    `count_causal` counts attention as if it were causal, at half the FLOPs: the convention of Busbridge et al. (H.1)
    and of the paper's compute axis. It is for comparison with their numbers only; the model's attention is not causal.
    """
    d, layers = config.width, config.num_layers
    per_pair = 2 if count_causal else 4
    mlp = 3 * d * config.d_ff
    return Flops(
        matrices=2.0 * (layers * (4 * d**2 + mlp) - (1 - predicted) * (d**2 + mlp)),
        attention=float(per_pair * layers * context * d),
        unembedding=2.0 * (vocabulary.size if columns is None else columns) * d * predicted,
    )
