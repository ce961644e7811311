"""Drift against horizon: of more tokens, how many go into less noise, and how many into a longer run?

A run with hyperparameters that follow its batch is like one with a virtual batch and a virtual number of steps, whose
product is the number of sequences (see `triptych.transfer.sde`). The paper's law of its final loss,

    L = E + A S^-alpha + B Bv^-beta

is least, when S Bv = sequences, at

    Bv = sequences^gamma / G        S = G sequences^(1 - gamma)
    gamma = alpha / (alpha + beta)        G = (alpha A / (beta B))^(1 / (alpha + beta))

`fit_drift_horizon` fits the law (triptych.scaling.fit). `direct_gamma` does without it: it reads the best virtual batch
of each number of tokens from the losses alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from triptych.errors import UserError
from triptych.scaling.critical_batch import checked_columns
from triptych.scaling.fit import HUBER, Fit, fit
from triptych.scaling.groups import alike
from triptych.scaling.law import NOISE, Law
from triptych.scaling.parabola import bottom
from triptych.scaling.runs import runs_of

_CHANGE = 3.0  # times the scatter of the points, the least influence that is believed to be one
_ROUNDING = 0.05  # steps are whole numbers: what differs by less in log is one number of tokens, or one batch
_LEVEL = 0.95


@dataclass(frozen=True)
class DriftHorizon:
    """The law, fitted, with alpha and beta for its exponents."""

    fit: Fit

    @property
    def gamma(self) -> float:
        return _gamma(self.fit.law)

    @property
    def interval(self) -> tuple[float, float]:
        """Of gamma, 95 %: of its odds, for it lies between 0 and 1."""
        low, high = self.fit.interval(_odds, _LEVEL)
        return low / (1 + low), high / (1 + high)

    @property
    def G(self) -> float:
        law = self.fit.law
        return float((law.a * law.A / (law.b * law.B)) ** (1 / (law.a + law.b)))

    @property
    def is_identified(self) -> bool:
        """Whether steps and batch each change the loss by more than chance, and both exponents lie inside their
        bounds."""
        law, (steps, batch) = self.fit.law, self.fit.runs.columns
        influence = min(np.ptp(law.A * steps**-law.a), np.ptp(law.B * batch**-law.b)) / self.fit.runs.loss.mean()
        is_inside = not {"a", "b"} & set(self.fit.at_bound)
        return bool(is_inside and influence > max(_CHANGE * self.fit.scatter, 1e-6))

    def best_batch(self, tokens_in_sequences: float) -> float:
        """The virtual batch at which the law is least for this many sequences."""
        if not 0 < tokens_in_sequences < float("inf"):
            raise UserError(f"tokens_in_sequences must be positive and finite, got {tokens_in_sequences!r}.")
        return tokens_in_sequences**self.gamma / self.G

    def best_steps(self, tokens_in_sequences: float) -> float:
        return tokens_in_sequences / self.best_batch(tokens_in_sequences)

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
    """The best virtual batch of one number of tokens."""

    tokens_in_sequences: float
    virtual_batch: float
    loss: float
    is_on_edge: bool
    """The best batch is the smallest or the largest tried: a better one may lie beyond, and this one only bounds it."""


@dataclass(frozen=True)
class DirectGamma:
    gamma: float
    """Slope of log best batch against log tokens over the optima inside the sweep; NaN if they are fewer than two."""
    optima: tuple[BestBatch, ...]

    @property
    def num_on_edge(self) -> int:
        """Optima the slope does without."""
        return sum(optimum.is_on_edge for optimum in self.optima)


def fit_drift_horizon(
    virtual_steps: ArrayLike, virtual_batch: ArrayLike, losses: ArrayLike, rounds: int = 20, huber: float = HUBER
) -> DriftHorizon:
    runs = runs_of(NOISE.columns, virtual_steps, virtual_batch, losses)
    return DriftHorizon(fit(NOISE, runs, rounds=rounds, huber=huber))


def direct_gamma(
    virtual_steps: ArrayLike, virtual_batch: ArrayLike, losses: ArrayLike, neighbours: int = 2
) -> DirectGamma:
    """For each number of tokens the bottom of a parabola in log batch, and how it moves with the tokens.

    Seeds are averaged.
    """
    s, b, loss = checked_columns(virtual_steps=virtual_steps, virtual_batch=virtual_batch, losses=losses)
    tokens_of = s * b
    groups = alike(tokens_of, _ROUNDING)
    if len(groups) < 2:
        raise UserError(f"gamma needs runs of at least 2 numbers of tokens, got {len(groups)}.")
    optima = []
    for group in groups:
        tokens = float(np.exp(np.log(tokens_of[group]).mean()))
        seeds = [group[same] for same in alike(b[group], _ROUNDING)]
        if len(seeds) < 3:
            raise UserError(f"A parabola needs at least 3 virtual batches, got {len(seeds)} at {tokens:.4g} sequences.")
        batches = np.array([np.exp(np.log(b[each]).mean()) for each in seeds])
        found = bottom(batches, np.array([loss[each].mean() for each in seeds]), neighbours)
        optima.append(BestBatch(tokens, found.at, found.loss, found.is_on_edge))
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
    """The 95 % interval of `direct_gamma` under noise as large as that between seeds of the same run.

    What seeds leave uncertain of each mean is drawn anew; runs of one seed have the noise of those with several.
    """
    s, b, loss = checked_columns(virtual_steps=virtual_steps, virtual_batch=virtual_batch, losses=losses)
    cells = [group[same] for group in alike(s * b, _ROUNDING) for same in alike(b[group], _ROUNDING)]
    several = [cell for cell in cells if len(cell) > 1]
    if not several:
        raise UserError("An interval of gamma needs runs that differ in their seed alone; add --seeds 2.")
    squares = sum(float(np.square(np.log(loss[cell]) - np.log(loss[cell]).mean()).sum()) for cell in several)
    noise = np.sqrt(squares / sum(len(cell) - 1 for cell in several))
    steps, batch, mean = (np.array([each[cell].mean() for cell in cells]) for each in (s, b, loss))
    width = noise / np.sqrt([len(cell) for cell in cells])
    rng = np.random.default_rng(seed)
    found = [
        direct_gamma(steps, batch, mean * np.exp(width * rng.standard_normal(len(cells))), neighbours).gamma
        for _ in range(resamples)
    ]
    low, high = np.nanquantile(found, (0.025, 0.975))
    return float(low), float(high)
