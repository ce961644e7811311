"""Generation on networks that are known to the last number, and on a real one for what must not depend on company."""

import itertools
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from sample_fakes import AUDIO, IMAGE, TEXT, VOCABULARY, Fake, arbitrary, columns, flat
from scipy.stats import chisquare

import triptych.sample.generate as module
from triptych.errors import UserError
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample.canvas import MASKED, Canvas, Span, known, lay_out, masked, open_ended, unconditional
from triptych.sample.generate import SamplingConfig, generate
from triptych.sample.presets import SAMPLING_PRESETS, Use
from triptych.sample.samplers import SAMPLERS
from triptych.vocab import Modality, Vocabulary


def softmax(logits):
    scaled = np.exp(logits - logits.max())
    return scaled / scaled.sum()


PROMPT = known(TEXT, [7, 8, 9])


# -- company ----------------------------------------------------------------------------------------------------------


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
    """Seven requests of all tasks and of several lengths, some equal, with one masked position or with many."""
    return [
        Canvas(known(TEXT, [5, 6, 7]), masked(IMAGE, 9), hide=True),
        Canvas(known(TEXT, [8, 5]), open_ended(AUDIO, 12, stride=2), hide=True),
        Canvas(Span(TEXT, np.array([4, MASKED, 9])), Span(IMAGE, np.r_[np.arange(8), MASKED]), hide=True),
        Canvas(open_ended(TEXT, 9, [11, 12]), hide=True),
        Canvas(Span(TEXT, np.array([1, MASKED])), hide=True),
        Canvas(unconditional(TEXT, 3), Span(IMAGE, np.r_[MASKED, np.arange(8)]), hide=True),
        Canvas(open_ended(TEXT, 6), masked(AUDIO, 4), hide=True),
    ]


OPTIONS = {
    "remdm": {"eta": 0.4},
    "threshold": {"threshold": 0.3},
    "entropy_bounded": {"gamma": 2.0},
    "blocks": {"block_length": 4, "inner": "maskgit"},
}


def ids_of(canvases):
    return [[span.ids.tolist() for span in canvas.spans] for canvas in canvases]


@pytest.mark.parametrize(("guidance_scale", "steps", "length"), [(1.0, None, "draw"), (3.0, 3, "median")])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_request_gives_the_same_alone_and_in_any_company(sampler, guidance_scale, steps, length, transformer):
    settings = SamplingConfig(
        sampler=sampler,
        num_steps=steps,
        guidance_scale=guidance_scale,
        length=length,
        top_p=0.95,
        options=OPTIONS.get(sampler, {}),
    )
    canvases, seeds = mixed(), [3, 1, 4, 1, 5, 9, 2]
    together = ids_of(generate(transformer, canvases, settings, seeds))
    alone = [ids_of(generate(transformer, [canvas], settings, [seed]))[0] for canvas, seed in zip(canvases, seeds)]
    assert together == alone
    some = [5, 2, 0]
    assert ids_of(generate(transformer, [canvases[i] for i in some], settings, [seeds[i] for i in some])) == [
        alone[i] for i in some
    ]


@pytest.mark.parametrize("num_masked", [1, 2])
def test_groups_of_one_to_seven_with_few_masked_rows(num_masked, transformer):
    """Matrix products of few rows round otherwise: no row may notice how many stand beside it."""
    rng = np.random.default_rng(num_masked)
    canvases = []
    for _ in range(7):
        ids = rng.integers(0, 200, 9)
        ids[rng.choice(9, num_masked, replace=False)] = MASKED
        canvases.append(Canvas(known(TEXT, rng.integers(0, 300, 3)), Span(IMAGE, ids), hide=True))
    for guidance_scale in (1.0, 3.0):
        settings = SamplingConfig(num_steps=1, guidance_scale=guidance_scale)
        alone = [ids_of(generate(transformer, [canvas], settings, [seed]))[0] for seed, canvas in enumerate(canvases)]
        for size in range(1, 8):
            assert ids_of(generate(transformer, canvases[:size], settings, range(size))) == alone[:size]


@pytest.mark.parametrize(("modality", "size"), [(IMAGE, 9), (TEXT, 2)])
def test_logits_are_the_same_to_the_bit_in_groups_of_any_size(modality, size, threads, transformer):
    """What is drawn hides small differences: here are the numbers themselves."""
    rng = np.random.default_rng(0)
    spans = [Span(modality, np.r_[MASKED, rng.integers(0, 200, size - 1)]) for _ in range(7)]
    if modality == TEXT:
        canvases = [Canvas(span, hide=True) for span in spans]
    else:
        canvases = [Canvas(known(TEXT, rng.integers(0, 300, 3)), span, hide=True) for span in spans]

    def numbers(chosen):
        layouts = [lay_out(canvas, transformer.vocabulary) for canvas in chosen]
        group = module._group(layouts, range(len(chosen)), transformer.vocabulary, "cpu")
        found = []
        for guidance_scale in (1.0, 2.0):
            propose = module._Proposer(transformer, layouts, group, SamplingConfig(guidance_scale=guidance_scale))
            with torch.inference_mode():
                states = propose.look(group.tokens, group.masked)
                distributions = [dist.shifted_nV for _, dist in propose.distributions(states, group.masked, modality)]
                found.append(torch.cat([dist.double() for dist in distributions]))
        return torch.stack(found, dim=1)

    alone = torch.cat([numbers([canvas]) for canvas in canvases])
    for size in range(1, 8):
        assert torch.equal(numbers(canvases[:size]), alone[:size])


def test_a_small_forward_pass_gives_the_same_in_more_parts(monkeypatch):
    network = Fake(arbitrary)
    canvases = [Canvas(PROMPT, masked(IMAGE, n), hide=True) for n in (4, 5, 4, 4, 4)]
    whole = ids_of(generate(network, canvases, SamplingConfig(guidance_scale=2.0), range(5)))
    monkeypatch.setattr(module, "MOST_TOKENS", 50)
    parts = Fake(arbitrary)
    assert ids_of(generate(parts, canvases, SamplingConfig(guidance_scale=2.0), range(5))) == whole
    assert max(tokens.numel() for tokens in network.seen) > 50
    assert max(tokens.numel() for tokens in parts.seen) <= 50


# -- what may stand where ---------------------------------------------------------------------------------------------


def loves(column):
    def dist(context, position, modality):
        logits = np.random.default_rng([position, modality]).normal(size=columns(modality))
        logits[column] = 1000.0
        return logits

    return dist


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("column", [-2, -1], ids=["BOS", "EOS"])
def test_only_data_of_its_own_modality_is_ever_put_anywhere(sampler, column):
    canvases = [
        Canvas(PROMPT, masked(IMAGE, 5), hide=True),
        Canvas(Span(TEXT, np.array([MASKED, 3, MASKED])), masked(AUDIO, 4)),
        Canvas(open_ended(TEXT, 6)),
    ]
    for canvas in canvases:
        seen = []
        settings = SamplingConfig(sampler=sampler, length="draw")
        network = Fake(loves(column))
        (done,) = generate(network, [canvas], settings, [3], callback=lambda *step, seen=seen: seen.append(step[2][0]))
        for span in done.spans:
            assert ((span.ids >= 0) & (span.ids < VOCABULARY.data_size(span.modality))).all()
        final = lay_out(done, VOCABULARY)
        for tokens in seen:
            for token, end, modality in zip(tokens.tolist(), final.tokens.tolist(), final.modality.tolist()):
                allowed = VOCABULARY.data_ids(Modality(modality))
                assert token == end or token == VOCABULARY.mask(Modality(modality)) or token in allowed
        if seen:  # a text whose one token was its beginning needs no sampler
            assert seen[-1].tolist() == final.tokens.tolist()
        if canvas.text.open_slot and column == -1:
            assert len(done.text.ids) == 1  # it may end there, and wants to: at the first place it can


def test_every_id_of_a_modality_can_come():
    canvases = [Canvas(PROMPT, masked(AUDIO, 50))]
    (done,) = generate(Fake(loves(-2)), canvases, SamplingConfig(num_steps=1, temperature=1000.0), [0])
    found = np.concatenate(
        [generate(Fake(flat), canvases, SamplingConfig(num_steps=1), [seed])[0].media.ids for seed in range(8)]
    )
    assert set(found.tolist()) == set(range(VOCABULARY.audio))
    assert set(done.media.ids.tolist()) <= set(range(VOCABULARY.audio))


# -- guidance ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance_scale", [0.0, 0.5, 1.0, 3.0, 7.5])
def test_guidance_by_its_formula(guidance_scale):
    """uncond + scale * (cond - uncond), without BOS and EOS, against numpy: the likeliest token at every place."""
    canvas = Canvas(PROMPT, masked(IMAGE, 6), hide=True)
    settings = SamplingConfig(num_steps=1, temperature=0.0, guidance_scale=guidance_scale)
    (done,) = generate(Fake(arbitrary), [canvas], settings, [0])
    sighted = lay_out(canvas, VOCABULARY).tokens
    blind = sighted.copy()
    blind[-4:-1] = VOCABULARY.mask(TEXT)
    expected = []
    for position in range(2, 8):
        cond, uncond = (arbitrary(tuple(context.tolist()), position, IMAGE)[:-2] for context in (sighted, blind))
        expected.append(int((uncond + guidance_scale * (cond - uncond)).argmax()))
    assert done.media.ids.tolist() == expected


def test_tokens_are_drawn_from_the_guided_law():
    def dist(context, position, modality):
        is_blind = VOCABULARY.mask(TEXT) in context
        logits = np.full(columns(modality), -40.0)
        logits[:4] = [0.5, 0.0, 0.2, -1.0] if is_blind else [0.0, 0.3, 0.6, -0.5]
        return logits

    canvas = Canvas(PROMPT, masked(IMAGE, 100), hide=True)
    done = generate(
        Fake(dist), [canvas] * 10, SamplingConfig(num_steps=1, guidance_scale=2.0, temperature=1.5), range(10)
    )
    counts = np.bincount(np.concatenate([each.media.ids for each in done]), minlength=4)
    expected = softmax(np.array([-0.5, 0.6, 1.0, 0.0]) / 1.5)  # 2 cond - uncond
    assert chisquare(counts, expected * counts.sum()).pvalue > 1e-3


def test_the_blind_branch_lacks_the_text_and_nothing_else():
    network = Fake(arbitrary)
    text = Span(TEXT, np.array([7, MASKED, 9]))
    canvases = [Canvas(text, masked(IMAGE, 4), hide=True), Canvas(known(TEXT, [1, 2, 3]), masked(IMAGE, 4), hide=True)]
    generate(network, canvases, SamplingConfig(guidance_scale=2.0), [0, 1])
    hidden = np.stack([lay_out(canvas, VOCABULARY).hidden for canvas in canvases])
    assert hidden.sum(1).tolist() == [2, 3]
    # The second has less to fill in, and leaves when it is done.
    assert [len(tokens) for tokens in network.seen if tokens.shape[1] == hidden.shape[1]] == [4] * 4 + [2]
    for tokens, positions in zip(network.seen, network.positions):
        sighted, blind = tokens.numpy().reshape(2, -1, tokens.shape[1])
        unseen = hidden[: len(blind)]
        assert (blind[unseen] == VOCABULARY.mask(TEXT)).all()
        assert (blind[~unseen] == sighted[~unseen]).all()
        assert (sighted[unseen] != VOCABULARY.mask(TEXT)).all()
        assert positions.tolist() == [list(range(tokens.shape[1]))] * len(tokens)


def test_without_guidance_there_is_no_blind_branch():
    network = Fake(arbitrary)
    generate(network, [Canvas(PROMPT, masked(IMAGE, 12), hide=True)], SamplingConfig(num_steps=2), [0])
    assert {len(tokens) for tokens in network.seen} == {1}


def test_what_is_unsaid_stays_masked_and_is_not_generated():
    network = Fake(arbitrary)
    canvas = Canvas(unconditional(TEXT, 3), Span(IMAGE, np.array([MASKED, 4, MASKED])))
    (done,) = generate(network, [canvas], SamplingConfig(), [0])
    assert done.text.ids.tolist() == [MASKED] * 3
    assert done.media.ids[1] == 4
    assert (done.media.ids >= 0).all()
    assert network.looks == 2
    for tokens in network.seen:
        assert tokens[0, -4:-1].tolist() == [VOCABULARY.mask(TEXT)] * 3


def test_guidance_needs_a_text_to_hide():
    with pytest.raises(UserError, match="guidance works against a hidden text"):
        generate(Fake(flat), [Canvas(PROMPT, masked(IMAGE, 4))], SamplingConfig(guidance_scale=2.0), [0])


# -- lengths ----------------------------------------------------------------------------------------------------------


def ends_by(distribution, start=2):
    """A network that knows how long things are: EOS at place i has the probability that all is said by then."""

    def dist(context, position, modality):
        p = float(distribution[min(max(position - start, 0), len(distribution) - 1)])
        with np.errstate(divide="ignore"):
            logits = np.full(columns(modality), np.log((1 - p) / VOCABULARY.data_size(modality)))
            logits[-1] = np.log(p)
        logits[-2] = 500.0  # BOS: must not count
        return logits

    return dist


def law_of(canvas, network):
    layouts = [lay_out(canvas, VOCABULARY)]
    group = module._group(layouts, [0], VOCABULARY, "cpu")
    return module._length_laws(network, group, layouts, [canvas], SamplingConfig())[0][0]


LAW = np.array([0.0, 0.05, 0.2, 0.0, 0.4, 0.25, 0.0, 0.1])  # of lengths 0 to 7


def test_the_law_of_lengths_is_read_off_one_look():
    network = Fake(ends_by(LAW.cumsum()))
    found = law_of(Canvas(open_ended(TEXT, 8)), network)
    assert list(found) == list(range(1, 8))
    assert list(found.values()) == pytest.approx(LAW[1:].tolist(), abs=1e-12)
    assert network.looks == 1


def test_what_has_not_ended_by_the_end_of_the_slot_ends_there():
    found = law_of(Canvas(open_ended(TEXT, 6)), Fake(ends_by(LAW.cumsum())))
    assert found == pytest.approx({1: 0.05, 2: 0.2, 3: 0.0, 4: 0.4, 5: 0.35}, abs=1e-12)


def test_a_distribution_that_falls_is_mended():
    found = law_of(Canvas(open_ended(TEXT, 6)), Fake(ends_by([0.0, 0.3, 0.2, 0.7, 0.6, 0.9])))
    assert found == pytest.approx({1: 0.3, 2: 0.0, 3: 0.4, 4: 0.0, 5: 0.3}, abs=1e-12)


def test_lengths_of_sounds_are_whole_frames():
    dist = np.zeros(20)
    dist[[4, 8, 12]] = 0.2, 0.5, 0.3
    canvas = Canvas(PROMPT, open_ended(AUDIO, 16, stride=4))
    assert law_of(canvas, Fake(ends_by(dist.cumsum()))) == pytest.approx({4: 0.2, 8: 0.5, 12: 0.3}, abs=1e-12)
    for seed in range(20):
        (done,) = generate(Fake(flat), [canvas], SamplingConfig(num_steps=1, length="draw"), [seed])
        assert len(done.media.ids) in (4, 8, 12)


def test_with_a_beginning_given_it_can_be_no_shorter():
    found = law_of(Canvas(open_ended(TEXT, 8, [1, 2, 3, 4])), Fake(ends_by(LAW.cumsum())))
    assert found == pytest.approx({4: 0.65, 5: 0.25, 6: 0.0, 7: 0.1}, abs=1e-12)
    sound = Canvas(PROMPT, open_ended(AUDIO, 16, [1] * 5, stride=4))
    assert list(law_of(sound, Fake(flat))) == [8, 12]


def test_at_once_is_one_look_for_length_and_tokens():
    """What is drawn where is what the model says there of tokens, if it did not end."""

    def dist(context, position, modality):
        logits = ends_by(LAW.cumsum())(context, position, modality)
        logits[3 * position % VOCABULARY.text] += 40.0 + np.log(VOCABULARY.text)
        logits[-1] += 40.0  # as likely as it was, beside the one token
        return logits

    settings = SamplingConfig(single_pass=True, length="mode")
    network = Fake(dist)
    (done,) = generate(network, [Canvas(open_ended(TEXT, 8, [5]))], settings, [0])
    assert done.text.ids.tolist() == [5, *(3 * (2 + i) % VOCABULARY.text for i in (1, 2, 3))]  # four is the likeliest
    assert network.looks == 1
    drawn = [generate(Fake(flat), [Canvas(open_ended(TEXT, 6))], settings, [n])[0].text.ids.tolist() for n in range(50)]
    assert len({tuple(each) for each in drawn}) > 40  # the flat law is drawn from
    assert all(0 <= token < VOCABULARY.text for each in drawn for token in each)
    with pytest.raises(UserError, match="single_pass draws from an unguided look"):
        SamplingConfig(single_pass=True, guidance_scale=2.0)


def test_at_once_leaves_other_gaps_to_the_sampler():
    network = Fake(arbitrary)
    (done,) = generate(network, [Canvas(open_ended(TEXT, 6), masked(IMAGE, 3))], SamplingConfig(single_pass=True), [0])
    assert done.text.num_masked == done.media.num_masked == 0
    assert network.looks == 1 + 3


def test_median_and_mode():
    for how, expected in (("median", 4), ("mode", 4)):
        (done,) = generate(Fake(ends_by(LAW.cumsum())), [Canvas(open_ended(TEXT, 8))], SamplingConfig(length=how), [0])
        assert len(done.text.ids) == expected
    skewed = np.array([0, 0.3, 0.25, 0.0, 0.2, 0.25])
    for how, expected in (("median", 2), ("mode", 1)):
        (done,) = generate(
            Fake(ends_by(skewed.cumsum())), [Canvas(open_ended(TEXT, 6))], SamplingConfig(length=how), [0]
        )
        assert len(done.text.ids) == expected


def test_drawn_lengths_follow_the_law():
    number = 300
    canvases = [Canvas(open_ended(TEXT, 8))] * number
    done = generate(Fake(ends_by(LAW.cumsum())), canvases, SamplingConfig(num_steps=1, length="draw"), range(number))
    counts = np.bincount([len(canvas.text.ids) for canvas in done], minlength=8)
    assert not counts[LAW == 0].any()
    assert chisquare(counts[LAW > 0], LAW[LAW > 0] * number).pvalue > 1e-3


def test_two_open_ends_are_closed_one_after_the_other_the_media_first():
    network = Fake(flat)
    canvas = Canvas(open_ended(TEXT, 5), open_ended(AUDIO, 9, stride=4))
    (done,) = generate(network, [canvas], SamplingConfig(length="draw"), [2])
    sound = canvas.media.closed(len(done.media.ids))
    assert network.seen[0][0].tolist() == lay_out(canvas, VOCABULARY).tokens.tolist()
    assert network.seen[1][0].tolist() == lay_out(replace(canvas, media=sound), VOCABULARY).tokens.tolist()
    begun = replace(canvas.text, ids=done.text.ids[:1])  # how it begins is drawn before how long it is
    assert network.seen[2][0].tolist() == lay_out(Canvas(begun, sound), VOCABULARY).tokens.tolist()
    text = begun.closed(len(done.text.ids))
    assert network.seen[3][0].tolist() == lay_out(Canvas(text, sound), VOCABULARY).tokens.tolist()


def test_what_is_given_is_kept():
    canvas = Canvas(open_ended(TEXT, 12, [5, 6, 7]), open_ended(AUDIO, 12, [1, 2, 3, 4], stride=2))
    for seed in range(5):
        (done,) = generate(Fake(arbitrary), [canvas], SamplingConfig(length="draw"), [seed])
        assert done.text.ids[:3].tolist() == [5, 6, 7]
        assert done.media.ids[:4].tolist() == [1, 2, 3, 4]


# -- looks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "guidance_scale"), itertools.product(["random_order", "low_confidence"], [1.0, 2.0])
)
def test_one_token_a_look_unless_told_otherwise(sampler, guidance_scale):
    canvas = Canvas(PROMPT, masked(IMAGE, 7), hide=True)
    for steps, looks in ((None, 7), (3, 3), (7, 7), (50, 7), (1, 1)):
        network = Fake(arbitrary)
        generate(
            network, [canvas], SamplingConfig(sampler=sampler, num_steps=steps, guidance_scale=guidance_scale), [0]
        )
        assert network.looks == looks


def test_an_open_end_costs_one_look_more():
    network = Fake(arbitrary)
    (done,) = generate(network, [Canvas(open_ended(TEXT, 9))], SamplingConfig(), [0])
    assert network.looks == 1 + len(done.text.ids)


def test_only_chosen_positions_pass_the_head_and_no_matrix_is_tiny():
    network = Fake(arbitrary)
    generate(network, [Canvas(PROMPT, masked(IMAGE, 60))], SamplingConfig(num_steps=3), [0])
    assert network.rows == [20, 20, 20]
    network = Fake(arbitrary)
    generate(network, [Canvas(masked(TEXT, 2))], SamplingConfig(), [0])
    assert network.rows == [16, 16]
    assert [tuple(tokens.shape) for tokens in network.seen] == [(4, 5)] * 2


def test_the_callback_sees_every_step():
    heard = []
    canvas = Canvas(PROMPT, masked(IMAGE, 6))

    def callback(step, steps, tokens):
        heard.append((step, steps, int((tokens == VOCABULARY.mask(IMAGE)).sum())))

    (done,) = generate(Fake(arbitrary), [canvas], SamplingConfig(num_steps=3), [0], callback=callback)
    assert heard == [(0, 3, 4), (1, 3, 2), (2, 3, 0)]
    assert ids_of([done]) == ids_of(generate(Fake(arbitrary), [canvas], SamplingConfig(num_steps=3), [0]))


def test_nothing_to_do():
    network = Fake(arbitrary)
    canvas = Canvas(PROMPT, known(IMAGE, [1, 2]))
    assert ids_of(generate(network, [canvas], SamplingConfig(), [0])) == [[[1, 2], [7, 8, 9]]]
    assert generate(network, [], SamplingConfig(), []) == []
    assert network.looks == 0


def test_seeds_make_a_difference():
    canvas = Canvas(PROMPT, masked(IMAGE, 8))
    made = ids_of(generate(Fake(arbitrary), [canvas] * 4, SamplingConfig(), [0, 1, 2, 0]))
    assert made[0] == made[3]
    assert len({tuple(each[0]) for each in made}) == 3


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampler": "random_ordr"}, "unknown sampler 'random_ordr'. Did you mean 'random_order'?"),
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"best_of": 0}, "best_of and num_score_passes must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must not be negative"),
        ({"temperature": math.nan}, "temperature must not be negative"),
        ({"top_p": 0.0}, "top_p must lie in"),
        ({"top_p": 1.5}, "top_p must lie in"),
        ({"guidance_scale": -0.5}, "guidance_scale must not be negative"),
        ({"guidance_scale": math.inf}, "guidance_scale must not be negative"),
        ({"guidance_scale": math.nan}, "guidance_scale must not be negative"),
        ({"length": "longest"}, "length must be chosen by draw, median or mode, got 'longest'"),
        ({"options": {"eta": 1}}, "the sampler 'random_order' has no option 'eta'"),
        ({"sampler": "remdm", "options": {"etta": 1}}, "no option 'etta'. Did you mean 'eta'?"),
        ({"sampler": "blocks", "options": {"inner": "remdm", "gamma": 1}}, "'blocks' has no option 'gamma'"),
    ],
)
def test_wrong_settings(fields, message):
    with pytest.raises(UserError) as caught:
        SamplingConfig(**fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_reach_the_sampler():
    network = Fake(arbitrary)
    options = {"inner": "threshold", "threshold": 1e-9, "block_length": 2}
    generate(network, [Canvas(PROMPT, masked(IMAGE, 8))], SamplingConfig(sampler="blocks", options=options), [0])
    assert network.looks == 4  # all of a block at once


def test_presets_name_every_modality():
    assert {"scenes", "paper"} <= set(SAMPLING_PRESETS)
    for preset in SAMPLING_PRESETS.values():
        assert set(Modality) <= set(preset) <= {*Modality, *get_args(Use)}
        assert preset[TEXT].guidance_scale == 1  # there is no text to hide where text is made
