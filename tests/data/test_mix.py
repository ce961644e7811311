"""The stream is a pure function of its numbers, keeps its shares, and reads each source through before repeating it."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.data.mix import PERIOD, Mixture, OnePass, _turns, source_weights
from triptych.errors import UserError
from triptych.utils.rng import permute, random_bits
from triptych.vocab import Task

EQUAL = {"text": 1.0, "image-text": 1.0, "audio-text": 1.0}


def test_random_bits_never_change() -> None:
    """A saved run continues only where these numbers are the same."""
    assert random_bits(0).tolist() == [0xE220A8397B1DCDAF]  # SplitMix64's first output for seed 0
    assert random_bits(1, 2, 3).tolist() == [int(random_bits(1, 2, np.array([3]))[0])]
    assert permute(np.arange(10), 10, 7).tolist() == [3, 6, 8, 4, 0, 1, 5, 2, 7, 9]
    assert Mixture([5, 9], [1, 2], seed=0)[np.arange(8)].indices.tolist() == [5, 3, 8, 3, 4, 1, 2, 2]
    assert len(set(random_bits(5, np.arange(10_000)).tolist())) == 10_000


def test_random_bits_are_balanced() -> None:
    bits = np.unpackbits(random_bits(3, np.arange(4_000)).view(np.uint8)).reshape(4_000, 64)
    assert abs(bits.mean(0) - 0.5).max() < 0.04


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1_000, 4_097])
def test_permute_is_a_bijection(size: int) -> None:
    for key in range(3):
        assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


def test_permute_takes_many_sizes_and_keys_at_once() -> None:
    indices, sizes, keys = np.array([0, 3, 99, 5]), np.array([1, 4, 100, 9]), np.array([1, 2, 3, 4])
    together = permute(indices, sizes, 11, keys)
    one_by_one = [permute(np.array([i]), s, 11, k)[0] for i, s, k in zip(indices, sizes.tolist(), keys.tolist())]
    assert together.tolist() == one_by_one


def test_permutations_are_equally_likely() -> None:
    number, expected = 2_400, 100
    counts = dict.fromkeys(permutations(range(4)), 0)
    for key in range(number):
        counts[tuple(permute(np.arange(4), 4, key).tolist())] += 1
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 50  # 23 degrees of freedom: 49.7 is passed once in a thousand


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
    assert (abs(batch - 0.0064 * expected) < 3).all()  # sources take turns: every batch is close, too


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
    assert len(set(long)) == len(long)  # shuffled anew each time


def test_the_stream_is_a_pure_function_of_the_number() -> None:
    mixture, again = Mixture([50, 60], [1, 2], seed=3), Mixture([50, 60], [1, 2], seed=3)
    everything = mixture[np.arange(2_000)]
    some = np.random.default_rng(0).permutation(2_000)[:300]
    part = again[some]
    assert (part.sources == everything.sources[some]).all()
    assert (part.indices == everything.indices[some]).all()
    assert (part.epochs == everything.epochs[some]).all()
    other = Mixture([50, 60], [1, 2], seed=4)[np.arange(2_000)]
    assert (other.indices != everything.indices).mean() > 0.9


def test_numbers_far_out_are_as_good_as_the_first() -> None:
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


# -- weights ----------------------------------------------------------------------------------------------------------

NAMES = ["books", "web", "photos", "talks"]
TASKS = [Task.TEXT, Task.TEXT, Task.IMAGE_TEXT, Task.AUDIO_TEXT]
SIZES = [100, 300, 50, 10]


def test_data_sets_share_their_task_by_size() -> None:
    assert source_weights(NAMES, TASKS, SIZES, EQUAL, {}) == pytest.approx([1 / 12, 3 / 12, 1 / 3, 1 / 3])


def test_named_weights_split_a_task_and_are_normalised() -> None:
    tasks = {"text": 2, "image-text": 1, "audio-text": 0}
    assert source_weights(NAMES, TASKS, SIZES, tasks, {"books": 3, "web": 1}) == pytest.approx([1 / 2, 1 / 6, 1 / 3, 0])


@pytest.mark.parametrize(
    ("tasks", "datasets", "message"),
    [
        ({"text": 1, "imagetext": 1}, {}, "'imagetext', which is not there. Did you mean 'image-text'"),
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
    with pytest.raises(UserError, match=r"task 'audio-text' has weight 1 but no data set. Add"):
        source_weights(NAMES[:3], TASKS[:3], SIZES[:3], EQUAL, {})
    assert sum(source_weights(NAMES[:3], TASKS[:3], SIZES[:3], {"text": 1, "image-text": 1}, {})) == pytest.approx(1)


def test_empty_and_ambiguous_data_sets_are_refused() -> None:
    with pytest.raises(UserError, match="'web' has a weight but no sequences"):
        source_weights(NAMES, TASKS, [1, 0, 1, 1], EQUAL, {"books": 1, "web": 1})
    with pytest.raises(UserError, match="2 data sets are called so"):
        source_weights(["web", "web", "a", "b"], TASKS, SIZES, EQUAL, {"web": 1})
