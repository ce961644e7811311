"""The loss as a function of the searched values: a Gaussian process fitted to the trials, its optimum, and a figure.

Inputs are standardised logs of the values. The kernel is a Matern 5/2 with one length scale per value, plus white noise
for the variation between seeds. Only the records are needed, so a figure can be redrawn without a search.

Diverged trials are kept, because the best learning rates are just below divergence: a fit without those trials would
extrapolate downwards into the region that diverges. But a Gaussian process is smooth and oscillates next to a steep
wall, which creates false optima. So diverged trials and losses above the `cap`, the median of the finite losses, count
as the cap. On a bowl beside a cliff (160 trials of 5 values, mean of 6 searches), the loss at that optimum was 0.15
above the true minimum with the cap at the 0.9 quantile and 0.002 above it with the median; the best trial was 0.07
above it.
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
from triptych.studies.search_global import NAMES, require_hpo

CAP_QUANTILE = 0.5
_MAX_FOR_LENGTHS = 600  # trials that length scales are fitted to; the process is then conditioned on all trials
_BAND = 1.96  # standard deviations
_LABELS = {
    "lr": "learning rate",
    "alpha1": r"$1-\beta_1$",
    "alpha2": r"$1-\beta_2$",
    "eps": r"$\epsilon$",
    "decay": "weight decay",
}
_INK, _LINE, _STAR, _DIVERGED = "#333333", "#1f5f8b", "#d1495b", "#8d99ae"


@dataclass(frozen=True)
class Landscape:
    """A Gaussian process fitted over the bounding box of the trials."""

    names: tuple[str, ...]
    points: np.ndarray
    """log10 of the values: trials x values."""
    losses: np.ndarray
    """Losses of the trials; inf where a run diverged."""
    cap: float
    """Value that higher losses are replaced by."""
    optimum: dict[str, float]
    """Values at which the predicted mean is lowest."""
    predicted: float
    """Predicted mean at the optimum; biased low, because it is a minimum. Fresh runs give an unbiased estimate."""
    uncertainty: float
    """Standard deviation of the mean at the optimum."""
    noise: float
    """Standard deviation of the white noise; less than that between seeds, because capped losses have none."""
    process: Any

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean loss at points (log10 of the values), and its standard deviation without the noise of a single run."""
        return _predict(self.process, self._scaled(points), self.noise)

    def distance(self, names_free: Sequence[str]) -> np.ndarray:
        """Distance of each trial from the cut through the optimum along these names, in length scales."""
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
    return mean, np.sqrt(np.maximum(std**2 - noise**2, 0.0))  # scikit-learn's std includes the white noise


def fit(
    records: Sequence[Mapping[str, Any]],
    names: Sequence[str] = NAMES,
    cap_quantile: float = CAP_QUANTILE,
    seed: int = 0,
) -> Landscape:
    """A process fitted to records, each with the searched values and a `loss` (None if the run diverged)."""
    regressor = require_hpo("sklearn.gaussian_process").GaussianProcessRegressor
    kernels = require_hpo("sklearn.gaussian_process.kernels")
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
        raise UserError(f"all trials below the cap have the same loss of {cap:g}, so there is no landscape to fit.")
    kernel = kernels.ConstantKernel(1.0, (1e-2, 1e2)) * kernels.Matern(
        np.ones(len(names)), (0.1, 100.0), nu=2.5
    ) + kernels.WhiteKernel(0.05, (1e-5, 1.0))
    scaled = _scaled(points, points)
    rng = np.random.default_rng(seed)
    subset = rng.permutation(len(points))[:_MAX_FOR_LENGTHS]
    process = _fit_quietly(
        regressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=seed), scaled[subset], capped[subset]
    )
    if len(subset) < len(points):
        process = regressor(process.kernel_, optimizer=None, normalize_y=True).fit(scaled, capped)
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
        raise UserError("searched values must be positive, because the landscape uses their logs.")
    losses[np.isnan(losses)] = math.inf
    points = np.log10(points)
    for name, column in zip(names, points.T):
        if len(column) and np.ptp(column) == 0:
            raise UserError(f"all trials have the same {name}: leave it out of the names.")
    return points, losses


def _fit_quietly(process: Any, points: np.ndarray, losses: np.ndarray) -> Any:
    """Fit without the warning about a length scale at its upper bound, which only means that a value has no effect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", require_hpo("sklearn.exceptions").ConvergenceWarning)
        return process.fit(points, losses)


def _lowest(process: Any, scaled: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Minimum of the mean within the bounding box of the trials: Sobol points, then L-BFGS-B from the best ones."""
    low, high = scaled.min(0), scaled.max(0)
    sobol = stats.qmc.scale(stats.qmc.Sobol(scaled.shape[1], rng=rng).random(1024), low, high)
    starts = np.concatenate([sobol, scaled])
    starts = starts[np.argsort(process.predict(starts))[:4]]
    minima = [
        optimize.minimize(lambda x: process.predict(x[None])[0], start, bounds=list(zip(low, high)), method="L-BFGS-B")
        for start in starts
    ]
    return min(minima, key=lambda minimum: minimum.fun).x


# -- the figure -------------------------------------------------------------------------------------------------------


def draw(landscape: Landscape, path: Path, title: str = "") -> None:
    """Top row: a cut through the optimum along each value. Bottom row: planes of the first value and each other one."""
    figure_class = require_hpo("matplotlib.figure").Figure
    names, count = landscape.names, len(landscape.names)
    num_rows = 2 if count > 1 else 1
    figure = figure_class(figsize=(2.9 * count + 0.4, 2.9 * num_rows + 0.3), layout="constrained", dpi=140)
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
    """Weight of each trial from 0 to 1; trials far from a cut are drawn faintly."""
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
    axis.set(xscale="log", xlabel=_LABELS.get(name, name), ylim=(lowest - 0.15 * height, landscape.cap + 0.8 * height))
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
    axis.set(xscale="log", yscale="log", xlabel=_LABELS.get(across, across), ylabel=_LABELS.get(up, up))
    _plain(axis)
    return drawn


def _draw_star(axis: Any, x: float, y: float) -> None:
    axis.scatter([x], [y], s=150, marker="*", color=_STAR, edgecolor="white", linewidth=0.9, zorder=5, clip_on=False)


def _draw_legend(axis: Any, landscape: Landscape) -> None:
    line = require_hpo("matplotlib.lines").Line2D
    patch = require_hpo("matplotlib.patches").Patch
    axis.axis("off")
    handles = [
        line([], [], color=_STAR, marker="*", markersize=11, linestyle="", label="optimum of the mean"),
        line([], [], color=_LINE, linewidth=1.8, label="predicted mean"),
        patch(color=_LINE, alpha=0.18, linewidth=0, label="95 % interval of the mean"),
        line([], [], color=_INK, marker="o", markersize=4, linestyle="", label="trial (faint: far from the cut)"),
        line([], [], color=_DIVERGED, marker="x", markersize=5, linestyle="", label="diverged trial"),
        line([], [], color=_INK, linewidth=0.8, linestyle=(0, (4, 4)), alpha=0.5, label="cap on higher losses"),
    ]
    axis.legend(handles=handles, loc="upper left", frameon=False, fontsize=8.5, borderaxespad=0)
    text = [
        f"{len(landscape.losses)} trials, {np.isinf(landscape.losses).sum()} diverged",
        f"loss at the star {landscape.predicted:.4g} ± {_BAND * landscape.uncertainty:.2g}",
        f"noise {landscape.noise:.2g}",
    ]
    axis.text(0.02, 0.0, "\n".join(text), transform=axis.transAxes, fontsize=8.5, color=_INK, linespacing=1.6)


def _plain(axis: Any) -> None:
    """Ticks at powers of ten, and also at three times those where there would be at most one."""
    ticker = require_hpo("matplotlib.ticker")
    for each in (axis.xaxis, axis.yaxis):
        if each.get_scale() == "log":
            low, high = np.log10(each.get_view_interval())
            subs = (1.0,) if math.floor(high) - math.ceil(low) >= 1 else (1.0, 3.0)
            each.set_major_locator(ticker.LogLocator(base=10, subs=subs, numticks=5))
            each.set_major_formatter(ticker.LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(99, 99)))
            each.set_minor_formatter(ticker.NullFormatter())
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
