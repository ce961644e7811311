"""Values that are the same but for rounding: compute that whole steps miss a little, tokens of another seed."""

import numpy as np
from numpy.typing import NDArray

from triptych.scaling.law import Floats


def alike(values: Floats, within: float) -> list[NDArray[np.int64]]:
    """Positions of values that lie at most so far, in logarithms, above the least of their group; from the least on."""
    groups: list[list[int]] = []
    first = -np.inf
    for position in np.argsort(values, kind="stable").tolist():
        if np.log(values[position]) - first > within:
            first = np.log(values[position])
            groups.append([])
        groups[-1].append(position)
    return [np.array(group, np.int64) for group in groups]
