import numpy as np
import pytest

from triptych.eval import scores
from triptych.eval.scores import Score, auroc, category_score, ratio_score


def test_the_interval_of_a_mean_is_that_of_a_binomial():
    hits = np.random.default_rng(1).random(400) < 0.3
    score = ratio_score(hits)
    p = hits.mean()
    half = 1.96 * np.sqrt(p * (1 - p) / 400)
    assert score.value == pytest.approx(p)
    assert score.low == pytest.approx(p - half, abs=0.2 * half)
    assert score.high == pytest.approx(p + half, abs=0.2 * half)
    assert score.n == 400


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios():
    score = ratio_score([1, 0, 3], [2, 10, 4])
    assert score.value == pytest.approx(4 / 16)
    assert 0 <= score.low <= score.value <= score.high <= 0.75


@pytest.mark.parametrize("n", [1, 5, 60])
def test_only_hits_or_only_misses_have_the_wilson_interval(n):
    margin = pytest.approx(1.96**2 / (n + 1.96**2))  # Wilson's interval of 0 of n
    for counts in (None, [1] * n):
        none, every = ratio_score([False] * n, counts), ratio_score([True] * n, counts)
        assert (none.value, none.low, none.high, none.n) == (0, 0, margin, n)
        assert (every.value, 1 - every.low, every.high, every.n) == (1, margin, 1, n)


def test_a_wer_without_errors_has_an_interval_of_zero_width():
    assert ratio_score([0.0] * 5, [3] * 5) == Score(0.0, 0.0, 0.0, 5)


def test_categories_without_spread_have_an_interval():
    perfect = category_score({"a": [True] * 20, "b": [True] * 20})
    assert perfect.value == perfect.high == 1
    assert 0.9 < perfect.low < 0.98
    hopeless = category_score({"a": [False] * 20, "b": [False] * 20})
    assert hopeless.value == hopeless.low == 0
    assert 0.02 < hopeless.high < 0.1
    mixed = category_score({"a": [True] * 1000, "b": [False] * 2})  # the two answers of b keep the interval wide
    assert mixed.low < mixed.value == 0.5
    assert mixed.high > 0.6


@pytest.mark.parametrize(
    ("rates", "n"), [((0.99,) * 6, 20), ((0.999,) * 6, 99), ((0.9, 1.0, 0.5), 10), ((0.0, 0.02), 30)]
)
def test_intervals_contain_the_true_rate_in_more_than_90_percent_of_cases(rates, n):
    rng = np.random.default_rng(0)
    contains = []
    for _ in range(300):
        score = category_score({str(i): list(rng.random(n) < rate) for i, rate in enumerate(rates)}, draws=1000)
        contains.append(score.low <= np.mean(rates) <= score.high)
    assert np.mean(contains) > 0.9


def test_categories_have_equal_weight_whatever_their_size():
    right = {"a": [True] * 90 + [False] * 10, "b": [False, True]}
    score = category_score(right)
    assert score.value == pytest.approx((0.9 + 0.5) / 2)
    deviation = np.sqrt(0.9 * 0.1 / 100 + 0.25 / 2) / 2
    assert score.low < score.value - deviation
    assert score.value + deviation < score.high
    assert score.n == 102


@pytest.mark.parametrize(("seed", "low", "high"), [(0, 0, 5), (1, 0, 2), (2, 3, 4), (3, -5, 50)])
def test_auroc_counts_pairs(seed, low, high):
    rng = np.random.default_rng(seed)
    usual, unusual = rng.integers(0, 5, 40), rng.integers(low, high, 25)  # with many ties
    pairs = [(a, b) for a in usual for b in unusual]
    expected = sum(1.0 if b > a else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert auroc(usual, unusual) == pytest.approx(expected)
    assert auroc(unusual, usual) == pytest.approx(1 - expected)


def test_a_bootstrap_in_blocks_has_the_same_values(monkeypatch):
    hits, counts = np.random.default_rng(1).random(37), np.arange(1, 38)
    picks = np.random.default_rng(0).integers(37, size=(1000, 37))
    values = hits[picks].sum(1) / counts[picks].sum(1)
    for block in (1, 37 * 7, 1 << 20):
        monkeypatch.setattr(scores, "_PICKS", block)
        score = scores.ratio_score(hits, counts)
        assert [score.low, score.high] == np.quantile(values, (0.025, 0.975)).tolist()
