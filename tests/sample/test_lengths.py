"""Lengths of open ends, on networks whose distribution over lengths is known."""

from dataclasses import replace

import numpy as np
import pytest
from sample_fakes import AUDIO, IMAGE, TEXT, VOCABULARY, Fake, arbitrary, flat
from scipy.stats import chisquare

from triptych.sample.canvas import Canvas, known, lay_out, masked, open_ended
from triptych.sample.config import SamplingConfig
from triptych.sample.generate import generate
from triptych.sample.lengths import length_distribution

PROMPT = known(TEXT, [7, 8, 9])
LENGTH_PROBS = np.array([0.0, 0.05, 0.2, 0.0, 0.4, 0.25, 0.0, 0.1])  # of lengths 0 to 7


def ends_by(cumulative, start=2):
    """A network that knows lengths: EOS at position i has the probability that the length is at most i."""

    def logits_of(context, position, modality):
        p = float(cumulative[min(max(position - start, 0), len(cumulative) - 1)])
        with np.errstate(divide="ignore"):
            logits = np.full(VOCABULARY.num_logits(modality), np.log((1 - p) / VOCABULARY.data_size(modality)))
            logits[-1] = np.log(p)
        logits[-2] = 500.0  # BOS: must not count
        return logits

    return logits_of


def test_the_length_distribution_takes_one_forward_pass():
    network = Fake(ends_by(LENGTH_PROBS.cumsum()))
    probs = length_distribution(network, Canvas(open_ended(TEXT, 8)))
    assert list(probs) == list(range(1, 8))
    assert list(probs.values()) == pytest.approx(LENGTH_PROBS[1:].tolist(), abs=1e-12)
    assert network.num_passes == 1


def test_the_longest_length_takes_the_remaining_probability():
    probs = length_distribution(Fake(ends_by(LENGTH_PROBS.cumsum())), Canvas(open_ended(TEXT, 6)))
    assert probs == pytest.approx({1: 0.05, 2: 0.2, 3: 0.0, 4: 0.4, 5: 0.35}, abs=1e-12)


def test_decreasing_cumulative_probabilities_are_made_monotone():
    probs = length_distribution(Fake(ends_by([0.0, 0.3, 0.2, 0.7, 0.6, 0.9])), Canvas(open_ended(TEXT, 6)))
    assert probs == pytest.approx({1: 0.3, 2: 0.0, 3: 0.4, 4: 0.0, 5: 0.3}, abs=1e-12)


def test_audio_lengths_are_multiples_of_the_stride():
    given = np.zeros(20)
    given[[4, 8, 12]] = 0.2, 0.5, 0.3
    canvas = Canvas(PROMPT, open_ended(AUDIO, 16, stride=4))
    probs = length_distribution(Fake(ends_by(given.cumsum())), canvas)
    assert probs == pytest.approx({4: 0.2, 8: 0.5, 12: 0.3}, abs=1e-12)
    for seed in range(20):
        (filled,) = generate(Fake(flat), [canvas], SamplingConfig(num_steps=1, length="draw"), [seed])
        assert len(filled.media.ids) in (4, 8, 12)


def test_a_span_is_never_shorter_than_its_prefix():
    probs = length_distribution(Fake(ends_by(LENGTH_PROBS.cumsum())), Canvas(open_ended(TEXT, 8, [1, 2, 3, 4])))
    assert probs == pytest.approx({4: 0.65, 5: 0.25, 6: 0.0, 7: 0.1}, abs=1e-12)
    audio = Canvas(PROMPT, open_ended(AUDIO, 16, [1] * 5, stride=4))
    assert list(length_distribution(Fake(flat), audio)) == [8, 12]


def test_single_pass_is_one_forward_pass_for_length_and_tokens():
    """Each token is drawn from the model's distribution at its position, without EOS."""

    def logits_of(context, position, modality):
        logits = ends_by(LENGTH_PROBS.cumsum())(context, position, modality)
        logits[3 * position % VOCABULARY.text] += 40.0 + np.log(VOCABULARY.text)
        logits[-1] += 40.0  # keeps the probability of EOS
        return logits

    config = SamplingConfig(single_pass=True, length="mode")
    network = Fake(logits_of)
    (filled,) = generate(network, [Canvas(open_ended(TEXT, 8, [5]))], config, [0])
    assert filled.text.ids.tolist() == [5, *(3 * (2 + i) % VOCABULARY.text for i in (1, 2, 3))]  # 4 is the mode
    assert network.num_passes == 1
    drawn = [generate(Fake(flat), [Canvas(open_ended(TEXT, 6))], config, [n])[0].text.ids.tolist() for n in range(50)]
    assert len({tuple(ids) for ids in drawn}) > 40  # draws from a uniform distribution differ
    assert all(0 <= token < VOCABULARY.text for ids in drawn for token in ids)


def test_single_pass_leaves_other_masked_positions_to_the_sampler():
    network = Fake(arbitrary)
    canvas = Canvas(open_ended(TEXT, 6), masked(IMAGE, 3))
    (filled,) = generate(network, [canvas], SamplingConfig(single_pass=True), [0])
    assert filled.text.num_masked == filled.media.num_masked == 0
    assert network.num_passes == 1 + 3


def test_median_and_mode():
    skewed = np.array([0, 0.3, 0.25, 0.0, 0.2, 0.25])
    for probs, slot, expected in ((LENGTH_PROBS, 8, {"median": 4, "mode": 4}), (skewed, 6, {"median": 2, "mode": 1})):
        for rule, length in expected.items():
            network = Fake(ends_by(probs.cumsum()))
            (filled,) = generate(network, [Canvas(open_ended(TEXT, slot))], SamplingConfig(length=rule), [0])
            assert len(filled.text.ids) == length


def test_drawn_lengths_follow_the_distribution():
    number = 300
    canvases = [Canvas(open_ended(TEXT, 8))] * number
    network = Fake(ends_by(LENGTH_PROBS.cumsum()))
    filled = generate(network, canvases, SamplingConfig(num_steps=1, length="draw"), range(number))
    counts = np.bincount([len(canvas.text.ids) for canvas in filled], minlength=8)
    is_possible = LENGTH_PROBS > 0
    assert not counts[~is_possible].any()
    assert chisquare(counts[is_possible], LENGTH_PROBS[is_possible] * number).pvalue > 1e-3


def test_of_two_open_ends_the_media_is_closed_first():
    network = Fake(flat)
    canvas = Canvas(open_ended(TEXT, 5), open_ended(AUDIO, 9, stride=4))
    (filled,) = generate(network, [canvas], SamplingConfig(length="draw"), [2])
    audio = canvas.media.closed(len(filled.media.ids))
    assert network.seen[0][0].tolist() == lay_out(canvas, VOCABULARY).tokens.tolist()
    assert network.seen[1][0].tolist() == lay_out(replace(canvas, media=audio), VOCABULARY).tokens.tolist()
    started = replace(canvas.text, ids=filled.text.ids[:1])  # the first token is drawn before the length
    assert network.seen[2][0].tolist() == lay_out(Canvas(started, audio), VOCABULARY).tokens.tolist()
    text = started.closed(len(filled.text.ids))
    assert network.seen[3][0].tolist() == lay_out(Canvas(text, audio), VOCABULARY).tokens.tolist()


def test_prefixes_are_kept():
    canvas = Canvas(open_ended(TEXT, 12, [5, 6, 7]), open_ended(AUDIO, 12, [1, 2, 3, 4], stride=2))
    for seed in range(5):
        (filled,) = generate(Fake(arbitrary), [canvas], SamplingConfig(length="draw"), [seed])
        assert filled.text.ids[:3].tolist() == [5, 6, 7]
        assert filled.media.ids[:4].tolist() == [1, 2, 3, 4]
