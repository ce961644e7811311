"""The planned layout of a step is the one that the loader produces."""

from pathlib import Path

import numpy as np
import pytest
from train_fakes import TINY, make_world, tiny_run

from triptych.data.loader import Loader
from triptych.data.pack import Grouped, Packed, Padded, RowLayout
from triptych.plan.lengths import BatchSample, sample_batches
from triptych.plan.step_layout import lay_out_step


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("planned"))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "layout",
    [Padded(), Padded(micro_batch_rows=2), Packed(row_length=40), Packed(micro_batch_rows=1), Grouped(max_tokens=60)],
    ids=repr,
)
def test_step_layout_matches_the_loader(world: Path, layout: RowLayout, ranks: int) -> None:
    config = tiny_run(world, layout=layout)
    planned = lay_out_step(sample_batches(config, TINY), layout, config.loader.seq_len, ranks)
    # The same steps from the ranks' own loaders.
    steps = [list(Loader(config.data, config.loader, rank, ranks, num_steps=114)) for rank in range(ranks)]
    assert planned.tokens == np.mean([step.num_tokens for step in steps[0]])
    assert planned.positions == np.mean([step.num_positions for step in steps[0]])
    shapes = [batch.tokens.shape for step in steps[0] for batch in step.micro_batches]
    assert planned.micro_batch_rows * planned.row_length == max(rows * length for rows, length in shapes)
    assert (planned.micro_batch_rows, planned.row_length) in shapes
    assert planned.micro_batches == max(len(step.micro_batches) for step in steps[0])
    batches = [batch for mine in steps for step in mine for batch in step.micro_batches]
    filled = sum(int((batch.segment_ids > 0).any(1).sum()) for batch in batches)
    assert (planned.filled_rows, planned.total_rows) == (
        filled / 114,
        sum(len(batch.tokens) for batch in batches) / 114,
    )
    lengths = np.concatenate([np.bincount(b.segment_ids.ravel())[1:] for b in batches if len(b.sample_ids)])
    assert planned.context == pytest.approx(np.square(lengths).sum() / lengths.sum())
    assert planned.has_mask
    most = max(int((batch.segment_ids > 0).sum()) for batch in batches)
    assert planned.max_fill * planned.micro_batch_rows * planned.row_length == pytest.approx(most)


def test_small_layouts_computed_by_hand() -> None:
    lengths = np.array([10, 8, 4, 4, 3])
    batches = BatchSample("measured", [lengths], 0.5)
    padded = lay_out_step(batches, Padded(micro_batch_rows=1), 10, 2)
    assert (padded.tokens, padded.positions, padded.filled_rows, padded.total_rows, padded.micro_batches) == (
        29,
        60,
        5,
        6,
        3,
    )
    assert padded.context == pytest.approx((100 + 64 + 16 + 16 + 9) / 29)
    packed = lay_out_step(batches, Packed(row_length=10), 10, 2)  # 10 | 8 | 4 + 4 | 3
    assert (packed.filled_rows, packed.total_rows, packed.micro_batches, packed.micro_batch_rows) == (4, 4, 1, 2)
    assert packed.positions == 40
    assert packed.max_fill == (10 + 4 + 4) / 20  # of the first rank
    assert padded.max_fill == 1
    assert lay_out_step(batches, Padded(), 10, 2).max_fill == (10 + 4 + 3) / 30
    assert not lay_out_step(BatchSample("measured", [np.array([10, 10])], 0.5), Packed(row_length=10), 10, 2).has_mask
    assert lay_out_step(BatchSample("measured", [np.array([10, 9])], 0.5), Packed(row_length=10), 10, 2).has_mask
    assert lay_out_step(BatchSample("measured", [np.array([10, 10])], 0.5), Packed(row_length=20), 10, 1).has_mask
