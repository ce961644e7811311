"""Groups of values that are equal up to rounding: budgets of whole steps, token counts of other seeds."""

import numpy as np
from numpy.typing import NDArray

from triptych.scaling.law import Floats


def group_close(values: Floats, within: float) -> list[NDArray[np.int64]]:
    """Indices grouped so that the log of each value is at most `within` above the smallest of its group.

    Groups are sorted by value.
    """
    groups: list[list[int]] = []
    first = -np.inf
    for index in np.argsort(values, kind="stable").tolist():
        if np.log(values[index]) - first > within:
            first = np.log(values[index])
            groups.append([])
        groups[-1].append(index)
    return [np.array(group, np.int64) for group in groups]
