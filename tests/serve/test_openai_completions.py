"""`/v1/completions`, called by OpenAI's client."""

import math

import numpy as np
import openai
import pytest

from triptych.sample.canvas import MASKED, Canvas, Span
from triptych.sample.config import SamplingConfig
from triptych.vocab import Modality

PROMPT = "there are two"


def complete(client, **fields):
    return client.completions.create(**{"model": "scenes", "prompt": PROMPT, **fields})


def test_a_text_is_continued_as_offline(client, pipe):
    made = complete(client, n=2, seed=3, temperature=1.0)
    offline = [pipe.complete(PROMPT, seed=seed, temperature=1.0) for seed in (3, 4)]
    assert [f"{PROMPT}{each.text}" for each in made.choices] == offline
    echoed = complete(client, n=2, seed=3, temperature=1.0, echo=True)
    assert [each.text for each in echoed.choices] == offline
    assert made.usage.completion_tokens == sum(len(pipe.bundle.text.encode([each.text])[0]) for each in made.choices)


def test_several_prompts(client):
    made = complete(client, prompt=[PROMPT, "a cat"], n=2, echo=True, temperature=1.0)
    assert [each.index for each in made.choices] == [0, 1, 2, 3]
    assert [each.text.startswith(PROMPT) for each in made.choices] == [True, True, False, False]
    assert all(each.text.startswith("a cat") for each in made.choices[2:])


def test_no_prompt_gives_a_new_text(client, pipe):
    assert complete(client, prompt="", seed=2).choices[0].text == pipe.complete("", seed=2)


def test_a_suffix_is_real_infilling(client, pipe):
    made = complete(client, prompt="a picture of", suffix=" cats", max_tokens=2, seed=1).choices[0]
    before, after = (pipe.bundle.text.encode([each])[0] for each in ("a picture of", " cats"))
    text = Span(Modality.TEXT, np.concatenate([before, [MASKED, MASKED], after]))
    (filled,) = pipe.fill([Canvas(text)], pipe.sampling_config(Modality.TEXT), seed=1)
    assert made.text == pipe.bundle.text.decode([filled.text.ids[len(before) : len(before) + 2]])[0]
    assert made.finish_reason == "length"
    echoed = complete(client, prompt="a picture of", suffix=" cats", max_tokens=2, seed=1, echo=True).choices[0]
    assert echoed.text == f"a picture of{made.text} cats"


def test_a_stream_of_an_infilling(client):
    fields = {"prompt": "a picture of", "suffix": " cats left of a dog", "max_tokens": 2, "seed": 1}
    whole = complete(client, **fields).choices[0]
    chunks = list(complete(client, stream=True, **fields))
    assert "".join(each.choices[0].text for each in chunks) == whole.text


def test_the_deltas_of_a_stream_make_up_the_texts(client):
    whole = complete(client, prompt=[PROMPT, "a cat"], temperature=1.0)
    texts, reasons = {0: "", 1: ""}, {}
    for chunk in complete(client, prompt=[PROMPT, "a cat"], temperature=1.0, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert list(texts.values()) == [each.text for each in whole.choices]
    assert reasons == {0: "stop", 1: "stop"}


def test_probabilities_are_the_models(client, pipe):
    """With one masked token, they are what the model predicts in a single forward pass."""
    made = complete(client, prompt="a picture of", suffix=" cats", max_tokens=1, logprobs=5).choices[0]
    (token,), (logprob,), (top,) = made.logprobs.tokens, made.logprobs.token_logprobs, made.logprobs.top_logprobs
    assert token == made.text
    assert made.logprobs.text_offset == [len("a picture of")]
    counts = dict.fromkeys(top, 0)
    before, after = (pipe.bundle.text.encode([each])[0] for each in ("a picture of", " cats"))
    canvas = Canvas(Span(Modality.TEXT, np.concatenate([before, [MASKED], after])))
    num_draws = 400
    for filled in pipe.fill([canvas] * num_draws, SamplingConfig(), seed=0):
        drawn = pipe.bundle.text.decode([filled.text.ids[len(before) : len(before) + 1]])[0]
        counts[drawn] = counts.get(drawn, 0) + 1
    assert top[token] == pytest.approx(logprob)
    assert logprob == max(top.values())  # at temperature 0
    for piece, log_probability in top.items():
        probability = math.exp(log_probability)
        assert counts[piece] / num_draws == pytest.approx(
            probability, abs=4 * math.sqrt(probability * (1 - probability) / num_draws) + 1e-3
        )


def test_probabilities_with_echo_have_none_for_the_prompt(client):
    made = complete(client, echo=True, logprobs=0, max_tokens=3).choices[0]
    assert "".join(made.logprobs.tokens) == made.text
    known = [each is not None for each in made.logprobs.token_logprobs]
    assert known == [False, False, False, True, True, True]
    assert made.logprobs.text_offset == [made.text.index(each) for each in made.logprobs.tokens]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suffix": " cats"}, "suffix needs num_tokens"),
        ({"suffix": " cats", "max_tokens": 10**9}, "num_tokens must be at most 144"),
        ({"suffix": "___", "max_tokens": 1}, "must not contain ___"),
        ({"prompt": [1, 2, 3]}, "prompt must be a text or a list of texts"),
        ({"prompt": []}, "expected a prompt"),
        ({"prompt": ["a cat"] * 17}, "the prompts times n must be 1 to 16"),
        ({"n": 10**9}, "the prompts times n must be 1 to 16"),
        ({"logprobs": 21}, "at most 20 tokens"),
        ({"best_of": 2}, "best_of ranks candidates by how well they fit what is given"),
        ({"best_of": 2, "stream": True}, "best_of ranks candidates by how well they fit what is given"),
        ({"extra_body": {"guidance_scale": 2}, "stream": True}, "guidance needs a known text"),
        ({"logit_bias": {"5": 10}}, "logit_bias is not supported"),
        ({"extra_body": {"top_k": 5}}, "top_k: Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_done_is_refused_clearly(client, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        complete(client, **fields)
