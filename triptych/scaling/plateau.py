"""How the critical number of steps depends on the size of the model and on the number of tokens.

A sweep is a set of runs of one model on the same tokens, with batch sizes from small to large. All sweeps are fitted
together, each with its own plateau c (triptych.scaling.critical_batch), and with one bend q:

    loss(S) = c + log(1 + (S0 / S)^q)          S0 = s N^nu D^xi
    S_crit(N, D) = S0 delta^(-1/q)             B_crit = D / S_crit, in tokens, grows as D^(1 - xi)

N is the number of parameters without embeddings, D that of tokens, S the number of steps. One sweep determines S_crit
to a factor of two or so. The exponents are determined far better, because the sweeps share q and delta cancels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from triptych.errors import DataError, UserError
from triptych.scaling.critical_batch import (
    CEILING_NATS,
    HUBER_NATS,
    POWERS,
    PlateauFit,
    checked_columns,
    fit_robustly,
    plateau_starts,
    widened_interval,
)
from triptych.scaling.groups import group_close
from triptych.scaling.law import Floats
from triptych.scaling.runs import check_count, read_columns

RESAMPLES = 200
SAME_TOKENS = np.log1p(0.2)  # steps are whole numbers, which changes the tokens of large batches
_MIN_STEPS = 3  # different numbers of steps that a sweep needs
_MIN_RESAMPLED = 2  # of a resample: other sweeps determine the bend, too
_TRIES = 100
_MAX_EXPONENT = 5.0


def robust_std(residuals: Floats) -> float:
    """Standard deviation of normal residuals with mean 0, from the median of their sizes."""
    return float(np.median(np.abs(residuals)) / norm.ppf(0.75))


@dataclass(frozen=True)
class Sweeps:
    """Final losses of runs, in sweeps over the number of steps."""

    N: Floats
    """Of each run: parameters without embeddings."""
    D: Floats
    """Of each run: tokens. Runs of one sweep have their geometric mean."""
    steps: Floats
    loss: Floats
    """In nats per token."""
    of: NDArray[np.int64]
    """Number of the sweep of each run."""

    @classmethod
    def from_columns(cls, sizes: ArrayLike, tokens: ArrayLike, steps: ArrayLike, losses: ArrayLike) -> "Sweeps":
        n, d, s, nats = checked_columns(N=sizes, D=tokens, steps=steps, losses=losses)
        of, mean_tokens, count = np.zeros(len(n), np.int64), d.copy(), 0
        for size in np.unique(n):
            same = np.flatnonzero(n == size)
            for group in group_close(d[same], SAME_TOKENS):
                of[same[group]] = count
                mean_tokens[same[group]] = np.exp(np.log(d[same[group]]).mean())
                count += 1
        sweeps = cls(n, mean_tokens, s, nats, of)
        for sweep in sweeps:
            several = len(np.unique(sweep.steps))
            if several < _MIN_STEPS:
                raise UserError(
                    f"the runs of N = {sweep.N[0]:,.0f} on {sweep.D[0]:,.0f} tokens have {several} different numbers "
                    f"of steps, and a plateau needs {_MIN_STEPS}: add runs with other batch sizes, or leave these out."
                )
        return sweeps

    def __len__(self) -> int:
        return len(self.loss)

    def __iter__(self) -> Iterator["Sweeps"]:
        return (self.take(np.flatnonzero(self.of == number)) for number in range(self.count))

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def take(self, picks: NDArray[np.int64]) -> "Sweeps":
        return Sweeps(self.N[picks], self.D[picks], self.steps[picks], self.loss[picks], self.of[picks])

    @property
    def seed_std(self) -> float:
        """Standard deviation of the loss over runs that differ only in their seed; NaN if there are none.

        From the median, because beyond the critical batch size seeds differ by far more than below it.
        """
        gaps = []
        for sweep in self:
            for steps in np.unique(sweep.steps):
                losses = sweep.loss[sweep.steps == steps]
                if len(losses) > 1:
                    gaps.append((losses - losses.mean()) * np.sqrt(len(losses) / (len(losses) - 1)))
        return robust_std(np.concatenate(gaps)) if gaps else float("nan")

    @property
    def huber(self) -> float:
        """Threshold of the fit: the noise between seeds where it is known."""
        noise = self.seed_std
        return noise if noise > 0 else HUBER_NATS

    def resample(self, rng: np.random.Generator) -> "Sweeps":
        """As many runs of every sweep, drawn with replacement, with enough numbers of steps left."""
        picks = []
        for number in range(self.count):
            members = np.flatnonzero(self.of == number)
            for _ in range(_TRIES):
                drawn = rng.choice(members, len(members))
                if len(np.unique(self.steps[drawn])) >= _MIN_RESAMPLED:
                    break
            else:
                drawn = members
            picks.append(drawn)
        return self.take(np.concatenate(picks))


@dataclass(frozen=True)
class PlateauLaw:
    """S0 = s (N / N0)^nu (D / D0)^xi, with the plateau c of each sweep. N0 and D0 are the geometric means."""

    s: float
    nu: float
    """NaN if all sweeps have the same size."""
    xi: float
    """NaN if all sweeps have the same number of tokens."""
    q: float
    N0: float
    D0: float
    c: tuple[float, ...] = field(repr=False)

    def critical_steps(self, size: float, tokens: float, delta: float) -> float:
        """S_crit: the number of steps at which exp(loss) is a fraction delta above its plateau."""
        by_size = 0.0 if np.isnan(self.nu) else self.nu * np.log(size / self.N0)
        by_tokens = 0.0 if np.isnan(self.xi) else self.xi * np.log(tokens / self.D0)
        return float(np.exp(np.log(self.s) + by_size + by_tokens - np.log(delta) / self.q))

    def critical_tokens(self, size: float, tokens: float, delta: float) -> float:
        """B_crit: the largest batch, in tokens, that leaves enough steps."""
        return tokens / self.critical_steps(size, tokens, delta)


@dataclass(frozen=True)
class PlateauLawFit:
    law: PlateauLaw
    sweeps: Sweeps = field(repr=False)
    scatter: float
    """Standard deviation of the losses around the law, in nats, from the median."""
    laws: tuple[PlateauLaw, ...] = field(repr=False)
    """The law fitted to resampled runs."""

    def interval(self, quantity: Callable[[PlateauLaw], float]) -> tuple[float, float]:
        """The 95 % interval of a quantity that is computed from the law."""
        count = self.sweeps.count + 4
        values = np.array([quantity(law) for law in self.laws])
        if not np.isfinite(values).all():
            return float("nan"), float("nan")
        return widened_interval(quantity(self.law), values, len(self.sweeps), count)

    def log_interval(self, quantity: Callable[[PlateauLaw], float]) -> tuple[float, float]:
        """The same for a positive quantity, on a log scale."""
        low, high = self.interval(lambda law: float(np.log(quantity(law))))
        return float(np.exp(low)), float(np.exp(high))

    def fit_of(self, number: int) -> PlateauFit:
        """The fitted curve of one sweep, and the range of steps it was fitted to."""
        law, sweep = self.law, self.sweeps.take(np.flatnonzero(self.sweeps.of == number))
        s0 = law.critical_steps(sweep.N[0], sweep.D[0], 1.0)
        return PlateauFit(law.c[number], s0, law.q, self.scatter, float(sweep.steps.min()), float(sweep.steps.max()))

    def bracketed(self, delta: float) -> list[int]:
        """The sweeps with runs on both sides of S_crit whose losses differ by more than noise and delta."""
        return [number for number in range(self.sweeps.count) if self.fit_of(number).is_bracketed(delta)]


def fit_plateau_law(sweeps: Sweeps, *, resamples: int = RESAMPLES, seed: int = 0) -> PlateauLawFit:
    """Fit all sweeps together, and again to runs resampled within each sweep for the intervals."""
    if resamples < 2:
        raise UserError(f"resamples must be at least 2 for the intervals, got {resamples!r}.")
    law, scatter = _fit(sweeps, sweeps.huber, num_starts=4)
    rng = np.random.default_rng(seed)
    laws = tuple(_fit(sweeps.resample(rng), sweeps.huber, num_starts=1)[0] for _ in range(resamples))
    return PlateauLawFit(law, sweeps, scatter, laws)


def _fit(sweeps: Sweeps, huber: float, num_starts: int) -> tuple[PlateauLaw, float]:
    x, z, (n0, d0) = _centred_logs(sweeps)
    log_s, count, of = np.log(sweeps.steps), sweeps.count, sweeps.of
    ceiling = np.array([sweep.loss.min() for sweep in sweeps])[of] + CEILING_NATS
    losses = np.minimum(sweeps.loss, ceiling)
    # Whether s, nu, xi and q are fitted.
    has = np.array([1.0, float(np.ptp(x) > 0), float(np.ptp(z) > SAME_TOKENS), 1.0])
    level = np.eye(count)[of]

    def power(parameters: Floats) -> tuple[Floats, float]:
        log_s0, nu, xi, log_q = parameters[count:] * has
        q = float(np.exp(log_q))
        return q * (log_s0 + nu * x + xi * z - log_s), q

    def curve(parameters: Floats) -> Floats:
        return parameters[:count][of] + np.logaddexp(0, power(parameters)[0])

    def residuals(parameters: Floats) -> Floats:
        return np.minimum(curve(parameters), ceiling) - losses

    def jacobian(parameters: Floats) -> Floats:
        bend, q = power(parameters)
        share = np.exp(bend - np.logaddexp(0, bend))
        slopes = np.stack([share * q, share * q * x, share * q * z, share * bend], 1) * has
        full = np.concatenate([level, slopes], 1)
        return np.where(curve(parameters)[:, None] < ceiling[:, None], full, 0.0)

    reach = [50.0, _MAX_EXPONENT, _MAX_EXPONENT]
    low = np.array([losses.min() - 20] * count + [log_s.min() - reach[0], -reach[1], -reach[2], np.log(POWERS[0])])
    high = np.array([losses.max() + 1] * count + [log_s.max() + 10, reach[1], reach[2], np.log(POWERS[-1])])
    starts = _starts(sweeps, losses, x, z)
    end = np.array(fit_robustly(residuals, jacobian, starts, (low, high), huber, num_starts))
    remaining = residuals(end)
    scatter = robust_std(remaining) * np.sqrt(len(remaining) / max(1, len(remaining) - count - has.sum()))
    nan = float("nan")
    log_s0, nu, xi, log_q = end[count:]
    law = PlateauLaw(
        s=float(np.exp(log_s0)),
        nu=float(nu) if has[1] else nan,
        xi=float(xi) if has[2] else nan,
        q=float(np.exp(log_q)),
        N0=n0,
        D0=d0,
        c=tuple(float(value) for value in end[:count]),
    )
    return law, float(scatter)


def _centred_logs(sweeps: Sweeps) -> tuple[Floats, Floats, tuple[float, float]]:
    """Logs of N and D relative to their means over the sweeps, which resampling does not change."""
    numbers = np.unique(sweeps.of, return_index=True)[1]
    n0, d0 = (float(np.log(column[numbers]).mean()) for column in (sweeps.N, sweeps.D))
    return np.log(sweeps.N) - n0, np.log(sweeps.D) - d0, (float(np.exp(n0)), float(np.exp(d0)))


def _starts(sweeps: Sweeps, losses: Floats, x: Floats, z: Floats) -> list[list[float]]:
    """For each q, the plateau and S0 of each sweep by itself, and the plane through the logs of S0."""
    members = [np.flatnonzero(sweeps.of == number) for number in range(sweeps.count)]
    alone = [plateau_starts(np.log(sweeps.steps[each]), losses[each]) for each in members]
    first = np.array([each[0] for each in members])
    plane = np.linalg.pinv(np.stack([np.ones(len(first)), x[first], z[first]], 1))
    starts = []
    for of_sweeps in zip(*alone):
        levels, logs, log_q = zip(*of_sweeps)
        # A sweep without a rise starts at a huge distance from it; the others decide.
        low, high = np.log(sweeps.steps.min()) - 5, np.log(sweeps.steps.max()) + 5
        starts.append([*levels, *(plane @ np.clip(logs, low, high)), log_q[0]])
    return starts


# -- tables -----------------------------------------------------------------------------------------------------------


def read_sweeps(
    path: Path, *, called: Mapping[str, str] | None = None, unit: float = 1.0, skip_diverged: bool = False
) -> Sweeps:
    """The sweeps of a table with the columns steps, D, loss and optionally N."""
    rows = read_columns(path, ("D", "steps", "loss"), ("N",), called=called, unit=unit, in_units=("N", "D"))
    columns: Sequence[list[float]] = ([], [], [], [])
    for place, row in rows:
        if not 0 < row["loss"] < float("inf"):
            if skip_diverged:
                continue
            raise DataError(
                f"{path}, {place}: the loss is {row['loss']:g}. Leave out runs that diverged, or use --skip-diverged."
            )
        size = row.get("N", 1e6)  # any: all runs then have the same size
        for name, value in (("N", size), ("D", row["D"]), ("steps", row["steps"])):
            check_count(name, value, f"{path}, {place}")
        for column, value in zip(columns, (size, row["D"], row["steps"], row["loss"])):
            column.append(value)
    if not columns[0]:
        raise DataError(f"{path} holds no runs with a finite loss.")
    return Sweeps.from_columns(*columns)
