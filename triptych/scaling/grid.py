"""An isoFLOP grid: for each of several budgets of compute, models from too small to too large.

Runs are those of a family of one aspect (`triptych.recipes`), with its own rules for batch size and hyperparameters, so
that sizes and tokens are all that differs. Compute is counted exactly, with the whole head (triptych.model.count).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triptych.errors import UserError
from triptych.model.count import flops, parameters
from triptych.training.config import RunConfig
from triptych.vocab import Vocabulary

TOKENS_PER_PARAMETER = (1.0, 2000.0)
DECIDED = (
    "model.num_layers", "model.width", "model.num_heads", "model.d_ff",
    "loader.global_batch", "num_steps", "optimizer.warmup_steps",
)  # fmt: skip
"""What a grid sets itself."""
_WARMUP_SHARE = 8  # of the steps: one in so many


@dataclass(frozen=True)
class Lengths:
    """Of the sequences that are trained on."""

    mean: float
    """Tokens of a sequence."""
    context: float
    """Tokens in the sequence of a token: longer ones have more of them."""

    @classmethod
    def of(cls, batches: Sequence[np.ndarray]) -> "Lengths":
        every = np.concatenate(batches).astype(np.float64)
        return cls(float(every.mean()), float(np.square(every).sum() / every.sum()))


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    budget: float
    """FLOPs it was planned for. Steps are whole: `C` is what it comes to."""
    config: RunConfig
    N: int
    """Parameters without embeddings."""
    D: float
    """Tokens."""
    C: float

    @property
    def key(self) -> str:
        model = self.config.model
        return f"{self.budget:.4g} FLOPs {model.width} x {model.num_layers} seed {self.config.seed}"

    @property
    def tokens_per_parameter(self) -> float:
        return self.D / self.N


def budgets_between(low: float, high: float, count: int) -> list[float]:
    """Evenly on a logarithmic scale, both ends among them."""
    if not 0 < low < high < float("inf") or count < 2:
        raise UserError(
            f"budgets need a low and a higher end and at least 2 of them, got {low:g} to {high:g} and {count}."
        )
    found = [float(f"{budget:.4g}") for budget in np.geomspace(low, high, count)]  # as they are named
    if len(set(found)) < count:
        raise UserError(f"{count} budgets from {low:g} to {high:g} are not all different: take fewer of them.")
    return found


def isoflop_grid(
    members: Sequence[RunConfig],
    vocabulary: Vocabulary,
    lengths: Lengths,
    budgets: Sequence[float],
    *,
    tokens_per_parameter: tuple[float, float] = TOKENS_PER_PARAMETER,
    most_sizes: int | None = None,
) -> list[Cell]:
    """The runs of a grid, from the smallest budget on; per budget at most so many sizes, spread over those that fit."""
    found = []
    for budget in budgets:
        cells = [cell_of(member, vocabulary, lengths, budget) for member in members]
        low, high = tokens_per_parameter
        fitting = [cell for cell in cells if cell and low <= cell.tokens_per_parameter <= high]
        found += _spread(fitting, most_sizes)
    if not found:
        raise UserError(
            f"no member of the family has {tokens_per_parameter[0]:g} to {tokens_per_parameter[1]:g} tokens per "
            f"parameter at {min(budgets):g} to {max(budgets):g} FLOPs: choose other budgets or sizes."
        )
    return found


def _spread(cells: list[Cell], count: int | None) -> list[Cell]:
    """So many, as evenly in the logarithm of N as they come."""
    if count is None or len(cells) <= count:
        return cells
    if count == 1:
        return [cells[len(cells) // 2]]
    logs = np.log([cell.N for cell in cells])
    picks = {int(np.abs(logs - wanted).argmin()) for wanted in np.linspace(logs.min(), logs.max(), count)}
    return [cells[pick] for pick in sorted(picks)]


def flops_per_token(member: RunConfig, vocabulary: Vocabulary, lengths: Lengths) -> float:
    """Of training, with the whole head, and twice where a step sees every token in two views."""
    return flops(member.model, vocabulary, lengths.context).training * (2 if member.complementary_masks else 1)


def cell_of(member: RunConfig, vocabulary: Vocabulary, lengths: Lengths, budget: float) -> Cell | None:
    """A member trained for a budget; none if that is not even a step."""
    per_token = flops_per_token(member, vocabulary, lengths)
    sequences = budget / per_token / lengths.mean
    batch = batch_for(member, sequences)
    steps = round(sequences / batch)
    if steps < 1:
        return None
    config = replace(
        member,
        loader=replace(member.loader, global_batch=batch),
        num_steps=steps,
        optimizer=replace(member.optimizer, warmup_steps=max(1, steps // _WARMUP_SHARE)),
    )
    tokens = steps * batch * lengths.mean
    return Cell(budget, config, parameters(member.model, vocabulary).blocks, tokens, tokens * per_token)


def batch_for(member: RunConfig, sequences: float) -> int:
    """The batch whose steps are as large as the base's (kappa = 1): it grows as the tokens to the power gamma.

    Without a base, the recipe's own.
    """
    base = member.transfer
    if base.base_batch is None or base.base_steps is None:
        return member.loader.global_batch
    ratio = sequences / (base.base_batch * base.base_steps)
    return max(1, round(base.base_batch * math.pow(ratio, base.gamma)))
