"""Counter-based random numbers: fixed forever, balanced, and permutations that are equally likely."""

from itertools import permutations

import numpy as np
import pytest

from triptych.utils.rng import (
    FIRST_TOKEN_STEP,
    CorruptStream,
    DataStream,
    SampleStream,
    permute,
    random_bits,
    to_uniform,
)


def test_random_bits_never_change() -> None:
    """A saved run continues only where these numbers are the same."""
    assert random_bits(0).tolist() == [0xE220A8397B1DCDAF]  # SplitMix64's first output for seed 0
    assert random_bits(1, 2, 3).tolist() == [int(random_bits(1, 2, np.array([3]))[0])]
    assert permute(np.arange(10), 10, 7).tolist() == [3, 6, 8, 4, 0, 1, 5, 2, 7, 9]
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


def test_uniform_numbers_use_the_upper_53_bits() -> None:
    bits = np.array([0, 2**11 - 1, 2**11, 2**63, 2**64 - 1], np.uint64)
    assert to_uniform(bits).tolist() == [0.0, 0.0, 2.0**-53, 0.5, 1 - 2.0**-53]
    draws = to_uniform(random_bits(1, np.arange(20_000)))
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(draws.var() - 1 / 12) < 0.002


def test_stream_numbers_never_change() -> None:
    """A changed number would change every run, mask or sample that uses it."""
    data = ["DOCUMENT_ORDER", "CHANCE", "LENGTH", "START", "OPEN_MEDIA", "OPEN_TEXT", "VALIDATION_SAMPLE", "HELD_OUT"]
    data.append("SUBSET")
    assert {stream.name: stream.value for stream in DataStream} == {name: n for n, name in enumerate(data)}
    corrupt = ["STRATUM", "TIME", "MASK", "SIDE", "CHANCE", "TEXT_END", "TEXT_END_SHIFT"]
    assert {stream.name: stream.value for stream in CorruptStream} == {
        **{name: n for n, name in enumerate(corrupt)},
        "VALIDATION_COUNT": 101,
        "VALIDATION_ORDER": 102,
    }
    sample = ["TOKEN", "POSITION", "COUNT", "REMASK", "CONFIDENCE", "LENGTH"]
    assert {stream.name: stream.value for stream in SampleStream} == {
        **{name: n for n, name in enumerate(sample)},
        "CANDIDATE_SEED": 2**32,
    }
    assert FIRST_TOKEN_STEP == 2**31
