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
from triptych.model.head import linear_cross_entropy
from triptych.model.layers import Block, RMSNorm, rotary_angles
from triptych.vocab import Modality, Vocabulary

# R rows, T tokens in a row, D width, n rows to predict, V columns of a softmax

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
    places: int = 0
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
        if not isinstance(self.places, int) or self.places < 0:
            raise UserError(f"places must be a whole number of at least 0, got {self.places!r}.")
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
    z_weight_n: Tensor
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
    """Three blocks of rows, looked up as one table."""

    def __init__(self, vocabulary: Vocabulary, width: int, role: str):
        super().__init__()
        self.roles = {}
        for modality, ids in zip(Modality, vocabulary.embedding_blocks):
            name = modality.name.lower()
            self.roles[name] = f"{role}_{name}"
            self.register_parameter(name, nn.Parameter(torch.empty(len(ids), width)))

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, modality.name.lower()) for modality in Modality)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, torch.cat(self.blocks))


class Places(nn.Module):
    """A vector for every place of a text, a picture and a sound, counted from the BOS before it."""

    def __init__(self, vocabulary: Vocabulary, count: int, width: int):
        super().__init__()
        self.count, self.vocabulary = count, vocabulary
        self.roles = {}
        for modality in Modality:
            name = modality.name.lower()
            self.roles[name] = f"embed_place_{name}"
            self.register_parameter(name, nn.Parameter(torch.empty(count, width)))

    def forward(self, tokens_RT: Tensor) -> Tensor:
        """[R, T, D], zero for TASK and past the tables' ends."""
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
        return F.embedding((row_RT + place_RT).masked_fill_(has_none_RT, len(tables) - 1), tables)


class Transformer(nn.Module):
    """tokens -> hidden states, and with targets -> the loss, in one call so that sharding from outside sees it all."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.embed = Embedding(vocabulary, config.width, "embed")
        self.places = Places(vocabulary, config.places, config.width) if config.places else None
        self.blocks = nn.ModuleList(
            Block(layer, config.width, config.num_heads, config.d_ff, config.norm_eps, config.residual_scale)
            for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.width, config.norm_eps, "unembed_norm")
        self.unembed = Embedding(vocabulary, config.width, "unembed")

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Tensor | None = None, targets: Targets | None = None
    ) -> Tensor | Loss:
        """Normed hidden states [R, T, D]; with targets, the loss instead.

        `attend` [R, 1, T, T] says which positions see each other; None means all of a row.
        """
        x_RTD = self.embed(tokens)
        if self.places is not None:
            x_RTD = x_RTD + self.places(tokens)
        cos, sin = rotary_angles(positions, self.config.head_width, self.config.rope_base)
        if attend is not None:
            # Once, as what attention adds to its scores: on the CPU every block would convert and keep its own.
            attend = torch.zeros_like(attend, dtype=x_RTD.dtype).masked_fill_(~attend, -torch.inf)
        for block in self.blocks:
            x_RTD = block(x_RTD, cos, sin, attend)
        hidden_RTD = self.norm(x_RTD)
        if self.config.logit_scale != 1:
            hidden_RTD = hidden_RTD * self.config.logit_scale  # here it costs D numbers a row, on logits V
        return hidden_RTD if targets is None else self._loss(hidden_RTD.flatten(0, 1), targets)

    # -- the head -----------------------------------------------------------------------------------------------------

    def columns(self, modality: Modality) -> Tensor:
        """[V, D] unembedding of what a position of this modality can become: data, BOS, EOS.

        BOS never is a target, and learns so; MASK, PAD and TASK are no answers at all.
        """
        return self.unembed.blocks[modality][: self.vocabulary.data_size(modality) + 2]

    def logits(self, hidden_nD: Tensor, modality: Modality) -> Tensor:
        """[n, V] over the data ids of a modality (local, from 0), then BOS and EOS."""
        return hidden_nD @ self.columns(modality).T

    def _loss(self, hidden_D: Tensor, targets: Targets) -> Loss:
        picked_nD = hidden_D[targets.rows_n]
        columns = [self.columns(modality) for modality in Modality]
        starts = [self.vocabulary.ids(modality).start for modality in Modality]
        if self.config.softmax_scope == "full":
            # The columns of the three modalities stand side by side; an id moves by what was left out before it.
            shifts = [sum(map(len, columns[:m])) - starts[m] for m in Modality]
            shift_n = torch.cat([targets.ids_n.new_full((n,), shifts[m]) for m, n in zip(Modality, targets.counts)])
            total, nll, lse = linear_cross_entropy(
                picked_nD, torch.cat(columns), targets.ids_n + shift_n, targets.loss_weight_n, targets.z_weight_n
            )
            return Loss(total, nll, lse)
        parts = []
        by_modality = [
            each.split(targets.counts) for each in (picked_nD, targets.ids_n, targets.loss_weight_n, targets.z_weight_n)
        ]
        for modality, (rows, ids, loss_weight, z_weight) in zip(Modality, zip(*by_modality)):
            local = ids - starts[modality]
            parts.append(linear_cross_entropy(rows, columns[modality], local, loss_weight, z_weight))
        totals, nlls, lses = zip(*parts)
        return Loss(sum(totals[1:], totals[0]), torch.cat(nlls), torch.cat(lses))


# -- roles and beginnings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tagged:
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


def tagged_parameters(model: nn.Module) -> Iterator[Tagged]:
    """Every parameter with its role, in the order of `named_parameters`."""
    layers = {prefix: module.layer for prefix, module in model.named_modules() if isinstance(module, Block)}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            layer = next((layers[p] for p in layers if prefix.startswith(f"{p}.")), None)
            full_name = f"{prefix}.{name}" if prefix else name
            yield Tagged(full_name, parameter, module.roles[name], layer)


@torch.no_grad()
def initialise(
    model: Transformer,
    seed: int,
    size: Callable[[Tagged], float] | None = None,
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


def attend_within_segments(segment_ids_RT: Tensor) -> Tensor | None:
    """[R, 1, T, T] bool: who sees whom; None if every row is one whole segment.

    Padding (segment 0) sees padding only, so that no row of attention is empty.
    """
    if bool((segment_ids_RT == segment_ids_RT[:, :1]).all()):
        return None
    return segment_ids_RT[:, None, :, None] == segment_ids_RT[:, None, None, :]
