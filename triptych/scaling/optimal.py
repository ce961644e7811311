"""The best size and number of tokens for a budget of compute.

A budget C buys D = C / F(N) tokens of a model whose training takes F(N) FLOPs a token. `line_search` minimises a law
along that curve and knows nothing of its form. `Frontier` is what the condition of the minimum comes to: the tokens
that suit a model,

    D*(N) = K N^p (F'(N) N / F(N))^q        joint      K = b B / (a A)             p = a / b    q = 1
                                            additive   K = (b B / (a A))^(1/b)     p = a / b    q = 1 / b

With F = 6 N it is the closed form N* = (C / 6)^tau / G, D* = G (C / 6)^(1 - tau) with tau = 1 / (1 + p) and G = K^tau.
(The paper prints G = b B / (a A), without the exponent: that is the K of D*(N), and misses D*(C) by orders of
magnitude.)
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
    """F(N) of models of one aspect, whose width and depth grow as N^(1/3): matrices as N, attention as width times
    depth, the unembedding as the width."""

    matrices: float = 6.0
    attention: float = 0.0
    unembedding: float = 0.0

    def __call__(self, size: ArrayLike) -> Floats:
        n = np.asarray(size, float)
        return self.matrices * n + self.attention * n ** (2 / 3) + self.unembedding * n ** (1 / 3)

    def elasticity(self, size: ArrayLike) -> Floats:
        """F'(N) N / F(N): 1 for 6 N, less where much does not grow with N."""
        n = np.asarray(size, float)
        parts = self.matrices * n + 2 / 3 * self.attention * n ** (2 / 3) + 1 / 3 * self.unembedding * n ** (1 / 3)
        return parts / self(n)

    @classmethod
    def through(cls, sizes: ArrayLike, flops: ArrayLike) -> "FlopsPerToken":
        """The closest to counted ones, in shares of them."""
        n, f = np.asarray(sizes, float), np.asarray(flops, float)
        if len(np.unique(n)) < 3:  # one or two sizes do not tell three parts apart
            return cls(matrices=float(np.mean(f / n)))
        parts = np.stack([n, n ** (2 / 3), n ** (1 / 3)], 1) / f[:, None]
        scale = parts.max(0)
        return cls(*(float(value) for value in nnls(parts / scale, np.ones_like(n))[0] / scale))

    @classmethod
    def of(cls, runs: Runs) -> "FlopsPerToken":
        """As the FLOPs of these runs were counted; 6 N if they were not."""
        sizes, tokens = runs.columns
        return SIX_N if runs.flops is None else cls.through(sizes, runs.flops / tokens)

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
    """The least loss along the curve of a budget; None if the law falls, or rises, with N as far as anyone would go."""
    _check_budget(budget)

    def excess(log_n: ArrayLike) -> Floats:
        n = np.exp(log_n)
        return np.log(law.excess(n, budget / per_token(n)))

    best = int(np.argmin(excess(_LOG_SIZES)))
    if best in (0, len(_LOG_SIZES) - 1):
        return None
    found = minimize_scalar(
        lambda log_n: float(excess(log_n)), bounds=_LOG_SIZES[[best - 1, best + 1]], options={"xatol": 1e-9}
    )
    size = float(np.exp(found.x))
    return Optimum(budget, size, float(budget / per_token(size)))


@dataclass(frozen=True)
class Frontier:
    """Models and tokens that suit each other: see the head of this file. N and D are counted one by one."""

    K: float
    p: float
    q: float = 1.0

    @classmethod
    def of(cls, law: Law) -> "Frontier":
        p, q, _ = law.shape
        log = (np.log(q * law.B) - np.log(p * law.A)) / q + (1 - p / q) * np.log(law.form.unit)
        with np.errstate(over="ignore"):
            return cls(float(np.exp(log)), p / q, 1 / q)

    @property
    def tau(self) -> float:
        """N* grows as C^tau where F = 6 N."""
        return 1 / (1 + self.p)

    def tokens(self, size: ArrayLike, per_token: FlopsPerToken = SIX_N) -> Floats:
        """D*(N)."""
        n = np.asarray(size, float)
        with np.errstate(over="ignore", invalid="ignore"):  # of a law that no runs decide
            return self.K * n**self.p * per_token.elasticity(n) ** self.q

    def closed_form(self, budget: float) -> Optimum:
        """Where training takes 6 N FLOPs a token."""
        _check_budget(budget)
        G = self.K**self.tau
        return Optimum(budget, (budget / 6) ** self.tau / G, G * (budget / 6) ** (1 - self.tau))

    def optimum(self, budget: float, per_token: FlopsPerToken = SIX_N) -> Optimum | None:
        """None if the best size is beyond all that anyone would train."""
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
        raise UserError(f"a budget is a positive number of FLOPs, got {budget!r}.")
