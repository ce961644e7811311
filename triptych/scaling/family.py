"""Model families: the models of one aspect ratio, their training cost, and the one closest to a size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from triptych.errors import UserError
from triptych.model.flops import count_parameters
from triptych.plan.lengths import ORIGINS, Origin, sample_batches
from triptych.recipes import recipe
from triptych.recipes.paper import fixed_aspect
from triptych.recipes.proxy import HEAD_WIDTH, proxy_of_width, proxy_per_module
from triptych.scaling.grid import SET_BY_GRID, GridPoint, LengthStats, flops_per_token, grid_point
from triptych.scaling.optimal import FlopsPerToken, Frontier, Optimum
from triptych.tokenizers.bundle import PAPER_TOKENIZERS, vocabulary_of
from triptych.training.config import RunConfig
from triptych.utils.config import override
from triptych.vocab import Vocabulary

_MAX_LAYERS, _MAX_WIDTH = 96, 768  # the paper's family ends at width 12,288, the CPU-sized one at 768


@dataclass(frozen=True)
class ModelFamily:
    """Runs that differ in the size of the model, at one aspect ratio."""

    members: list[RunConfig]
    """Sorted from the smallest model to the largest."""
    vocabulary: Vocabulary
    lengths: LengthStats
    origin: Origin
    """Where the sequence lengths come from."""

    def __str__(self) -> str:
        first, last = self.members[0].model, self.members[-1].model
        return (
            f"models of {first.num_layers} x {first.width} to {last.num_layers} x {last.width} with "
            f"{self.vocabulary.size:,} ids; a sequence has {self.lengths.mean:,.0f} tokens ({ORIGINS[self.origin]})"
        )

    @cached_property
    def sizes(self) -> list[int]:
        """Non-embedding parameters of each member."""
        return [count_parameters(member.model, self.vocabulary).blocks for member in self.members]

    @cached_property
    def exact_flops(self) -> list[float]:
        """Training FLOPs per token of each member."""
        return [flops_per_token(member, self.vocabulary, self.lengths) for member in self.members]

    @cached_property
    def flops_per_token(self) -> FlopsPerToken:
        """Training FLOPs per token as a function of the size, fitted to the members."""
        return FlopsPerToken.fit_to(self.sizes, self.exact_flops)

    def nearest(self, best: Optimum, frontier: Frontier) -> GridPoint | None:
        """The member that the optimum's budget trains on closest to its compute-optimal number of tokens.

        None if the optimal size is outside the family, or the budget is below one step.
        """
        if not self.sizes[0] / 2 <= best.N <= self.sizes[-1] * 2:
            return None
        optimal_tokens = frontier.tokens(self.sizes, self.flops_per_token)
        gaps = [abs(math.log(best.flops / cost / tokens)) for cost, tokens in zip(self.exact_flops, optimal_tokens)]
        return grid_point(self.members[gaps.index(min(gaps))], self.vocabulary, self.lengths, best.flops)


def family_members(name: str) -> list[RunConfig]:
    """The models with the aspect ratio of a recipe, smallest first; the `recipe` field names the recipe to start from.

    Hyperparameters are transferred from the model they were tuned on: the paper's at 8 x 1024, or the proxy at 2 x 64.
    """
    if recipe(name).tokenizers == PAPER_TOKENIZERS:
        return [fixed_aspect(layers) for layers in range(1, _MAX_LAYERS + 1)]
    return [proxy_of_width(proxy_per_module(), width) for width in range(HEAD_WIDTH, _MAX_WIDTH + 1, HEAD_WIDTH)]


def model_family(name: str, changes: Sequence[str] = ()) -> ModelFamily:
    """The model family of a recipe, with fields of all its runs changed."""
    for change in changes:
        key = change.partition("=")[0]
        if key in SET_BY_GRID:
            raise UserError(f"{key} follows from the budget and cannot be changed.")
    members = [override(member, list(changes)) for member in family_members(name)]
    vocabulary = vocabulary_of(members[0].tokenizers)
    batches = sample_batches(members[0], vocabulary)
    return ModelFamily(members, vocabulary, LengthStats.from_lengths(batches.lengths), batches.origin)
