"""The drift-horizon trade-off: with more tokens, how much should the batch grow and how much the number of steps?

A run whose hyperparameters are scaled to its batch behaves like one with a virtual batch Bv and a virtual number of
steps S, whose product is the number of sequences (see `triptych.transfer.sde`). The paper's law of the final loss is

    L = E + A S^-alpha + B Bv^-beta

For a fixed number of sequences, S Bv, its minimum is at

    Bv = sequences^gamma / G        S = G sequences^(1 - gamma)
    gamma = alpha / (alpha + beta)        G = (alpha A / (beta B))^(1 / (alpha + beta))

`fit_drift_horizon` fits the law (triptych.scaling.fit). `direct_gamma` does not assume the law: it takes the best
virtual batch of each number of tokens from the losses.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from triptych.errors import UserError
from triptych.scaling.critical_batch import checked_columns
from triptych.scaling.fit import HUBER, Fit, fit
from triptych.scaling.groups import group_close
from triptych.scaling.law import NOISE, Law
from triptych.scaling.parabola import parabola_minimum
from triptych.scaling.runs import runs_from_columns

_MIN_INFLUENCE = 3.0  # in units of the scatter of the points; a smaller influence may be noise
_ROUNDING = 0.05  # steps are whole numbers: values whose logs differ by less count as equal
_LEVEL = 0.95


@dataclass(frozen=True)
class DriftHorizon:
    """The fitted law; its coefficients a and b are alpha and beta."""

    fit: Fit

    @property
    def gamma(self) -> float:
        return _gamma(self.fit.law)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of gamma, computed on its odds because gamma lies between 0 and 1."""
        low, high = self.fit.interval(_odds, _LEVEL)
        return low / (1 + low), high / (1 + high)

    @property
    def G(self) -> float:
        law = self.fit.law
        return float((law.a * law.A / (law.b * law.B)) ** (1 / (law.a + law.b)))

    @property
    def is_identified(self) -> bool:
        """Whether steps and batch each change the loss by more than noise, and both exponents are within bounds."""
        law, (steps, batch) = self.fit.law, self.fit.runs.columns
        influence = min(np.ptp(law.A * steps**-law.a), np.ptp(law.B * batch**-law.b)) / self.fit.runs.loss.mean()
        is_inside = not {"a", "b"} & set(self.fit.at_bound)
        return bool(is_inside and influence > max(_MIN_INFLUENCE * self.fit.scatter, 1e-6))

    def best_batch(self, tokens_in_sequences: float) -> float:
        """The virtual batch with the lowest loss for this number of sequences, by the law."""
        if not 0 < tokens_in_sequences < float("inf"):
            raise UserError(f"tokens_in_sequences must be positive and finite, got {tokens_in_sequences!r}.")
        return tokens_in_sequences**self.gamma / self.G

    def __str__(self) -> str:
        low, high = self.interval
        text = f"{self.gamma:.3f} ({low:.3f} to {high:.3f})"
        return text if self.is_identified else f"{text}, not identified by the sweep"


def _gamma(law: Law) -> float:
    return law.a / (law.a + law.b)


def _odds(law: Law) -> float:
    return law.a / law.b


@dataclass(frozen=True)
class BestBatch:
    """The best virtual batch for one number of tokens."""

    tokens_in_sequences: float
    virtual_batch: float
    loss: float
    is_on_edge: bool
    """Whether the best batch is the smallest or the largest tried; then the true minimum may lie beyond the sweep."""


@dataclass(frozen=True)
class DirectGamma:
    gamma: float
    """Slope of log best batch against log tokens over the optima inside the sweep; NaN if there are fewer than two."""
    optima: tuple[BestBatch, ...]

    @property
    def num_on_edge(self) -> int:
        """Number of optima that the slope leaves out."""
        return sum(optimum.is_on_edge for optimum in self.optima)


def fit_drift_horizon(
    virtual_steps: ArrayLike, virtual_batch: ArrayLike, losses: ArrayLike, rounds: int = 20, huber: float = HUBER
) -> DriftHorizon:
    runs = runs_from_columns(NOISE.columns, virtual_steps, virtual_batch, losses)
    return DriftHorizon(fit(NOISE, runs, rounds=rounds, huber=huber))


def direct_gamma(
    virtual_steps: ArrayLike, virtual_batch: ArrayLike, losses: ArrayLike, neighbours: int = 2
) -> DirectGamma:
    """gamma from the minimum of a parabola in log batch for each number of tokens. Seeds are averaged."""
    s, b, loss = checked_columns(virtual_steps=virtual_steps, virtual_batch=virtual_batch, losses=losses)
    tokens_of = s * b
    groups = group_close(tokens_of, _ROUNDING)
    if len(groups) < 2:
        raise UserError(f"gamma needs runs of at least 2 numbers of tokens, got {len(groups)}.")
    optima = []
    for group in groups:
        tokens = float(np.exp(np.log(tokens_of[group]).mean()))
        seeds = [group[same] for same in group_close(b[group], _ROUNDING)]
        if len(seeds) < 3:
            raise UserError(f"a parabola needs at least 3 virtual batches, got {len(seeds)} at {tokens:.4g} sequences.")
        batches = np.array([np.exp(np.log(b[each]).mean()) for each in seeds])
        minimum = parabola_minimum(batches, np.array([loss[each].mean() for each in seeds]), neighbours)
        optima.append(BestBatch(tokens, minimum.at, minimum.loss, minimum.is_on_edge))
    inside = [each for each in optima if not each.is_on_edge]
    if len(inside) < 2:
        return DirectGamma(float("nan"), tuple(optima))
    x, y = np.log([[each.tokens_in_sequences, each.virtual_batch] for each in inside]).T
    return DirectGamma(float(np.polyfit(x, y, 1)[0]), tuple(optima))


def direct_interval(
    virtual_steps: ArrayLike,
    virtual_batch: ArrayLike,
    losses: ArrayLike,
    neighbours: int = 2,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % interval of `direct_gamma`, by a parametric bootstrap with the noise between seeds.

    Each resample adds noise with the standard error of its mean to every mean loss. The noise is pooled over the runs
    with several seeds and applied to all runs.
    """
    s, b, loss = checked_columns(virtual_steps=virtual_steps, virtual_batch=virtual_batch, losses=losses)
    same_runs = [group[same] for group in group_close(s * b, _ROUNDING) for same in group_close(b[group], _ROUNDING)]
    several = [group for group in same_runs if len(group) > 1]
    if not several:
        raise UserError("an interval of gamma needs runs that differ only in their seed; add --seeds 2.")
    squares = sum(float(np.square(np.log(loss[group]) - np.log(loss[group]).mean()).sum()) for group in several)
    noise = np.sqrt(squares / sum(len(group) - 1 for group in several))
    steps, batch, mean = (np.array([each[group].mean() for group in same_runs]) for each in (s, b, loss))
    width = noise / np.sqrt([len(group) for group in same_runs])
    rng = np.random.default_rng(seed)
    gammas = [
        direct_gamma(steps, batch, mean * np.exp(width * rng.standard_normal(len(same_runs))), neighbours).gamma
        for _ in range(resamples)
    ]
    low, high = np.nanquantile(gammas, (0.025, 0.975))
    return float(low), float(high)
