"""Best-of-n: scores against a slow, obvious computation, and results that do not depend on the batch."""

import itertools

import numpy as np
import pytest
import torch
from sample_fakes import AUDIO, IMAGE, TEXT, VOCABULARY, Fake, arbitrary, flat, ids_of

from triptych.errors import UserError
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample.canvas import MASKED, Canvas, Span, known, lay_out, masked, open_ended, unconditional
from triptych.sample.config import SamplingConfig
from triptych.sample.generate import generate
from triptych.sample.rank import NUM_SCORE_PASSES, can_rank, log_likelihood_bounds, pair_scores, score_masks


def log_softmax(logits):
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def slow_bound(canvas, modality, masks):
    """E over masks of L / k times the sum of log-probabilities over data ids, one forward pass for each mask."""
    layout = lay_out(canvas, VOCABULARY)
    side = [span.modality for span in canvas.spans].index(modality)
    start, ids = layout.starts[side], canvas.spans[side].ids
    total = 0.0
    for mask in masks:
        tokens = layout.tokens.copy()
        tokens[start : start + len(ids)][mask] = VOCABULARY.mask(modality)
        for position in np.flatnonzero(mask):
            logits = arbitrary(tuple(tokens.tolist()), start + position, modality)[: VOCABULARY.data_size(modality)]
            total += len(ids) / mask.sum() * log_softmax(logits)[ids[position]]
    return total / len(masks)


@pytest.mark.parametrize("modality", [TEXT, IMAGE])
def test_the_bound_is_the_one_defined(modality):
    canvases = [
        Canvas(known(TEXT, [7, 8, 9]), known(IMAGE, [1, 2, 3, 4])),
        Canvas(known(TEXT, [7, 8, 9]), known(IMAGE, [4, 3, 2, 1])),
        Canvas(known(TEXT, [5, 8]), known(IMAGE, [1, 2, 3, 9])),
    ]
    bounds = log_likelihood_bounds(Fake(arbitrary), canvases, [modality] * 3)
    expected = []
    for canvas in canvases:
        count = len(canvas.text.ids) if modality == TEXT else 4
        expected.append(slow_bound(canvas, modality, score_masks(count, NUM_SCORE_PASSES)))
    np.testing.assert_allclose(bounds, expected, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 48, 100])
def test_masks_grow_evenly_from_few_positions_to_most(count):
    masks = score_masks(count, NUM_SCORE_PASSES)
    counts = masks.sum(1)
    assert counts.min() >= 1
    assert counts.max() > count - count / NUM_SCORE_PASSES
    assert (np.diff(counts) >= 0).all()
    assert np.diff(counts).max() <= -(-count // NUM_SCORE_PASSES)
    assert abs(counts.mean() - (count + 1) / 2) <= 0.5
    assert (score_masks(count, NUM_SCORE_PASSES) == masks).all()


def test_both_sides_count_and_equal_pairs_are_scored_once():
    canvases = [Canvas(known(TEXT, text), known(IMAGE, [1, 2, 3])) for text in ([3, 4], [5, 6, 7], [3, 4], [3, 5])]
    sides = [log_likelihood_bounds(Fake(arbitrary), canvases, [modality] * 4) for modality in (TEXT, IMAGE)]
    model, distinct = Fake(arbitrary), Fake(arbitrary)
    scores = pair_scores(model, canvases)
    assert scores == [first + second for first, second in zip(*sides)]
    assert len(set(scores)) == 3
    pair_scores(distinct, [canvases[0], canvases[1], canvases[3]])
    assert model.rows == distinct.rows
    same_ids = [Canvas(known(TEXT, [3, 4]), known(modality, [1, 2, 3])) for modality in (IMAGE, AUDIO)]
    assert len(set(pair_scores(Fake(arbitrary), same_ids))) == 2  # equal ids of different modalities


class NamesFirstCode(Fake):
    """Expects the text to name the first code of the image, and is uniform otherwise."""

    def __init__(self):
        def logits_of(context, position, modality):
            logits = np.zeros(VOCABULARY.num_logits(modality))
            codes = [token for token in context if token in VOCABULARY.data_ids(IMAGE)]
            if modality == TEXT and codes:
                logits[VOCABULARY.to_local(IMAGE, np.array(codes[:1]))[0] % VOCABULARY.num_logits(TEXT)] = 5.0
            return logits

        super().__init__(logits_of)


def test_the_candidate_that_fits_the_given_text_wins():
    canvas = Canvas(known(TEXT, [11]), masked(IMAGE, 1))
    single = [int(generate(NamesFirstCode(), [canvas], SamplingConfig(), [seed])[0].media.ids[0]) for seed in range(60)]
    assert np.mean([code == 11 for code in single]) < 0.2  # one in thirty is right by chance
    best = generate(NamesFirstCode(), [canvas] * 20, SamplingConfig(best_of=64), range(20))
    assert np.mean([int(filled.media.ids[0]) == 11 for filled in best]) > 0.7  # 1 - (29 / 30)^64 = 0.89


def test_the_first_candidate_has_the_seed_of_the_request_and_wins_ties():
    canvas = Canvas(known(TEXT, [3, 4]), masked(AUDIO, 5))
    for seed in range(5):
        (alone,) = generate(Fake(flat), [canvas], SamplingConfig(), [seed])
        (best,) = generate(Fake(flat), [canvas], SamplingConfig(best_of=4), [seed])
        assert best.media.ids.tolist() == alone.media.ids.tolist()


def test_identical_candidates_are_not_scored():
    canvas = Canvas(known(TEXT, [3, 4]), masked(AUDIO, 2))
    certain = Fake(lambda context, position, modality: np.arange(VOCABULARY.num_logits(modality)) * 50.0)
    uncertain = Fake(arbitrary)
    for model in (certain, uncertain):
        generate(model, [canvas], SamplingConfig(best_of=4), [1])
    assert certain.num_passes == 2
    assert uncertain.num_passes > 2


def test_more_candidates_never_lower_the_score():
    canvas = Canvas(known(TEXT, [3, 4]), masked(IMAGE, 3))
    scores = []
    for count in (1, 2, 4, 8):
        (filled,) = generate(Fake(arbitrary), [canvas], SamplingConfig(best_of=count), [7])
        scores += pair_scores(Fake(arbitrary), [filled])
    assert scores == sorted(scores)
    assert scores[-1] > scores[0]


def test_the_result_does_not_depend_on_the_batch():
    model = Transformer(
        ModelConfig(num_layers=1, width=48, num_heads=3, d_ff=80, softmax_scope="modality", init_std=0.4),
        VOCABULARY,
    )
    initialise(model, 5)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    canvases = [
        Canvas(known(TEXT, [5, 6, 7]), masked(IMAGE, 9), hide_text=True),
        Canvas(open_ended(TEXT, 9, [1]), known(IMAGE, np.arange(9))),
        Canvas(known(TEXT, [8, 5]), open_ended(AUDIO, 12, stride=2), hide_text=True),
        Canvas(Span(TEXT, np.array([4, MASKED, 9])), known(IMAGE, np.arange(9))),
    ]
    config = SamplingConfig(best_of=3, length="draw")
    alone = [ids_of(generate(model, [canvas], config, [seed]))[0] for seed, canvas in enumerate(canvases)]
    for some in itertools.permutations(range(4), 3):
        assert ids_of(generate(model, [canvases[i] for i in some], config, some)) == [alone[i] for i in some]
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
    ids=["text alone", "unconditional", "nothing given", "empty", "nothing to generate"],
)
def test_best_of_needs_a_given_side(canvas):
    assert not can_rank(canvas)
    with pytest.raises(UserError, match="best_of ranks candidates by how well they fit what is given"):
        generate(
            Fake(arbitrary), [Canvas(known(TEXT, [1]), masked(IMAGE, 2)), canvas], SamplingConfig(best_of=2), [0, 1]
        )
