"""Generation on networks with known logits, and on a real one for results that must not depend on the batch."""

import itertools

import numpy as np
import pytest
import torch
from sample_fakes import AUDIO, IMAGE, TEXT, VOCABULARY, Fake, arbitrary, flat, ids_of
from scipy.stats import chisquare

from triptych.errors import UserError
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample import batch as batch_module
from triptych.sample.batch import RequestBatch
from triptych.sample.canvas import MASKED, Canvas, Span, known, lay_out, masked, open_ended, unconditional
from triptych.sample.config import SamplingConfig
from triptych.sample.generate import generate
from triptych.sample.predictor import ModelPredictor
from triptych.sample.samplers import SAMPLERS
from triptych.vocab import Modality, Vocabulary


def softmax(logits):
    scaled = np.exp(logits - logits.max())
    return scaled / scaled.sum()


PROMPT = known(TEXT, [7, 8, 9])


# -- independence of the batch ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def transformer():
    config = ModelConfig(
        num_layers=1, width=48, num_heads=3, d_ff=80, softmax_scope="modality", init_std=0.4, residual_scale=0.7
    )
    model = Transformer(config, Vocabulary(text=300, image=200, audio=100))
    initialise(model, 5)
    return model.eval()


def mixed():
    """Seven requests of all tasks and of several lengths, some equal, with one masked position or many."""
    return [
        Canvas(known(TEXT, [5, 6, 7]), masked(IMAGE, 9), hide_text=True),
        Canvas(known(TEXT, [8, 5]), open_ended(AUDIO, 12, stride=2), hide_text=True),
        Canvas(Span(TEXT, np.array([4, MASKED, 9])), Span(IMAGE, np.r_[np.arange(8), MASKED]), hide_text=True),
        Canvas(open_ended(TEXT, 9, [11, 12]), hide_text=True),
        Canvas(Span(TEXT, np.array([1, MASKED])), hide_text=True),
        Canvas(unconditional(TEXT, 3), Span(IMAGE, np.r_[MASKED, np.arange(8)]), hide_text=True),
        Canvas(open_ended(TEXT, 6), masked(AUDIO, 4), hide_text=True),
    ]


OPTIONS = {
    "remdm": {"eta": 0.4},
    "threshold": {"threshold": 0.3},
    "entropy_bounded": {"gamma": 2.0},
    "blocks": {"block_length": 4, "inner": "maskgit"},
}


@pytest.mark.parametrize(("guidance_scale", "num_steps", "length"), [(1.0, None, "draw"), (3.0, 3, "median")])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_request_gives_the_same_result_alone_and_in_any_batch(
    sampler, guidance_scale, num_steps, length, transformer
):
    config = SamplingConfig(
        sampler=sampler,
        num_steps=num_steps,
        guidance_scale=guidance_scale,
        length=length,
        top_p=0.95,
        options=OPTIONS.get(sampler, {}),
    )
    canvases, seeds = mixed(), [3, 1, 4, 1, 5, 9, 2]
    together = ids_of(generate(transformer, canvases, config, seeds))
    alone = [ids_of(generate(transformer, [canvas], config, [seed]))[0] for canvas, seed in zip(canvases, seeds)]
    assert together == alone
    some = [5, 2, 0]
    assert ids_of(generate(transformer, [canvases[i] for i in some], config, [seeds[i] for i in some])) == [
        alone[i] for i in some
    ]


@pytest.mark.parametrize("num_masked", [1, 2])
def test_batches_of_one_to_seven_requests_with_few_masked_positions(num_masked, transformer):
    """Matrix products of few rows round differently: no row may depend on the number of rows."""
    rng = np.random.default_rng(num_masked)
    canvases = []
    for _ in range(7):
        ids = rng.integers(0, 200, 9)
        ids[rng.choice(9, num_masked, replace=False)] = MASKED
        canvases.append(Canvas(known(TEXT, rng.integers(0, 300, 3)), Span(IMAGE, ids), hide_text=True))
    for guidance_scale in (1.0, 3.0):
        config = SamplingConfig(num_steps=1, guidance_scale=guidance_scale)
        alone = [ids_of(generate(transformer, [canvas], config, [seed]))[0] for seed, canvas in enumerate(canvases)]
        for size in range(1, 8):
            assert ids_of(generate(transformer, canvases[:size], config, range(size))) == alone[:size]


@pytest.mark.parametrize(("modality", "size"), [(IMAGE, 9), (TEXT, 2)])
def test_logits_are_bit_identical_in_batches_of_any_size(modality, size, threads, transformer):
    """Drawn ids hide small differences, so this compares the logits."""
    rng = np.random.default_rng(0)
    spans = [Span(modality, np.r_[MASKED, rng.integers(0, 200, size - 1)]) for _ in range(7)]
    if modality == TEXT:
        canvases = [Canvas(span, hide_text=True) for span in spans]
    else:
        canvases = [Canvas(known(TEXT, rng.integers(0, 300, 3)), span, hide_text=True) for span in spans]

    def logits(some):
        layouts = [lay_out(canvas, transformer.vocabulary) for canvas in some]
        batch = RequestBatch.from_layouts(layouts, range(len(some)), transformer.vocabulary)
        by_scale = []
        for guidance_scale in (1.0, 2.0):
            predictor = ModelPredictor(transformer, layouts, batch, guidance_scale=guidance_scale)
            with torch.inference_mode():
                states = predictor.hidden_states(batch.tokens, batch.masked)
                shifted = torch.zeros(*batch.tokens.shape, transformer.vocabulary.num_logits(modality))

                def keep(at, dist, shifted=shifted):
                    shifted[at] = dist.shifted_nV

                predictor.for_each_distribution(keep, states, batch.masked, modality)
                by_scale.append(shifted[batch.masked].double())
        return torch.stack(by_scale, dim=1)

    alone = torch.cat([logits([canvas]) for canvas in canvases])
    for size in range(1, 8):
        assert torch.equal(logits(canvases[:size]), alone[:size])


def test_results_do_not_depend_on_the_size_of_a_forward_pass(monkeypatch):
    network = Fake(arbitrary)
    canvases = [Canvas(PROMPT, masked(IMAGE, n), hide_text=True) for n in (4, 5, 4, 4, 4)]
    expected = ids_of(generate(network, canvases, SamplingConfig(guidance_scale=2.0), range(5)))
    monkeypatch.setattr(batch_module, "MAX_TOKENS_PER_PASS", 50)
    small = Fake(arbitrary)
    assert ids_of(generate(small, canvases, SamplingConfig(guidance_scale=2.0), range(5))) == expected
    assert max(tokens.numel() for tokens in network.seen) > 50
    assert max(tokens.numel() for tokens in small.seen) <= 50


# -- allowed tokens ---------------------------------------------------------------------------------------------------


def prefers(column):
    def logits_of(context, position, modality):
        logits = np.random.default_rng([position, modality]).normal(size=VOCABULARY.num_logits(modality))
        logits[column] = 1000.0
        return logits

    return logits_of


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("column", [-2, -1], ids=["BOS", "EOS"])
def test_positions_are_filled_only_with_data_of_their_modality(sampler, column):
    canvases = [
        Canvas(PROMPT, masked(IMAGE, 5), hide_text=True),
        Canvas(Span(TEXT, np.array([MASKED, 3, MASKED])), masked(AUDIO, 4)),
        Canvas(open_ended(TEXT, 6)),
    ]
    for canvas in canvases:
        seen = []
        config = SamplingConfig(sampler=sampler, length="draw")
        network = Fake(prefers(column))
        (filled,) = generate(network, [canvas], config, [3], callback=lambda *step, seen=seen: seen.append(step[2][0]))
        for span in filled.spans:
            assert ((span.ids >= 0) & (span.ids < VOCABULARY.data_size(span.modality))).all()
        final = lay_out(filled, VOCABULARY)
        for tokens in seen:
            for token, end, modality in zip(tokens.tolist(), final.tokens.tolist(), final.modality.tolist()):
                allowed = VOCABULARY.data_ids(Modality(modality))
                assert token == end or token == VOCABULARY.mask(Modality(modality)) or token in allowed
        if seen:  # a text of one token is complete before the sampler runs
            assert seen[-1].tolist() == final.tokens.tolist()
        if canvas.text.open_slot and column == -1:
            assert len(filled.text.ids) == 1  # EOS is preferred, so the text has its minimum length


def test_every_id_of_a_modality_can_be_drawn():
    canvases = [Canvas(PROMPT, masked(AUDIO, 50))]
    (filled,) = generate(Fake(prefers(-2)), canvases, SamplingConfig(num_steps=1, temperature=1000.0), [0])
    drawn = np.concatenate(
        [generate(Fake(flat), canvases, SamplingConfig(num_steps=1), [seed])[0].media.ids for seed in range(8)]
    )
    assert set(drawn.tolist()) == set(range(VOCABULARY.audio))
    assert set(filled.media.ids.tolist()) <= set(range(VOCABULARY.audio))


# -- guidance ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance_scale", [0.0, 0.5, 1.0, 3.0, 7.5])
def test_guidance_follows_its_formula(guidance_scale):
    """uncond + scale * (cond - uncond), without BOS and EOS, against numpy: the argmax at each position."""
    canvas = Canvas(PROMPT, masked(IMAGE, 6), hide_text=True)
    config = SamplingConfig(num_steps=1, temperature=0.0, guidance_scale=guidance_scale)
    (filled,) = generate(Fake(arbitrary), [canvas], config, [0])
    with_text = lay_out(canvas, VOCABULARY).tokens
    without_text = with_text.copy()
    without_text[-4:-1] = VOCABULARY.mask(TEXT)
    expected = []
    for position in range(2, 8):
        contexts = (tuple(tokens.tolist()) for tokens in (with_text, without_text))
        cond, uncond = (arbitrary(context, position, IMAGE)[:-2] for context in contexts)
        expected.append(int((uncond + guidance_scale * (cond - uncond)).argmax()))
    assert filled.media.ids.tolist() == expected


def test_tokens_are_drawn_from_the_guided_distribution():
    def logits_of(context, position, modality):
        is_unconditional = VOCABULARY.mask(TEXT) in context
        logits = np.full(VOCABULARY.num_logits(modality), -40.0)
        logits[:4] = [0.5, 0.0, 0.2, -1.0] if is_unconditional else [0.0, 0.3, 0.6, -0.5]
        return logits

    canvas = Canvas(PROMPT, masked(IMAGE, 100), hide_text=True)
    filled = generate(
        Fake(logits_of), [canvas] * 10, SamplingConfig(num_steps=1, guidance_scale=2.0, temperature=1.5), range(10)
    )
    counts = np.bincount(np.concatenate([canvas.media.ids for canvas in filled]), minlength=4)
    expected = softmax(np.array([-0.5, 0.6, 1.0, 0.0]) / 1.5)  # 2 cond - uncond
    assert chisquare(counts, expected * counts.sum()).pvalue > 1e-3


def test_the_unconditional_branch_differs_only_in_the_text():
    network = Fake(arbitrary)
    text = Span(TEXT, np.array([7, MASKED, 9]))
    canvases = [
        Canvas(text, masked(IMAGE, 4), hide_text=True),
        Canvas(known(TEXT, [1, 2, 3]), masked(IMAGE, 4), hide_text=True),
    ]
    generate(network, canvases, SamplingConfig(guidance_scale=2.0), [0, 1])
    hidden = np.stack([lay_out(canvas, VOCABULARY).hidden for canvas in canvases])
    assert hidden.sum(1).tolist() == [2, 3]
    # The second request has fewer masked positions; once finished, it leaves the forward pass.
    assert [len(tokens) for tokens in network.seen if tokens.shape[1] == hidden.shape[1]] == [4] * 4 + [2]
    for tokens, positions in zip(network.seen, network.positions):
        cond, uncond = tokens.numpy().reshape(2, -1, tokens.shape[1])
        is_hidden = hidden[: len(uncond)]
        assert (uncond[is_hidden] == VOCABULARY.mask(TEXT)).all()
        assert (uncond[~is_hidden] == cond[~is_hidden]).all()
        assert (cond[is_hidden] != VOCABULARY.mask(TEXT)).all()
        assert positions.tolist() == [list(range(tokens.shape[1]))] * len(tokens)


def test_without_guidance_there_is_no_unconditional_branch():
    network = Fake(arbitrary)
    generate(network, [Canvas(PROMPT, masked(IMAGE, 12), hide_text=True)], SamplingConfig(num_steps=2), [0])
    assert {len(tokens) for tokens in network.seen} == {1}


def test_an_unconditional_text_stays_masked():
    network = Fake(arbitrary)
    canvas = Canvas(unconditional(TEXT, 3), Span(IMAGE, np.array([MASKED, 4, MASKED])))
    (filled,) = generate(network, [canvas], SamplingConfig(), [0])
    assert filled.text.ids.tolist() == [MASKED] * 3
    assert filled.media.ids[1] == 4
    assert (filled.media.ids >= 0).all()
    assert network.num_passes == 2
    for tokens in network.seen:
        assert tokens[0, -4:-1].tolist() == [VOCABULARY.mask(TEXT)] * 3


def test_guidance_needs_a_text_to_hide():
    with pytest.raises(UserError, match="guidance needs a known text to hide"):
        generate(Fake(flat), [Canvas(PROMPT, masked(IMAGE, 4))], SamplingConfig(guidance_scale=2.0), [0])


# -- forward passes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "guidance_scale"), itertools.product(["random_order", "low_confidence"], [1.0, 2.0])
)
def test_one_token_per_step_by_default(sampler, guidance_scale):
    canvas = Canvas(PROMPT, masked(IMAGE, 7), hide_text=True)
    for num_steps, num_passes in ((None, 7), (3, 3), (7, 7), (50, 7), (1, 1)):
        network = Fake(arbitrary)
        generate(
            network, [canvas], SamplingConfig(sampler=sampler, num_steps=num_steps, guidance_scale=guidance_scale), [0]
        )
        assert network.num_passes == num_passes


def test_an_open_end_costs_one_more_forward_pass():
    network = Fake(arbitrary)
    (filled,) = generate(network, [Canvas(open_ended(TEXT, 9))], SamplingConfig(), [0])
    assert network.num_passes == 1 + len(filled.text.ids)


def test_only_chosen_positions_pass_the_head_and_matrices_have_a_minimum_size():
    network = Fake(arbitrary)
    generate(network, [Canvas(PROMPT, masked(IMAGE, 60))], SamplingConfig(num_steps=3), [0])
    assert network.rows == [20, 20, 20]
    network = Fake(arbitrary)
    generate(network, [Canvas(masked(TEXT, 2))], SamplingConfig(), [0])
    assert network.rows == [16, 16]
    assert [tuple(tokens.shape) for tokens in network.seen] == [(4, 5)] * 2


def test_the_callback_sees_every_step():
    calls = []
    canvas = Canvas(PROMPT, masked(IMAGE, 6))

    def callback(step, num_steps, tokens):
        calls.append((step, num_steps, int((tokens == VOCABULARY.mask(IMAGE)).sum())))

    (filled,) = generate(Fake(arbitrary), [canvas], SamplingConfig(num_steps=3), [0], callback=callback)
    assert calls == [(0, 3, 4), (1, 3, 2), (2, 3, 0)]
    assert ids_of([filled]) == ids_of(generate(Fake(arbitrary), [canvas], SamplingConfig(num_steps=3), [0]))


def test_the_callback_sees_batches_one_after_another_and_all_candidates():
    """Canvases of different lengths are different batches, each with its own number of steps."""
    canvases = [Canvas(PROMPT, masked(IMAGE, n)) for n in (6, 2, 6)]
    calls = []
    generate(
        Fake(arbitrary),
        canvases,
        SamplingConfig(num_steps=3, best_of=4),
        [0, 1, 2],
        callback=lambda step, num_steps, tokens: calls.append((step, num_steps, len(tokens))),
    )
    assert calls == [(0, 3, 8), (1, 3, 8), (2, 3, 8), (0, 2, 4), (1, 2, 4)]


def test_nothing_to_do():
    network = Fake(arbitrary)
    canvas = Canvas(PROMPT, known(IMAGE, [1, 2]))
    assert ids_of(generate(network, [canvas], SamplingConfig(), [0])) == [[[1, 2], [7, 8, 9]]]
    assert generate(network, [], SamplingConfig(), []) == []
    assert network.num_passes == 0


def test_seeds_make_a_difference():
    canvas = Canvas(PROMPT, masked(IMAGE, 8))
    results = ids_of(generate(Fake(arbitrary), [canvas] * 4, SamplingConfig(), [0, 1, 2, 0]))
    assert results[0] == results[3]
    assert len({tuple(result[0]) for result in results}) == 3
