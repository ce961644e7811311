"""The minimum of a curve measured at a few points on a logarithmic axis, without assuming a scaling law."""

from dataclasses import dataclass

import numpy as np

from triptych.errors import UserError
from triptych.scaling.law import Floats


@dataclass(frozen=True)
class ParabolaMinimum:
    at: float
    loss: float
    is_on_edge: bool
    """Whether the best point is the first or the last one; then the true minimum may lie beyond the sweep."""


def parabola_minimum(points: Floats, losses: Floats, neighbours: int = 1) -> ParabolaMinimum:
    """Minimum of the parabola through the best point and its neighbours on either side; `points` must be sorted.

    Points further away are left out: there the curve is not a parabola, and would shift the minimum.
    """
    if neighbours < 1:
        raise UserError(f"neighbours must be at least 1, got {neighbours!r}.")
    logs, best = np.log(points), int(losses.argmin())
    if best in (0, len(logs) - 1):
        return ParabolaMinimum(float(points[best]), float(losses[best]), is_on_edge=True)
    near = slice(max(0, best - neighbours), best + neighbours + 1)
    x, origin = logs[near], logs[near].mean()
    square, slope, height = np.polyfit(x - origin, losses[near], 2)
    lowest = origin - slope / (2 * square) if square > 0 else np.inf
    if not x[0] < lowest < x[-1]:  # bent by noise; impossible with three points, the lowest in the middle
        return parabola_minimum(points, losses)
    return ParabolaMinimum(float(np.exp(lowest)), float(height - slope**2 / (4 * square)), is_on_edge=False)
