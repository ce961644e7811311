"""The bottom of a curve that was measured at a few points, on a logarithmic axis, without a law for it."""

from dataclasses import dataclass

import numpy as np

from triptych.errors import UserError
from triptych.scaling.law import Floats


@dataclass(frozen=True)
class Bottom:
    at: float
    loss: float
    is_on_edge: bool
    """The best point is the first or the last: a better one may lie beyond, and this one only bounds it."""


def bottom(points: Floats, losses: Floats, neighbours: int = 1) -> Bottom:
    """Of the parabola through the best point and its neighbours on either side; points from the least on.

    Further away the true curve is no parabola, and would pull the bottom towards its flatter side.
    """
    if neighbours < 1:
        raise UserError(f"neighbours must be at least 1, got {neighbours!r}.")
    logs, best = np.log(points), int(losses.argmin())
    if best in (0, len(logs) - 1):
        return Bottom(float(points[best]), float(losses[best]), is_on_edge=True)
    near = slice(max(0, best - neighbours), best + neighbours + 1)
    x, origin = logs[near], logs[near].mean()
    square, slope, height = np.polyfit(x - origin, losses[near], 2)
    lowest = origin - slope / (2 * square) if square > 0 else np.inf
    if not x[0] < lowest < x[-1]:  # noise bent it; through three points, the lowest in the middle, it cannot
        return bottom(points, losses)
    return Bottom(float(np.exp(lowest)), float(height - slope**2 / (4 * square)), is_on_edge=False)
