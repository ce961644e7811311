"""Hyperparameter multipliers per role of a weight and per depth, as found by tuning each kind of module.

    value = base value  x  multiplier of the role  x  multiplier of the depth (blocks only)  x  scaling rules

alpha1 = 1 - beta1 and alpha2 = 1 - beta2 are multiplied first; then the batch size rule raises beta to a power.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from triptych.errors import UserError, did_you_mean
from triptych.transfer.rules import role_prefixes
from triptych.utils.json_files import read_json

_MAY_BE_ZERO = ("lr", "decay", "init")  # alpha = 0 means beta = 1: moments that never change


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    lr: float = 1.0
    decay: float = 1.0
    alpha1: float = 1.0
    alpha2: float = 1.0
    eps: float = 1.0
    init: float = 1.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            is_number = isinstance(value, int | float) and 0 <= value < float("inf")
            if not is_number or (value == 0 and f.name not in _MAY_BE_ZERO):
                least = "not negative" if f.name in _MAY_BE_ZERO else "positive"
                raise UserError(f"a multiplier of {f.name} must be finite and {least}, got {value!r}.")

    def __mul__(self, other: "Multipliers") -> "Multipliers":
        return Multipliers(**{f.name: getattr(self, f.name) * getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True)
class MultiplierTable:
    """Multipliers per role and per depth."""

    roles: Mapping[str, Multipliers] = field(default_factory=dict)
    """By role or prefix of roles ("embed" covers all embeddings). The longest matching name is used."""
    depth: tuple[Multipliers, ...] = ()
    """By depth: entry i of n covers the i-th of n equal parts of the blocks."""
    decays_all: bool = False
    """Whether weight decay applies to norms too, as it did where the paper's table was tuned."""

    def at(self, role: str, layer: int | None, num_layers: int) -> Multipliers:
        """The multipliers of a weight; `layer` is None outside the blocks."""
        by_role = next((self.roles[name] for name in role_prefixes(role) if name in self.roles), Multipliers())
        if layer is None or not self.depth:
            return by_role
        return by_role * self.depth[len(self.depth) * layer // num_layers]

    def check_roles(self, roles: set[str]) -> None:
        """Raise an error if a name in the table matches none of these roles."""
        known = sorted({name for role in roles for name in role_prefixes(role)})
        for name in self.roles:
            if name not in known:
                raise UserError(f"unknown role {name!r} in a table of multipliers.{did_you_mean(name, known)}")

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "roles": {name: asdict(multipliers) for name, multipliers in self.roles.items()},
            "depth": [asdict(multipliers) for multipliers in self.depth],
            "decays_all": self.decays_all,
        }

    @classmethod
    def from_json(cls, content: Any) -> "MultiplierTable":
        return cls(
            {role: Multipliers(**values) for role, values in content["roles"].items()},
            tuple(Multipliers(**values) for values in content.get("depth", [])),
            bool(content.get("decays_all", False)),
        )

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json, indent=2) + "\n")


def load_multiplier_table(name: str) -> MultiplierTable:
    """A preset by name, or a table from a JSON file written by `MultiplierTable.save`."""
    if name in MULTIPLIER_TABLES:
        return MULTIPLIER_TABLES[name]
    path = Path(name)
    if not path.is_file():
        raise UserError(
            f"{name!r} is neither a file nor a preset of multipliers.{did_you_mean(name, list(MULTIPLIER_TABLES))}"
        )
    try:
        return MultiplierTable.from_json(read_json(path))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a table of multipliers ({error}).") from error


def _row(lr: float, decay: float, alpha1: float, alpha2: float, eps: float, init: float) -> Multipliers:
    return Multipliers(lr=lr, decay=decay, alpha1=alpha1, alpha2=alpha2, eps=eps, init=init)


# fmt: off
_PAPER = MultiplierTable(
    roles={
        #                    lr     decay  alpha1 alpha2 eps    init
        "embed_audio":   _row(2.192, 1.009, 0.962, 1.493, 1.494, 1.826),
        "embed_image":   _row(1.013, 0.864, 2.108, 0.685, 0.734, 0.554),
        "embed_text":    _row(3.937, 1.593, 1.421, 1.791, 0.317, 0.379),
        "unembed_audio": _row(1.633, 1.510, 3.442, 0.594, 0.742, 3.422),
        "unembed_image": _row(1.655, 1.213, 1.929, 1.042, 0.635, 1.524),
        "unembed_text":  _row(3.008, 0.737, 1.346, 0.955, 1.206, 0.341),
        "unembed_norm":  _row(2.305, 0.817, 4.508, 2.740, 1.938, 2.175),
        "attn_qkv":      _row(1.714, 0.821, 0.173, 0.557, 0.391, 2.498),
        "attn_proj":     _row(0.630, 0.354, 0.256, 0.339, 1.627, 4.732),
        "attn_q_norm":   _row(0.535, 0.731, 1.530, 0.902, 0.848, 1.344),
        "attn_k_norm":   _row(0.754, 0.497, 1.074, 0.822, 0.368, 0.436),
        "mlp_gate":      _row(0.489, 0.634, 1.171, 1.870, 4.913, 0.643),
        "mlp_fc1":       _row(1.271, 1.295, 1.590, 3.309, 1.415, 1.944),
        "mlp_fc2":       _row(1.405, 1.308, 2.684, 0.655, 1.790, 0.878),
        "norm1":         _row(1.311, 1.105, 0.282, 1.161, 1.477, 2.171),
        "norm2":         _row(0.899, 0.525, 1.533, 1.789, 0.712, 1.189),
    },
    depth=(
        _row(1.102, 0.725, 1.030, 3.053, 0.663, 0.997),
        _row(0.877, 1.018, 0.911, 1.149, 2.645, 0.485),
    ),
    decays_all=True,
)
# Found by studies/modules on the base model of the recipe `proxy`, relative to its values PER_MODULE_TUNED.
_PROXY = MultiplierTable(
    roles={
        #                         lr    decay alpha1 alpha2 eps  init
        "embed_text":        _row(3.68, 0.526, 0.216, 1.86, 0.781, 0.832),
        "embed_image":       _row(1.4, 1.68, 0.551, 1.7, 1.12, 0.628),
        "embed_audio":       _row(1.78, 1.73, 1.88, 0.859, 1.1, 1.49),
        "embed_place_text":  _row(1.45, 1.07, 1.37, 0.663, 0.476, 1.01),
        "embed_place_image": _row(1.51, 1.16, 0.55, 0.399, 0.63, 0.561),
        "embed_place_audio": _row(0.855, 0.26, 0.322, 0.976, 3.47, 0.297),
        "norm1":             _row(0.938, 0.769, 1.13, 0.322, 1.1, 1.23),
        "attn_qkv":          _row(0.67, 0.449, 2.26, 1.08, 2.66, 1.08),
        "attn_proj":         _row(1.96, 0.72, 1.28, 0.752, 3.56, 2.9),
        "attn_q_norm":       _row(0.372, 0.765, 1.18, 0.639, 1.52, 1.18),
        "attn_k_norm":       _row(0.496, 1.63, 1.12, 0.803, 1.66, 1.45),
        "norm2":             _row(0.651, 1.48, 2.41, 1.14, 1.07, 0.194),
        "mlp_gate":          _row(0.921, 0.519, 1.8, 1.25, 3.46, 2.2),
        "mlp_fc1":           _row(1.52, 1.08, 1.22, 2.51, 0.605, 0.486),
        "mlp_fc2":           _row(0.988, 0.499, 0.672, 0.595, 0.257, 0.771),
        "unembed_norm":      _row(1.25, 0.779, 1.38, 0.683, 1.57, 0.769),
        "unembed_text":      _row(0.664, 1.14, 0.458, 0.954, 0.718, 1.47),
        "unembed_image":     _row(0.371, 0.614, 0.517, 0.322, 1.49, 2.38),
        "unembed_audio":     _row(4.29, 0.722, 0.46, 1.05, 0.465, 0.502),
    },
    depth=(
        _row(0.742, 1.08, 1.25, 0.328, 1.13, 0.645),
        _row(0.649, 0.652, 0.293, 0.984, 1.82, 0.25),
    ),
)
# fmt: on

# Tuned by hand on the built-in toy dataset (scenes): see docs/decisions/0015.
_SCENES = MultiplierTable(
    roles={
        "embed": Multipliers(lr=20.0, init=20.0),
        "unembed": Multipliers(lr=5.0),
        "unembed_norm": Multipliers(),
    }
)

MULTIPLIER_TABLES = {"none": MultiplierTable(), "paper": _PAPER, "scenes": _SCENES, "proxy": _PROXY}
