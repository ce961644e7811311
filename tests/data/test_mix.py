"""The mixture is a pure function of the position, keeps its weights, and completes an epoch before the next."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.data.mix import PERIOD, Mixture, OnePass, _turns, source_weights
from triptych.errors import UserError
from triptych.vocab import Task

EQUAL = {"text": 1.0, "image-text": 1.0, "audio-text": 1.0}


def test_the_order_never_changes() -> None:
    """A saved run continues only where these numbers are the same."""
    assert Mixture([5, 9], [1, 2], seed=0)[np.arange(8)].indices.tolist() == [5, 3, 8, 3, 4, 1, 2, 2]


@pytest.mark.parametrize(
    "weights", [[1, 1, 1], [0.5, 0.3, 0.2], [0.9, 0.1], [1], [5, 0, 1], [0.6, 0.2, 0.1, 0.05, 0.05], [1, 2, 4, 8, 16]]
)
@pytest.mark.parametrize("first", [0, 12_345, 10 * PERIOD - 5_000])
def test_shares_hold_within_one_percent(weights: list[float], first: int) -> None:
    mixture = Mixture([97] * len(weights), weights, seed=1)
    counts = np.bincount(mixture[np.arange(first, first + 10_000)].sources, minlength=len(weights))
    expected = 10_000 * np.array(weights) / sum(weights)
    assert (abs(counts - expected) <= 0.01 * expected).all()
    batch = np.bincount(mixture[np.arange(first, first + 64)].sources, minlength=len(weights))
    assert (abs(batch - 0.0064 * expected) < 3).all()  # datasets alternate: every batch is close, too


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=6), st.integers(0, 3))
def test_every_weight_gets_a_turn(weights: list[float], zeros: int) -> None:
    turns = _turns([*weights, *[0.0] * zeros])
    assert turns.sum() == PERIOD
    assert (turns[: len(weights)] > 0).all()
    assert (turns[len(weights) :] == 0).all()


def test_an_epoch_covers_every_sequence_once() -> None:
    sizes = [7, 100, 1, 333]
    mixture = Mixture(sizes, [1, 3, 0.1, 2], seed=5)
    picks = mixture[np.arange(6_000)]
    orders = []
    for source, size in enumerate(sizes):
        mine = picks.sources == source
        assert picks.epochs[mine].tolist() == (np.arange(mine.sum()) // size).tolist()
        for epoch in range(int(picks.epochs[mine].max())):  # the last one is not complete
            order = picks.indices[mine & (picks.epochs == epoch)].tolist()
            assert sorted(order) == list(range(size))
            orders.append(tuple(order))
    long = [order for order in orders if len(order) > 50]
    assert len(set(long)) == len(long)  # every epoch has another order


def test_the_stream_is_a_pure_function_of_the_position() -> None:
    mixture, again = Mixture([50, 60], [1, 2], seed=3), Mixture([50, 60], [1, 2], seed=3)
    everything = mixture[np.arange(2_000)]
    some = np.random.default_rng(0).permutation(2_000)[:300]
    part = again[some]
    assert (part.sources == everything.sources[some]).all()
    assert (part.indices == everything.indices[some]).all()
    assert (part.epochs == everything.epochs[some]).all()
    other = Mixture([50, 60], [1, 2], seed=4)[np.arange(2_000)]
    assert (other.indices != everything.indices).mean() > 0.9


def test_positions_far_out_are_valid() -> None:
    picks = Mixture([3_000_000_000, 10], [1, 1], seed=0)[np.arange(10**13, 10**13 + 100)]
    assert (picks.indices >= 0).all()
    assert (picks.indices < 3_000_000_000).all()
    assert picks.epochs.max() > 10**11


def test_one_pass_is_in_order() -> None:
    stream = OnePass([2, 0, 3])
    picks = stream[np.arange(stream.length)]
    assert picks.sources.tolist() == [0, 0, 2, 2, 2]
    assert picks.indices.tolist() == [0, 1, 0, 1, 2]
    assert picks.epochs.tolist() == [0] * 5


def test_a_shuffled_pass_is_a_fixed_permutation() -> None:
    stream = OnePass([200, 300], seed=3)
    picks = stream[np.arange(500)]
    assert sorted(zip(picks.sources.tolist(), picks.indices.tolist())) == [
        (source, index) for source, size in enumerate((200, 300)) for index in range(size)
    ]
    assert (OnePass([200, 300], seed=3)[np.arange(100)].indices == picks.indices[:100]).all()
    assert (OnePass([200, 300], seed=4)[np.arange(500)].indices != picks.indices).mean() > 0.9


# -- weights ----------------------------------------------------------------------------------------------------------

NAMES = ["books", "web", "photos", "talks"]
TASKS = [Task.TEXT, Task.TEXT, Task.IMAGE_TEXT, Task.AUDIO_TEXT]
SIZES = [100, 300, 50, 10]


def test_datasets_share_their_task_by_size() -> None:
    assert source_weights(NAMES, TASKS, SIZES, EQUAL, {}) == pytest.approx([1 / 12, 3 / 12, 1 / 3, 1 / 3])


def test_named_weights_split_a_task_and_are_normalised() -> None:
    tasks = {"text": 2, "image-text": 1, "audio-text": 0}
    assert source_weights(NAMES, TASKS, SIZES, tasks, {"books": 3, "web": 1}) == pytest.approx([1 / 2, 1 / 6, 1 / 3, 0])


@pytest.mark.parametrize(
    ("tasks", "datasets", "message"),
    [
        ({"text": 1, "imagetext": 1}, {}, "the unknown name 'imagetext'. Did you mean 'image-text'"),
        ({"text": -1}, {}, r"task_weights\['text'\] must be a number"),
        ({"text": float("nan")}, {}, "must be a number"),
        ({"text": 0}, {}, "all 0"),
        (EQUAL, {"book": 1}, "Did you mean 'books'"),
        (EQUAL, {"books": 1}, "not 'web'. Name all of them"),
        (EQUAL, {"books": 0, "web": 0}, "set the task's weight to 0"),
    ],
)
def test_wrong_weights_are_named(tasks: dict, datasets: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        source_weights(NAMES, TASKS, SIZES, tasks, datasets)


def test_a_task_without_data_needs_weight_zero() -> None:
    with pytest.raises(UserError, match=r"task 'audio-text' has weight 1 but no dataset. Add"):
        source_weights(NAMES[:3], TASKS[:3], SIZES[:3], EQUAL, {})
    assert sum(source_weights(NAMES[:3], TASKS[:3], SIZES[:3], {"text": 1, "image-text": 1}, {})) == pytest.approx(1)


def test_empty_and_ambiguous_datasets_are_refused() -> None:
    with pytest.raises(UserError, match="'web' has a weight but no sequences"):
        source_weights(NAMES, TASKS, [1, 0, 1, 1], EQUAL, {"books": 1, "web": 1})
    with pytest.raises(UserError, match="2 datasets have this name"):
        source_weights(["web", "web", "a", "b"], TASKS, SIZES, EQUAL, {"web": 1})
