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
    assert len(held) == pytest.approx(0.1 * len(source), abs=1)
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


def test_a_large_dataset_holds_out_a_limited_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MAX_HELD_OUT", 5)
    dataset = random_set(tmp_path / "set", Task.IMAGE_TEXT, [100], np.random.default_rng(0))
    assert len(split_by_content(Pairs(dataset, 60), 0.5, held_out=True)) == 5


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
    assert (len(kept), len(held)) == (48, 12)
    assert not kept & held
    with Loader([dataset], CONFIG, num_steps=50) as loader:  # several epochs
        for step in loader:
            for batch in step.micro_batches:
                for number in range(len(batch.sample_ids)):
                    assert batch.tokens[batch.segment_ids == number + 1].tobytes() not in held
        assert loader.fingerprint["held_out"] == 0.2
    with Loader([dataset], replace(CONFIG, held_out=0.0), num_steps=1) as loader:
        assert "held_out" not in loader.fingerprint, "runs of earlier versions go on"


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
