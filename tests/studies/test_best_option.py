"""Options compared on blocks: planted effects are recovered, ties are ties, and the error rate is what it should be."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from triptych.studies.best_option import compare_options, complete_blocks


def table(effects: dict[str, float], blocks: int, noise: float, seed: int = 0, block_noise: float = 1.0):
    rng = np.random.default_rng(seed)
    shared = block_noise * rng.standard_normal(blocks)
    return {name: list(effect + shared + noise * rng.standard_normal(blocks)) for name, effect in effects.items()}


def test_a_planted_best_is_recovered_under_block_noise() -> None:
    values = table({"a": 0.0, "b": 0.5, "c": 0.1}, blocks=4, noise=0.02)
    highest = compare_options(values, higher_is_better=True)
    assert (highest.best, highest.tied, highest.is_decided) == ("b", ("b",), True)
    assert highest.lead("a").low < 0.5 < highest.lead("a").high
    lowest = compare_options(values, higher_is_better=False)
    assert lowest.best == "a"
    assert lowest.is_decided


def test_options_without_a_difference_are_tied() -> None:
    comparison = compare_options(table({"a": 0.0, "b": 0.0, "c": 0.0}, 3, 0.1), higher_is_better=True)
    assert not comparison.is_decided
    assert len(comparison.tied) > 1
    equal = compare_options({"a": [1.0, 2.0], "b": [1.0, 2.0]}, higher_is_better=True)
    assert equal.tied == ("a", "b")
    assert not equal.is_decided


def test_two_options_give_the_paired_t_interval() -> None:
    values = table({"a": 0.0, "b": 0.3}, blocks=6, noise=0.2)
    comparison = compare_options(values, higher_is_better=True)
    other = "a" if comparison.best == "b" else "b"
    expected = ttest_rel(values[comparison.best], values[other]).confidence_interval(0.95)
    lead = comparison.lead(other)
    assert (lead.low, lead.high) == pytest.approx((expected.low, expected.high))


def test_the_best_option_is_seldom_excluded() -> None:
    """Without any difference, all options should be tied with the leading one, up to selection of the leading one."""
    wrong = sum(
        compare_options(table({"a": 0.0, "b": 0.0, "c": 0.0}, 4, 1.0, seed), higher_is_better=True).is_decided
        for seed in range(400)
    )
    assert wrong / 400 < 0.05


def test_one_noisy_option_does_not_hide_the_order_of_the_others() -> None:
    values = table({"a": 0.0, "b": 0.2, "c": 0.1}, blocks=16, noise=0.02) | {
        "noisy": list(-2 + 5 * np.random.default_rng(1).standard_normal(16))
    }
    comparison = compare_options(values, higher_is_better=True)
    assert (comparison.best, "c" in comparison.tied) == ("b", False)
    assert comparison.margins["c"] < 0.05 < comparison.margins["noisy"]


def test_one_block_decides_nothing() -> None:
    comparison = compare_options({1.0: [0.1], 2.0: [0.9]}, higher_is_better=True)
    assert comparison.tied == (1.0, 2.0)
    assert math.isinf(comparison.margin)
    assert math.isnan(comparison.spread)


def test_only_complete_blocks_count() -> None:
    values = {"a": {"0": 1.0, "1": 2.0}, "b": {"1": 5.0}}
    assert complete_blocks(values) == {"a": [2.0], "b": [5.0]}
    assert complete_blocks({"a": {"0": 1.0}, "b": {"1": 1.0}}) == {}
