"""Hyperparameters of every weight, from all transfer rules together.

log value[role, layer] = log base value + log role + log depth + log kappa rule + log width and depth rule
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from triptych.errors import UserError, did_you_mean
from triptych.model.transformer import ModelConfig, TaggedParam
from triptych.transfer.per_module import Multipliers, MultiplierTable, load_multiplier_table
from triptych.transfer.rules import RULES, RuleName, ScalingRow, TransferRule, kind_of
from triptych.transfer.sde import Sde
from triptych.utils.arguments import check_fields


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """Where the base hyperparameters were tuned, and which rules scale them. If a base size is None, its ratio is 1."""

    rule: RuleName = "standard"
    """Rule for width and depth: completed_p, completep, or standard for no scaling."""
    base_width: int | None = None
    """Width of the base model."""
    base_layers: int | None = None
    """Number of layers of the base model."""
    depth_exponent: float = 1.0
    """Exponent a of the depth ratio in residual branches, between 0 and 1 (see rules.py)."""
    base_batch: float | None = None
    """Sequences per step of the base run, counting both copies of complementary masks. Together with base_steps it
    enables the rule for batch size and tokens."""
    base_steps: int | None = None
    """Number of steps of the base run. Its tokens and those of this run are compared by their numbers of sequences,
    which assumes that sequences have as many tokens, without padding, in both."""
    base_seq_len: int | None = None
    """Sequence length of the base run, if it differs."""
    gamma: float = 0.44
    """How a longer run uses its tokens: from 0 (same noise, more SDE time) to 1 (less noise, same SDE time)."""
    scales_decay: bool = True
    """Whether weight decay is scaled by sqrt(kappa). The paper does not say; without it, batch sizes give different
    results."""
    scales_clip: bool = True
    """Whether the gradient clipping norm is scaled by 1 / sqrt(kappa)."""
    warmup_mode: str = "steps"
    """Unit of the warm-up: "steps" (the paper), "sde" for SDE time, or "share" for the same share of the run as in the
    base run."""
    per_module: str = "none"
    """Multipliers per role and depth: a preset (none, paper, scenes, proxy) or a JSON file."""
    multipliers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Changes to that table: role or prefix of roles -> lr, decay, alpha1, alpha2, eps, init."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rule not in RULES:
            raise UserError(f"unknown transfer rule {self.rule!r}.{did_you_mean(str(self.rule), list(RULES))}")
        for name in ("base_width", "base_layers", "base_batch", "base_steps", "base_seq_len"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"transfer.{name} must be positive, or none, got {value!r}.")
        if (self.base_batch is None) != (self.base_steps is None):
            raise UserError("transfer.base_batch and transfer.base_steps must be set together.")
        if not 0 <= self.depth_exponent <= 1:
            raise UserError(f"transfer.depth_exponent must lie between 0 and 1, got {self.depth_exponent!r}.")
        if self.warmup_mode not in ("steps", "sde", "share"):
            raise UserError(f"transfer.warmup_mode must be 'steps', 'sde' or 'share', got {self.warmup_mode!r}.")
        if self.warmup_mode == "share" and self.base_steps is None:
            raise UserError("transfer.warmup_mode=share needs transfer.base_batch and transfer.base_steps.")
        for role, values in self.multipliers.items():
            known = list(Multipliers.__dataclass_fields__)
            for name in values:
                if name not in known:
                    raise UserError(f"unknown key 'transfer.multipliers.{role}.{name}'.{did_you_mean(name, known)}")

    @cached_property
    def table(self) -> MultiplierTable:
        """The table `per_module` with the changes `multipliers`."""
        table = load_multiplier_table(self.per_module)
        changed = {
            role: replace(table.roles.get(role, Multipliers()), **values) for role, values in self.multipliers.items()
        }
        return replace(table, roles={**table.roles, **changed})


@dataclass(frozen=True, kw_only=True)
class BaseHyperparameters:
    """Hyperparameters tuned on the base model, shared by all weights."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    decay: float


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Hyperparameters of one weight."""

    init: float
    """Standard deviation at initialisation, before truncation at +-2; for a norm, its initial value."""
    lr: float
    beta1: float
    beta2: float
    eps: float
    decay: float


@dataclass(frozen=True)
class Transfer:
    """The transfer rules applied to one run."""

    config: TransferConfig
    shape: ModelConfig
    values: BaseHyperparameters
    sde: Sde | None = None
    """The rule for batch size and tokens; None if the config names no base run."""

    @property
    def rule(self) -> TransferRule:
        return RULES[self.config.rule]

    @property
    def ratios(self) -> tuple[float, float, float]:
        """m_N (width ratio), m_L (depth ratio) and the depth exponent."""
        m_n = self.shape.width / (self.config.base_width or self.shape.width)
        m_l = self.shape.num_layers / (self.config.base_layers or self.shape.num_layers)
        return m_n, m_l, self.config.depth_exponent

    @property
    def kappa(self) -> float:
        """SDE time of a step relative to the base run (see sde.py); 1 without a base run."""
        return 1.0 if self.sde is None else self.sde.kappa

    @property
    def scaled_shape(self) -> ModelConfig:
        """The shape, with the rule's multipliers inside the model."""
        return replace(
            self.shape,
            residual_scale=self.shape.residual_scale * self.rule.residual.value(*self.ratios),
            logit_scale=self.shape.logit_scale * self.rule.logits.value(*self.ratios),
        )

    def row(self, role: str) -> ScalingRow:
        """The rule's factors for a role."""
        return self.rule.rows[kind_of(role)]

    def hyperparameters(self, weight: TaggedParam) -> Hyperparameters:
        """All rules and multipliers applied to one weight."""
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
    alpha = multiplier * (1 - beta)
    if alpha >= 1:
        raise UserError(
            f"the multipliers of {role} give a beta of {1 - alpha:.3g}: 1 - beta = {1 - beta:.3g} is multiplied by "
            f"{multiplier:.3g}. Choose smaller multipliers, or a larger beta."
        )
    return (1 - alpha) ** kappa


@dataclass(frozen=True)
class ParamGroup:
    """Weights with the same hyperparameters."""

    values: Hyperparameters
    weights: tuple[TaggedParam, ...]


def build_param_groups(transfer: Transfer, weights: Iterator[TaggedParam]) -> list[ParamGroup]:
    """Weights grouped by their hyperparameters, in order of appearance."""
    groups: dict[Hyperparameters, list[TaggedParam]] = {}
    tagged = list(weights)
    transfer.config.table.check_roles({weight.role for weight in tagged})
    for weight in tagged:
        groups.setdefault(transfer.hyperparameters(weight), []).append(weight)
    return [ParamGroup(values, tuple(members)) for values, members in groups.items()]
