"""Scaling laws of the final loss, with their gradients.

    joint      L = E + (A N^(-a/b) + B / D)^b            N parameters without embeddings, D tokens
    additive   L = E + A N^-a + B D^-b                   Chinchilla's third approach
    noise      L = E + A S^-a + B Bv^-b                  S virtual steps, Bv the virtual batch (triptych.transfer.sde)

The paper uses the joint law. Let X = (A N^(-a/b))^b be the excess loss with unlimited data and Y = (B / D)^b the excess
loss of an unlimited model. Then the joint law is E + (X^(1/b) + Y^(1/b))^b and the additive law is E + X + Y. All laws
are fitted in the same parameters

    theta = (log E, log X, log Y, log a, log b)          X and Y at the mean of log N and log D

They have the scale of losses whatever the units of N and D are, and are only weakly correlated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triptych.errors import UserError, did_you_mean

Floats = NDArray[np.float64]
Theta = Floats
BILLION = 1e9
SMALLEST_EXPONENT, LARGEST_EXPONENT = 0.01, 3.0


@dataclass(frozen=True)
class Form:
    """The functional form of a law, without coefficients."""

    name: str
    columns: tuple[str, str]
    """The two quantities that the loss depends on."""
    unit: float
    """Unit of both columns in printed coefficients."""
    formula: str
    excess: Callable[[Theta, Floats, Floats], tuple[Floats, Floats]]
    """log (L - E) at centred logs of the columns, and its derivatives with respect to log X, log Y, log a, log b."""
    is_joint: bool = False

    def shape(self, a: float, b: float) -> tuple[float, float, float]:
        """p, q and r of L = E + (A N^-p + B D^-q)^r, which covers all forms."""
        return (a / b, 1.0, b) if self.is_joint else (a, b, 1.0)

    def log_loss(self, theta: Theta, x: Floats, z: Floats) -> tuple[Floats, Floats]:
        """log L of each run, and its derivatives with respect to theta, one row per parameter."""
        excess, slopes = self.excess(theta, x, z)
        value = np.logaddexp(theta[0], excess)
        share = np.exp(excess - value)
        return value, np.concatenate([(1 - share)[None], share * slopes])


def _joint(theta: Theta, x: Floats, z: Floats) -> tuple[Floats, Floats]:
    _, log_x, log_y, log_a, log_b = theta
    a, b = np.exp(log_a), np.exp(log_b)
    first, second = (log_x - a * x) / b, log_y / b - z
    inner = np.logaddexp(first, second)
    of_first = np.exp(first - inner)
    of_second = 1 - of_first
    by_b = b * (inner - of_first * first - of_second * (log_y / b))
    return b * inner, np.stack([of_first, of_second, -of_first * a * x, by_b])


def _additive(theta: Theta, x: Floats, z: Floats) -> tuple[Floats, Floats]:
    _, log_x, log_y, log_a, log_b = theta
    a, b = np.exp(log_a), np.exp(log_b)
    first, second = log_x - a * x, log_y - b * z
    total = np.logaddexp(first, second)
    of_first, of_second = np.exp(first - total), np.exp(second - total)
    return total, np.stack([of_first, of_second, -of_first * a * x, -of_second * b * z])


JOINT = Form("joint", ("N", "D"), BILLION, "E + (A N^(-a/b) + B/D)^b", _joint, is_joint=True)
ADDITIVE = Form("additive", ("N", "D"), BILLION, "E + A N^-a + B D^-b", _additive)
NOISE = Form("noise", ("S", "Bv"), 1.0, "E + A S^-a + B Bv^-b", _additive)
FORMS = {form.name: form for form in (JOINT, ADDITIVE, NOISE)}


def _exp(log: float) -> float:
    """exp, clipped to stay positive and finite: A and B overflow where the joint law's b is close to 0."""
    return float(np.exp(np.clip(log, -700, 700)))


def find_form(name: str) -> Form:
    if name not in FORMS:
        raise UserError(f"unknown law {name!r}.{did_you_mean(name, list(FORMS))}")
    return FORMS[name]


@dataclass(frozen=True)
class Law:
    """A form with coefficients. A and B apply to columns counted in `form.unit`."""

    form: Form
    E: float
    A: float
    B: float
    a: float
    b: float

    @classmethod
    def from_theta(cls, form: Form, theta: Theta, means: tuple[float, float]) -> "Law":
        """From fitted parameters; `means` are the means of the logs of the columns, where X and Y are defined."""
        log_e, log_x, log_y, log_a, log_b = (float(value) for value in theta)
        a, b = float(np.exp(log_a)), float(np.exp(log_b))
        x, z = (mean - np.log(form.unit) for mean in means)
        power = form.shape(a, b)[2]
        return cls(
            form,
            E=float(np.exp(log_e)),
            A=_exp((log_x + a * x) / power),
            B=_exp((log_y + b * z) / power),
            a=a,
            b=b,
        )

    @classmethod
    def from_raw(cls, form: Form, *, E: float, A: float, B: float, a: float, b: float) -> "Law":
        """From A and B for columns that are plain counts, as papers print them."""
        p, q, _ = form.shape(a, b)
        return cls(form, E, A * form.unit**-p, B * form.unit**-q, a, b)

    @property
    def shape(self) -> tuple[float, float, float]:
        return self.form.shape(self.a, self.b)

    def loss(self, first: ArrayLike, second: ArrayLike) -> Floats:
        """Predicted loss of runs with these columns, as plain counts."""
        return self.E + self.excess(first, second)

    def excess(self, first: ArrayLike, second: ArrayLike) -> Floats:
        """L - E."""
        log_n, log_d = (np.log(np.asarray(column, float) / self.form.unit) for column in (first, second))
        p, q, r = self.shape  # computed in logs, because p can be in the hundreds
        return np.exp(r * np.logaddexp(np.log(self.A) - p * log_n, np.log(self.B) - q * log_d))

    @property
    def raw_coefficients(self) -> tuple[float, float]:
        """A and B for columns that are plain counts."""
        p, q, _ = self.shape
        return self.A * self.form.unit**p, self.B * self.form.unit**q

    @property
    def coefficients(self) -> dict[str, float]:
        values = {"E": self.E, "A": self.A, "B": self.B, "a": self.a, "b": self.b}
        return values | {"a/b": self.a / self.b} if self.form.is_joint else values

    @property
    def as_json(self) -> dict[str, object]:
        return {"form": self.form.name, "unit": self.form.unit, **self.coefficients}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> "Law":
        try:
            form = find_form(str(content["form"]))
            values = {name: float(content[name]) for name in ("E", "A", "B", "a", "b")}  # type: ignore[arg-type]
            unit = float(content["unit"])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"expected a law as `triptych fit --save` writes it, but this field is missing or wrong: {error}."
            ) from error
        if unit != form.unit or not all(0 < value < float("inf") for value in values.values()):
            raise UserError(f"expected positive coefficients for a unit of {form.unit:g}, got {dict(content)}.")
        return cls(form, **values)

    def __str__(self) -> str:
        (first, second), (p, q, r) = self.form.columns, self.shape
        inner = f"{self.A:.4g} {first}^-{p:.4g} + {self.B:.4g} {second}^-{q:.4g}"
        return f"{self.E:.4g} + " + (inner if r == 1 else f"({inner})^{r:.4g}")
