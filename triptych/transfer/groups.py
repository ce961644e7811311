"""Every weight's own hyperparameters, from all rules at once, and which rule made what.

log value[role, layer] = log global + log role + log depth + log kappa rule + log width and depth rule
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from triptych.errors import UserError, did_you_mean
from triptych.model.transformer import ModelConfig, TaggedParam
from triptych.transfer.per_module import Multipliers, Table, table_named
from triptych.transfer.rules import RULES, Row, Rule, RuleName, kind_of
from triptych.transfer.sde import Sde


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """Where the global values were tuned, and how they are carried from there. Ratios to what is None are 1."""

    rule: RuleName = "standard"
    """Of width and depth: completed_p, completep, or standard for none."""
    base_width: int | None = None
    base_layers: int | None = None
    depth_exponent: float = 1.0
    base_batch: float | None = None
    """Sequences a step; together with base_steps it turns the rule of batch size and tokens on."""
    base_steps: int | None = None
    base_seq_len: int | None = None
    gamma: float = 0.44
    """Between 0, the same noise however long a run is, and 1, the same horizon."""
    scales_decay: bool = True
    """Whether weight decay follows kappa; the paper is silent, and without it batch sizes are not alike."""
    scales_clip: bool = True
    warmup_mode: str = "steps"
    """Whether the warm-up is counted in "steps" (the paper) or in the time of the equation ("sde")."""
    per_module: str = "none"
    """A table of multipliers by role and depth: a preset (none, paper, scenes) or a JSON file."""
    multipliers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What differs from that table: role or family -> lr, decay, alpha1, alpha2, eps, init."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UserError(f"unknown transfer rule {self.rule!r}.{did_you_mean(str(self.rule), list(RULES))}")
        for name in ("base_width", "base_layers", "base_batch", "base_steps", "base_seq_len"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"transfer.{name} must be positive, or none, got {value!r}.")
        if (self.base_batch is None) != (self.base_steps is None):
            raise UserError("transfer.base_batch and transfer.base_steps are set together: noise depends on both.")
        if not 0 <= self.depth_exponent <= 1:
            raise UserError(f"transfer.depth_exponent must lie between 0 and 1, got {self.depth_exponent!r}.")
        if self.warmup_mode not in ("steps", "sde"):
            raise UserError(f"transfer.warmup_mode must be 'steps' or 'sde', got {self.warmup_mode!r}.")
        for role, values in self.multipliers.items():
            known = list(Multipliers.__dataclass_fields__)
            for name in values:
                if name not in known:
                    raise UserError(f"unknown key 'transfer.multipliers.{role}.{name}'.{did_you_mean(name, known)}")

    @cached_property
    def table(self) -> Table:
        table = table_named(self.per_module)
        changed = {
            role: replace(table.roles.get(role, Multipliers()), **values) for role, values in self.multipliers.items()
        }
        return replace(table, roles={**table.roles, **changed})


@dataclass(frozen=True, kw_only=True)
class Globals:
    """What a search over a base model finds: one value of each for all weights."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    decay: float


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Of one weight."""

    init: float
    """Standard deviation at the beginning, before the law is cut at +-2; of a norm, its value."""
    lr: float
    beta1: float
    beta2: float
    eps: float
    decay: float


@dataclass(frozen=True)
class Transfer:
    """The rules, resolved for one run."""

    config: TransferConfig
    shape: ModelConfig
    values: Globals
    sde: Sde | None = None

    @property
    def rule(self) -> Rule:
        return RULES[self.config.rule]

    @property
    def ratios(self) -> tuple[float, float, float]:
        """m_N, m_L and the exponent of depth."""
        m_n = self.shape.width / (self.config.base_width or self.shape.width)
        m_l = self.shape.num_layers / (self.config.base_layers or self.shape.num_layers)
        return m_n, m_l, self.config.depth_exponent

    @property
    def kappa(self) -> float:
        return 1.0 if self.sde is None else self.sde.kappa

    @property
    def scaled_shape(self) -> ModelConfig:
        """The shape with the multipliers that are part of the model."""
        return replace(
            self.shape,
            residual_scale=self.shape.residual_scale * self.rule.residual.value(*self.ratios),
            logit_scale=self.shape.logit_scale * self.rule.logits.value(*self.ratios),
        )

    def row(self, role: str) -> Row:
        return self.rule.rows[kind_of(role)]

    def of(self, weight: TaggedParam) -> Hyperparameters:
        """The hyperparameters of a weight."""
        row, kappa, values = self.row(weight.role), self.kappa, self.values
        table = self.config.table
        own = table.at(weight.role, weight.layer, self.shape.num_layers)
        decays = weight.is_matrix or table.decays_all
        return Hyperparameters(
            init=(self.shape.init_std if weight.is_matrix else 1.0) * own.init * row.init.value(*self.ratios),
            lr=values.lr * own.lr * row.lr.value(*self.ratios) * kappa**0.5,
            beta1=_beta(values.beta1, own.alpha1, kappa, weight.role),
            beta2=_beta(values.beta2, own.alpha2, kappa, weight.role),
            eps=values.eps * own.eps * row.eps.value(*self.ratios) * kappa**-0.5,
            decay=decays
            * values.decay
            * own.decay
            * row.decay.value(*self.ratios)
            * (kappa**0.5 if self.config.scales_decay else 1.0),
        )


def _beta(beta: float, multiplier: float, kappa: float, role: str) -> float:
    forgets = multiplier * (1 - beta)
    if forgets >= 1:
        raise UserError(
            f"multipliers of {role} would make a beta of {1 - forgets:.3g}: 1 - beta = {1 - beta:.3g} is multiplied by "
            f"{multiplier:.3g}. Choose smaller ones, or a larger beta."
        )
    return (1 - forgets) ** kappa


@dataclass(frozen=True)
class ParamGroup:
    """Weights with the same hyperparameters."""

    values: Hyperparameters
    weights: tuple[TaggedParam, ...]


def groups(transfer: Transfer, weights: Iterator[TaggedParam]) -> list[ParamGroup]:
    """Weights by their hyperparameters, in order of appearance."""
    found: dict[Hyperparameters, list[TaggedParam]] = {}
    tagged = list(weights)
    transfer.config.table.check_roles({weight.role for weight in tagged})
    for weight in tagged:
        found.setdefault(transfer.of(weight), []).append(weight)
    return [ParamGroup(values, tuple(members)) for values, members in found.items()]
