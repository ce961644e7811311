"""The hyperparameters of every weight and the formulas behind them, as shown by `triptych plan`."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from triptych.model.transformer import TaggedParam
from triptych.transfer.groups import Hyperparameters, Transfer
from triptych.transfer.per_module import Multipliers
from triptych.transfer.rules import Exponents


@dataclass(frozen=True)
class ParamReport:
    """Weights of one role with the same hyperparameters."""

    role: str
    layers: str
    """Layers of these weights: "all" or "0-3"; empty outside the blocks."""
    count: int
    """Number of elements."""
    values: Hyperparameters
    formulas: dict[str, str]
    """Factors of each hyperparameter, as a formula; no entry if it is the base value."""

    @property
    def as_json(self) -> dict:
        return {
            "role": self.role,
            "layers": self.layers,
            "count": self.count,
            **asdict(self.values),
            "made_by": self.formulas,
        }


def explain(transfer: Transfer, weights: Iterable[TaggedParam]) -> list[ParamReport]:
    """One report per role and set of values, in the order of the model."""
    members: dict[tuple[str, Hyperparameters], list[TaggedParam]] = {}
    tagged = list(weights)
    transfer.config.table.check_roles({weight.role for weight in tagged})
    for weight in tagged:
        members.setdefault((weight.role, transfer.hyperparameters(weight)), []).append(weight)
    return [
        ParamReport(
            role,
            _layers(group, transfer.shape.num_layers),
            sum(weight.parameter.numel() for weight in group),
            values,
            _formulas(transfer, group[0]),
        )
        for (role, values), group in members.items()
    ]


def _layers(weights: list[TaggedParam], num_layers: int) -> str:
    layers = sorted(weight.layer for weight in weights if weight.layer is not None)
    if not layers:
        return ""
    if len(layers) == num_layers:
        return "all"
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"


def _formulas(transfer: Transfer, weight: TaggedParam) -> dict[str, str]:
    row = transfer.row(weight.role)
    own = transfer.config.table.at(weight.role, weight.layer, transfer.shape.num_layers)
    root = "sqrt(kappa)" if transfer.sde is not None else ""
    power = "^kappa" if transfer.sde is not None else ""
    formulas = {
        "init": _product(own, "init", row.init),
        "lr": _product(own, "lr", row.lr, root),
        "beta1": _beta(own.alpha1, power),
        "beta2": _beta(own.alpha2, power),
        "eps": _product(own, "eps", row.eps, f"/ {root}" if root else ""),
        "decay": _product(own, "decay", row.decay, root if transfer.config.scales_decay else ""),
    }
    if not weight.is_matrix and not transfer.config.table.decays_all:
        formulas["decay"] = "0: norms do not decay"
    return {name: formula for name, formula in formulas.items() if formula}


def _product(own: Multipliers, name: str, exponents: Exponents, kappa_factor: str = "") -> str:
    factor = getattr(own, name)
    return " ".join(part for part in (f"x{factor:.3g}" if factor != 1 else "", str(exponents), kappa_factor) if part)


def _beta(factor: float, power: str) -> str:
    return f"(1 - {factor:.3g} (1 - beta)){power}" if factor != 1 else f"beta{power}" if power else ""
