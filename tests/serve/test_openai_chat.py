"""`/v1/chat/completions`, called by OpenAI's client: a turn is a direction of the pipeline."""

import base64
import io
import math

import openai
import pytest
from PIL import Image

from triptych.serve.media import data_uri, encode_audio, encode_image

QUESTION = "how many cats are there?"


@pytest.fixture(scope="module")
def cats(pipe):
    return pipe.text_to_image("two cats", seed=1)


@pytest.fixture(scope="module")
def recording(pipe):
    return pipe.text_to_speech("two cats", seed=1)


@pytest.fixture(scope="module")
def image(cats):
    return {"type": "image_url", "image_url": {"url": data_uri(encode_image(cats), "image/png")}}


@pytest.fixture(scope="module")
def audio(recording):
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(encode_audio(recording)).decode(), "format": "wav"},
    }


def text(content):
    return {"type": "text", "text": content}


def ask(client, content, modalities=None, **fields):
    messages = content if isinstance(content[0], dict) and "role" in content[0] else [user(content)]
    extra = {**fields.pop("extra_body", {}), **({"modalities": modalities} if modalities else {})}
    return client.chat.completions.create(model="scenes", messages=messages, extra_body=extra, **fields)


def user(content):
    return {"role": "user", "content": content}


def image_in(message) -> Image.Image:
    (made,) = message.images
    assert made["type"] == "image_url"
    return Image.open(io.BytesIO(base64.b64decode(made["image_url"]["url"].removeprefix("data:image/png;base64,"))))


# -- directions -------------------------------------------------------------------------------------------------------


def test_an_image_and_a_text_are_a_question(client, pipe, cats, image):
    made = ask(client, [image, text(QUESTION)])
    assert made.choices[0].message.content == pipe.answer(cats, QUESTION)
    assert made.choices[0].message.role == "assistant"
    assert made.choices[0].finish_reason == "stop"
    assert made.triptych["direction"] == "answer"
    question, answer = (
        len(pipe.bundle.text.encode([each])[0]) for each in (QUESTION, f" {made.choices[0].message.content}")
    )
    assert made.usage.prompt_tokens == question + 16
    assert made.usage.completion_tokens == answer
    assert made.usage.prompt_tokens_details.image_tokens == 16


def test_an_image_alone_is_to_be_described(client, pipe, cats, image):
    made = ask(client, [image], seed=3, n=2)
    assert [each.message.content for each in made.choices] == [pipe.caption(cats, seed=seed) for seed in (3, 4)]


def test_a_recording_is_to_be_written_down(client, pipe, recording, audio):
    assert ask(client, [audio]).choices[0].message.content == pipe.transcribe(encode_audio(recording))


def test_a_text_is_to_be_continued(client, pipe):
    made = ask(client, "there are two", temperature=1.0, seed=5).choices[0].message.content
    assert f"there are two {made}" == pipe.complete("there are two", temperature=1.0, seed=5)


def test_a_text_with_gaps_is_to_be_filled_in(client, pipe, cats, image):
    made = ask(client, [image, text("a picture of ___ ___")])
    assert made.choices[0].message.content == pipe.infill_text("a picture of ___ ___", image=cats)


def test_an_image_is_drawn(client, pipe):
    message = ask(client, "two cats", ["image"], seed=4).choices[0].message
    assert encode_image(image_in(message)) == encode_image(pipe.text_to_image("two cats", seed=4))
    assert message.content is None


def test_a_text_is_spoken(client, pipe):
    message = ask(client, "two cats", ["text", "audio"], seed=4, audio={"voice": "alloy", "format": "flac"})
    spoken = message.choices[0].message.audio
    assert base64.b64decode(spoken.data) == encode_audio(pipe.text_to_speech("two cats", seed=4), "flac")
    assert spoken.transcript == "two cats"


def test_speech_becomes_an_image(client, pipe, recording, audio):
    made = ask(client, [audio], ["text", "image"], seed=2, n=2)
    for seed, choice in zip((2, 3), made.choices):
        transcript, image = pipe.speech_to_image(encode_audio(recording), seed=seed)
        assert choice.message.content == transcript
        assert encode_image(image_in(choice.message)) == encode_image(image)
    assert made.usage.completion_tokens_details.image_tokens == 2 * 16


def test_an_image_becomes_speech(client, pipe, cats, image):
    message = ask(client, [image], ["audio"], seed=2, audio={"voice": "alloy", "format": "wav"}).choices[0].message
    caption, audio = pipe.image_to_speech(cats, seed=2)
    assert message.audio.transcript == caption
    assert base64.b64decode(message.audio.data) == encode_audio(audio)


def test_a_question_without_an_image_is_about_the_latest_one(client, pipe, cats, image):
    history = [
        {"role": "system", "content": "You are helpful."},
        user([image, text("how many dogs are there?")]),
        {"role": "assistant", "content": "none"},
        user(QUESTION),
    ]
    assert ask(client, history).choices[0].message.content == pipe.answer(cats, QUESTION)
    drawn = ask(client, [*history[:-1], user("two cats")], ["image"])
    assert drawn.triptych["direction"] == "text-to-image"


# -- ends of texts, probabilities -------------------------------------------------------------------------------------


def test_max_tokens_cut_the_text(client, pipe):
    whole = ask(client, "there are two")
    cut = ask(client, "there are two", max_tokens=3)
    assert cut.choices[0].message.content == " ".join(whole.choices[0].message.content.split()[:3])
    assert (whole.choices[0].finish_reason, cut.choices[0].finish_reason) == ("stop", "length")
    assert cut.usage.completion_tokens == 3
    assert ask(client, "there are two", max_completion_tokens=1000).choices[0].message == whole.choices[0].message


def test_num_tokens_are_written_exactly(client, pipe):
    made = ask(client, "there are two", extra_body={"num_tokens": 4})
    assert made.usage.completion_tokens == 4
    assert f"there are two {made.choices[0].message.content}" == pipe.complete("there are two", num_tokens=4)


def test_stop_ends_the_text(client):
    whole = ask(client, "there are two").choices[0].message.content
    words = whole.split()
    made = ask(client, "there are two", stop=["unlikely", f" {words[2]}"]).choices[0]
    assert made.message.content == " ".join(words[:2])
    assert made.finish_reason == "stop"


def test_probabilities_of_tokens(client, image):
    made = ask(client, [image, text(QUESTION)], logprobs=True, top_logprobs=3).choices[0]
    assert "".join(each.token for each in made.logprobs.content).strip() == made.message.content
    for each in made.logprobs.content:
        assert each.logprob <= 0
        assert len(each.top_logprobs) <= 3
        likeliest = each.top_logprobs[0]
        assert (likeliest.token, likeliest.logprob) == (each.token, pytest.approx(each.logprob))  # temperature 0
        assert sum(math.exp(other.logprob) for other in each.top_logprobs) <= 1 + 1e-9
        assert bytes(each.bytes).decode() == each.token


# -- streams ----------------------------------------------------------------------------------------------------------


def test_the_deltas_of_a_stream_make_up_the_text(client):
    whole = ask(client, "there are two", temperature=1.0, seed=1).choices[0]
    *chunks, usage = ask(
        client, "there are two", temperature=1.0, seed=1, stream=True, stream_options={"include_usage": True}
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [each.choices[0].delta.content or "" for each in chunks]
    assert "".join(deltas) == whole.message.content
    assert sum(map(bool, deltas)) > 1
    assert [each.choices[0].finish_reason for each in chunks[-1:]] == ["stop"]
    assert usage.choices == []
    assert usage.usage.completion_tokens > 0
    # A delta is never ahead of the tokens that are filled in.
    sent = ""
    for chunk in chunks:
        sent += chunk.choices[0].delta.content or ""
        if "pieces" in getattr(chunk, "triptych", {}):
            pieces = chunk.triptych["pieces"]
            known = pieces[: pieces.index(None)] if None in pieces else pieces
            assert "".join(known) == f"there are two {sent}".rstrip()


def test_a_stream_of_several_texts(client):
    whole = ask(client, "there are two", temperature=1.0, n=3)
    texts = {0: "", 1: "", 2: ""}
    for chunk in ask(client, "there are two", temperature=1.0, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(texts.values()) == [each.message.content for each in whole.choices]


@pytest.mark.parametrize("sampling", [{"best_of": 4}, {"sampler": "remdm", "num_steps": 12}])
def test_what_may_change_is_not_sent_before_the_end(client, image, sampling):
    sampling = {"temperature": 1.0, "num_tokens": 4, "best_of": 1, **sampling}
    whole = ask(client, [image], extra_body=sampling).choices[0].message.content
    chunks = list(ask(client, [image], extra_body=sampling, stream=True))
    deltas = [each.choices[0].delta.content for each in chunks if each.choices[0].delta.content]
    assert deltas == [whole]
    assert any("pieces" in getattr(each, "triptych", {}) for each in chunks)


@pytest.mark.parametrize("fields", [{"max_tokens": 4}, {"stop": ["hearts"]}, {"stop": "two y"}, {"stop": "t"}])
def test_a_stream_ends_where_the_text_ends(client, fields):
    whole = ask(client, "there are two", **fields).choices[0]
    chunks = list(ask(client, "there are two", stream=True, **fields))
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_a_stream_that_draws(client, audio):
    whole = ask(client, [audio], ["image"]).choices[0].message
    chunks = list(ask(client, [audio], ["image"], stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == whole.content
    (images,) = [each.choices[0].delta.images for each in chunks if hasattr(each.choices[0].delta, "images")]
    assert images == whole.images
    frames = [each.triptych for each in chunks if "masked" in getattr(each, "triptych", {})]
    assert [each["masked"] for each in frames] == sorted((each["masked"] for each in frames), reverse=True)
    assert frames[-1]["masked"] == 0


def test_a_stream_that_speaks(client, image):
    fields = {"audio": {"voice": "alloy", "format": "wav"}}
    whole = ask(client, [image], ["audio"], **fields).choices[0].message.audio
    parts = [
        each.choices[0].delta.audio
        for each in ask(client, [image], ["audio"], stream=True, **fields)
        if getattr(each.choices[0].delta, "audio", None)
    ]
    assert "".join(each.transcript or "" for each in parts) == whole.transcript
    assert [each.data for each in parts if each.data] == [whole.data]
    assert len({each.id for each in parts}) == 1


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "fields", "message"),
    [
        ([text("a cat"), "image"], {"extra_body": {"modalities": ["image"]}}, "no direction from image and text to"),
        (["audio"], {"extra_body": {"modalities": ["image"], "sampler": "x"}, "stream": True}, "unknown sampler"),
        (["audio", "image"], {}, "no direction from audio and image to text"),
        (["image", "image"], {}, "at most one image or one recording"),
        (["image"] * 9, {}, "a chat has at most 8 images and recordings, got 9"),
        ("a cat", {"extra_body": {"modalities": ["image", "audio"]}}, "not both"),
        ("a cat", {"extra_body": {"modalities": ["video"]}}, "modalities"),
        ("a cat", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools are not supported"),
        ("a cat", {"response_format": {"type": "json_object"}}, "only the response format text"),
        ("a cat", {"frequency_penalty": 1.0}, "frequency_penalty is not supported"),
        ("a cat", {"logprobs": True, "stream": True}, "logprobs are not streamed"),
        ("a cat", {"logprobs": True, "top_logprobs": 1000}, "at most 20 tokens"),
        (["image"], {"logprobs": True}, "use best_of=1"),
        ("a cat", {"n": 10**9}, "n must be at most 16"),
        ("a cat", {"max_tokens": 0}, "max_tokens: Input should be greater"),
        ("a cat", {"extra_body": {"num_tokens": 10**9}}, "num_tokens must be at most"),
        ("a submarine", {}, "does not know the word 'submarine'"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], {}, "not an image"),
        ([{"type": "image_url", "image_url": {"url": "data:text/html;base64,AAAA"}}], {}, "of the type image/"),
        ([{"type": "input_audio", "input_audio": {"data": "!!", "format": "wav"}}], {}, "expected base64"),
        ([{"type": "file", "file": {}}], {}, "messages.0.user.content"),
    ],
)
def test_what_cannot_be_done_is_refused_clearly(client, image, audio, content, fields, message):
    media = {"image": image, "audio": audio}
    if isinstance(content, list):
        content = [media[each] if isinstance(each, str) else each for each in content]
    with pytest.raises(openai.BadRequestError, match=message):
        ask(client, content, **fields)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: List should have at least 1 item"),
        ([{"role": "assistant", "content": "a cat"}], "the last message of a chat is the user's"),
        ([{"role": "user", "content": "a cat"}] * 101, "a chat has at most 100 messages, got 101"),
        ([{"role": "judge", "content": "a cat"}], "messages.0.other.role"),
    ],
)
def test_messages_that_are_no_chat_are_refused(client, messages, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(model="scenes", messages=messages)


def test_a_remote_image_is_refused_by_default(client):
    with pytest.raises(openai.BadRequestError):
        ask(client, [{"type": "image_url", "image_url": {"url": "http://example.com/cat.png"}}])
