"""The bidirectional transformer over the unified vocabulary.

Embeddings are untied and lie in three blocks (text with PAD and TASK, image, audio), so that each modality can have
hyperparameters of its own. The model knows nothing of time: how much is masked, it sees.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import UserError, did_you_mean
from triptych.model.head import linear_cross_entropy, project
from triptych.model.layers import Block, RMSNorm, rotary_angles
from triptych.model.segments import Segments, whole_rows
from triptych.vocab import Modality, Vocabulary

# R rows, T tokens in a row, N of them that are computed, n that are asked for, D width, V columns of a softmax

SoftmaxScope = Literal["full", "modality"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model."""

    num_layers: int
    width: int
    num_heads: int
    d_ff: int
    """Width inside the gated MLP; it has three matrices of width x d_ff."""
    softmax_scope: SoftmaxScope = "full"
    """Whether a masked position competes among all ids (the paper) or among those of its own modality."""
    max_learned_positions: int = 0
    """How many places of a text, a picture and a sound, counted from its BOS, have learned vectors: see
    docs/decisions/0014. 0 for none, as in the paper."""
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    init_std: float = 0.02
    """Of every matrix; norms start at 1."""
    residual_scale: float = 1.0
    """What every block's branches are multiplied by: 1 at the base depth."""
    logit_scale: float = 1.0
    """What logits are multiplied by: 1 at the base width, and always under Complete(d)P."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "width", "num_heads", "d_ff"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a positive integer, got {value!r}.")
        if not isinstance(self.max_learned_positions, int) or self.max_learned_positions < 0:
            raise UserError(
                f"max_learned_positions must be a whole number of at least 0, got {self.max_learned_positions!r}."
            )
        if self.width % (2 * self.num_heads):
            raise UserError(
                f"width={self.width} must be a multiple of 2 * num_heads={2 * self.num_heads}: "
                "every head turns pairs of numbers by their position."
            )
        for name in ("rope_base", "norm_eps", "init_std", "residual_scale", "logit_scale"):
            if not 0 < getattr(self, name) < 1e30:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)!r}.")
        if self.softmax_scope not in get_args(SoftmaxScope):
            known = did_you_mean(str(self.softmax_scope), list(get_args(SoftmaxScope)))
            raise UserError(f"unknown softmax_scope {self.softmax_scope!r}.{known}")

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads


@dataclass(frozen=True)
class Targets:
    """What to predict where. Rows are sorted by modality, so that each softmax has its rows in one piece."""

    rows_n: Tensor
    """Indices into the flattened R x T positions."""
    ids_n: Tensor
    """The true ids, of the unified vocabulary."""
    loss_weight_n: Tensor
    z_loss_weight_n: Tensor
    counts: tuple[int, int, int]
    """How many rows are text, image, audio."""


class Loss(NamedTuple):
    """A tuple, for what shards a model from outside looks for tensors in what it returns."""

    total: Tensor
    """Differentiable."""
    nll_n: Tensor
    """Negative log-likelihood of every predicted position, in the order of the targets; detached."""
    lse_n: Tensor


class Embedding(nn.Module):
    """Three blocks of rows, as if they were one table."""

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
        # A lookup in each and a choice: one table of all would be copied together for a few of its rows.
        found = None
        for block, start in zip(self.blocks, self.starts):
            local = tokens - start
            rows = F.embedding(local.clamp(0, len(block) - 1), block)
            found = rows if found is None else torch.where((local >= 0)[..., None], rows, found)
        assert found is not None
        return found


class LearnedPositions(nn.Module):
    """A vector for every place of a text, a picture and a sound, counted from the BOS before it."""

    def __init__(self, vocabulary: Vocabulary, count: int, width: int):
        super().__init__()
        self.count, self.vocabulary = count, vocabulary
        self.roles = {}
        for modality in Modality:
            name = modality.name.lower()
            self.roles[name] = f"embed_place_{name}"
            self.register_parameter(name, nn.Parameter(torch.empty(count, width)))

    def forward(self, tokens_RT: Tensor, segments: Segments) -> Tensor:
        """[N, D], zero for TASK and past the tables' ends."""
        column_T = torch.arange(tokens_RT.shape[1], device=tokens_RT.device)
        row_RT, is_bos_RT = torch.full_like(tokens_RT, -1), torch.zeros_like(tokens_RT, dtype=torch.bool)
        for modality in Modality:
            ids = self.vocabulary.ids(modality)
            row_RT[(tokens_RT >= ids.start) & (tokens_RT < ids.stop)] = modality * self.count
            is_bos_RT |= tokens_RT == self.vocabulary.bos(modality)
        place_RT = column_T - column_T.where(is_bos_RT, 0).cummax(1).values
        has_none_RT = (row_RT < 0) | (place_RT >= self.count)
        # The last row is zero.
        tables = F.pad(torch.cat([getattr(self, modality.name.lower()) for modality in Modality]), (0, 0, 0, 1))
        return F.embedding(segments.pick((row_RT + place_RT).masked_fill_(has_none_RT, len(tables) - 1)), tables)


class Transformer(nn.Module):
    """tokens -> hidden states, and with targets -> the loss, in one call so that sharding from outside sees it all."""

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

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Segments | None = None,
        targets: Targets | None = None,
        query_idx: Tensor | None = None,
    ) -> Tensor | Loss:
        """Normed hidden states [R, T, D]; of the positions asked for, [n, D]; with targets, the loss instead.

        `segments` says which positions see each other; None means all of a row. `query_idx` and the targets' rows are
        indices into the R x T positions, each of them once.
        """
        if segments is None:
            rows, length = tokens.shape
            segments = whole_rows(rows, length, tokens.device)
        x_ND = self.embed(segments.pick(tokens))
        if self.places is not None:
            x_ND = x_ND + self.places(tokens, segments)
        cos, sin = rotary_angles(segments.pick(positions), self.config.head_width, self.config.rope_base)
        query_idx = targets.rows_n if targets is not None else query_idx
        numbers_n = None if query_idx is None else segments.number(query_idx)
        *others, last = self.blocks
        for block in others:
            x_ND = block(x_ND, cos, sin, segments)
        hidden_nD = self.norm(last(x_ND, cos, sin, segments, numbers_n))
        if self.config.logit_scale != 1:
            hidden_nD = hidden_nD * self.config.logit_scale  # here it costs D numbers a row, on logits V
        if targets is not None:
            return self._loss(hidden_nD, targets)
        return segments.spread(hidden_nD) if query_idx is None else hidden_nD

    # -- the head -----------------------------------------------------------------------------------------------------

    def num_columns(self, modality: Modality) -> int:
        """Of what a position of this modality can become: data, BOS, EOS.

        BOS never is a target, and learns so; MASK, PAD and TASK are no answers at all.
        """
        return self.vocabulary.data_size(modality) + 2

    def logits(self, hidden_nD: Tensor, modality: Modality, *, out: Tensor | None = None) -> Tensor:
        """[n, V] over the data ids of a modality (local, from 0), then BOS and EOS."""
        table = self.unembed.blocks[modality][: self.num_columns(modality)]
        return hidden_nD @ table.T if torch.is_grad_enabled() else project(hidden_nD, table, out)

    def _loss(self, hidden_nD: Tensor, targets: Targets) -> Loss:
        tables, sizes = self.unembed.blocks, [self.num_columns(modality) for modality in Modality]
        starts = [self.vocabulary.ids(modality).start for modality in Modality]
        if self.config.softmax_scope == "full":
            # The columns of the three modalities stand side by side; an id moves by what was left out before it.
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
            each.split(targets.counts)
            for each in (hidden_nD, targets.ids_n, targets.loss_weight_n, targets.z_loss_weight_n)
        ]
        for m, (rows, ids, loss_weight, z_loss_weight) in zip(Modality, zip(*by_modality)):
            local = ids - starts[m]
            parts.append(linear_cross_entropy(rows, [tables[m]], local, loss_weight, z_loss_weight, sizes=[sizes[m]]))
        totals, nlls, lses = zip(*parts)
        return Loss(sum(totals[1:], totals[0]), torch.cat(nlls), torch.cat(lses))


# -- roles and beginnings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaggedParam:
    """A parameter, with what is known about it without looking at its name."""

    name: str
    parameter: nn.Parameter
    role: str
    """As in the paper's table of per-module multipliers: "attn_qkv", "embed_text", ..."""
    layer: int | None = None
    """Which block it is in, from 0; None outside of blocks."""

    @property
    def is_matrix(self) -> bool:
        return self.parameter.ndim == 2


def tagged_parameters(model: nn.Module) -> Iterator[TaggedParam]:
    """Every parameter with its role, in the order of `named_parameters`."""
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
    size: Callable[[TaggedParam], float] | None = None,
    write: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> None:
    """Fill all weights: matrices from a normal law (cut at +-2, torch's default), norms with one value.

    `size` gives a matrix's standard deviation and a norm's value; without it they are init_std and 1. Every parameter
    has a generator of its own, seeded by its name, so that adding one does not change the others. Values are drawn
    whole, one parameter at a time, and handed to `write`, which may keep a part.
    """
    for tagged in tagged_parameters(model):
        value = torch.empty(tagged.parameter.shape, dtype=tagged.parameter.dtype)
        if tagged.is_matrix:
            generator = torch.Generator().manual_seed(_seed_of(seed, tagged.name))
            std = model.config.init_std if size is None else size(tagged)
            nn.init.trunc_normal_(value, std=std, generator=generator)
        else:
            nn.init.constant_(value, 1.0 if size is None else size(tagged))
        write(tagged.parameter, value)


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
