"""Which of several options is best, when all were measured on the same blocks, such as seeds or sets of prompts.

The value of option k on block b is modelled as mean + option_k + block_b + noise. What is common to all options on a
block, such as its prompts, cancels in differences. The noise has one variance, which is estimated from all options
together: with two or three seeds, one option alone would give next to no estimate. The variance has
(options - 1) * (blocks - 1) degrees of freedom, and the interval of the difference of two options is Student's. An
option is tied with the best one if the interval of their difference includes 0. The best option is compared with all
others, so each comparison has 1 - 0.05 / (options - 1) confidence (Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from scipy.stats import t

from triptych.scaling.intervals import Interval

Option = TypeVar("Option", str, float)
_LEVEL = 0.95


@dataclass(frozen=True)
class Comparison(Generic[Option]):
    """Options compared on the same blocks."""

    means: dict[Option, float]
    """Mean over blocks of every option, in the given order."""
    best: Option
    tied: tuple[Option, ...]
    """The options that cannot be told apart from the best one, and the best one, in the given order."""
    margin: float
    """Half the width of the interval of a difference between the best and another option; infinite for one block."""
    spread: float
    """Half the width of the interval of the mean of an option, for figures; NaN for one block."""
    num_blocks: int

    @property
    def is_decided(self) -> bool:
        """Whether one option is better than all others."""
        return len(self.tied) == 1 < len(self.means)

    def lead(self, other: Option) -> Interval:
        """How much better the best option is than another one: positive, whichever direction is better."""
        gap = abs(self.means[self.best] - self.means[other])
        return Interval(gap, gap - self.margin, gap + self.margin)


def compare_options(values: Mapping[Option, Sequence[float]], *, higher_is_better: bool) -> Comparison[Option]:
    """Compare options by their values, which are in the order of the blocks and equally many for each option."""
    options = list(values)
    table_KB = np.array([values[option] for option in options], float)
    assert table_KB.ndim == 2, "every option needs a value on every block"
    num_options, num_blocks = table_KB.shape
    means = table_KB.mean(1)
    margin, spread = math.inf, math.nan
    if num_blocks > 1 and num_options > 1:
        noise = table_KB - means[:, None] - table_KB.mean(0) + table_KB.mean()
        freedom = (num_options - 1) * (num_blocks - 1)
        error = math.sqrt(float(np.square(noise).sum()) / freedom / num_blocks)
        simultaneous = 1 - (1 - _LEVEL) / 2 / (num_options - 1)
        margin = float(t.ppf(simultaneous, freedom)) * math.sqrt(2) * error
        spread = float(t.ppf((1 + _LEVEL) / 2, freedom)) * error
    best = int(np.argmax(means) if higher_is_better else np.argmin(means))
    rounding = 1e-12 * float(np.abs(means).max())
    tied = [option for option, mean in zip(options, means) if abs(mean - means[best]) <= margin + rounding]
    named = {option: float(mean) for option, mean in zip(options, means)}
    return Comparison(named, options[best], tuple(tied), margin, spread, num_blocks)


def complete_blocks(values: Mapping[Option, Mapping[str, float]]) -> dict[Option, list[float]]:
    """From values by option and block, the values on the blocks that all options have, in one order."""
    shared = set.intersection(*(set(blocks) for blocks in values.values())) if values else set()
    return {option: [blocks[block] for block in sorted(shared)] for option, blocks in values.items()} if shared else {}
