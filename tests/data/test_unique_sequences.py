"""Training on a subset of the data over and over: which sequences it has, and in which order."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from token_sets import random_set

from triptych.data.loader import Loader
from triptych.data.mix import PERIOD, Mixture
from triptych.data.shards import TokenDataset
from triptych.data.steps import LoaderConfig
from triptych.errors import DataError, UserError
from triptych.vocab import Task

CONFIG = LoaderConfig(seq_len=60, global_batch=8, document_attention=True, prefetch=0, task_weights={"text": 1.0})


def drawn(stream: Mixture, first: int, stop: int) -> list[tuple[int, int, int]]:
    picks = stream[np.arange(first, stop)]
    return list(zip(picks.sources.tolist(), picks.indices.tolist(), picks.epochs.tolist()))


@pytest.mark.parametrize("unique", [600, PERIOD + 600])
def test_the_stream_repeats_a_random_subset_in_another_order(unique: int) -> None:
    sizes, weights = [400_000, 300_000], [2, 1]
    stream = Mixture(sizes, weights, seed=3, unique=unique)
    first, second = drawn(stream, 0, unique), drawn(stream, unique, 2 * unique)
    samples = [(source, index) for source, index, _ in first]
    assert len(set(samples)) == unique, "the first pass has every sequence once"
    assert {epoch for *_, epoch in first} == {0}
    again = Counter((source, index) for source, index, _ in second)
    assert set(again) <= set(samples)
    assert sum(again.values()) == unique
    assert len(set(samples) - set(again)) <= 2, "datasets alternate, so a pass ends within a turn of each"
    assert [(source, index) for source, index, _ in second[:200]] != samples[:200]
    # A random subset of the whole dataset, not its start.
    of_largest = np.array([index for source, index in samples if source == 0])
    assert of_largest.mean() == pytest.approx(sizes[0] / 2, rel=0.1)
    assert of_largest.max() > 0.95 * sizes[0]


def test_twice_the_batch_covers_the_same_sequences_twice() -> None:
    """Half the batch for one epoch, and the whole batch for two: equal steps and equal unique data."""
    steps, batch = 50, 8
    unique = steps * batch // 2
    stream = Mixture([900, 700, 800], [0.1, 0.7, 0.2], seed=0, unique=unique)
    once = Counter((source, index) for source, index, _ in drawn(stream, 0, unique))
    twice = Counter((source, index) for source, index, _ in drawn(stream, 0, steps * batch))
    assert set(once.values()) == {1}
    assert set(twice) == set(once)
    assert sum(count != 2 for count in twice.values()) <= 3


def test_without_a_limit_nothing_changes() -> None:
    assert Mixture([5, 9], [1, 2], seed=0).subsets is None
    assert Mixture([5, 9, 0], [1, 2, 0], seed=0, unique=6).subsets.tolist() == [2, 4, 0]


def test_a_loader_trains_on_the_subset_and_says_so(tmp_path: Path) -> None:
    dataset = random_set(tmp_path / "set", Task.TEXT, [60], np.random.default_rng(0))
    with Loader([dataset], replace(CONFIG, unique_sequences=20), num_steps=30) as loader:
        seen = Counter(sample for step in loader for batch in step.micro_batches for sample in batch.sample_ids)
        assert loader.fingerprint["unique_sequences"] == 20
    assert len(seen) == 20
    assert set(seen.values()) == {12}
    with Loader([dataset], CONFIG, num_steps=1) as loader:
        assert "unique_sequences" not in loader.fingerprint, "runs of earlier versions can be resumed"


def test_too_many_sequences_and_texts_that_change_are_refused(tmp_path: Path) -> None:
    dataset = random_set(tmp_path / "set", Task.TEXT, [60], np.random.default_rng(0))
    with pytest.raises(DataError, match=r"unique_sequences=61 needs 61 different sequences of .*set, which has \d+: "):
        Loader([dataset], replace(CONFIG, unique_sequences=61))
    packed = replace(CONFIG, document_attention=False, unique_sequences=5)
    with pytest.raises(UserError, match=r"unique_sequences needs texts .* set loader\.document_attention=true"):
        Loader([TokenDataset(dataset.folder)], packed)
    with pytest.raises(UserError, match="unique_sequences must be an integer of at least 1, got 0"):
        replace(CONFIG, unique_sequences=0)
