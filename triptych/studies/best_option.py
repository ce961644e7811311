"""Which of several options is best, when all were measured on the same blocks, such as seeds or sets of prompts.

The value of option k on block b is modelled as mean + option_k + block_b + noise. What is common to all options on a
block, such as its prompts, cancels in differences, whose intervals are Student's. With many blocks the variance of a
difference comes from the difference itself, since some options, such as a single step, are far noisier than others.
With two or three seeds that would be next to no estimate: there the noise has one variance, estimated from all options
together, with (options - 1) * (blocks - 1) degrees of freedom. An option is tied with the best one if the interval of
their difference includes 0. The best option is compared with all others, so each comparison has
1 - 0.05 / (options - 1) confidence (Bonferroni).
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
_MANY_BLOCKS = 8


@dataclass(frozen=True)
class Comparison(Generic[Option]):
    """Options compared on the same blocks."""

    means: dict[Option, float]
    """Mean over blocks of every option, in the given order."""
    best: Option
    tied: tuple[Option, ...]
    """The options that cannot be told apart from the best one, and the best one, in the given order."""
    margins: dict[Option, float]
    """Half the width of the interval of the difference between the best and each option; infinite for one block."""
    spread: float
    """Half the width of the interval of the mean of an option, for figures; NaN for one block."""
    num_blocks: int

    @property
    def is_decided(self) -> bool:
        """Whether one option is better than all others."""
        return len(self.tied) == 1 < len(self.means)

    @property
    def margin(self) -> float:
        """The largest of the margins."""
        return max(self.margins.values())

    def lead(self, other: Option) -> Interval:
        """How much better the best option is than another one: positive, whichever direction is better."""
        gap = abs(self.means[self.best] - self.means[other])
        return Interval(gap, gap - self.margins[other], gap + self.margins[other])


def compare_options(values: Mapping[Option, Sequence[float]], *, higher_is_better: bool) -> Comparison[Option]:
    """Compare options by their values, which are in the order of the blocks and equally many for each option."""
    options = list(values)
    table_KB = np.array([values[option] for option in options], float)
    assert table_KB.ndim == 2, "every option needs a value on every block"
    num_options, num_blocks = table_KB.shape
    means = table_KB.mean(1)
    best = int(np.argmax(means) if higher_is_better else np.argmin(means))
    margins_K, spread = np.full(num_options, math.inf), math.nan
    if num_blocks > 1 and num_options > 1:
        noise = table_KB - means[:, None] - table_KB.mean(0) + table_KB.mean()
        freedom = (num_options - 1) * (num_blocks - 1)
        error = math.sqrt(float(np.square(noise).sum()) / freedom / num_blocks)
        spread = float(t.ppf((1 + _LEVEL) / 2, freedom)) * error
        errors_K = np.full(num_options, math.sqrt(2) * error)
        if num_blocks >= _MANY_BLOCKS:
            errors_K, freedom = (table_KB - table_KB[best]).std(1, ddof=1) / math.sqrt(num_blocks), num_blocks - 1
        simultaneous = 1 - (1 - _LEVEL) / 2 / (num_options - 1)
        margins_K = float(t.ppf(simultaneous, freedom)) * errors_K
    rounding = 1e-12 * float(np.abs(means).max())
    is_tied_K = np.abs(means - means[best]) <= margins_K + rounding
    is_tied_K[best] = True
    named = {option: float(mean) for option, mean in zip(options, means)}
    margins = {option: float(margin) for option, margin in zip(options, margins_K)}
    tied = tuple(option for option, is_tied in zip(options, is_tied_K) if is_tied)
    return Comparison(named, options[best], tied, margins, spread, num_blocks)


def complete_blocks(values: Mapping[Option, Mapping[str, float]]) -> dict[Option, list[float]]:
    """From values by option and block, the values on the blocks that all options have, in one order."""
    shared = set.intersection(*(set(blocks) for blocks in values.values())) if values else set()
    return {option: [blocks[block] for block in sorted(shared)] for option, blocks in values.items()} if shared else {}
