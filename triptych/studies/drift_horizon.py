"""Drift against horizon: of more tokens, how many go into less noise, and how many into a longer run?

A run with hyperparameters that follow its batch is like one with a virtual batch and a virtual number of steps, whose
product is the number of sequences (see `triptych.transfer.sde`). The paper's law of its final loss,

    L = E + A S^-alpha + B Bv^-beta

is least, when S Bv = sequences, at

    Bv = sequences^gamma / G        S = G sequences^(1 - gamma)
    gamma = alpha / (alpha + beta)        G = (alpha A / (beta B))^(1 / (alpha + beta))

`fit_drift_horizon` fits the law. `direct_gamma` does without it: it reads the best virtual batch of each number of
tokens from the losses alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from triptych.errors import UserError
from triptych.studies.critical_batch import Floats, checked_columns, fit_robustly, interval, resampled

HUBER_LOG = 1e-3  # residuals beyond a thousandth of the loss count linearly, as in fits of scaling laws
_EXPONENTS = np.geomspace(0.01, 3, 8)
_CHANGE = 3.0  # times the scatter of the points, the least influence that is believed to be one
_ROUNDING = 0.05  # steps are whole numbers: what differs by less in log is one number of tokens, or one batch


@dataclass(frozen=True)
class DriftHorizonFit:
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    scatter: float
    """Standard deviation of log L around the law."""
    is_identified: bool
    """Whether steps and batch each change the loss by more than chance, and both exponents lie inside their bounds."""

    @property
    def gamma(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    @property
    def G(self) -> float:
        log = np.log(self.alpha) + np.log(self.A) - np.log(self.beta) - np.log(self.B)
        return float(np.exp(log / (self.alpha + self.beta)))

    def loss(self, virtual_steps: ArrayLike, virtual_batch: ArrayLike) -> Floats:
        s, b = np.asarray(virtual_steps, float), np.asarray(virtual_batch, float)
        return self.E + self.A * s**-self.alpha + self.B * b**-self.beta

    def best_batch(self, tokens_in_sequences: float) -> float:
        """The virtual batch at which the law is least for this many sequences."""
        if not 0 < tokens_in_sequences < float("inf"):
            raise UserError(f"tokens_in_sequences must be positive and finite, got {tokens_in_sequences!r}.")
        return tokens_in_sequences**self.gamma / self.G

    def best_steps(self, tokens_in_sequences: float) -> float:
        return tokens_in_sequences / self.best_batch(tokens_in_sequences)


@dataclass(frozen=True)
class GammaInterval:
    """gamma of the fitted law with its 95 % interval."""

    value: float
    low: float
    high: float
    is_identified: bool
    """Of the fit to all points. If not, even the interval says little."""
    resamples: int
    """Those the interval rests on."""
    left_out: int
    """Resamples that could not be fitted."""

    def __str__(self) -> str:
        text = f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"
        return text if self.is_identified else f"{text}, not identified by the sweep"


@dataclass(frozen=True)
class Optimum:
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
    optima: tuple[Optimum, ...]

    @property
    def num_on_edge(self) -> int:
        """Optima the slope does without."""
        return sum(optimum.is_on_edge for optimum in self.optima)


def fit_drift_horizon(
    virtual_steps: ArrayLike, virtual_batch: ArrayLike, losses: ArrayLike, huber: float = HUBER_LOG
) -> DriftHorizonFit:
    """Fit the law to final losses, on log L.

    Residuals are then shares of the loss, so that one Huber threshold fits a loss of any size, and the terms, added up
    from their logarithms, stay positive. Over the range of one sweep a fit of L itself would hardly differ.
    """
    s, b, loss = checked_columns(virtual_steps=virtual_steps, virtual_batch=virtual_batch, losses=losses)
    return _fit(s, b, loss, huber, num_starts=4)


def bootstrap_gamma(
    virtual_steps: ArrayLike,
    virtual_batch: ArrayLike,
    losses: ArrayLike,
    resamples: int = 500,
    seed: int = 0,
    huber: float = HUBER_LOG,
) -> GammaInterval:
    """gamma with an interval over resampled runs; resamples without enough different runs are left out."""
    s, b, loss = checked_columns(virtual_steps=virtual_steps, virtual_batch=virtual_batch, losses=losses)
    fit = _fit(s, b, loss, huber, num_starts=4)

    def estimate(picks: NDArray[np.int64]) -> float:
        return _fit(s[picks], b[picks], loss[picks], huber, num_starts=1).gamma

    found, left_out = resampled(estimate, len(s), resamples, seed)
    low, high = interval(fit.gamma, found, len(s), 5)
    return GammaInterval(fit.gamma, max(low, 0.0), min(high, 1.0), fit.is_identified, len(found), left_out)


def direct_gamma(
    virtual_steps: ArrayLike, virtual_batch: ArrayLike, losses: ArrayLike, neighbours: int = 2
) -> DirectGamma:
    """For each number of tokens the bottom of a parabola in log batch, and how it moves with the tokens.

    Seeds are averaged. The parabola goes through the best batch and its neighbours on either side: further away the
    true curve is no parabola, and would pull the bottom towards its flatter side.
    """
    if neighbours < 1:
        raise UserError(f"neighbours must be at least 1, got {neighbours!r}.")
    s, b, loss = checked_columns(virtual_steps=virtual_steps, virtual_batch=virtual_batch, losses=losses)
    log_tokens, log_batch = np.log(s) + np.log(b), np.log(b)
    groups = _alike(log_tokens)
    if len(groups) < 2:
        raise UserError(f"gamma needs runs of at least 2 numbers of tokens, got {len(groups)}.")
    optima = []
    for group in groups:
        tokens = float(np.exp(log_tokens[group].mean()))
        seeds = [group[alike] for alike in _alike(log_batch[group])]
        if len(seeds) < 3:
            raise UserError(f"A parabola needs at least 3 virtual batches, got {len(seeds)} at {tokens:.4g} sequences.")
        curve = np.array([[log_batch[each].mean(), loss[each].mean()] for each in seeds])
        optima.append(_optimum(tokens, curve, neighbours))
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
    cells = [group[alike] for group in _alike(np.log(s) + np.log(b)) for alike in _alike(np.log(b[group]))]
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


def _optimum(tokens: float, curve: Floats, neighbours: int) -> Optimum:
    """Of a curve of (log batch, loss), by batch."""
    best = int(curve[:, 1].argmin())
    if best in (0, len(curve) - 1):
        return Optimum(tokens, float(np.exp(curve[best, 0])), float(curve[best, 1]), is_on_edge=True)
    x, y = curve[max(0, best - neighbours) : best + neighbours + 1].T
    origin = x.mean()
    square, slope, height = np.polyfit(x - origin, y, 2)
    bottom = origin - slope / (2 * square) if square > 0 else np.inf
    if not x[0] < bottom < x[-1]:  # noise bent it; through three points, the lowest in the middle, it cannot
        return _optimum(tokens, curve, neighbours=1)
    return Optimum(tokens, float(np.exp(bottom)), float(height - slope**2 / (4 * square)), is_on_edge=False)


def _alike(logs: Floats) -> list[NDArray[np.int64]]:
    """Positions of values that are the same but for rounding, from the least value on."""
    order = np.argsort(logs, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(logs[order]) > _ROUNDING) + 1))


def _fit(s: Floats, b: Floats, loss: Floats, huber: float, num_starts: int) -> DriftHorizonFit:
    _check_design(s, b)
    log_loss = np.log(loss)
    mean_s, mean_b = np.log(s).mean(), np.log(b).mean()
    x, z = np.log(s) - mean_s, np.log(b) - mean_b  # centred: the terms then hardly depend on their exponents

    def terms(parameters: Floats) -> Floats:
        log_e, log_a, log_b, log_alpha, log_beta = parameters
        return np.stack([np.full_like(x, log_e), log_a - np.exp(log_alpha) * x, log_b - np.exp(log_beta) * z])

    def residuals(parameters: Floats) -> Floats:
        return np.logaddexp.reduce(terms(parameters)) - log_loss

    def jacobian(parameters: Floats) -> Floats:
        logs = terms(parameters)
        of_e, of_a, of_b = np.exp(logs - np.logaddexp.reduce(logs))
        alpha, beta = np.exp(parameters[3:])
        return np.stack([of_e, of_a, of_b, -of_a * alpha * x, -of_b * beta * z], 1)

    exponents = np.log(_EXPONENTS[[0, -1]])
    low = np.array([log_loss.min() - 10, log_loss.min() - 15, log_loss.min() - 15, exponents[0], exponents[0]])
    high = np.array([log_loss.max(), log_loss.max() + 5, log_loss.max() + 5, exponents[1], exponents[1]])
    found = np.array(fit_robustly(residuals, jacobian, _starts(x, z, loss), (low, high), huber, num_starts))
    scatter = float(np.sqrt(np.sum(residuals(found) ** 2) / max(1, len(x) - 5)))
    _, of_steps, of_batch = np.exp(terms(found))
    influence = min(np.ptp(of_steps), np.ptp(of_batch)) / loss.mean()
    is_inside = np.all(np.abs(found[3:, None] - exponents) > 0.01)
    alpha, beta = (float(each) for each in np.exp(found[3:]))
    return DriftHorizonFit(
        E=float(np.exp(found[0])),
        A=float(np.exp(found[1] + alpha * mean_s)),
        B=float(np.exp(found[2] + beta * mean_b)),
        alpha=alpha,
        beta=beta,
        scatter=scatter,
        is_identified=bool(is_inside and influence > max(_CHANGE * scatter, 1e-6)),
    )


def _check_design(s: Floats, b: Floats) -> None:
    """Five coefficients need runs that differ enough, whatever their losses are."""
    counts = {
        "runs": len(np.unique(np.stack([s, b], 1), axis=0)),
        "numbers of virtual steps": len(np.unique(s)),
        "virtual batches": len(np.unique(b)),
    }
    for (name, count), least in zip(counts.items(), (5, 3, 3)):
        if count < least:
            raise UserError(f"The law needs at least {least} different {name}, got {count}.")
    if abs(np.corrcoef(np.log(s), np.log(b))[0, 1]) > 0.999:
        raise UserError(
            "Virtual steps and virtual batches lie on one line (as with a single number of tokens), so their "
            "influences cannot be told apart; expected several virtual batches at each of several numbers of tokens."
        )


def _starts(x: Floats, z: Floats, loss: Floats) -> list[list[float]]:
    """For each pair of exponents the best rest: the law is linear in E, A and B."""
    starts = []
    for alpha in _EXPONENTS:
        for beta in _EXPONENTS:
            terms = np.stack([np.ones_like(x), np.exp(-alpha * x), np.exp(-beta * z)], 1)
            sizes = np.maximum(nnls(terms / loss[:, None], np.ones_like(x))[0], 1e-3 * loss.min())
            starts.append([*np.log(sizes), np.log(alpha), np.log(beta)])
    return starts
