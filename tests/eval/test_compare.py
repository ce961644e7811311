"""Comparison of two models: intervals and verdicts against simulation, and which results belong together."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from triptych.errors import DataError, UserError
from triptych.eval.compare import compare
from triptych.eval.difference import Difference, holm, paired_difference, unpaired_difference
from triptych.eval.metrics import Judge, Metric, Result
from triptych.eval.results import Entry, ModelInfo, StoredResults
from triptych.eval.scores import Score, ratio_score

ACC = Metric("task/acc", "accuracy", "text", True, (0.0, 1.0))
WER = Metric("wer", "WER", "audio", False, (0.0, 1.0))
FID = Metric("fid", "FID", "image", False)
NATS = Metric("elbo/text", "nats per token", "text", False)
A, B = ModelInfo("a", "a" * 64, {"text": "one"}), ModelInfo("b", "b" * 64, {"text": "one"})


def shares(right):
    return [(float(each), 1.0) for each in right]


# -- the paired difference against the truth --------------------------------------------------------------------------


def correlated(rng, n, first, second, correlation=0.6):
    """Right and wrong answers of two models to questions that are hard for both."""
    shared = rng.normal(size=n)
    scores = [math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * rng.normal(size=n) for _ in range(2)]
    return [shares(stats.norm.cdf(score) < rate) for score, rate in zip(scores, (first, second))]


def transcripts(rng, n, first, second):
    """Word errors of two models on sentences of different lengths that are hard for both."""
    words, difficulty = rng.integers(3, 20, n), rng.beta(2, 5, n) * 3.5
    errors = [rng.binomial(words, np.clip(rate * difficulty, 0, 1)) for rate in (first, second)]
    return [[(float(e), float(w)) for e, w in zip(each, words)] for each in errors]


@pytest.mark.parametrize(("sample", "n"), [(correlated, 40), (correlated, 300), (transcripts, 100)])
def test_the_interval_covers_the_truth_and_verdicts_are_false_in_one_of_twenty(sample, n):
    rng = np.random.default_rng(5)
    covered = rejected = 0
    trials = 400
    for _ in range(trials):
        found = paired_difference(*sample(rng, n, 0.35, 0.25), resamples=400, swaps=1)
        covered += found.low <= 0.1 <= found.high
        rejected += paired_difference(*sample(rng, n, 0.3, 0.3), resamples=1, swaps=400).p <= 0.05
    assert covered / trials == pytest.approx(0.95, abs=0.03)
    assert rejected / trials <= 0.05 + 0.025


def test_pairs_find_what_two_intervals_miss():
    rng = np.random.default_rng(1)
    paired = unpaired = 0
    for _ in range(200):
        one, other = transcripts(rng, 100, 0.34, 0.28)
        paired += paired_difference(one, other, resamples=1, swaps=400).p <= 0.05
        first, second = (ratio_score(*zip(*each), resamples=200) for each in (one, other))
        unpaired += unpaired_difference(first, second).p <= 0.05
    assert paired > 1.5 * unpaired
    assert paired > 140


def test_right_and_wrong_answers_are_tested_as_mcnemar_does():
    one, other = [1] * 30 + [0] * 10 + [1] * 40, [0] * 30 + [1] * 10 + [1] * 40
    found = paired_difference(shares(one), shares(other))
    assert found.p == pytest.approx(stats.binomtest(30, 40).pvalue)
    assert found.value == pytest.approx(20 / 80)
    # The large-sample interval of a paired difference of proportions.
    spread = 1.96 * math.sqrt((40 - 20**2 / 80) / 80) / math.sqrt(80)
    assert (found.low, found.high) == pytest.approx((0.25 - spread, 0.25 + spread), abs=0.02)


def test_few_samples_are_enumerated():
    """Word errors of five sentences: the p-value is a count of the 32 swaps."""
    one, other = [(3, 5), (2, 4), (4, 6), (1, 3), (2, 7)], [(1, 5), (1, 4), (1, 6), (1, 3), (2, 7)]
    found = paired_difference(one, other)
    changes = [(a[0] - b[0]) for a, b in zip(one, other)]
    gaps = [
        abs(sum(c * (1 if bits >> i & 1 else -1) for i, c in enumerate(changes))) for bits in range(2 ** len(changes))
    ]
    assert found.value == pytest.approx(sum(changes) / 25)
    assert found.p == pytest.approx(sum(gap >= sum(changes) for gap in gaps) / 32)


def test_no_verdict_from_two_samples_however_large_the_difference():
    found = paired_difference(shares([1, 1]), shares([0, 0]))
    assert found.p == 0.5
    assert found.low < 1


def test_models_that_agree_everywhere_may_still_differ_a_little():
    found = paired_difference(shares([1] * 36), shares([1] * 36))
    assert (found.value, found.p) == (0, 1)
    assert found.high == -found.low == pytest.approx(1.96**2 / (36 + 1.96**2))


def test_pseudo_values_of_a_frechet_distance_are_compared_in_pairs():
    """FID as the mean of pseudo-values: the standard error of the difference is that of their differences."""
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 30, 500)
    one, other = (shared + rng.normal(20 + shift, 3, 500) for shift in (1.0, 0.0))
    found = paired_difference([(v, 1.0) for v in one], [(v, 1.0) for v in other])
    spread = 1.96 * float((one - other).std(ddof=1)) / math.sqrt(500)
    assert found.value == pytest.approx(float((one - other).mean()))
    assert found.high - found.value == pytest.approx(spread, rel=0.1)
    assert found.p == pytest.approx(stats.ttest_rel(one, other).pvalue, abs=0.001)


def test_unpaired_intervals_add_in_squares():
    found = unpaired_difference(Score(0.8, 0.7, 0.85, 50), Score(0.5, 0.42, 0.6, 40))
    assert found == Difference(
        pytest.approx(0.3),
        pytest.approx(0.3 - math.hypot(0.1, 0.1)),
        pytest.approx(0.3 + math.hypot(0.05, 0.08)),
        pytest.approx(2 * stats.norm.sf(1.96 * 0.3 / math.hypot(0.1, 0.1))),
        40,
        "unpaired",
    )
    assert unpaired_difference(Score(1, math.nan, math.nan, 5), Score(0, 0, 0, 5)).p == 1


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


# -- which results belong together ------------------------------------------------------------------------------------


def entry(metric=ACC, model=A, value=0.5, settings=None, samples=None, judge=None, seed=0, n=100):
    if samples is not None:
        value, n = sum(s for s, _ in samples) / sum(w for _, w in samples), len(samples)
    score = Score(value, value - 0.05, value + 0.05, n)
    return Entry("suite", Result(metric, score, settings or {"data": "x"}, judge, samples), model, seed)


def stored(tmp_path, *entries, notes=()):
    return StoredResults(tmp_path / entries[0].model.source, entries, (), notes)


def compared(tmp_path, ones, others, **options):
    return compare(stored(tmp_path, *ones), stored(tmp_path, *others), **options)


def test_the_verdict_follows_the_direction_of_the_metric(tmp_path):
    many, few = shares([1] * 90 + [0] * 10), shares([1] * 40 + [0] * 60)
    ones = [entry(ACC, A, samples=many), entry(WER, A, samples=many), entry(NATS, A, value=3.0)]
    others = [entry(ACC, B, samples=few), entry(WER, B, samples=few), entry(NATS, B, value=3.01)]
    result = compared(tmp_path, ones, others)
    assert [each.verdict for each in result.comparisons] == ["first better", "second better", "no difference shown"]
    assert [each.difference.method for each in result.comparisons] == ["paired", "paired", "unpaired"]
    assert "| accuracy ↑ | 0.900 | 0.400 | +0.5 |" in result.table
    assert "a better" in result.table
    assert "b better" in result.table


def test_p_values_are_corrected_for_the_metrics_that_were_asked_for(tmp_path):
    one, other = shares([1] * 20 + [0] * 20), shares([0] * 8 + [1] * 12 + [1] * 0 + [0] * 20)
    metrics = [Metric(f"task{i}/acc", f"task {i}", "text", True, (0.0, 1.0)) for i in range(20)]
    ones, others = ([entry(m, model, samples=s) for m in metrics] for model, s in ((A, one), (B, other)))
    assert {each.verdict for each in compared(tmp_path, ones, others).comparisons} == {"no difference shown"}
    (named,) = compared(tmp_path, ones, others, metrics=["task3/acc"]).comparisons
    assert (named.p_corrected, named.verdict) == (pytest.approx(2 / 2**8), "first better")
    assert len(compared(tmp_path, ones, others, metrics=["task1*"]).comparisons) == 11


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ({"settings": {"data": "x", "steps": 8}}, {"settings": {"data": "x", "steps": 4}}, "steps is 8 and 4"),
        ({"settings": {"data": "x"}}, {"settings": {"data": "y"}}, "data is x and y"),
        ({"settings": {"data": "x", "limit": 5}}, {"settings": {"data": "x"}}, "limit is 5 and not given"),
        ({"seed": 1}, {"seed": 2}, "seed is 1 and 2"),
        (
            {"judge": Judge("W", "ab" * 32)},
            {"judge": Judge("W", "cd" * 32)},
            r"judge is W \[abababab\] and W \[cdcdcdcd",
        ),
        ({"metric": FID, "n": 50}, {"metric": FID, "n": 60}, "number of samples is 50 and 60"),
    ],
)
def test_other_conditions_are_refused_by_name(tmp_path, one, other, reason):
    result = compared(tmp_path, [entry(model=A, **one)], [entry(model=B, **other)])
    assert result.comparisons == []
    (refused,) = result.not_compared
    assert re.search(reason, refused.reason)


def test_settings_that_are_allowed_to_differ_are_noted(tmp_path):
    ones, others = ([entry(model=m, settings={"data": "x", "steps": s})] for m, s in ((A, 8), (B, 4)))
    result = compared(tmp_path, ones, others, allow=["steps"])
    assert result.comparisons[0].note == "different steps"
    assert "different steps" in result.table


def test_what_happened_is_no_setting_but_refused_samples_break_the_pairs(tmp_path):
    ones, others = (
        [entry(model=m, samples=shares([1, 0] * 20), settings={"data": "x", "refused": r, "truncated_prompts": r})]
        for m, r in ((A, 0), (B, 1))
    )
    (found,) = compared(tmp_path, ones, others).comparisons
    assert found.difference.method == "unpaired"


def test_nats_per_token_of_other_tokenizers_are_refused_and_bits_per_byte_are_not(tmp_path):
    other = ModelInfo("b", "b" * 64, {"text": "two"})
    bits = Metric("bits_per_byte/text", "bits per byte", "text", False)
    ones = [entry(NATS, A, settings={"tokenizers": {"text": "one"}}), entry(bits, A)]
    others = [entry(NATS, other, settings={"tokenizers": {"text": "two"}}), entry(bits, other)]
    result = compared(tmp_path, ones, others)
    assert [each.metric.name for each in result.comparisons] == ["bits_per_byte/text"]
    assert "different tokenizers" in result.not_compared[0].reason
    assert any("different tokenizers" in note for note in result.notes)


def test_the_same_metric_on_several_data_is_compared_data_by_data(tmp_path):
    ones, others = (
        [entry(model=model, settings={"data": name}) for name in order]
        for model, order in ((A, ("d/x", "d/y", "d/z")), (B, ("d/y", "d/x")))
    )
    result = compared(tmp_path, ones, others)
    assert [each.label for each in result.comparisons] == ["accuracy, x", "accuracy, y"]


def test_parts_are_compared_when_asked_for(tmp_path):
    part = Metric("task/part", "part", "text", True, (0.0, 1.0), headline=False)
    ones, others = ([entry(ACC, model), entry(part, model)] for model in (A, B))
    assert [len(compared(tmp_path, ones, others, parts=each).comparisons) for each in (False, True)] == [1, 2]


def test_nothing_in_common_and_unknown_metrics_are_one_clear_line(tmp_path):
    with pytest.raises(DataError, match="have no metric in common: run the same suite"):
        compared(tmp_path, [entry(ACC)], [entry(WER, B)])
    with pytest.raises(UserError, match=r"neither model has a metric 'task/ac'. Did you mean 'task/acc'"):
        compared(tmp_path, [entry(ACC)], [entry(ACC, B)], metrics=["task/ac"])
    result = compared(tmp_path, [entry(ACC), entry(WER)], [entry(ACC, B)])
    assert result.only_first == ["wer"]
    assert "only a has: wer" in result.table


def test_damaged_lines_and_the_same_model_are_noted(tmp_path):
    result = compare(stored(tmp_path, entry(), notes=["a line is damaged"]), stored(tmp_path, entry()))
    assert "note: a line is damaged" in result.table
    assert "note: both folders hold results of the same model" in result.table


# -- facts, dropped samples, wrong names ------------------------------------------------------------------------------


def test_values_without_an_interval_give_no_verdict():
    for low in (0.5, math.nan):
        one, other = Score(0.5, low, low, 4), Score(0.75, 0.75 if low == low else low, 0.75 if low == low else low, 4)
        found = unpaired_difference(one, other)
        assert (found.value, found.p) == (-0.25, 1.0)
        assert not any(map(math.isfinite, (found.low, found.high)))


def test_an_interval_that_is_unknown_is_a_dash(tmp_path):
    use = Metric("codec_code_use_audio", "codes used", "audio", True, (0.0, 1.0))
    folders = [
        results_in(
            tmp_path / str(number), model, [made_by(use, Score(value, math.nan, math.nan, 3), by_codebook=[value])]
        )
        for number, (model, value) in enumerate(((A, 0.5), (B, 0.75)))
    ]
    result = compare(*folders)
    (line,) = [each for each in result.table.splitlines() if "codes used" in each]
    assert "| – |" in line
    assert [each.verdict for each in result.comparisons] == ["no difference shown"]


def test_clips_without_speech_break_the_pairs(tmp_path):
    pesq = Metric("codec_pesq_4", "PESQ", "audio", True, (1.0, 4.65))
    samples = [(float(value), 1.0) for value in (1, 2, 3, 4)]
    folders = []
    for number, model in enumerate((A, B)):
        result = Result(pesq, Score(2.5, 2.0, 3.0, 4), {"without_speech": 1}, None, samples)
        folders.append(results_in(tmp_path / str(number), model, [Entry("tokenizers", result, model)]))
    assert [each.difference.method for each in compare(*folders).comparisons] == ["unpaired"]


def test_an_unknown_condition_is_one_line(tmp_path):
    folders = [
        results_in(tmp_path / str(number), model, [made_by(ACC, Score(0.5, 0.4, 0.6, 9), steps=4)])
        for number, model in enumerate((A, B))
    ]
    with pytest.raises(UserError, match=r"no result has a setting 'stps'.* 'steps'"):
        compare(*folders, allow=["stps"])


def made_by(metric, score, **settings):
    return Entry("text", Result(metric, score, settings), A)


def results_in(folder, model, entries):
    return StoredResults(folder, [Entry(each.suite, each.result, model) for each in entries], [])
