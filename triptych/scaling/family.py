"""The family of a recipe: models of one aspect, what they cost, and the one nearest to a size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from triptych.errors import UserError
from triptych.model.count import parameters
from triptych.plan.lengths import ORIGINS, Origin, gather
from triptych.recipes import family_of
from triptych.scaling.grid import DECIDED, Cell, Lengths, cell_of, flops_per_token
from triptych.scaling.optimal import FlopsPerToken, Frontier, Optimum
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig, override
from triptych.vocab import Vocabulary, paper_vocabulary


@dataclass(frozen=True)
class Family:
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

    def nearest(self, best: Optimum, frontier: Frontier) -> Cell | None:
        """The member whose tokens, of the optimum's budget, come nearest to those that suit it.

        None where the best size lies beyond the family, or a budget is not even a step.
        """
        if not self.sizes[0] / 2 <= best.N <= self.sizes[-1] * 2:
            return None
        suited = frontier.tokens(self.sizes, self.smooth)
        gaps = [abs(math.log(best.flops / cost / tokens)) for cost, tokens in zip(self.per_token, suited)]
        return cell_of(self.members[gaps.index(min(gaps))], self.vocabulary, self.lengths, best.flops)


def family_for(recipe: str, changes: Sequence[str] = ()) -> Family:
    """The family of a recipe, with fields of all its runs changed."""
    for change in changes:
        key = change.partition("=")[0]
        if key in DECIDED:
            raise UserError(f"{key} follows from the budget: it cannot be changed.")
    members = [override(member, list(changes)) for member in family_of(recipe)]
    first = members[0]
    is_paper = first.tokenizers == "paper"
    vocabulary = paper_vocabulary() if is_paper else TokenizerBundle.load(first.tokenizers).vocabulary
    batches = gather(first, vocabulary)
    return Family(members, vocabulary, Lengths.of(batches.lengths), batches.origin)
