"""The family of a recipe: models of one aspect, what they cost, and the one nearest to a size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from triptych.errors import UserError
from triptych.model.count import parameters
from triptych.recipes import family_of
from triptych.scaling.grid import DECIDED, Cell, Lengths, cell_of, flops_per_token
from triptych.scaling.optimal import FlopsPerToken, Frontier
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.train.config import RunConfig, override
from triptych.train.lengths import ORIGINS, Origin, gather
from triptych.vocab import Vocabulary, paper_vocabulary


@dataclass(frozen=True)
class Family:
    recipes: list[str]
    """What each member is a change of."""
    members: list[RunConfig]
    """From the smallest on."""
    vocabulary: Vocabulary
    lengths: Lengths
    origin: Origin
    """Of the lengths."""

    def __str__(self) -> str:
        first, last = self.members[0].model, self.members[-1].model
        return (
            f"models of {first.num_layers} x {first.width} to {last.num_layers} x {last.width} with "
            f"{self.vocabulary.size:,} ids; a sequence has {self.lengths.mean:,.0f} tokens ({ORIGINS[self.origin]})"
        )

    @cached_property
    def sizes(self) -> list[int]:
        """Parameters without embeddings."""
        return [parameters(member.model, self.vocabulary).blocks for member in self.members]

    @cached_property
    def per_token(self) -> list[float]:
        """FLOPs of training."""
        return [flops_per_token(member, self.vocabulary, self.lengths) for member in self.members]

    @cached_property
    def smooth(self) -> FlopsPerToken:
        """The same for any size between them."""
        return FlopsPerToken.through(self.sizes, self.per_token)

    def best(self, frontier: Frontier, budget: float) -> tuple[str, Cell] | None:
        """The recipe and the run of the member whose tokens, of a budget, are nearest to those that suit it.

        None where the best size lies beyond the family, or a budget is not even a step.
        """
        size = frontier.optimum(budget, self.smooth).N
        if not self.sizes[0] / 2 <= size <= self.sizes[-1] * 2:
            return None
        suited = frontier.tokens(self.sizes, self.smooth)
        gaps = [abs(math.log(budget / cost / tokens)) for cost, tokens in zip(self.per_token, suited)]
        pick = gaps.index(min(gaps))
        cell = cell_of(self.members[pick], self.vocabulary, self.lengths, budget)
        return None if cell is None else (self.recipes[pick], cell)


def family_for(recipe: str, changes: Sequence[str] = ()) -> Family:
    """The family of a recipe, with fields of all its runs changed."""
    for change in changes:
        key = change.partition("=")[0]
        if key in DECIDED:
            raise UserError(f"{key} follows from the budget: it cannot be changed.")
    found = family_of(recipe)
    members = [override(member, list(changes)) for _, member in found]
    first = members[0]
    is_paper = first.tokenizers == "paper"
    vocabulary = paper_vocabulary() if is_paper else TokenizerBundle.load(first.tokenizers).vocabulary
    batches = gather(first, vocabulary)
    return Family([name for name, _ in found], members, vocabulary, Lengths.of(batches.lengths), batches.origin)
