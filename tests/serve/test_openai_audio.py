"""`/v1/audio`, called by OpenAI's client."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
import openai
import pytest
import soundfile

from triptych.serve.media import encode_audio
from triptych.serve.voices import voice_of
from triptych.tokenizers.audio import resample

TEXT = "a cat"


def speak(client, **fields):
    return client.audio.speech.create(**{"model": "scenes", "voice": "alloy", "input": TEXT, **fields})


@pytest.fixture(scope="module")
def offline(pipe):
    return pipe.text_to_speech(TEXT, seed=3)


@pytest.fixture(scope="module")
def wav(offline):
    return encode_audio(offline)


def test_speech_is_the_same_bytes_as_offline(client, wav):
    assert speak(client, response_format="wav", extra_body={"seed": 3}).content == wav


@pytest.mark.parametrize(
    ("response_format", "container", "coding", "content_type"),
    [
        ("wav", "WAV", "PCM_16", "audio/wav"),
        ("flac", "FLAC", "PCM_16", "audio/flac"),
        ("mp3", "MP3", "MPEG_LAYER_III", "audio/mpeg"),
        ("opus", "OGG", "OPUS", "audio/ogg"),
    ],
)
def test_formats(client, offline, response_format, container, coding, content_type):
    answer = speak(client, response_format=response_format, extra_body={"seed": 3})
    assert answer.response.headers["content-type"] == content_type
    with soundfile.SoundFile(io.BytesIO(answer.content)) as file:
        assert (file.format, file.subtype, file.samplerate) == (container, coding, offline.sample_rate)
        samples = file.read(dtype="float32")
    # The same recording: as long but for what a codec adds at its ends, and as loud.
    assert abs(len(samples) - len(offline.samples)) < 0.15 * offline.sample_rate
    assert np.sqrt((samples**2).mean()) == pytest.approx(np.sqrt((offline.samples**2).mean()), rel=0.25)


def test_mp3_is_the_default(client):
    assert speak(client).response.headers["content-type"] == "audio/mpeg"


def test_pcm_is_16_bits_at_24_khz(client, offline):
    data = speak(client, response_format="pcm", extra_body={"seed": 3}).content
    samples = np.frombuffer(data, "<i2") / 2**15
    expected = resample(offline, 24_000).samples
    assert len(samples) == len(expected)
    np.testing.assert_allclose(samples, np.clip(expected, -1, 1), atol=2 / 2**15)


def test_seconds_fix_the_length(client):
    data = speak(client, response_format="wav", extra_body={"seconds": 0.8}).content
    assert soundfile.info(io.BytesIO(data)).duration == pytest.approx(0.8)


def test_the_body_can_be_streamed(client, wav):
    with client.audio.speech.with_streaming_response.create(
        model="scenes", voice="alloy", input=TEXT, response_format="wav", extra_body={"seed": 3}
    ) as response:
        assert b"".join(response.iter_bytes(1000)) == wav


def test_events_of_speech(client, wav):
    with client.audio.speech.with_streaming_response.create(
        model="scenes",
        voice="alloy",
        input=TEXT,
        response_format="wav",
        stream_format="sse",
        extra_body={"seed": 3},
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *deltas, done = (json.loads(each[6:]) for each in response.iter_lines() if each.startswith("data: "))
    assert {each["type"] for each in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(each["audio"]) for each in deltas) == wav
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["input_tokens"] > 0
    assert done["usage"]["output_tokens"] == round(soundfile.info(io.BytesIO(wav)).duration * 25)


@pytest.mark.parametrize("voice", ["alloy", "nova", {"id": "marin"}])
def test_openais_voices_leave_the_voice_to_the_model(client, wav, voice):
    assert speak(client, voice=voice, response_format="wav", extra_body={"seed": 3}).content == wav


def test_a_model_with_voices_has_its_own_and_may_have_one_of_openais(pipe):
    limits = replace(pipe.limits, words=(), voices=("Emma", "Echo"), voice_request="say {text} as {voice}")
    assert voice_of("emma", limits) == "emma"
    assert voice_of("Echo", limits) == "Echo"
    assert voice_of("Alloy", limits) is None
    assert voice_of(None, limits) is None
    assert voice_of("liam", limits) == "liam"  # unknown: refused when it is used


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"speed": 1.5}, "speed: the speed of speech is the model's"),
        ({"response_format": "aac"}, "response_format: Input should be 'wav'"),
        ({"instructions": "whisper"}, "instructions for speech are not supported"),
        ({"voice": "emma"}, "this model has no voices to choose from"),
        ({"input": ""}, "expected a text, got an empty one"),
        ({"extra_body": {"seconds": 1e9}}, "seconds must lie between"),
    ],
)
def test_speech_that_cannot_be_made_is_refused_clearly(client, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        speak(client, **fields)


# -- transcripts ------------------------------------------------------------------------------------------------------


def transcribe(client, wav, **fields):
    return client.audio.transcriptions.create(**{"model": "scenes", "file": ("speech.wav", wav), **fields})


def test_a_transcript_is_the_same_as_offline(client, pipe, wav):
    made = transcribe(client, wav)
    assert made.text == pipe.transcribe(wav)
    assert made.usage.input_tokens == round(soundfile.info(io.BytesIO(wav)).duration * 25)
    assert made.usage.output_tokens == len(pipe.bundle.text.encode([made.text])[0])


def test_formats_of_a_transcript(client, pipe, wav, offline):
    text, end = pipe.transcribe(wav), f"00:00:{offline.seconds:06.3f}"
    assert transcribe(client, wav, response_format="text") == f"{text}\n"
    srt_end = end.replace(".", ",")
    assert transcribe(client, wav, response_format="srt") == f"1\n00:00:00,000 --> {srt_end}\n{text}\n"
    assert transcribe(client, wav, response_format="vtt") == f"WEBVTT\n\n00:00:00.000 --> {end}\n{text}\n"
    verbose = transcribe(client, wav, response_format="verbose_json", language="en")
    assert (verbose.text, verbose.language, verbose.duration) == (text, "en", offline.seconds)
    (segment,) = verbose.segments
    assert (segment.text, segment.start, segment.end) == (text, 0.0, offline.seconds)
    assert segment.tokens == pipe.bundle.text.encode([text])[0].tolist()


def test_the_deltas_of_a_streamed_transcript_make_up_its_text(client, pipe):
    wav = encode_audio(pipe.text_to_speech("two dogs left of a red heart", seed=1))
    events = list(transcribe(client, wav, stream=True))
    assert [each.type for each in events[-1:]] == ["transcript.text.done"]
    assert {each.type for each in events[:-1]} == {"transcript.text.delta"}
    assert "".join(each.delta for each in events[:-1]) == events[-1].text == pipe.transcribe(wav)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"file": ("speech.wav", b"")}, "expected audio, got an empty file"),
        ({"file": ("../../etc/passwd", b"root:x:0:0")}, "the given file is not an audio file"),
        ({"timestamp_granularities": ["word"]}, "does not say when a word is spoken"),
        ({"prompt": "cats"}, "a prompt of a transcript is not supported"),
        ({"include": ["logprobs"]}, "include is not supported"),
        ({"response_format": "diarized_json"}, "response_format"),
    ],
)
def test_transcripts_that_cannot_be_made_are_refused_clearly(client, wav, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        transcribe(client, wav, **fields)
