"""How hyperparameters follow width and depth: each rule is one table, and each cell a product of powers.

    m_N = width / base width        m_L = layers / base layers        a = the exponent of depth

Rows are kinds of weights, columns what is multiplied: the standard deviation at the beginning, the learning rate,
AdamW's epsilon, and its weight decay (PyTorch's: a step takes lr * decay of a weight away).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["embedding", "hidden", "norm", "qk_norm", "final_norm", "unembedding"]
RuleName = Literal["standard", "completep", "completed_p"]


@dataclass(frozen=True)
class Powers:
    """m_N^width * m_L^(depth + depth_a * a)."""

    width: float = 0.0
    depth: float = 0.0
    depth_a: float = 0.0

    def __mul__(self, other: "Powers") -> "Powers":
        return Powers(self.width + other.width, self.depth + other.depth, self.depth_a + other.depth_a)

    def value(self, m_n: float, m_l: float, a: float) -> float:
        return m_n**self.width * m_l ** (self.depth + self.depth_a * a)

    def __str__(self) -> str:
        """As a formula: "m_N^-1 m_L^(a-1)"; empty for 1."""
        depth = {1.0: "a", -1.0: "-a"}.get(self.depth_a, f"{self.depth_a:g}a" if self.depth_a else "")
        if self.depth:
            depth = f"({depth}{self.depth:+g})" if depth else f"{self.depth:g}"
        parts = [f"m_N^{self.width:g}"] if self.width else []
        return " ".join(parts + ([f"m_L^{depth}"] if depth else []))


@dataclass(frozen=True)
class Row:
    init: Powers
    lr: Powers
    eps: Powers
    decay: Powers


@dataclass(frozen=True)
class Rule:
    """A table, and what the model itself multiplies."""

    rows: Mapping[Kind, Row]
    residual: Powers
    """Of what each branch adds to the residual stream."""
    logits: Powers


ONE = Powers()
A_LESS_1 = Powers(depth=-1, depth_a=1)
BLOCK_EPS = Powers(width=-1, depth_a=-1)


def _width(power: float) -> Powers:
    return Powers(width=power)


# fmt: off
RULES: dict[RuleName, Rule] = {
    "standard": Rule(
        residual=ONE, logits=ONE,
        rows={kind: Row(ONE, ONE, ONE, ONE) for kind in get_args(Kind)},
    ),
    # Dey et al. 2025, table 1
    "completep": Rule(
        residual=Powers(depth_a=-1), logits=_width(-1),
        rows={
            #                   init          lr                     eps                   decay
            "embedding":   Row(ONE,          ONE,                   ONE,                  ONE),
            "hidden":      Row(_width(-0.5), _width(-1) * A_LESS_1, BLOCK_EPS,            _width(1)),
            "norm":        Row(ONE,          A_LESS_1,              BLOCK_EPS,            ONE),
            "qk_norm":     Row(ONE,          A_LESS_1,              BLOCK_EPS,            ONE),
            "final_norm":  Row(ONE,          ONE,                   ONE,                  ONE),
            "unembedding": Row(ONE,          ONE,                   ONE,                  ONE),
        },
    ),
    # Mlodozeniec et al. 2025, table 1: the multiplier of logits is absorbed by the unembedding
    "completed_p": Rule(
        residual=Powers(depth_a=-1), logits=ONE,
        rows={
            "embedding":   Row(ONE,          ONE,                   _width(-1),           ONE),
            "hidden":      Row(_width(-0.5), _width(-1) * A_LESS_1, BLOCK_EPS,            _width(1)),
            "norm":        Row(ONE,          A_LESS_1,              BLOCK_EPS,            ONE),
            "qk_norm":     Row(ONE,          A_LESS_1,              Powers(depth_a=-1),   ONE),  # gains shared by heads
            "final_norm":  Row(ONE,          ONE,                   ONE,                  ONE),
            "unembedding": Row(_width(-1),   _width(-1),            ONE,                  _width(1)),
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


def matching_patterns(role: str) -> list[str]:
    """The names a role goes by, the longest first: "embed_place_text", "embed_place", "embed"."""
    parts = role.split("_")
    return ["_".join(parts[:count]) for count in range(len(parts), 0, -1)]


def kind_of(role: str) -> Kind:
    """Which row of the table a weight's role has."""
    return next(_KINDS[family] for family in matching_patterns(role) if family in _KINDS)
