"""The best of several: judged as a slow, obvious account judges, on equal terms, and the same in any company."""

import itertools

import numpy as np
import pytest
import torch
from sample_fakes import AUDIO, IMAGE, TEXT, VOCABULARY, Fake, arbitrary, columns

from triptych.errors import UserError
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample import rank
from triptych.sample.canvas import MASKED, Canvas, Span, known, lay_out, masked, open_ended, unconditional
from triptych.sample.generate import SamplingConfig, generate
from triptych.sample.rank import LOOKS, agreement, has_a_given_side, log_likelihoods


def log_softmax(logits):
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def slow_bound(canvas, modality, masks):
    """E over masks of L / k times the sum of log-probabilities, among data ids alone, one forward pass for each."""
    layout = lay_out(canvas, VOCABULARY)
    place = [span.modality for span in canvas.spans].index(modality)
    start, ids = layout.starts[place], canvas.spans[place].ids
    total = 0.0
    for mask in masks:
        shown = layout.tokens.copy()
        shown[start : start + len(ids)][mask] = VOCABULARY.mask(modality)
        for position in np.flatnonzero(mask):
            data = arbitrary(tuple(shown.tolist()), start + position, modality)[: VOCABULARY.data_size(modality)]
            total += len(ids) / mask.sum() * log_softmax(data)[ids[position]]
    return total / len(masks)


@pytest.mark.parametrize("modality", [TEXT, IMAGE])
def test_the_bound_is_what_it_says(modality):
    canvases = [
        Canvas(known(TEXT, [7, 8, 9]), known(IMAGE, [1, 2, 3, 4])),
        Canvas(known(TEXT, [7, 8, 9]), known(IMAGE, [4, 3, 2, 1])),
        Canvas(known(TEXT, [5, 8]), known(IMAGE, [1, 2, 3, 9])),
    ]
    found = log_likelihoods(Fake(arbitrary), canvases, [modality] * 3)
    expected = []
    for canvas in canvases:
        count = len(canvas.text.ids) if modality == TEXT else 4
        expected.append(slow_bound(canvas, modality, rank._masks(count, LOOKS)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 48, 100])
def test_masks_go_evenly_from_few_positions_to_most(count):
    masks = rank._masks(count, LOOKS)
    counts = masks.sum(1)
    assert counts.min() >= 1
    assert counts.max() > count - count / LOOKS
    assert (np.diff(counts) >= 0).all()
    assert np.diff(counts).max() <= -(-count // LOOKS)
    assert abs(counts.mean() - (count + 1) / 2) <= 0.5
    assert (rank._masks(count, LOOKS) == masks).all()


def test_both_sides_count_and_what_is_equal_is_looked_at_once():
    canvases = [Canvas(known(TEXT, text), known(IMAGE, [1, 2, 3])) for text in ([3, 4], [5, 6, 7], [3, 4], [3, 5])]
    sides = [log_likelihoods(Fake(arbitrary), canvases, [modality] * 4) for modality in (TEXT, IMAGE)]
    model, once = Fake(arbitrary), Fake(arbitrary)
    found = agreement(model, canvases)
    assert found == [one + other for one, other in zip(*sides)]
    assert len(set(found)) == 3
    agreement(once, [canvases[0], canvases[1], canvases[3]])
    assert model.rows == once.rows
    alike = [Canvas(known(TEXT, [3, 4]), known(modality, [1, 2, 3])) for modality in (IMAGE, AUDIO)]
    assert len(set(agreement(Fake(arbitrary), alike))) == 2  # the same numbers, but not the same things


class Honest(Fake):
    """Thinks that the text names the first code of the picture, and knows nothing else."""

    def __init__(self):
        def dist(context, position, modality):
            logits = np.zeros(columns(modality))
            codes = [token for token in context if token in VOCABULARY.data_ids(IMAGE)]
            if modality == TEXT and codes:
                logits[VOCABULARY.to_local(IMAGE, np.array(codes[:1]))[0] % columns(TEXT)] = 5.0
            return logits

        super().__init__(dist)


def test_what_fits_the_given_is_kept():
    canvas = Canvas(known(TEXT, [11]), masked(IMAGE, 1))
    one = [int(generate(Honest(), [canvas], SamplingConfig(), [seed])[0].media.ids[0]) for seed in range(60)]
    assert np.mean([code == 11 for code in one]) < 0.2  # one in thirty is right by chance
    best = generate(Honest(), [canvas] * 20, SamplingConfig(best_of=64), range(20))
    assert np.mean([int(done.media.ids[0]) == 11 for done in best]) > 0.7  # 1 - (29 / 30)^64 = 0.89


def test_the_first_candidate_is_the_one_that_is_made_alone_and_wins_if_all_are_equal():
    canvas = Canvas(known(TEXT, [3, 4]), masked(AUDIO, 5))
    flat = Fake(lambda context, position, modality: np.zeros(columns(modality)))
    for seed in range(5):
        (alone,) = generate(flat, [canvas], SamplingConfig(), [seed])
        (best,) = generate(flat, [canvas], SamplingConfig(best_of=4), [seed])
        assert best.media.ids.tolist() == alone.media.ids.tolist()


def test_where_all_candidates_are_the_same_nobody_judges():
    canvas = Canvas(known(TEXT, [3, 4]), masked(AUDIO, 2))
    sure, unsure = Fake(lambda context, position, modality: np.arange(columns(modality)) * 50.0), Fake(arbitrary)
    for model in (sure, unsure):
        generate(model, [canvas], SamplingConfig(best_of=4), [1])
    assert sure.looks == 2
    assert unsure.looks > 2


def test_more_candidates_are_never_worse_in_the_model_s_own_eyes():
    canvas = Canvas(known(TEXT, [3, 4]), masked(IMAGE, 3))
    scores = []
    for count in (1, 2, 4, 8):
        (done,) = generate(Fake(arbitrary), [canvas], SamplingConfig(best_of=count), [7])
        scores += agreement(Fake(arbitrary), [done])
    assert scores == sorted(scores)
    assert scores[-1] > scores[0]


def test_the_same_alone_and_in_any_company():
    model = Transformer(
        ModelConfig(num_layers=1, width=48, num_heads=3, d_ff=80, softmax_scope="modality", init_std=0.4),
        VOCABULARY,
    )
    initialise(model, 5)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    canvases = [
        Canvas(known(TEXT, [5, 6, 7]), masked(IMAGE, 9), hide=True),
        Canvas(open_ended(TEXT, 9, [1]), known(IMAGE, np.arange(9))),
        Canvas(known(TEXT, [8, 5]), open_ended(AUDIO, 12, stride=2), hide=True),
        Canvas(Span(TEXT, np.array([4, MASKED, 9])), known(IMAGE, np.arange(9))),
    ]
    settings = SamplingConfig(best_of=3, length="draw")

    def ids(made):
        return [[span.ids.tolist() for span in canvas.spans] for canvas in made]

    alone = [ids(generate(model, [canvas], settings, [seed]))[0] for seed, canvas in enumerate(canvases)]
    for some in itertools.permutations(range(4), 3):
        assert ids(generate(model, [canvases[i] for i in some], settings, some)) == [alone[i] for i in some]
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "canvas",
    [
        Canvas(open_ended(TEXT, 9, [1])),
        Canvas(unconditional(TEXT, 3), masked(IMAGE, 4)),
        Canvas(masked(TEXT, 2), masked(IMAGE, 4)),
        Canvas(known(TEXT, []), masked(IMAGE, 4)),
        Canvas(known(TEXT, [1]), known(IMAGE, [4])),
    ],
    ids=["text alone", "unsaid", "nothing given", "empty", "nothing to make"],
)
def test_there_must_be_something_to_judge_by(canvas):
    assert not has_a_given_side(canvas)
    with pytest.raises(UserError, match="best_of judges what is made by what is given: it needs a whole text"):
        generate(
            Fake(arbitrary), [Canvas(known(TEXT, [1]), masked(IMAGE, 2)), canvas], SamplingConfig(best_of=2), [0, 1]
        )
