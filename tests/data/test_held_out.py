"""Sequences that are held out of training: by content, the same in every run, on one side only."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from token_sets import random_set, write_set

from triptych.data import sequences
from triptych.data.loader import Loader
from triptych.data.sequences import Documents, Pairs, split_by_content
from triptych.data.shards import TokenDataset
from triptych.data.steps import LoaderConfig
from triptych.errors import DataError, UserError
from triptych.vocab import Task

CONFIG = LoaderConfig(
    seq_len=60, global_batch=8, document_attention=True, held_out=0.2, prefetch=0, task_weights={"image-text": 1.0}
)


def written(source: sequences.SequenceSource) -> list[tuple[int, ...]]:
    """All sequences of a source."""
    zeros = np.zeros(len(source), np.int64)
    lengths = source.lengths(np.arange(len(source)), zeros)
    rows = []
    for number, length in enumerate(lengths.tolist()):
        out = np.zeros(length, np.int32)
        source.write(number, 0, out)
        rows.append(tuple(out.tolist()))
    return rows


@pytest.mark.parametrize("task", [Task.TEXT, Task.IMAGE_TEXT, Task.AUDIO_TEXT])
def test_both_sides_together_are_the_dataset(task: Task, tmp_path: Path) -> None:
    dataset = random_set(tmp_path / "set", task, [90, 110], np.random.default_rng(0), text=100)
    source = Documents(dataset, 40) if task == Task.TEXT else Pairs(dataset, 140)
    kept, held = (split_by_content(source, 0.1, held_out=side) for side in (False, True))
    assert len(held) == pytest.approx(0.1 * len(source), rel=0.5)
    assert sorted(written(kept) + written(held)) == sorted(written(source))
    assert kept.task == held.task == task


def test_equal_samples_are_on_one_side_wherever_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [(rng.integers(70, size=4).tolist(), rng.integers(500, size=5).tolist()) for _ in range(40)]
    twice = write_set(tmp_path / "twice", Task.IMAGE_TEXT, [[*samples, *samples[::-1]]])
    kept, held = (set(written(split_by_content(Pairs(twice, 60), 0.2, held_out=side))) for side in (False, True))
    assert not kept & held
    reordered = write_set(tmp_path / "reordered", Task.IMAGE_TEXT, [samples[20:], samples[:20]])
    assert set(written(split_by_content(Pairs(reordered, 60), 0.2, held_out=True))) == held


def test_views_of_one_image_are_on_one_side(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    views = [(rng.integers(70, size=4).tolist(), [number]) for number in range(60) for _ in range(3)]
    dataset = write_set(tmp_path / "views", Task.IMAGE_TEXT, [views])
    replace(dataset.manifest, settings={"views": 3}).save(dataset.folder)
    source = Pairs(TokenDataset(dataset.folder), 60)
    kept, held = (written(split_by_content(source, 0.2, held_out=side)) for side in (False, True))
    assert held
    assert not {row[-2] for row in kept} & {row[-2] for row in held}, "the captions are different"


def test_equal_samples_of_two_datasets_are_on_one_side(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [(rng.integers(70, size=4).tolist(), rng.integers(500, size=5).tolist()) for _ in range(300)]
    small = write_set(tmp_path / "small", Task.IMAGE_TEXT, [samples[:60]])
    large = write_set(tmp_path / "large", Task.IMAGE_TEXT, [samples])
    trained = set(written(split_by_content(Pairs(large, 60), 0.1, held_out=False)))
    assert not trained & set(written(split_by_content(Pairs(small, 60), 0.1, held_out=True)))


def test_a_loader_never_yields_what_is_held_out(tmp_path: Path) -> None:
    dataset = random_set(tmp_path / "set", Task.IMAGE_TEXT, [60], np.random.default_rng(0))

    def rows(held_out: bool) -> set[bytes]:
        with Loader([dataset], CONFIG, one_pass=True, held_out=held_out) as loader:
            return {
                batch.tokens[(batch.segment_ids == number + 1)].tobytes()
                for step in loader
                for batch in step.micro_batches
                for number in range(len(batch.sample_ids))
            }

    kept, held = rows(False), rows(True)
    assert len(kept) + len(held) == 60
    assert 4 < len(held) < 24
    assert not kept & held
    with Loader([dataset], CONFIG, num_steps=50) as loader:  # several epochs
        for step in loader:
            for batch in step.micro_batches:
                for number in range(len(batch.sample_ids)):
                    assert batch.tokens[batch.segment_ids == number + 1].tobytes() not in held
        assert loader.fingerprint["held_out"] == 0.2
    with Loader([dataset], replace(CONFIG, held_out=0.0), num_steps=1) as loader:
        assert "held_out" not in loader.fingerprint, "runs of earlier versions can be resumed"


def test_what_cannot_be_held_out_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = random_set(tmp_path / "text", Task.TEXT, [20], rng)
    packed = replace(CONFIG, document_attention=False, task_weights={"text": 1.0})
    with pytest.raises(UserError, match=r"set loader\.document_attention=true, or give validation_data"):
        Loader([text], packed)
    one = write_set(tmp_path / "one", Task.IMAGE_TEXT, [[([1], [2])] * 3])
    with pytest.raises(DataError, match="has 1 different sequences, too few to hold some out"):
        Loader([TokenDataset(one.folder)], CONFIG)
    with pytest.raises(UserError, match="held_out must be at least 0 and below 1"):
        replace(CONFIG, held_out=1.0)
