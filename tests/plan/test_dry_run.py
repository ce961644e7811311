"""One step of the largest recipe on simulated ranks."""

from dataclasses import replace

import pytest

from triptych.errors import UserError
from triptych.model.flops import count_parameters
from triptych.plan.dry_run import dry_run
from triptych.recipes import recipe
from triptych.training.config import ParallelConfig
from triptych.vocab import paper_vocabulary


@pytest.mark.parametrize(("ranks", "shard", "mesh", "shards"), [(128, None, "1 x 128", 128), (128, 8, "16 x 8", 8)])
def test_the_largest_recipe_is_built_sharded_and_stepped(ranks: int, shard: int | None, mesh: str, shards: int) -> None:
    run = recipe("paper_3b")
    # Two layers have every part; everything else as in the recipe.
    config = replace(run, model=replace(run.model, num_layers=2), parallel=replace(run.parallel, shard=shard))
    result = dry_run(config, paper_vocabulary(), ranks)
    assert (result.ranks, result.mesh) == (ranks, mesh)
    total = count_parameters(config.model, paper_vocabulary()).total
    assert result.weights == pytest.approx(total / shards, rel=0.01)  # whole rows are sharded
    assert result.optimizer == 2 * result.weights


def test_ranks_that_shards_do_not_divide_are_refused() -> None:
    config = replace(recipe("nano"), parallel=ParallelConfig(shard=3))
    with pytest.raises(UserError, match=r"parallel.shard=3 must divide the number of ranks, 8"):
        dry_run(config, paper_vocabulary(), 8)
