"""Counter-based random numbers: pure functions of integers, equal on every machine and in every version.

A draw is identified by a seed, a stream (its purpose) and the integers of the sample, step or position. There is no
state, so results do not depend on the order of calls, the batch or the number of ranks. All stream numbers of the
project are in this file; changing one changes every run that uses it.
"""

from enum import IntEnum

import numpy as np

_FEISTEL_ROUNDS = 8  # with fewer, permutations of two to eight items are visibly not uniform


class DataStream(IntEnum):
    """Random bits of the data loader."""

    DOCUMENT_ORDER = 0
    CHANCE = 1
    LENGTH = 2
    START = 3
    OPEN_MEDIA = 4
    OPEN_TEXT = 5
    VALIDATION_SAMPLE = 6
    HELD_OUT = 7
    SUBSET = 8


class CorruptStream(IntEnum):
    """Random bits of corruption: masks in training, and from 101 on masks in validation."""

    STRATUM = 0
    TIME = 1
    MASK = 2
    SIDE = 3
    CHANCE = 4
    TEXT_END = 5
    TEXT_END_SHIFT = 6
    VALIDATION_COUNT = 101
    VALIDATION_ORDER = 102


class SampleStream(IntEnum):
    """Random bits of generation."""

    TOKEN = 0
    POSITION = 1
    COUNT = 2
    REMASK = 3
    CONFIDENCE = 4
    LENGTH = 5
    CANDIDATE_SEED = 2**32


FIRST_TOKEN_STEP = 2**31
"""Step number of the forward pass that draws the first token of a text; sampler steps count from 0."""


def random_bits(*words: int | np.ndarray) -> np.ndarray:
    """64 random bits for every tuple of integers; words broadcast. SplitMix64, with a word added before each step.

    numpy's generators cost 10 us each to seed, and their streams may change with a version.
    """
    state = np.zeros(1, np.uint64)
    for word in words:
        state = _scramble(state + np.asarray(word).astype(np.uint64))
    return state


def _scramble(state: np.ndarray) -> np.ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def to_uniform(bits: np.ndarray) -> np.ndarray:
    """Float64 in [0, 1) from the upper 53 bits."""
    return (bits >> np.uint64(11)) * 2.0**-53


def permute(indices: np.ndarray, sizes: np.ndarray, *key: int | np.ndarray) -> np.ndarray:
    """A random bijection of range(size) for every key, computed per index; all arguments broadcast.

    A Feistel network permutes the next power of four; a result outside the range is permuted again until it is inside,
    which takes at most four rounds on average.
    """
    result, sizes, keys = np.broadcast_arrays(indices, sizes, random_bits(*key))
    result, sizes = result.astype(np.uint64), sizes.astype(np.uint64)
    half = np.maximum(1, (np.frexp(sizes - np.uint64(1))[1] + 1) // 2).astype(np.uint64)  # frexp counts the bits
    low = (np.uint64(1) << half) - np.uint64(1)
    round_keys = [random_bits(keys, round_) for round_ in range(_FEISTEL_ROUNDS)]
    todo = np.arange(len(result))
    while len(todo):
        left, right = result[todo] >> half[todo], result[todo] & low[todo]
        for round_key in round_keys:
            left, right = right, left ^ (_scramble(right + round_key[todo]) & low[todo])
        result[todo] = (left << half[todo]) | right
        todo = todo[result[todo] >= sizes[todo]]
    return result.astype(np.int64)
