"""Ternary plots: a value over the mixtures of three parts, as contours in a triangle.

A corner is the mixture with the most of its part and the smallest share of the other two.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from triptych.scaling.law import Floats
from triptych.scaling.simplex import CENTRE, simplex_lattice

_HEIGHT = 3**0.5 / 2
_FILL_STEPS = 60
_NUM_LEVELS = 10


def ternary_xy(shares: Floats, smallest: float) -> Floats:
    """[n, 2]: the first part is at the left corner, the second at the right, the third at the top."""
    scaled = (np.atleast_2d(shares) - smallest) / (1 - 3 * smallest)
    return np.column_stack([scaled[:, 1] + scaled[:, 2] / 2, scaled[:, 2] * _HEIGHT])


def draw_ternary(
    panel: Any, values: Any, points: Floats, *, names: Sequence[str], smallest: float, divisions: int
) -> None:
    """`values` is a function of [n, 3] shares; its contours are relative to equal shares, whose contour is bold.

    `points` are the mixtures that were run, and are marked.
    """
    shares = simplex_lattice(_FILL_STEPS, smallest)
    xy = ternary_xy(shares, smallest)
    change = values(shares) - values(np.array([CENTRE]))[0]
    most = float(np.abs(change).max()) or 1.0
    panel.tricontourf(*xy.T, change, levels=np.linspace(-most, most, 4 * _NUM_LEVELS + 1), cmap="RdBu_r")
    lines = panel.tricontour(*xy.T, change, levels=_NUM_LEVELS, colors="black", linewidths=0.5)
    panel.clabel(lines, [level for level in lines.levels if abs(level) > 1e-9], fontsize=7, fmt="%+.3g")
    if change.min() < 0 < change.max():
        panel.tricontour(*xy.T, change, levels=[0.0], colors="black", linewidths=2)
    panel.plot(*ternary_xy(points, smallest).T, "o", ms=3, color="white", mec="black", mew=0.6, clip_on=False)
    panel.plot(*ternary_xy(np.array([CENTRE]), smallest).T, "k+", ms=9)
    _draw_frame(panel, names, smallest, divisions)


def _draw_frame(panel: Any, names: Sequence[str], smallest: float, divisions: int) -> None:
    corners = ternary_xy(smallest + (1 - 3 * smallest) * np.eye(3), smallest)
    panel.plot(*corners[[0, 1, 2, 0]].T, "-", color="black", lw=0.8)
    largest = 1 - 2 * smallest
    for corner, name, dy in zip(corners, names, (-0.1, -0.1, 0.06)):
        panel.text(corner[0], corner[1] + dy, f"{largest:.0%} {name}", ha="center", va="center", fontsize=8)
    for number in range(1, divisions):
        step = (1 - 3 * smallest) * number / divisions
        label = f"{smallest + step:.0%}"
        # The share of a part rises along the edge that leads to its corner, counted from the corner before it.
        for part, (dx, dy) in enumerate(((0, -0.04), (0.06, 0.01), (-0.06, 0.01))):
            shares = np.full(3, smallest)
            shares[part] += step
            shares[(part + 1) % 3] += (1 - 3 * smallest) - step
            x, y = ternary_xy(shares, smallest)[0]
            panel.text(x + dx, y + dy, label, ha="center", va="center", fontsize=6, color="dimgrey")
    panel.set_aspect("equal")
    panel.set_xlim(-0.12, 1.12)
    panel.set_ylim(-0.14, _HEIGHT + 0.1)
    panel.set_axis_off()
