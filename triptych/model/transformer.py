"""The bidirectional transformer over the unified vocabulary.

Input and output embeddings are untied. Each is stored in three blocks (text with PAD and TASK, image, audio), so that
every modality can have its own hyperparameters. There is no time embedding: the model sees how many tokens are masked.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import UserError
from triptych.model.head import linear_cross_entropy, project
from triptych.model.layers import Block, RMSNorm, rotary_angles
from triptych.model.segments import Segments, whole_rows
from triptych.utils.arguments import check_fields
from triptych.vocab import Modality, Vocabulary

# R rows, T positions per row, N computed positions, n queried positions, D width, V logit columns

SoftmaxScope = Literal["full", "modality"]
# Far above any model. Beyond them a damaged configuration would keep a machine busy before its weights are compared.
_LARGEST = {"num_layers": 4096, "width": 2**20, "num_heads": 2**16, "d_ff": 2**22, "max_learned_positions": 2**24}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and constants of a model."""

    num_layers: int
    width: int
    num_heads: int
    d_ff: int
    """Hidden width of the gated MLP, which has three matrices of width x d_ff."""
    softmax_scope: SoftmaxScope = "full"
    """Ids that the softmax of a position covers: "full" for all (the paper), "modality" for those of its modality."""
    max_learned_positions: int = 0
    """Number of learned absolute position embeddings per modality, counted from the modality's BOS. 0, as in the paper,
    means rotary positions only; see docs/decisions/0014."""
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    init_std: float = 0.02
    """Standard deviation of every matrix at initialisation; norm gains start at 1."""
    residual_scale: float = 1.0
    """Multiplier of every residual branch (attention, MLP); 1 at the base depth."""
    logit_scale: float = 1.0
    """Multiplier of the logits; 1 at the base width, and at every width under Complete(d)P."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("num_layers", "width", "num_heads", "d_ff"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a positive integer, got {value!r}.")
        if not isinstance(self.max_learned_positions, int) or self.max_learned_positions < 0:
            raise UserError(
                f"max_learned_positions must be a non-negative integer, got {self.max_learned_positions!r}."
            )
        for name, largest in _LARGEST.items():
            if getattr(self, name) > largest:
                raise UserError(f"{name} must be at most {largest:,}, got {getattr(self, name)}.")
        if self.width % (2 * self.num_heads):
            raise UserError(
                f"width={self.width} must be a multiple of 2 * num_heads={2 * self.num_heads}: "
                "rotary positions need an even head width."
            )
        for name in ("rope_base", "norm_eps", "init_std", "residual_scale", "logit_scale"):
            if not 0 < getattr(self, name) < 1e30:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)!r}.")

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads


@dataclass(frozen=True)
class Targets:
    """Positions to predict, and their true ids. Sorted by modality, so that each softmax has its rows in one slice."""

    query_idx: Tensor
    """[n] indices into the flattened R x T positions."""
    ids_n: Tensor
    """True ids, in the unified vocabulary."""
    loss_weight_n: Tensor
    z_loss_weight_n: Tensor
    counts: tuple[int, int, int]
    """Number of targets per modality: text, image, audio."""


class Loss(NamedTuple):
    """A tuple, because FSDP2 only finds the output tensors of a forward pass in standard containers."""

    total: Tensor
    """Weighted sum over all targets; differentiable."""
    nll_n: Tensor
    """Negative log-likelihood of every target, in the order of the targets; detached."""
    lse_n: Tensor
    """Log-sum-exp of the logits of every target; detached."""


class Embedding(nn.Module):
    """An embedding table in three blocks of rows, one per modality."""

    def __init__(self, vocabulary: Vocabulary, width: int, role: str):
        super().__init__()
        self.roles = {}
        self.starts = [ids.start for ids in vocabulary.embedding_blocks]
        for modality, ids in zip(Modality, vocabulary.embedding_blocks):
            name = modality.name.lower()
            self.roles[name] = f"{role}_{name}"
            self.register_parameter(name, nn.Parameter(torch.empty(len(ids), width)))

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, modality.name.lower()) for modality in Modality)

    def forward(self, tokens: Tensor) -> Tensor:
        # One lookup per block, then a choice: concatenating the blocks would copy whole tables for a few rows.
        embedded = None
        for block, start in zip(self.blocks, self.starts):
            local = tokens - start
            rows = F.embedding(local.clamp(0, len(block) - 1), block)
            embedded = rows if embedded is None else torch.where((local >= 0)[..., None], rows, embedded)
        assert embedded is not None
        return embedded


class LearnedPositions(nn.Module):
    """Learned absolute position embeddings, one table per modality, indexed by the distance from the last BOS."""

    def __init__(self, vocabulary: Vocabulary, count: int, width: int):
        super().__init__()
        self.count, self.vocabulary = count, vocabulary
        self.roles = {}
        for modality in Modality:
            name = modality.name.lower()
            self.roles[name] = f"embed_place_{name}"
            self.register_parameter(name, nn.Parameter(torch.empty(count, width)))

    def forward(self, tokens_RT: Tensor, segments: Segments) -> Tensor:
        """[N, D]; zero for TASK tokens and for positions beyond the tables."""
        column_T = torch.arange(tokens_RT.shape[1], device=tokens_RT.device)
        row_RT, is_bos_RT = torch.full_like(tokens_RT, -1), torch.zeros_like(tokens_RT, dtype=torch.bool)
        for modality in Modality:
            ids = self.vocabulary.ids(modality)
            row_RT[(tokens_RT >= ids.start) & (tokens_RT < ids.stop)] = modality * self.count
            is_bos_RT |= tokens_RT == self.vocabulary.bos(modality)
        offset_RT = column_T - column_T.where(is_bos_RT, 0).cummax(1).values
        has_none_RT = (row_RT < 0) | (offset_RT >= self.count)
        # A zero row is appended for positions without a vector.
        tables = F.pad(torch.cat([getattr(self, modality.name.lower()) for modality in Modality]), (0, 0, 0, 1))
        return F.embedding(segments.gather((row_RT + offset_RT).masked_fill_(has_none_RT, len(tables) - 1)), tables)


class Transformer(nn.Module):
    """The model.

    forward         hidden states of all positions
    hidden_states   hidden states of queried positions only
    loss            the loss of a set of targets
    logits          logits of hidden states, for one modality

    FSDP2 gathers a module's weights around `forward`. `training.distributed.apply` registers `hidden_states` and `loss`
    for the same treatment.
    """

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.embed = Embedding(vocabulary, config.width, "embed")
        count = config.max_learned_positions
        # `places` is the name of these weights in every saved model and checkpoint.
        self.places = LearnedPositions(vocabulary, count, config.width) if count else None
        self.blocks = nn.ModuleList(
            Block(layer, config.width, config.num_heads, config.d_ff, config.norm_eps, config.residual_scale)
            for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.width, config.norm_eps, "unembed_norm")
        self.unembed = Embedding(vocabulary, config.width, "unembed")

    def forward(self, tokens: Tensor, positions: Tensor, segments: Segments | None = None) -> Tensor:
        """Hidden states [R, T, D] after the last norm; zero at positions that are not computed.

        `segments` groups positions into sequences, which attention does not cross; None makes every row one sequence.
        """
        segments = self._segments_or_rows(tokens, segments)
        return segments.scatter(self._hidden(tokens, positions, segments, None))

    def hidden_states(
        self, tokens: Tensor, positions: Tensor, segments: Segments | None = None, *, query_idx: Tensor
    ) -> Tensor:
        """Hidden states [n, D] of the positions `query_idx`, indices into the flattened R x T positions.

        Cheaper than `forward`: the last block computes only keys and values of the other positions. The indices must be
        unique if gradients are needed.
        """
        return self._hidden(tokens, positions, self._segments_or_rows(tokens, segments), query_idx)

    def loss(self, tokens: Tensor, positions: Tensor, segments: Segments | None, targets: Targets) -> Loss:
        """Weighted cross-entropy and z-loss of the targets, whose indices must be unique."""
        return self.loss_from_hidden(
            self._hidden(tokens, positions, self._segments_or_rows(tokens, segments), targets.query_idx), targets
        )

    @staticmethod
    def _segments_or_rows(tokens: Tensor, segments: Segments | None) -> Segments:
        rows, length = tokens.shape
        return whole_rows(rows, length, tokens.device) if segments is None else segments

    def _hidden(self, tokens: Tensor, positions: Tensor, segments: Segments, query_idx: Tensor | None) -> Tensor:
        """[N, D] of all computed positions, or [n, D] of the queried ones."""
        x_ND = self.embed(segments.gather(tokens))
        if self.places is not None:
            x_ND = x_ND + self.places(tokens, segments)
        cos, sin = rotary_angles(segments.gather(positions), self.config.head_width, self.config.rope_base)
        compact_idx = None if query_idx is None else segments.compact_index(query_idx)
        *others, last = self.blocks
        for block in others:
            x_ND = block(x_ND, cos, sin, segments)
        hidden_nD = self.norm(last(x_ND, cos, sin, segments, compact_idx))
        if self.config.logit_scale != 1:
            hidden_nD = hidden_nD * self.config.logit_scale  # D multiplications per row; on the logits it would be V
        return hidden_nD

    # -- the head -----------------------------------------------------------------------------------------------------

    def logits(self, hidden_nD: Tensor, modality: Modality, *, out: Tensor | None = None) -> Tensor:
        """[n, V] over the data ids of a modality (local, from 0), then BOS and EOS: see `Vocabulary.num_logits`."""
        table = self.unembed.blocks[modality][: self.vocabulary.num_logits(modality)]
        return hidden_nD @ table.T if torch.is_grad_enabled() else project(hidden_nD, table, out)

    def loss_from_hidden(self, hidden_nD: Tensor, targets: Targets) -> Loss:
        """The loss head alone. BOS is a logit but never a target, so its probability is trained towards 0."""
        tables, sizes = self.unembed.blocks, [self.vocabulary.num_logits(modality) for modality in Modality]
        starts = [self.vocabulary.ids(modality).start for modality in Modality]
        if self.config.softmax_scope == "full":
            # The columns of the three modalities are adjacent; an id shifts by the ids left out before it.
            shifts = [sum(sizes[:m]) - starts[m] for m in Modality]
            shift_n = torch.cat([targets.ids_n.new_full((n,), shifts[m]) for m, n in zip(Modality, targets.counts)])
            ids_n = targets.ids_n + shift_n
            return Loss(
                *linear_cross_entropy(
                    hidden_nD, tables, ids_n, targets.loss_weight_n, targets.z_loss_weight_n, sizes=sizes
                )
            )
        parts = []
        by_modality = [
            values.split(targets.counts)
            for values in (hidden_nD, targets.ids_n, targets.loss_weight_n, targets.z_loss_weight_n)
        ]
        for m, (rows, ids, loss_weight, z_loss_weight) in zip(Modality, zip(*by_modality)):
            local = ids - starts[m]
            parts.append(linear_cross_entropy(rows, [tables[m]], local, loss_weight, z_loss_weight, sizes=[sizes[m]]))
        totals, nlls, lses = zip(*parts)
        return Loss(sum(totals[1:], totals[0]), torch.cat(nlls), torch.cat(lses))


# -- roles and initialisation -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaggedParam:
    """A parameter with its role and layer, so that nothing depends on parameter names."""

    name: str
    parameter: nn.Parameter
    role: str
    """A row of the paper's table of per-module multipliers: "attn_qkv", "embed_text", ..."""
    layer: int | None = None
    """Index of its block, from 0; None outside the blocks."""

    @property
    def is_matrix(self) -> bool:
        return self.parameter.ndim == 2


def tagged_parameters(model: nn.Module) -> Iterator[TaggedParam]:
    """All parameters with their roles, in the order of `named_parameters`."""
    layers = {prefix: module.layer for prefix, module in model.named_modules() if isinstance(module, Block)}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            layer = next((layers[p] for p in layers if prefix.startswith(f"{p}.")), None)
            full_name = f"{prefix}.{name}" if prefix else name
            yield TaggedParam(full_name, parameter, module.roles[name], layer)


@torch.no_grad()
def initialise(
    model: Transformer,
    seed: int,
    scale: Callable[[TaggedParam], float] | None = None,
    write: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> None:
    """Initialise all weights: matrices from a normal distribution truncated at +-2 (torch's default), norms constant.

    `scale` returns the standard deviation of a matrix or the value of a norm; the defaults are init_std and 1. Every
    parameter has its own generator, seeded by its name, so that a new parameter does not change the others. Values are
    drawn for one full parameter at a time and passed to `write`, which may store only a shard.
    """
    for tagged in tagged_parameters(model):
        value = torch.empty(tagged.parameter.shape, dtype=tagged.parameter.dtype)
        if tagged.is_matrix:
            generator = torch.Generator().manual_seed(_seed_of(seed, tagged.name))
            std = model.config.init_std if scale is None else scale(tagged)
            nn.init.trunc_normal_(value, std=std, generator=generator)
        else:
            nn.init.constant_(value, 1.0 if scale is None else scale(tagged))
        write(tagged.parameter, value)


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
