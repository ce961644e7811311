"""A step of the largest recipe on ranks that do not exist."""

from dataclasses import replace

import pytest

from triptych.errors import UserError
from triptych.model.count import parameters
from triptych.plan.dry_run import rehearse
from triptych.recipes import recipe
from triptych.training.config import ParallelConfig
from triptych.vocab import paper_vocabulary


@pytest.mark.parametrize(("ranks", "shard", "mesh", "shards"), [(128, None, "1 x 128", 128), (128, 8, "16 x 8", 8)])
def test_the_largest_recipe_is_built_sharded_and_stepped(ranks: int, shard: int | None, mesh: str, shards: int) -> None:
    run = recipe("paper_3b")
    # As deep as it has to be to see every part; all else as it is.
    config = replace(run, model=replace(run.model, num_layers=2), parallel=replace(run.parallel, shard=shard))
    found = rehearse(config, paper_vocabulary(), ranks)
    assert (found.ranks, found.mesh) == (ranks, mesh)
    total = parameters(config.model, paper_vocabulary()).total
    assert found.weights == pytest.approx(total / shards, rel=0.01)  # rows are divided, not numbers
    assert found.optimizer == 2 * found.weights


def test_ranks_that_cannot_be_divided_are_refused() -> None:
    config = replace(recipe("nano"), parallel=ParallelConfig(shard=3))
    with pytest.raises(UserError, match=r"parallel.shard=3 must divide the number of ranks, 8"):
        rehearse(config, paper_vocabulary(), 8)
