"""IsoFLOP grids: for each of several compute budgets, models from too small to too large.

The runs belong to one model family (triptych.scaling.family) and follow its rules for batch size and hyperparameters,
so that only the model size and the number of tokens differ. FLOPs are exact counts with the whole head
(triptych.model.flops).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triptych.errors import UserError
from triptych.model.flops import count_parameters, flops
from triptych.training.config import RunConfig
from triptych.vocab import Vocabulary

TOKENS_PER_PARAMETER = (1.0, 2000.0)
SET_BY_GRID = (
    "model.num_layers", "model.width", "model.num_heads", "model.d_ff",
    "loader.global_batch", "num_steps",
)  # fmt: skip
"""Fields that the grid sets itself."""


@dataclass(frozen=True)
class LengthStats:
    """Lengths of the training sequences."""

    mean: float
    """Mean length of a sequence."""
    context: float
    """Mean length of the sequence that a token belongs to; longer sequences have more tokens."""

    @classmethod
    def from_lengths(cls, batches: Sequence[np.ndarray]) -> "LengthStats":
        lengths = np.concatenate(batches).astype(np.float64)
        return cls(float(lengths.mean()), float(np.square(lengths).sum() / lengths.sum()))


@dataclass(frozen=True)
class GridPoint:
    """One run of the grid."""

    budget: float
    """Planned FLOPs. `C` differs from it because steps are whole."""
    config: RunConfig
    N: int
    """Non-embedding parameters."""
    D: float
    """Tokens."""
    C: float
    """FLOPs of the run."""

    @property
    def key(self) -> str:
        model = self.config.model
        return f"{self.budget:.4g} FLOPs {model.width} x {model.num_layers} seed {self.config.seed}"

    @property
    def tokens_per_parameter(self) -> float:
        return self.D / self.N


def budgets_between(low: float, high: float, count: int) -> list[float]:
    """Evenly spaced on a log scale, including both ends."""
    if not 0 < low < high < float("inf") or count < 2:
        raise UserError(
            f"budgets need a low and a higher end and at least 2 values, got {low:g} to {high:g} and {count}."
        )
    budgets = [float(f"{budget:.4g}") for budget in np.geomspace(low, high, count)]  # as the keys print them
    if len(set(budgets)) < count:
        raise UserError(f"{count} budgets from {low:g} to {high:g} are not all different: ask for fewer.")
    return budgets


def isoflop_grid(
    members: Sequence[RunConfig],
    vocabulary: Vocabulary,
    lengths: LengthStats,
    budgets: Sequence[float],
    *,
    tokens_per_parameter: tuple[float, float] = TOKENS_PER_PARAMETER,
    max_sizes: int | None = None,
) -> list[GridPoint]:
    """The runs of a grid, smallest budget first, with at most `max_sizes` models per budget."""
    grid = []
    for budget in budgets:
        points = [grid_point(member, vocabulary, lengths, budget) for member in members]
        low, high = tokens_per_parameter
        fitting = [point for point in points if point and low <= point.tokens_per_parameter <= high]
        grid += _spread(fitting, max_sizes)
    if not grid:
        raise UserError(
            f"no model of the family has {tokens_per_parameter[0]:g} to {tokens_per_parameter[1]:g} tokens per "
            f"parameter at {min(budgets):g} to {max(budgets):g} FLOPs: choose other budgets or sizes."
        )
    return grid


def _spread(points: list[GridPoint], count: int | None) -> list[GridPoint]:
    """At most `count` of the points, spaced as evenly in log N as possible."""
    if count is None or len(points) <= count:
        return points
    if count == 1:
        return [points[len(points) // 2]]
    logs = np.log([point.N for point in points])
    picks = {int(np.abs(logs - target).argmin()) for target in np.linspace(logs.min(), logs.max(), count)}
    return [points[pick] for pick in sorted(picks)]


def flops_per_token(member: RunConfig, vocabulary: Vocabulary, lengths: LengthStats) -> float:
    """Training FLOPs with the whole head; doubled if a step sees every token in two views."""
    return flops(member.model, vocabulary, lengths.context).training * member.num_views


def grid_point(member: RunConfig, vocabulary: Vocabulary, lengths: LengthStats, budget: float) -> GridPoint | None:
    """A member trained for a budget; None if the budget is below one step."""
    per_token = flops_per_token(member, vocabulary, lengths)
    sequences = budget / per_token / lengths.mean
    batch = batch_for(member, sequences)
    steps = round(sequences / batch)
    if steps < 1:
        return None
    config = replace(member, loader=replace(member.loader, global_batch=batch), num_steps=steps)
    tokens = steps * batch * lengths.mean
    return GridPoint(budget, config, count_parameters(member.model, vocabulary).blocks, tokens, tokens * per_token)


def batch_for(member: RunConfig, sequences: float) -> int:
    """The batch size at which kappa = 1: it grows as the number of tokens to the power gamma.

    Masked copies of a sequence count as sequences. Without a base batch, the recipe's own batch.
    """
    base = member.transfer
    if base.base_batch is None or base.base_steps is None:
        return member.loader.global_batch
    views = member.num_views * member.length_ratio
    ratio = views * sequences / (base.base_batch * base.base_steps)
    return max(1, round(base.base_batch * math.pow(ratio, base.gamma) / views))
