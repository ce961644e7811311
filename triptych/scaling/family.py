"""The family of a recipe: models of one aspect, what they cost, and the one nearest to a size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from triptych.errors import UserError
from triptych.model.count import flops, parameters
from triptych.recipes import family_of
from triptych.scaling.grid import DECIDED, Cell, Lengths, cell_of
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.train.config import RunConfig, override
from triptych.train.lengths import Origin, gather
from triptych.vocab import Vocabulary, paper_vocabulary

_ORIGINS = {
    "measured": "measured on the data",
    "paper": "estimated from the paper's totals",
    "unknown": "not known without the data: each is taken for the longest",
}


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
            f"{self.vocabulary.size:,} ids; a sequence has {self.lengths.mean:,.0f} tokens ({_ORIGINS[self.origin]})"
        )

    @cached_property
    def sizes(self) -> list[int]:
        """Parameters without embeddings."""
        return [parameters(member.model, self.vocabulary).blocks for member in self.members]

    @cached_property
    def per_token(self) -> list[float]:
        """FLOPs of training, with the whole head."""
        return [flops(member.model, self.vocabulary, self.lengths.context).training for member in self.members]

    def nearest(self, size: float, budget: float) -> tuple[str, Cell]:
        """The recipe and the run of the model nearest to a size, on the tokens that the budget leaves it."""
        if not self.sizes[0] / 2 <= size <= self.sizes[-1] * 2:
            raise UserError(
                f"the best size for {budget:g} FLOPs has {size:.3g} parameters, and this family {self.sizes[0]:.3g} to "
                f"{self.sizes[-1]:.3g}: name another with RECIPE (family or aspect_8), or another budget."
            )
        pick = min(range(len(self.sizes)), key=lambda index: abs(math.log(self.sizes[index] / size)))
        cell = cell_of(self.members[pick], self.vocabulary, self.lengths, budget)
        if cell is None:
            raise UserError(f"{budget:g} FLOPs are not even one step of a model of {self.sizes[pick]:,} parameters.")
        return self.recipes[pick], cell


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
