"""Models that speak in voices by request, and whose transcripts start with a prompt, as the recipe `scenes_full`."""

import json
import re
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triptych.cli.main import main
from triptych.errors import CheckpointError, UserError
from triptych.hub.card import _use
from triptych.hub.format import Limits
from triptych.hub.integrity import write_config
from triptych.hub.pipeline import Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.recipes import recipe
from triptych.sample.canvas import Canvas, known, open_ended
from triptych.scenes.samples import scene_sample
from triptych.scenes.spoken import TRANSCRIPT_PROMPT, VOICE_REQUEST
from triptych.scenes.voices import SPEAKING_VOICES, TRAINING_VOICES
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import PromptConfig
from triptych.utils.config import to_json
from triptych.utils.media import Audio
from triptych.vocab import Modality, Task

SHAPE = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.5)
RECIPE = to_json(recipe("scenes_full"))
# All voices, where the recipe has one; shorter speech than the recipe's, to save time.
LIMITS = replace(Limits.of_run(RECIPE), voices=TRAINING_VOICES, audio_slot=33)
PLAIN = Limits(seq_len=224, text_slot=32, audio_slot=64)
QUICK = {"num_steps": 2, "temperature": 1.0}


def make(limits: Limits) -> Pipeline:
    bundle = TokenizerBundle.load("scenes")
    model = Transformer(SHAPE, bundle.vocabulary)
    initialise(model, 1)
    return Pipeline(model, bundle, limits, preset="scenes")


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return make(LIMITS)


@pytest.fixture(scope="module")
def tone() -> Audio:
    """Half a second."""
    return Audio((0.3 * np.sin(np.arange(8000) * 0.1)).astype(np.float32), 16_000)


@pytest.fixture
def texts(monkeypatch) -> list[str]:
    """The text of every canvas that is filled, as it was before."""
    texts, fill = [], Pipeline.fill

    def recorded(self, canvases, config, seed=0, callback=None):
        texts.extend(self.bundle.text.decode([canvas.text.ids[canvas.text.ids >= 0]])[0] for canvas in canvases)
        return fill(self, canvases, config, seed, callback)

    monkeypatch.setattr(Pipeline, "fill", recorded)
    return texts


def message_of(call) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- voices -----------------------------------------------------------------------------------------------------------


def test_a_voice_is_asked_for_as_in_training(pipe, texts):
    speech = pipe.text_to_speech("two red hats", voice="emma", **QUICK)
    assert isinstance(speech, Audio)
    plain = pipe.text_to_speech("two red hats", **QUICK)
    assert texts == [VOICE_REQUEST.format(text="two red hats", voice="emma"), "two red hats"]
    assert texts[0] == "say two red hats as emma"
    assert speech.samples.tobytes() != plain.samples.tobytes(), "the model sees the voice"
    request = pipe.text_to_speech(texts[0], **QUICK)  # typing the request is the same as asking for the voice
    assert request.samples.tobytes() == speech.samples.tobytes()


def test_texts_and_voices_are_paired(pipe, texts):
    both = pipe.text_to_speech(["a cat", "a dog"], voice=["emma", None], seed=3, **QUICK)
    assert texts == ["say a cat as emma", "a dog"]
    assert both[1].samples.tobytes() == pipe.text_to_speech("a dog", seed=4, **QUICK).samples.tobytes()
    texts.clear()
    assert len(pipe.text_to_speech("a cat", voice=["emma", "liam"], **QUICK)) == 2
    assert len(pipe.text_to_speech(["a cat"], voice="liam", **QUICK)) == 1
    assert len(pipe.text_to_speech(["a cat", "a dog"], voice="liam", **QUICK)) == 2
    expected = ["say a cat as emma", "say a cat as liam", "say a cat as liam", "say a cat as liam", "say a dog as liam"]
    assert texts == expected
    wrong = message_of(lambda: pipe.text_to_speech(["a cat", "a dog"], voice=["emma"] * 3))
    assert "expected as many voices as texts, got 3 and 2" in wrong
    assert pipe(output="audio", text="a cat", voice="emma", **QUICK).seconds > 0
    assert texts[-1] == "say a cat as emma"


def test_a_voice_has_its_own_spelling_and_the_duration_is_free(pipe, texts):
    pipe.text_to_speech("A Cat", voice=" Emma ", seconds=0.4, **QUICK)
    assert texts == ["say a cat as emma"]
    capitals = make(replace(PLAIN, voices=("Emma",), voice_request="[{voice}] {text}"))
    speech = capitals.text_to_speech("a {voice} and {text}", seconds=0.4, voice="emma", **QUICK)
    assert texts[-1] == "[Emma] a {voice} and {text}"
    assert speech.seconds == pytest.approx(0.4, abs=0.05)


def test_voices_that_are_not_there(pipe, texts, tone):
    listed = f"It has {len(TRAINING_VOICES)} voices; `triptych info MODEL --list-voices` lists them."
    assert message_of(lambda: pipe.text_to_speech("a cat", voice="ema")) == (
        f"this model does not have the voice 'ema'. Did you mean 'emma'? {listed}"
    )
    assert message_of(lambda: pipe.text_to_speech(["a cat"] * 2, voice=["emma", "zzxqj"])) == (
        f"this model does not have the voice 'zzxqj'. {listed}"
    )
    for wrong in (5, "", True):
        assert "voice" in message_of(lambda wrong=wrong: pipe.text_to_speech("a cat", voice=wrong))
    assert message_of(lambda: make(PLAIN).text_to_speech("a cat", voice="emma")) == (
        "this model has no voices to choose from, got the voice 'emma': leave it out."
    )
    image = Image.new("RGB", (64, 64), "white")
    assert "Did you mean 'emma'?" in message_of(lambda: pipe.image_to_speech(image, voice="emna"))
    assert texts == [], "nothing was generated before the mistake was found"
    assert "unknown argument 'voice'" in message_of(lambda: pipe.transcribe(tone, voice="emma"))


def test_what_is_said_is_checked_with_and_without_a_voice(pipe):
    for options in ({}, {"voice": "emma"}):
        assert "does not know the word 'elefant'." in message_of(lambda o=options: pipe.text_to_speech("elefant", **o))
        for empty in ("", "  \n"):
            wrong = message_of(lambda o=options, empty=empty: pipe.text_to_speech(empty, **o))
            assert wrong == "expected a text, got an empty one."
        assert "expected a text, got int" in message_of(lambda o=options: pipe.text_to_speech(5, **o))
    longest = make(replace(LIMITS, text_slot=8))
    assert longest.text_to_speech("a cat", **QUICK).seconds > 0
    assert "this model takes at most 7: 'say a cat as emma'" in message_of(
        lambda: longest.text_to_speech("a cat", voice="emma")
    )


def test_a_caption_is_spoken_by_a_voice(texts):
    image = Image.new("RGB", (64, 64), "white")
    model = make(replace(LIMITS, words=()))  # otherwise capitals and white space of the caption are changed
    text, _ = model.image_to_speech(image, voice="liam", num_tokens=2, **QUICK)
    assert text.startswith(LIMITS.caption_prompt)
    assert texts[-1] == f"say {text} as liam"


# -- transcripts ------------------------------------------------------------------------------------------------------


def test_a_transcript_starts_with_the_prompt_in_the_canvas_only(pipe, tone, texts):
    alone = pipe.transcribe(tone, seed=5)
    assert texts == [TRANSCRIPT_PROMPT]
    prefix = pipe.bundle.text.encode([TRANSCRIPT_PROMPT])[0]
    heard = pipe.bundle.audio.encode([tone])[0]
    canvas = Canvas(open_ended(Modality.TEXT, LIMITS.text_slot, prefix), known(Modality.AUDIO, heard))
    (filled,) = pipe.fill([canvas], pipe.sampling_config(Modality.TEXT), seed=5)
    whole = pipe.decode(filled.text)
    assert whole.startswith(TRANSCRIPT_PROMPT)
    assert alone == whole.removeprefix(TRANSCRIPT_PROMPT).strip() != ""
    assert pipe.transcribe([tone, tone], seed=4)[1] == alone


def test_a_transcript_of_given_length_and_steps_of_it(pipe, tone, monkeypatch):
    steps = []
    fixed = pipe.transcribe(tone, num_tokens=3, callback=lambda step, num_steps, tokens: steps.append(step))
    assert steps
    assert TRANSCRIPT_PROMPT not in fixed
    monkeypatch.setattr(pipe.bundle.text, "decode", lambda ids: ["someone says two cats"] * len(ids))
    assert pipe.transcribe(tone, **QUICK) == "two cats"
    assert pipe.transcribe((tone, tone), **QUICK) == ["two cats", "two cats"]
    plain = make(PLAIN)
    monkeypatch.setattr(plain.bundle.text, "decode", lambda ids: ["someone says two cats"] * len(ids))
    assert plain.transcribe(tone, **QUICK) == "someone says two cats"  # to a model without the prompt it is text


def test_what_was_heard_is_drawn_without_the_prompt(pipe, tone, texts):
    heard, image = pipe.speech_to_image(tone, seed=3)
    assert heard == pipe.transcribe(tone, seed=3)
    assert texts[:2] == [TRANSCRIPT_PROMPT, " ".join(heard.lower().split())]
    bare = make(replace(LIMITS, words=(), reader=""))
    assert bare.text_to_image(texts[1], seed=3).tobytes() == image.tobytes()


def test_without_a_prompt_transcripts_are_as_they_were(tone, texts):
    make(PLAIN).transcribe(tone, **QUICK)
    make(replace(LIMITS, transcript_prompt="")).transcribe(tone, **QUICK)
    assert texts == ["", ""]


def test_requests_are_like_the_texts_of_training(pipe, texts, monkeypatch):
    """The samples of the dataset are the reference; only their sound is left out."""
    silence, kinds = Audio(np.zeros(1600, np.float32), 16_000), set()
    monkeypatch.setattr("triptych.scenes.samples.synthesize", lambda *_, **__: silence)
    monkeypatch.setattr("triptych.scenes.samples.degrade", lambda audio, rng: audio)
    for index in range(12):
        sample = scene_sample(Task.AUDIO_TEXT, "train", index)
        if sample.text.startswith("someone says"):
            kinds.add("transcript")
            pipe.transcribe(silence, **QUICK)
            assert sample.text.startswith(f"{texts[-1]} ")
            continue
        is_request = sample.text.endswith(f" as {sample.voice}")
        kinds.add("request" if is_request else "bare")
        said = sample.text.removeprefix("say ").removesuffix(f" as {sample.voice}") if is_request else sample.text
        pipe.text_to_speech(said, voice=sample.voice if is_request else None, **QUICK)
        assert texts[-1] == sample.text
    assert kinds == {"transcript", "request", "bare"}


# -- saved models -----------------------------------------------------------------------------------------------------


def test_limits_hold_every_prompt_of_a_run():
    assert {each.name for each in fields(PromptConfig)} <= {each.name for each in fields(Limits)}
    limits = Limits.of_run(RECIPE)
    for name, value in asdict(recipe("scenes_full").prompts).items():
        assert getattr(limits, name) == value, name
    assert (limits.transcript_prompt, limits.voices) == ("someone says", SPEAKING_VOICES)
    earlier = {name: RECIPE["prompts"][name] for name in ("words", "caption_prompt", "examples")}
    limits = Limits.of_run({**RECIPE, "prompts": earlier})
    assert (limits.words, limits.transcript_prompt, limits.voices) == (LIMITS.words, "", ())


def test_voices_are_saved_and_earlier_models_have_none(pipe, tmp_path):
    folder = pipe.save_pretrained(tmp_path / "model", builtin_tokenizers="scenes")
    assert Pipeline.from_pretrained(folder).limits == pipe.limits
    config = json.loads((folder / "config.json").read_text())
    for name in ("transcript_prompt", "voices", "voice_request"):
        del config["limits"][name]
    write_config(folder, config)
    earlier = Pipeline.from_pretrained(folder)
    assert (earlier.voices, earlier.limits.transcript_prompt) == ((), "")
    config["limits"] |= {"voices": ["emma"], "voice_request": "say {text}"}
    write_config(folder, config)
    with pytest.raises(CheckpointError, match=r"voice_request must contain \{text\} and \{voice\}"):
        Pipeline.from_pretrained(folder)


def test_the_card_names_the_voices():
    assert f"It speaks in {len(TRAINING_VOICES)} voices: {', '.join(TRAINING_VOICES)}." in _use(LIMITS)
    assert not [line for line in _use(PLAIN) if "voice" in line]


# -- the command line -------------------------------------------------------------------------------------------------


def test_voices_on_the_command_line(pipe, tmp_path, capsys):
    model = str(pipe.save_pretrained(tmp_path / "model", builtin_tokenizers="scenes"))
    speak = ["generate", "text-to-speech", "a cat", "--model", model, "--temperature", "1"]
    for name, options in (("emma", ["--voice", "emma"]), ("again", ["--voice", "EMMA"]), ("plain", [])):
        assert main([*speak, *options, "--out", str(tmp_path / f"{name}.wav")]) == 0
    emma, again, plain = ((tmp_path / f"{name}.wav").read_bytes() for name in ("emma", "again", "plain"))
    assert emma == again != plain
    capsys.readouterr()
    assert main([*speak, "--voice", "ema", "--out", str(tmp_path / "wrong.wav")]) == 2
    assert capsys.readouterr().err.startswith("triptych: error: this model does not have the voice 'ema'. Did you")
    assert not (tmp_path / "wrong.wav").exists()
    for command in (["generate", "--model", model], ["generate", "transcribe", "--model", model], ["info", model]):
        assert main([*command, "--list-voices"]) == 0
        assert capsys.readouterr().out.split() == list(TRAINING_VOICES)
    assert main(["info", model]) == 0
    assert f"{', '.join(TRAINING_VOICES)} (--voice)" in capsys.readouterr().out
    assert main(["info", model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["voices"] == list(TRAINING_VOICES)


def test_a_model_without_voices_on_the_command_line(tmp_path, capsys):
    model = str(make(PLAIN).save_pretrained(tmp_path / "model", builtin_tokenizers="scenes"))
    assert main(["generate", "text-to-speech", "a cat", "--voice", "emma", "--model", model]) == 2
    assert "this model has no voices to choose from" in capsys.readouterr().err
    assert main(["generate", "--list-voices", "--model", model]) == 0
    assert capsys.readouterr().out == "no choice: this model has no voices by name\n"
    assert main(["info", model]) == 0
    assert "--voice" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"voices": "emma"}, "voices of a model must be a list"),
        ({"voices": [1, 2]}, "voices of a model must be texts"),
        ({"voices": ["emma", "Emma"]}, "different names"),
        ({"voice_request": "say {text}"}, "must contain {text} and {voice}"),
        ({"words": ["a", "cat", "say"]}, "missing: as, emma"),
    ],
)
def test_saved_voices_that_cannot_be_asked_for_are_refused(change: dict[str, Any], message: str) -> None:
    saved = {"seq_len": 64, "text_slot": None, "audio_slot": None}
    saved |= {"voices": ["emma"], "voice_request": "say {text} as {voice}", **change}
    with pytest.raises(UserError, match=re.escape(message)):
        Limits.from_json(saved)
