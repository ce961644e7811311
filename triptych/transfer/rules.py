"""Scaling rules for width and depth. Each rule is a table, and each cell a product of powers of two ratios:

    m_N = width / base width        m_L = layers / base layers        a = depth exponent

Rows are kinds of weights. Columns are the quantities to multiply: the standard deviation at initialisation, the
learning rate, AdamW's epsilon, and its weight decay (as in PyTorch: a step shrinks a weight by the factor
1 - lr * decay).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["embedding", "hidden", "norm", "qk_norm", "final_norm", "unembedding"]
RuleName = Literal["standard", "completep", "completed_p"]


@dataclass(frozen=True)
class Exponents:
    """The factor m_N^width * m_L^(depth + depth_a * a)."""

    width: float = 0.0
    depth: float = 0.0
    depth_a: float = 0.0

    def __mul__(self, other: "Exponents") -> "Exponents":
        return Exponents(self.width + other.width, self.depth + other.depth, self.depth_a + other.depth_a)

    def value(self, m_n: float, m_l: float, a: float) -> float:
        return m_n**self.width * m_l ** (self.depth + self.depth_a * a)

    def __str__(self) -> str:
        """The formula, such as "m_N^-1 m_L^(a-1)"; empty if the factor is 1."""
        depth = {1.0: "a", -1.0: "-a"}.get(self.depth_a, f"{self.depth_a:g}a" if self.depth_a else "")
        if self.depth:
            depth = f"({depth}{self.depth:+g})" if depth else f"{self.depth:g}"
        parts = [f"m_N^{self.width:g}"] if self.width else []
        return " ".join(parts + ([f"m_L^{depth}"] if depth else []))


@dataclass(frozen=True)
class ScalingRow:
    """Factors of one kind of weight."""

    init: Exponents
    lr: Exponents
    eps: Exponents
    decay: Exponents


@dataclass(frozen=True)
class TransferRule:
    """A table of factors, and two multipliers inside the model."""

    rows: Mapping[Kind, ScalingRow]
    residual: Exponents
    """Multiplier of every residual branch."""
    logits: Exponents
    """Multiplier of the logits."""


ONE = Exponents()
A_LESS_1 = Exponents(depth=-1, depth_a=1)
BLOCK_EPS = Exponents(width=-1, depth_a=-1)


def _width(power: float) -> Exponents:
    return Exponents(width=power)


# fmt: off
RULES: dict[RuleName, TransferRule] = {
    "standard": TransferRule(
        residual=ONE, logits=ONE,
        rows={kind: ScalingRow(ONE, ONE, ONE, ONE) for kind in get_args(Kind)},
    ),
    # Dey et al. 2025, table 1
    "completep": TransferRule(
        residual=Exponents(depth_a=-1), logits=_width(-1),
        rows={
            #                         init          lr                     eps                    decay
            "embedding":   ScalingRow(ONE,          ONE,                   ONE,                   ONE),
            "hidden":      ScalingRow(_width(-0.5), _width(-1) * A_LESS_1, BLOCK_EPS,             _width(1)),
            "norm":        ScalingRow(ONE,          A_LESS_1,              BLOCK_EPS,             ONE),
            "qk_norm":     ScalingRow(ONE,          A_LESS_1,              BLOCK_EPS,             ONE),
            "final_norm":  ScalingRow(ONE,          ONE,                   ONE,                   ONE),
            "unembedding": ScalingRow(ONE,          ONE,                   ONE,                   ONE),
        },
    ),
    # Mlodozeniec et al. 2025, table 1: the unembedding absorbs the multiplier of the logits
    "completed_p": TransferRule(
        residual=Exponents(depth_a=-1), logits=ONE,
        rows={
            "embedding":   ScalingRow(ONE,          ONE,                   _width(-1),            ONE),
            "hidden":      ScalingRow(_width(-0.5), _width(-1) * A_LESS_1, BLOCK_EPS,             _width(1)),
            "norm":        ScalingRow(ONE,          A_LESS_1,              BLOCK_EPS,             ONE),
            "qk_norm":     ScalingRow(ONE,          A_LESS_1,              Exponents(depth_a=-1), ONE),  # for all heads
            "final_norm":  ScalingRow(ONE,          ONE,                   ONE,                   ONE),
            "unembedding": ScalingRow(_width(-1),   _width(-1),            ONE,                   _width(1)),
        },
    ),
}
# fmt: on

_KINDS: dict[str, Kind] = {
    "embed": "embedding",
    "unembed": "unembedding",
    "unembed_norm": "final_norm",
    "attn": "hidden",
    "attn_q_norm": "qk_norm",
    "attn_k_norm": "qk_norm",
    "mlp": "hidden",
    "norm1": "norm",
    "norm2": "norm",
}


def role_prefixes(role: str) -> list[str]:
    """The role and its shorter prefixes, longest first: "embed_place_text", "embed_place", "embed"."""
    parts = role.split("_")
    return ["_".join(parts[:count]) for count in range(len(parts), 0, -1)]


def kind_of(role: str) -> Kind:
    """The kind of weight, and so the row of a rule's table, for a role."""
    return next(_KINDS[prefix] for prefix in role_prefixes(role) if prefix in _KINDS)
