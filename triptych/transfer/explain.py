"""Every weight's final numbers, and which rule made them: what `triptych plan` shows."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from triptych.model.transformer import TaggedParam
from triptych.transfer.groups import Hyperparameters, Transfer
from triptych.transfer.per_module import Multipliers
from triptych.transfer.rules import Powers


@dataclass(frozen=True)
class Line:
    """All weights of one role with the same numbers."""

    role: str
    layers: str
    """"" outside of blocks, else "all" or "0-3"."""
    count: int
    """Of weights, not of matrices."""
    values: Hyperparameters
    made_by: dict[str, str]
    """For each number the formula that made it; nothing where it is the global value."""

    @property
    def as_json(self) -> dict:
        return {
            "role": self.role,
            "layers": self.layers,
            "count": self.count,
            **asdict(self.values),
            "made_by": self.made_by,
        }


def explain(transfer: Transfer, weights: Iterable[TaggedParam]) -> list[Line]:
    """In the order of the model; layers with the same numbers together."""
    members: dict[tuple[str, Hyperparameters], list[TaggedParam]] = {}
    tagged = list(weights)
    transfer.config.table.check_roles({weight.role for weight in tagged})
    for weight in tagged:
        members.setdefault((weight.role, transfer.of(weight)), []).append(weight)
    return [
        Line(
            role,
            _layers(found, transfer.shape.num_layers),
            sum(weight.parameter.numel() for weight in found),
            values,
            _made_by(transfer, found[0]),
        )
        for (role, values), found in members.items()
    ]


def _layers(weights: list[TaggedParam], num_layers: int) -> str:
    layers = sorted(weight.layer for weight in weights if weight.layer is not None)
    if not layers:
        return ""
    if len(layers) == num_layers:
        return "all"
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"


def _made_by(transfer: Transfer, weight: TaggedParam) -> dict[str, str]:
    row = transfer.row(weight.role)
    own = transfer.config.table.at(weight.role, weight.layer, transfer.shape.num_layers)
    root = "sqrt(kappa)" if transfer.sde is not None else ""
    power = "^kappa" if transfer.sde is not None else ""
    found = {
        "init": _product(own, "init", row.init),
        "lr": _product(own, "lr", row.lr, root),
        "beta1": _beta(own.alpha1, power),
        "beta2": _beta(own.alpha2, power),
        "eps": _product(own, "eps", row.eps, f"/ {root}" if root else ""),
        "decay": _product(own, "decay", row.decay, root if transfer.config.scales_decay else ""),
    }
    if not weight.is_matrix and not transfer.config.table.decays_all:
        found["decay"] = "0: norms do not decay"
    return {name: formula for name, formula in found.items() if formula}


def _product(own: Multipliers, name: str, powers: Powers, noise: str = "") -> str:
    factor = getattr(own, name)
    return " ".join(part for part in (f"x{factor:.3g}" if factor != 1 else "", str(powers), noise) if part)


def _beta(factor: float, power: str) -> str:
    return f"(1 - {factor:.3g} (1 - beta)){power}" if factor != 1 else f"beta{power}" if power else ""
