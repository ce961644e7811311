"""The loss over searched values: a Gaussian process through the trials, its optimum, and cuts through it as a figure.

Values are seen by their logarithms, standardised; the kernel is a Matern 5/2 with a length per value, and white noise
for what seeds change. All it takes are the trials' records, so a figure can be drawn again without a search.

Diverged trials are not left out: a fit that has never seen the cliff bends down towards it, for the best rates lie just
before it. But a process is smooth, and ripples at the foot of a high wall: there it then finds an optimum that is none.
So diverged trials, and finite losses above the `cap`, their median, count as the cap: it is bad there, and how bad is
nobody's question. On a bowl with a cliff beside it (160 trials of 5 values, mean of 6 searches), the optimum found was
0.15 above the true one with a cap at the quantile 0.9, and 0.002 with the median; the best trial was 0.07 above it.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, stats

from triptych.errors import UserError
from triptych.studies.search_global import NAMES, needed

CAP_QUANTILE = 0.5
_MOST_FOR_LENGTHS = 600  # trials that the kernel's lengths are fitted to; all are then interpolated
_BAND = 1.96  # standard deviations
_SHOWN = {
    "lr": "learning rate",
    "alpha1": r"$1-\beta_1$",
    "alpha2": r"$1-\beta_2$",
    "eps": r"$\epsilon$",
    "decay": "weight decay",
}
_INK, _LINE, _STAR, _DIVERGED = "#333333", "#1f5f8b", "#d1495b", "#8d99ae"


@dataclass(frozen=True)
class Landscape:
    """A fitted process over the box that the trials fill."""

    names: tuple[str, ...]
    points: np.ndarray
    """Of the trials, as log10: trials x values."""
    losses: np.ndarray
    """As they were found; inf where a run diverged."""
    cap: float
    """What higher losses count as."""
    optimum: dict[str, float]
    """Where the predicted mean is lowest."""
    predicted: float
    """The mean there: the lowest of many, so a little optimistic. What the values are worth, fresh runs say."""
    uncertainty: float
    """Standard deviation of that mean."""
    noise: float
    """Standard deviation of what the process calls noise. Less than what seeds change: capped losses have none."""
    process: Any

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean loss at points (log10), and its standard deviation without the noise of a single run."""
        return _predict(self.process, self._scaled(points), self.noise)

    def distance(self, names_free: Sequence[str]) -> np.ndarray:
        """How far each trial is from the cut through the optimum along these names, in lengths of the kernel."""
        lengths = self.process.kernel_.k1.k2.length_scale
        distance = (self._scaled(self.points) - self._scaled(self._star[None])) / lengths
        distance[:, [self.names.index(name) for name in names_free]] = 0.0
        return np.sqrt((distance**2).sum(1))

    @property
    def _star(self) -> np.ndarray:
        return np.log10([self.optimum[name] for name in self.names])

    def _scaled(self, points: np.ndarray) -> np.ndarray:
        return _scaled(points, self.points)


def _scaled(points: np.ndarray, of: np.ndarray) -> np.ndarray:
    return (points - of.mean(0)) / of.std(0)


def _predict(process: Any, scaled: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    mean, std = process.predict(scaled, return_std=True)
    return mean, np.sqrt(np.maximum(std**2 - noise**2, 0.0))  # scikit-learn's has the kernel's white noise in it


def fit(
    records: Sequence[Mapping[str, Any]],
    names: Sequence[str] = NAMES,
    cap_quantile: float = CAP_QUANTILE,
    seed: int = 0,
) -> Landscape:
    """A process through records, each with the searched values and a `loss` (None if the run diverged)."""
    process_of = needed("sklearn.gaussian_process").GaussianProcessRegressor
    kernels = needed("sklearn.gaussian_process.kernels")
    points, losses = _read(records, names)
    finite = np.isfinite(losses)
    if finite.sum() < 2 * len(names) + 2:
        raise UserError(
            f"a landscape over {len(names)} values needs at least {2 * len(names) + 2} trials that did not diverge, "
            f"got {finite.sum()}: run more trials, or over narrower ranges."
        )
    cap = float(np.quantile(losses[finite], cap_quantile))
    capped = np.minimum(losses, cap)
    if np.ptp(capped) == 0:
        raise UserError(f"all trials below the cap have the same loss of {cap:g}: there is no landscape to fit.")
    kernel = kernels.ConstantKernel(1.0, (1e-2, 1e2)) * kernels.Matern(
        np.ones(len(names)), (0.1, 100.0), nu=2.5
    ) + kernels.WhiteKernel(0.05, (1e-5, 1.0))
    scaled = _scaled(points, points)
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(points))[:_MOST_FOR_LENGTHS]
    process = _quietly_fitted(
        process_of(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=seed), scaled[some], capped[some]
    )
    if len(some) < len(points):
        process = process_of(process.kernel_, optimizer=None, normalize_y=True).fit(scaled, capped)
    star = _lowest(process, scaled, rng)
    noise = math.sqrt(process.kernel_.k2.noise_level) * float(capped.std())
    mean, std = _predict(process, star[None], noise)
    optimum = 10 ** (star * points.std(0) + points.mean(0))
    return Landscape(
        tuple(names),
        points,
        losses,
        cap,
        dict(zip(names, map(float, optimum))),
        float(mean[0]),
        float(std[0]),
        noise,
        process,
    )


def _read(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    try:
        points = np.array([[float(record[name]) for name in names] for record in records]).reshape(-1, len(names))
        losses = np.array([math.inf if record["loss"] is None else float(record["loss"]) for record in records])
    except KeyError as error:
        raise UserError(f"a record of a trial lacks {error}: it needs {', '.join(names)} and loss.") from error
    if not (points > 0).all():
        raise UserError("searched values must be positive: the landscape is drawn over their logarithms.")
    losses[np.isnan(losses)] = math.inf
    points = np.log10(points)
    for name, column in zip(names, points.T):
        if len(column) and np.ptp(column) == 0:
            raise UserError(f"all trials have the same {name}: leave it out of the names.")
    return points, losses


def _quietly_fitted(process: Any, points: np.ndarray, losses: np.ndarray) -> Any:
    """A value that does not matter has a length at its upper bound, which is an answer and no reason for a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", needed("sklearn.exceptions").ConvergenceWarning)
        return process.fit(points, losses)


def _lowest(process: Any, scaled: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where the mean is lowest within the box of the trials: many even points first, then downhill from the best."""
    low, high = scaled.min(0), scaled.max(0)
    even = stats.qmc.scale(stats.qmc.Sobol(scaled.shape[1], rng=rng).random(1024), low, high)
    starts = np.concatenate([even, scaled])
    starts = starts[np.argsort(process.predict(starts))[:4]]
    found = [
        optimize.minimize(lambda x: process.predict(x[None])[0], start, bounds=list(zip(low, high)), method="L-BFGS-B")
        for start in starts
    ]
    return min(found, key=lambda each: each.fun).x


# -- the figure -------------------------------------------------------------------------------------------------------


def draw(landscape: Landscape, path: Path, title: str = "") -> None:
    """Above, a cut through the optimum along each value; below, the plane of the first value and each other one."""
    figure_of = needed("matplotlib.figure").Figure
    names, count = landscape.names, len(landscape.names)
    num_rows = 2 if count > 1 else 1
    figure = figure_of(figsize=(2.9 * count + 0.4, 2.9 * num_rows + 0.3), layout="constrained", dpi=140)
    axes = figure.subplots(num_rows, count, squeeze=False)
    for axis, name in zip(axes[0], names):
        _draw_cut(axis, landscape, name)
    for axis in axes[0, 1:]:
        axis.sharey(axes[0, 0])
        axis.tick_params(labelleft=False)
    axes[0, 0].set_ylabel("loss")
    if count > 1:
        maps = [_draw_plane(axis, landscape, names[0], name) for axis, name in zip(axes[1, 1:], names[1:])]
        _draw_legend(axes[1, 0], landscape)
        figure.colorbar(maps[-1], ax=axes[1, 1:], label="predicted loss", pad=0.015, aspect=25, format="%.3g")
    if title:
        figure.suptitle(title, color=_INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _along(landscape: Landscape, name: str, num_points: int) -> np.ndarray:
    column = landscape.points[:, landscape.names.index(name)]
    return np.linspace(column.min(), column.max(), num_points)


def _nearness(landscape: Landscape, free: Sequence[str]) -> np.ndarray:
    """Of each trial, from 0 to 1: those far from a cut say little about it, and are drawn faintly."""
    return np.exp(-2 * landscape.distance(free) ** 2)


def _draw_cut(axis: Any, landscape: Landscape, name: str) -> None:
    column = landscape.names.index(name)
    along = _along(landscape, name, 120)
    points = np.repeat(landscape._star[None], len(along), 0)
    points[:, column] = along
    mean, std = landscape.predict(points)
    lowest = min(landscape.predicted, float(landscape.losses.min()))
    height = landscape.cap - lowest
    axis.fill_between(10**along, mean - _BAND * std, mean + _BAND * std, color=_LINE, alpha=0.18, linewidth=0)
    axis.plot(10**along, mean, color=_LINE, linewidth=1.8)
    axis.axhline(landscape.cap, color=_INK, linewidth=0.8, linestyle=(0, (4, 4)), alpha=0.5)
    at, diverged = 10 ** landscape.points[:, column], np.isinf(landscape.losses)
    strength = 0.12 + 0.78 * _nearness(landscape, [name])[~diverged]
    axis.scatter(at[~diverged], landscape.losses[~diverged], s=11, color=_INK, alpha=strength, linewidth=0, zorder=2.5)
    top = np.full(diverged.sum(), landscape.cap + 0.72 * height)
    axis.scatter(at[diverged], top, s=14, marker="x", color=_DIVERGED, alpha=0.8, linewidth=0.9)
    _draw_star(axis, landscape.optimum[name], landscape.predicted)
    axis.set(xscale="log", xlabel=_SHOWN.get(name, name), ylim=(lowest - 0.15 * height, landscape.cap + 0.8 * height))
    axis.set_title(f"{landscape.optimum[name]:.2g}", color=_STAR, fontsize=10)
    axis.grid(alpha=0.15, linewidth=0.6)
    _plain(axis)


def _draw_plane(axis: Any, landscape: Landscape, across: str, up: str) -> Any:
    grid = 40
    first, second = landscape.names.index(across), landscape.names.index(up)
    xs, ys = np.meshgrid(_along(landscape, across, grid), _along(landscape, up, grid))
    points = np.repeat(landscape._star[None], grid * grid, 0)
    points[:, first], points[:, second] = xs.ravel(), ys.ravel()
    mean, _ = landscape.predict(points)
    levels = np.linspace(landscape.predicted, landscape.cap, 13)
    drawn = axis.contourf(10**xs, 10**ys, mean.reshape(grid, grid), levels=levels, cmap="viridis_r", extend="both")
    trials, diverged = 10 ** landscape.points[:, [first, second]], np.isinf(landscape.losses)
    strength = 0.15 + 0.85 * _nearness(landscape, [across, up])
    axis.scatter(*trials[~diverged].T, s=10, color="white", edgecolor=_INK, linewidth=0.5, alpha=strength[~diverged])
    if diverged.any():  # matplotlib takes no empty alphas
        axis.scatter(*trials[diverged].T, s=14, marker="x", color="white", linewidth=0.9, alpha=strength[diverged])
    _draw_star(axis, landscape.optimum[across], landscape.optimum[up])
    axis.set(xscale="log", yscale="log", xlabel=_SHOWN.get(across, across), ylabel=_SHOWN.get(up, up))
    _plain(axis)
    return drawn


def _draw_star(axis: Any, x: float, y: float) -> None:
    axis.scatter([x], [y], s=150, marker="*", color=_STAR, edgecolor="white", linewidth=0.9, zorder=5, clip_on=False)


def _draw_legend(axis: Any, landscape: Landscape) -> None:
    line = needed("matplotlib.lines").Line2D
    patch = needed("matplotlib.patches").Patch
    axis.axis("off")
    handles = [
        line([], [], color=_STAR, marker="*", markersize=11, linestyle="", label="optimum of the mean"),
        line([], [], color=_LINE, linewidth=1.8, label="predicted mean"),
        patch(color=_LINE, alpha=0.18, linewidth=0, label="where the mean is, 95 %"),
        line([], [], color=_INK, marker="o", markersize=4, linestyle="", label="trial (faint: far from the cut)"),
        line([], [], color=_DIVERGED, marker="x", markersize=5, linestyle="", label="trial that diverged"),
        line(
            [], [], color=_INK, linewidth=0.8, linestyle=(0, (4, 4)), alpha=0.5, label="cap: what is higher counts so"
        ),
    ]
    axis.legend(handles=handles, loc="upper left", frameon=False, fontsize=8.5, borderaxespad=0)
    text = [
        f"{len(landscape.losses)} trials, {np.isinf(landscape.losses).sum()} diverged",
        f"loss at the star {landscape.predicted:.4g} ± {_BAND * landscape.uncertainty:.2g}",
        f"what it leaves as noise {landscape.noise:.2g}",
    ]
    axis.text(0.02, 0.0, "\n".join(text), transform=axis.transAxes, fontsize=8.5, color=_INK, linespacing=1.6)


def _plain(axis: Any) -> None:
    """Ticks at powers of ten, and at three times those where there would be one or none."""
    ticker = needed("matplotlib.ticker")
    for each in (axis.xaxis, axis.yaxis):
        if each.get_scale() == "log":
            low, high = np.log10(each.get_view_interval())
            subs = (1.0,) if math.floor(high) - math.ceil(low) >= 1 else (1.0, 3.0)
            each.set_major_locator(ticker.LogLocator(base=10, subs=subs, numticks=5))
            each.set_major_formatter(ticker.LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(99, 99)))
            each.set_minor_formatter(ticker.NullFormatter())
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
