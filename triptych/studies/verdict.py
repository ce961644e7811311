"""The verdict on a claim, from an interval and the range of values that the claim allows."""

import math
from collections.abc import Sequence
from typing import Literal

Verdict = Literal["agrees", "disagrees", "undecided"]


def verdict(interval: tuple[float, float], low: float = -math.inf, high: float = math.inf) -> Verdict:
    """Whether the whole interval lies inside the range from `low` to `high`, or outside of it; else undecided."""
    below, above = interval
    if math.isnan(below) or math.isnan(above):
        return "undecided"
    if low < below and above < high:
        return "agrees"
    return "disagrees" if above <= low or below >= high else "undecided"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """On a claim that consists of several."""
    if "disagrees" in verdicts:
        return "disagrees"
    return "agrees" if set(verdicts) == {"agrees"} else "undecided"
