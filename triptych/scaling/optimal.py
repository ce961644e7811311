"""Compute-optimal model size and number of tokens for a budget.

A budget of C FLOPs trains a model of N parameters on D = C / F(N) tokens, where F(N) is the training FLOPs per token.
`line_search` minimises any law along that curve. `Frontier` solves the condition of the minimum: the compute-optimal
number of tokens of a model is

    D*(N) = K N^p (F'(N) N / F(N))^q        joint      K = b B / (a A)             p = a / b    q = 1
                                            additive   K = (b B / (a A))^(1/b)     p = a / b    q = 1 / b

With F = 6 N this gives the closed form N* = (C / 6)^tau / G, D* = G (C / 6)^(1 - tau), tau = 1 / (1 + p), G = K^tau.
(The paper prints G = b B / (a A) without the exponent tau. That is K, and makes D*(C) wrong by orders of magnitude.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, minimize_scalar, nnls

from triptych.errors import UserError
from triptych.scaling.law import Floats, Law
from triptych.scaling.runs import Runs

_LOG_SIZES = np.linspace(np.log(1e2), np.log(1e16), 1401)


@dataclass(frozen=True)
class FlopsPerToken:
    """F(N) of models with a fixed aspect ratio, whose width and depth grow as N^(1/3).

    Matrices cost in proportion to N, attention to width x depth, the unembedding to the width.
    """

    matrices: float = 6.0
    attention: float = 0.0
    unembedding: float = 0.0

    def __call__(self, size: ArrayLike) -> Floats:
        n = np.asarray(size, float)
        return self.matrices * n + self.attention * n ** (2 / 3) + self.unembedding * n ** (1 / 3)

    def elasticity(self, size: ArrayLike) -> Floats:
        """F'(N) N / F(N): 1 for 6 N, less where part of the cost grows slower than N."""
        n = np.asarray(size, float)
        parts = self.matrices * n + 2 / 3 * self.attention * n ** (2 / 3) + 1 / 3 * self.unembedding * n ** (1 / 3)
        return parts / self(n)

    @classmethod
    def fit_to(cls, sizes: ArrayLike, flops: ArrayLike) -> "FlopsPerToken":
        """Fitted to exact counts: non-negative least squares of the relative errors."""
        n, f = np.asarray(sizes, float), np.asarray(flops, float)
        if len(np.unique(n)) < 3:  # too few sizes for three coefficients
            return cls(matrices=float(np.mean(f / n)))
        parts = np.stack([n, n ** (2 / 3), n ** (1 / 3)], 1) / f[:, None]
        scale = parts.max(0)
        return cls(*(float(value) for value in nnls(parts / scale, np.ones_like(n))[0] / scale))

    @classmethod
    def from_runs(cls, runs: Runs) -> "FlopsPerToken":
        """Fitted to the FLOPs of these runs; 6 N if the table has none."""
        sizes, tokens = runs.columns
        return SIX_N if runs.flops is None else cls.fit_to(sizes, runs.flops / tokens)

    @property
    def as_json(self) -> dict[str, float]:
        return {"matrices": self.matrices, "attention": self.attention, "unembedding": self.unembedding}


SIX_N = FlopsPerToken()


@dataclass(frozen=True)
class Optimum:
    flops: float
    N: float
    D: float

    @property
    def tokens_per_parameter(self) -> float:
        return self.D / self.N


def line_search(law: Law, budget: float, per_token: Callable[[ArrayLike], Floats] = SIX_N) -> Optimum | None:
    """Minimum of the loss along the curve of a budget; None if the loss is monotonic in N from 1e2 to 1e16."""
    _check_budget(budget)

    def excess(log_n: ArrayLike) -> Floats:
        n = np.exp(log_n)
        return np.log(law.excess(n, budget / per_token(n)))

    best = int(np.argmin(excess(_LOG_SIZES)))
    if best in (0, len(_LOG_SIZES) - 1):
        return None
    minimum = minimize_scalar(
        lambda log_n: float(excess(log_n)), bounds=_LOG_SIZES[[best - 1, best + 1]], options={"xatol": 1e-9}
    )
    size = float(np.exp(minimum.x))
    return Optimum(budget, size, float(budget / per_token(size)))


@dataclass(frozen=True)
class Frontier:
    """The compute-optimal pairs (N, D), as in the module docstring. N and D are plain counts."""

    K: float
    p: float
    q: float = 1.0

    @classmethod
    def from_law(cls, law: Law) -> "Frontier":
        p, q, _ = law.shape
        log = (np.log(q * law.B) - np.log(p * law.A)) / q + (1 - p / q) * np.log(law.form.unit)
        with np.errstate(over="ignore"):
            return cls(float(np.exp(log)), p / q, 1 / q)

    @property
    def tau(self) -> float:
        """N* grows as C^tau if F = 6 N."""
        return 1 / (1 + self.p)

    def tokens(self, size: ArrayLike, per_token: FlopsPerToken = SIX_N) -> Floats:
        """D*(N)."""
        n = np.asarray(size, float)
        with np.errstate(over="ignore", invalid="ignore"):  # laws whose coefficients are undetermined
            return self.K * n**self.p * per_token.elasticity(n) ** self.q

    def optimum(self, budget: float, per_token: FlopsPerToken = SIX_N) -> Optimum | None:
        """The compute-optimal model of a budget; None if its size is outside 1e2 to 1e16."""
        _check_budget(budget)

        def gap(log_n: float) -> float:
            n = np.exp(log_n)
            return float(np.log(per_token(n) * self.tokens(n, per_token) / budget))

        low, high = _LOG_SIZES[[0, -1]]
        if not gap(low) < 0 < gap(high):
            return None
        size = float(np.exp(brentq(gap, low, high, xtol=1e-12)))
        return Optimum(budget, size, float(budget / per_token(size)))


def _check_budget(budget: float) -> None:
    if not 0 < budget < float("inf"):
        raise UserError(f"a budget must be a positive number of FLOPs, got {budget!r}.")
