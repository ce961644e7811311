"""Log-likelihoods, against enumeration with the loss of the model, and closed forms."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from triptych.errors import CheckpointError, UserError
from triptych.eval.text.likelihood import LikelihoodConfig, LikelihoodEstimator, TextRequest
from triptych.eval.text.masks import all_masks, drawn_masks, longest_enumerable
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise
from triptych.vocab import Modality, Task, Vocabulary

VOCABULARY = Vocabulary(text=11, image=7, audio=5)
SCOPES = ["full", "modality"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(scope="modality", width=24, init_std=0.6):
    model = Transformer(
        ModelConfig(num_layers=2, width=width, num_heads=3, d_ff=32, softmax_scope=scope, init_std=init_std), VOCABULARY
    )
    initialise(model, 3)
    return model.eval()


def request(prompt, answer, **rest):
    return TextRequest(np.array(prompt, np.int64), np.array(answer, np.int64), **rest)


def canvas_of(one, end="none"):
    tail = [] if end == "none" else [VOCABULARY.eos(Modality.TEXT)]
    tokens = [VOCABULARY.task(Task.TEXT), VOCABULARY.bos(Modality.TEXT), *one.prompt, *one.answer, *tail]
    return np.array(tokens), range(2 + len(one.prompt), 2 + len(one.prompt) + len(one.answer) + (end == "scored"))


@torch.no_grad()
def masked_nll(model, tokens, positions):
    """Negative log-likelihoods of the tokens at these positions, all of them masked, by the loss of training."""
    masked = torch.from_numpy(tokens).clone()[None]
    masked[0, list(positions)] = VOCABULARY.mask(Modality.TEXT)
    ones = torch.ones(len(positions))
    targets = Targets(
        torch.tensor(list(positions)), torch.from_numpy(tokens)[list(positions)], ones, 0 * ones, (len(positions), 0, 0)
    )
    return model.loss(masked, torch.arange(len(tokens))[None], None, targets).nll_n.double().numpy()


def mean_over_orders(model, one, end="none"):
    """The bound as a mean over all orders in which the tokens may be generated, each by the chain rule."""
    tokens, scored = canvas_of(one, end)
    totals = []
    for order in itertools.permutations(scored):
        left = list(order)
        total = 0.0
        while left:
            total -= masked_nll(model, tokens, sorted(left))[sorted(left).index(left[0])]
            left = left[1:]
        totals.append(total)
    return np.mean(totals)


# -- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("end", ["none", "given", "scored"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_enumeration_is_the_mean_over_all_orders(scope, end, length):
    model, one = tiny(scope), request([3, 1, 4], [9, 2, 6, 5][:length])
    estimate = LikelihoodEstimator(model, LikelihoodConfig(end=end))
    assert estimate([one])[0].nats == pytest.approx(mean_over_orders(model, one, end), abs=1e-5)


def test_a_text_that_does_not_end_here_has_no_eos():
    model, one = tiny(), request([3, 1], [9, 2])
    inside = LikelihoodEstimator(model, LikelihoodConfig(end="scored"))([replace(one, is_last=False)])
    assert inside == LikelihoodEstimator(model, LikelihoodConfig(end="none"))([one])


def test_one_token_needs_one_draw_and_says_whether_it_is_greedy():
    model = tiny()
    requests = [request([3, 1, 4], [token]) for token in range(VOCABULARY.text)]
    estimate = LikelihoodEstimator(model, LikelihoodConfig(mc_num=1))
    found = estimate(requests)
    assert estimate.num_passes == 1  # all answers share the canvas
    tokens, scored = canvas_of(requests[0])
    with torch.no_grad():
        masked = torch.from_numpy(tokens)[None].clone()
        masked[0, scored[0]] = VOCABULARY.mask(Modality.TEXT)
        state = model.hidden_states(masked, torch.arange(len(tokens))[None], query_idx=torch.tensor([scored[0]]))
        truth = model.logits(state, Modality.TEXT)[0].double().log_softmax(0)
    np.testing.assert_allclose([each.nats for each in found], truth[: VOCABULARY.text], atol=1e-5)
    best = int(truth.argmax())
    assert [each.is_greedy for each in found] == [token == best for token in range(VOCABULARY.text)]
    assert not estimate([request([3], [1, 2])])[0].is_greedy


def test_a_model_with_nan_weights_has_no_likelihood():
    model = tiny()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(CheckpointError, match="log-likelihood of nan, expected a finite number"):
        LikelihoodEstimator(model)([request([1], [2])])


@pytest.mark.parametrize(("scope", "columns"), [("modality", 11 + 2), ("full", 11 + 7 + 5 + 3 * 2)])
@pytest.mark.parametrize("exact_up_to", [None, 0])
def test_a_model_that_knows_nothing_gives_every_token_the_same_probability(scope, columns, exact_up_to):
    model = tiny(scope, init_std=1e-8)
    config = LikelihoodConfig(mc_num=5, exact_up_to=exact_up_to)
    for length in (1, 2, 3, 8):
        (found,) = LikelihoodEstimator(model, config)([request([1], np.arange(length))])
        assert found.nats == pytest.approx(-length * math.log(columns), rel=1e-6)


def test_an_empty_answer_is_certain():
    for exact_up_to in (None, 0):
        assert LikelihoodEstimator(tiny(), LikelihoodConfig(exact_up_to=exact_up_to))([request([1], [])])[0].nats == 0


# -- Monte Carlo ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("controlled", [True, False])
@pytest.mark.parametrize("masks", ["common", "independent"])
def test_drawn_masks_are_unbiased(masks, controlled):
    model, answer = tiny(), [9, 2, 6, 5, 3]
    (truth,) = LikelihoodEstimator(model, LikelihoodConfig())([request([3, 1], answer)])
    config = LikelihoodConfig(mc_num=4, exact_up_to=0, masks=masks, controlled=controlled)
    requests = [request([3, 1], answer, question=number) for number in range(2000)]
    found = np.array([each.nats for each in LikelihoodEstimator(model, config)(requests)])
    error = found.std(ddof=1) / math.sqrt(len(found))
    assert error > 0
    assert abs(found.mean() - truth.nats) < 4 * error


def test_more_draws_come_closer():
    model, answer = tiny(), [9, 2, 6, 5, 3, 7]
    (truth,) = LikelihoodEstimator(model)([request([3, 1], answer)])
    spread = {}
    for mc_num in (4, 64):
        config = LikelihoodConfig(mc_num=mc_num, exact_up_to=0)
        requests = [request([3, 1], answer, question=number) for number in range(60)]
        found = np.array([each.nats for each in LikelihoodEstimator(model, config)(requests)])
        spread[mc_num] = np.sqrt(np.mean((found - truth.nats) ** 2))
    assert spread[64] < 0.5 * spread[4]


def test_losses_that_do_not_depend_on_the_mask_are_summed_without_noise():
    losses = np.array([0.1, 7.0, 0.3, 2.0, 0.0])
    for key in range(50):
        masks = drawn_masks(5, 16, seed=0, key=key)
        under_masks = np.broadcast_to(losses, masks.is_masked.shape)
        assert masks.estimate(under_masks) == pytest.approx(losses.sum(), abs=1e-12)
    plain = [
        masks.estimate(np.broadcast_to(losses, masks.is_masked.shape), controlled=False)
        for masks in (drawn_masks(5, 16, seed=0, key=key) for key in range(50))
    ]
    assert np.std(plain) > 1


def test_the_control_removes_most_of_the_noise_and_none_of_an_exact_value():
    model, answer = tiny(), [9, 2, 6, 5, 3, 7]
    spread = {}
    for controlled in (True, False):
        config = LikelihoodConfig(mc_num=16, exact_up_to=0, controlled=controlled)
        requests = [request([3, 1], answer, question=number) for number in range(200)]
        spread[controlled] = np.std([each.nats for each in LikelihoodEstimator(model, config)(requests)])
    assert spread[True] < 0.7 * spread[False]
    exact = [LikelihoodEstimator(model, LikelihoodConfig(controlled=c))([request([3], [9, 2])]) for c in (True, False)]
    assert exact[0] == exact[1]


@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("num_draws", [1, 4, 128])
def test_weights_of_drawn_masks_sum_to_the_length(length, num_draws):
    masks = drawn_masks(length, num_draws, seed=5, key=99)
    counts = masks.is_masked.sum(1)
    assert counts.min() >= 1
    assert len(np.unique(masks.is_masked, axis=0)) == len(counts) <= num_draws
    np.testing.assert_allclose((masks.weights * counts).sum(), length)


def test_the_number_of_masked_tokens_is_evenly_spread():
    length, draws = 8, 64
    masks = drawn_masks(length, draws, seed=0, key=1)
    per_count = np.bincount(masks.is_masked.sum(1), weights=masks.weights, minlength=length + 1)[1:]
    np.testing.assert_allclose(per_count, length / np.arange(1, length + 1) / length)  # 8 draws of each


def test_all_masks_have_the_weights_of_the_sum_over_k():
    masks = all_masks(3)
    assert len(masks.weights) == 7
    for k in (1, 2, 3):
        np.testing.assert_allclose(masks.weights[masks.is_masked.sum(1) == k], 1 / (k * math.comb(3, k)))
    assert [longest_enumerable(n) for n in (1, 2, 3, 126, 127, 128, 254, 255)] == [1, 1, 2, 6, 7, 7, 7, 8]


def test_common_masks_depend_on_the_question_and_independent_ones_on_the_choice_too():
    def drawn(config, **rest):
        return LikelihoodEstimator(tiny(), config)._masks(request([1], np.arange(9), **rest)).is_masked

    common = LikelihoodConfig(mc_num=8, exact_up_to=0)
    apart = replace(common, masks="independent")
    np.testing.assert_array_equal(drawn(common, question=1, choice=0), drawn(common, question=1, choice=1))
    assert (
        drawn(common, question=1).shape != drawn(common, question=2).shape
        or (drawn(common, question=1) != drawn(common, question=2)).any()
    )
    first, second = drawn(apart, question=1, choice=0), drawn(apart, question=1, choice=1)
    assert first.shape != second.shape or (first != second).any()


def test_answers_of_different_lengths_have_the_same_shares_and_orders():
    for key in range(200):
        short, long = (drawn_masks(length, 1, seed=0, key=key).is_masked[0] for length in (4, 8))
        assert abs(short.mean() - long.mean()) <= 1 / 8
        # Both mask the first tokens of one order, so one set contains the other.
        assert (short <= long[:4]).all() or (long[:4] <= short).all()


# -- the batch --------------------------------------------------------------------------------------------------------


def mixed():
    rng = np.random.default_rng(0)
    return [
        request(rng.integers(0, 11, 1 + n % 4), rng.integers(0, 11, 1 + n % 9), question=n // 3, choice=n % 3)
        for n in range(24)
    ]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("guidance_scale", [1.0, 1.7])
def test_results_are_equal_bit_for_bit_in_any_batch_and_order(scope, guidance_scale):
    model, requests = tiny(scope), mixed()
    config = LikelihoodConfig(mc_num=6, exact_up_to=2, guidance_scale=guidance_scale)
    together = LikelihoodEstimator(model, config)(requests)
    alone = [LikelihoodEstimator(model, config)([one])[0] for one in requests]
    assert together == alone
    assert LikelihoodEstimator(model, replace(config, batch_size=1))(requests) == together
    assert LikelihoodEstimator(model, replace(config, batch_size=7))(requests[::-1]) == together[::-1]
    assert LikelihoodEstimator(model, replace(config, seed=1))(requests) != together


# -- guidance ---------------------------------------------------------------------------------------------------------


def test_guidance_mixes_the_logits_with_those_of_a_masked_prompt():
    model, one, scale = tiny(), request([3, 1, 4], [9]), 2.5
    tokens, scored = canvas_of(one)
    masked = torch.from_numpy(np.stack([tokens, tokens]))
    masked[:, scored[0]] = VOCABULARY.mask(Modality.TEXT)
    masked[1, 2 : scored[0]] = VOCABULARY.mask(Modality.TEXT)
    with torch.no_grad():
        at = torch.tensor([scored[0], len(tokens) + scored[0]])
        states = model.hidden_states(masked, torch.arange(len(tokens)).expand(2, -1), query_idx=at)
        cond, uncond = model.logits(states, Modality.TEXT).double()
        truth = ((scale - 1) * (cond - uncond) + cond).log_softmax(0)[9]  # as LLaDA writes it, with its scale s - 1
    estimate = LikelihoodEstimator(model, LikelihoodConfig(guidance_scale=scale))
    assert estimate([one])[0].nats == pytest.approx(float(truth), abs=1e-4)
    assert estimate.num_passes == 2


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mc_num": 0}, "mc_num must be a whole number of at least 1, got 0"),
        ({"mc_num": 2.5}, "mc_num must be a whole number"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"exact_up_to": 17}, "exact_up_to must be a whole number of tokens between 0 and 16"),
        ({"exact_up_to": -1}, "exact_up_to must be"),
        ({"controlled": 1}, "controlled must be True or False"),
        ({"masks": "comon"}, "unknown masks 'comon'.*common"),
        ({"end": "eos"}, "unknown end 'eos'.*none"),
        ({"guidance_scale": -1}, "guidance_scale must be a number of at least 0"),
        ({"guidance_scale": float("nan")}, "guidance_scale must be"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        LikelihoodConfig(**wrong)
