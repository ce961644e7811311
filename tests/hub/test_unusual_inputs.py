"""Unusual inputs of a pipeline: a small model of random weights, calibrated on files of simple images and tones."""

import inspect
import json
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from triptych.cli.main import main
from triptych.data.tokenize import tokenize
from triptych.errors import CheckpointError, DataError, UnusualInputWarning, UserError
from triptych.hub.calibrate import calibrate
from triptych.hub.format import Limits, store_input_checks
from triptych.hub.input_checks import KINDS
from triptych.hub.integrity import read_raw_config, write_config
from triptych.hub.measures import Measures
from triptych.hub.pipeline import Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio

SHAPE = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.5)
LIMITS = Limits(seq_len=224, text_slot=16, audio_slot=64)
TOKENIZERS, COUNT, RATE = "scenes", 30, 0.05
QUICK = {"num_steps": 1}


def drawn(number: int) -> Image.Image:
    """A coloured rectangle on white."""
    rng = np.random.default_rng(number)
    image = Image.new("RGB", (64, 64), "white")
    left, top = (int(each) for each in rng.integers(4, 28, 2))
    ImageDraw.Draw(image).rectangle((left, top, left + 24, top + 24), fill=("red", "blue", "green")[number % 3])
    return image


def tone(number: int) -> Audio:
    time = np.arange(6400 + 100 * number) / 16_000
    return Audio((0.3 * np.sin(2 * np.pi * (200 + 10 * number) * time)).astype(np.float32), 16_000)


def noise_image(number: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (64, 64, 3)).astype(np.uint8))


def noise_audio() -> Audio:
    return Audio(np.random.default_rng(0).normal(0, 0.3, 8000).clip(-1, 1).astype(np.float32), 16_000)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files: captioned images, transcribed tones, texts."""
    folder = tmp_path_factory.mktemp("raw")
    for name in ("images", "tones"):
        (folder / name).mkdir()
    for number in range(COUNT):
        drawn(number).save(folder / "images" / f"{number}.png")
        (folder / "images" / f"{number}.txt").write_text(f"a {('red', 'blue', 'green')[number % 3]} square")
        tone(number).save(folder / "tones" / f"{number}.wav")
    lines = [{"audio": f"{number}.wav", "text": "a cat"} for number in range(COUNT)]
    (folder / "tones" / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "texts.txt").write_text("\n".join(["a cat and a dog", "two cats"] * (COUNT // 2)))
    return folder


def make(bundle: TokenizerBundle, limits: Limits = LIMITS, **options) -> Pipeline:
    model = Transformer(SHAPE, bundle.vocabulary)
    initialise(model, 1)
    return Pipeline(model, bundle, limits, preset="scenes", **options)


@pytest.fixture(scope="module")
def plain() -> Pipeline:
    return make(TokenizerBundle.load(TOKENIZERS))


def options():
    from triptych.data.sources import ReadOptions

    return {"false_alarm_rate": RATE, "options": ReadOptions(per_line=True)}


@pytest.fixture(scope="module")
def checks(plain, raw):
    return calibrate(plain, [str(raw / name) for name in ("images", "tones/list.jsonl", "texts.txt")], **options())


@pytest.fixture
def pipe(plain, checks) -> Pipeline:
    return make(plain.bundle, input_checks=checks)


@contextmanager
def warned():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def kinds(caught) -> list[str]:
    return [each.message.check.kind for each in caught if each.category is UnusualInputWarning]


# -- calibration ------------------------------------------------------------------------------------------------------


def test_every_kind_is_measured_on_every_sample(checks):
    assert set(checks.distributions) == set(KINDS)
    assert {each.n for each in checks.distributions.values()} == {COUNT}


def test_calibration_is_a_function_of_the_files(plain, raw, checks):
    assert calibrate(plain, [str(raw / "images")], **options()).distributions["image"] == checks.distributions["image"]


def test_random_samples_are_chosen_and_bad_ones_left_out(plain, raw, tmp_path):
    lines = [*(f"a cat {'and a dog ' * (n % 2)}" for n in range(300)), ""]
    (tmp_path / "many.txt").write_text("\n".join(lines))
    said = []
    found = calibrate(plain, [str(tmp_path / "many.txt")], num_samples=40, report=said.append, **options())
    assert found.distributions["text"].n == 40
    assert said == [f"{tmp_path / 'many.txt'}: 40 text samples"]
    (tmp_path / "bad").mkdir()
    for number in range(COUNT):
        drawn(number).save(tmp_path / "bad" / f"{number}.png")
        (tmp_path / "bad" / f"{number}.txt").write_text("a square")
    (tmp_path / "bad" / "3.png").write_bytes(b"no image")
    found = calibrate(plain, [str(tmp_path / "bad")], report=said.append, **options())
    assert {each.n for each in found.distributions.values()} == {COUNT - 1}
    assert "1 left out, the last because" in said[-1]


def test_calibration_refuses_what_cannot_be_used(plain, raw, tmp_path):
    tokenize(raw / "images", tmp_path / "tokens", tokenizers=TOKENIZERS, progress=False)
    with pytest.raises(DataError, match="holds tokens"):
        calibrate(plain, [str(tmp_path / "tokens")])
    with pytest.raises(UserError, match="needs at least 200 validation inputs of each kind, got 30"):
        calibrate(plain, [str(raw / "images")])
    words = make(plain.bundle, Limits(seq_len=224, text_slot=16, audio_slot=64, words=("zebra",)))
    with pytest.raises(DataError, match=r"has no sample that this model takes.*does not know 3 of these words"):
        calibrate(words, [str(raw / "images")], **options())


def test_a_model_of_text_alone(plain, raw):
    bundle = TokenizerBundle(plain.vocabulary, text=plain.bundle.text)
    model = make(bundle)
    found = calibrate(model, [str(raw / "texts.txt")], **options())
    assert set(found.distributions) == {"text"}
    model = make(bundle, input_checks=found)
    assert model.check_text("a cat").kind == "text"
    with warned():
        assert isinstance(model.complete("a cat", **QUICK), str)
    with pytest.raises(CheckpointError, match="no image tokenizer"):
        model.check_image(drawn(0))


def test_a_model_without_open_ends(plain, raw):
    limits = Limits(seq_len=224, text_slot=None, audio_slot=None)
    model = make(plain.bundle, limits)
    found = calibrate(model, [str(raw / "images"), str(raw / "tones" / "list.jsonl")], **options())
    model = make(plain.bundle, limits, input_checks=found)
    assert model.check_text("a cat " * 60, beside="audio").score >= 0
    assert model.check_image(noise_image()).is_unusual


# -- warnings ---------------------------------------------------------------------------------------------------------


def test_unusual_media_get_a_result_and_a_warning(pipe):
    with warned() as caught:
        pipe.caption([drawn(number) for number in range(COUNT)], **QUICK)
        pipe.transcribe([tone(number) for number in range(COUNT)], **QUICK)
    few = COUNT / 6  # files have 16 bits: what is measured differs a little
    assert kinds(caught).count("image") < few
    assert kinds(caught).count("audio") < few
    with warned() as caught:
        assert isinstance(pipe.caption(noise_image(), **QUICK), str)
        line = inspect.currentframe().f_lineno - 1
        assert isinstance(pipe.transcribe(noise_audio(), **QUICK), str)
    assert kinds(caught) == ["image", "audio"]
    assert "this image is unlike the training data (score 1.0000, threshold 0.95)" in str(caught[0].message)
    assert (caught[0].filename, caught[0].lineno) == (__file__, line), "the line of the caller"


def test_unusual_texts_are_compared_with_texts_of_their_kind(pipe, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Measures, "text", lambda self, ids, beside: seen.append(beside) or {"mean surprise": 99, "largest surprise": 99}
    )
    image, clip = drawn(0), tone(0)
    calls = {
        "image": [
            lambda: pipe.text_to_image("a cat", **QUICK),
            lambda: pipe.answer(image, "a dog?", **QUICK),
            lambda: pipe.caption(image, "there is", **QUICK),
            lambda: pipe.infill_image(image, (0, 0, 9, 9), "a fox", **QUICK),
            lambda: pipe.infill_text("a red ___", image=image, **QUICK),
        ],
        "audio": [
            lambda: pipe.text_to_speech("a cat", seconds=0.2, **QUICK),
            lambda: pipe.infill_audio(clip, (0.1, 0.2), "a fox", **QUICK),
            lambda: pipe.infill_text("a red ___", audio=clip, **QUICK),
        ],
        None: [lambda: pipe.complete("a cat", **QUICK), lambda: pipe.infill_text("a red ___", **QUICK)],
    }
    for beside, members in calls.items():
        for call in members:
            seen.clear()
            with warned() as caught:
                call()
            assert seen == [beside]
            assert kinds(caught) == [f"text with {beside}" if beside else "text"]


def test_the_models_own_texts_are_not_inputs(pipe, monkeypatch):
    monkeypatch.setattr(Measures, "text", lambda *_: pytest.fail("checked"))
    image, clip = drawn(0), tone(0)
    pipe.caption(image, **QUICK)
    pipe.transcribe(clip, **QUICK)
    pipe.complete("", **QUICK)
    pipe.infill_image(image, (0, 0, 9, 9), **QUICK)
    pipe.infill_text("___", **QUICK)
    pipe.image_to_speech(image, seconds=0.2, **QUICK)
    pipe.speech_to_image(clip, **QUICK)


def test_a_request_for_a_voice_is_checked_as_one_text(plain, checks, monkeypatch):
    limits = replace(LIMITS, voices=("ann",), voice_request="say {text} as {voice}", transcript_prompt="we hear")
    model, seen = make(plain.bundle, limits, input_checks=checks), []
    usual = {"mean surprise": 0, "largest surprise": 0}
    monkeypatch.setattr(Measures, "text", lambda self, ids, beside: seen.append((ids.tolist(), beside)) or usual)
    model.text_to_speech("a cat", voice="ann", seconds=0.2, **QUICK)
    assert seen == [(plain.bundle.text.encode(["say a cat as ann"])[0].tolist(), "audio")]
    with warned():
        model.transcribe(tone(0), **QUICK)
        model.image_to_speech(drawn(0), voice="ann", seconds=0.2, **QUICK)
    assert len(seen) == 1, "the model's own texts are not inputs"


def test_results_are_the_same_with_and_without_checks(pipe, plain):
    image, clip = noise_image(), noise_audio()
    steps = []

    def results(model):
        steps.append([])
        options = {"seed": 7, "callback": lambda step, num_steps, tokens: steps[-1].append((step, num_steps))}
        return [
            model.text_to_image(["a cat", "a dog"], **options)[1].tobytes(),
            model.caption([image, image], temperature=1.0, **options),
            model.transcribe(clip, temperature=1.0, **options),
            model.text_to_speech("a cat", **options).samples.tobytes(),
            model.infill_image(image, (0, 0, 20, 20), "a cat", **options).tobytes(),
        ]

    with warned():
        expected = results(plain)
        assert results(pipe) == expected
        pipe.check_inputs = False
        assert results(pipe) == expected
    assert steps[0] == steps[1] == steps[2], "callbacks see generation only"


def test_checks_can_be_switched_off(pipe, checks, tmp_path, monkeypatch):
    folder = pipe.save_pretrained(tmp_path / "model", builtin_tokenizers=TOKENIZERS)
    quiet = Pipeline.from_pretrained(folder, check_inputs=False)
    assert (quiet.check_inputs, quiet.input_checks) == (False, checks)
    monkeypatch.setattr(Measures, "image", lambda *_: pytest.fail("checked"))
    with warned() as caught:
        quiet.caption(noise_image(), **QUICK)
        pipe.check_inputs = False
        pipe.caption(noise_image(), **QUICK)
    assert kinds(caught) == []


def test_a_repeated_input_is_measured_once(pipe, monkeypatch):
    measured = []
    original = Measures.image
    monkeypatch.setattr(Measures, "image", lambda self, *given: measured.append(1) or original(self, *given))
    one, other = noise_image(1), noise_image(2)
    with warned() as caught:
        pipe.caption([one, one, other, one.copy()], **QUICK)
        pipe.infill_image(one, (0, 0, 9, 9), **QUICK)
    assert len(measured) == 2
    assert kinds(caught) == ["image"] * 5
    for number in range(200):
        pipe._checker._check("image", bytes([number]), lambda: {"mean surprise": 1.0, "reconstruction, dB": 1.0})
    assert len(pipe._checker._latest) <= 64


def test_a_model_without_calibration_is_silent_and_says_so(plain):
    with warned() as caught:
        plain.caption(noise_image(), **QUICK)
        plain.text_to_image("zzz zzz", **QUICK)
    assert kinds(caught) == []
    for call in (
        lambda: plain.check_image(drawn(0)),
        lambda: plain.check_audio(tone(0)),
        lambda: plain.check_text("a cat"),
    ):
        with pytest.raises(UserError, match="no validation distribution for inputs of the kind"):
            call()


# -- checks alone -----------------------------------------------------------------------------------------------------


def test_checks_of_one_and_of_several(pipe, tmp_path):
    drawn(5).save(tmp_path / "a.png")
    usual, unusual = pipe.check_image([tmp_path / "a.png", np.asarray(noise_image())])
    assert (usual.is_unusual, unusual.is_unusual) == (False, True)
    assert usual == pipe.check_image(drawn(5))
    assert 0 <= usual.score <= usual.threshold == 0.95 < unusual.score == 1.0
    assert set(unusual.parts) == {"mean surprise", "reconstruction, dB"}
    assert json.loads(json.dumps(unusual.as_json))["is_unusual"] is True
    clip = noise_audio()
    assert pipe.check_audio([clip, tone(0)])[0].is_unusual
    assert pipe.check_audio((clip.samples, clip.sample_rate)).is_unusual
    assert len(pipe.check_text(["a cat", "two"], beside="image")) == 2
    assert pipe.check_image([]) == []


def test_checks_do_not_depend_on_the_batch_and_are_nearly_the_same_in_half_precision(pipe, checks, tmp_path):
    parts = pipe.check_image(drawn(2)).parts
    folder = pipe.save_pretrained(tmp_path / "model", builtin_tokenizers=TOKENIZERS)
    for dtype in ("float16", "bfloat16"):
        half = Pipeline.from_pretrained(folder, dtype=dtype)
        assert half.check_image(drawn(2)).parts == pytest.approx(parts, rel=0.05)
        assert half.check_audio(noise_audio()).is_unusual
        assert half.check_text("a cat").score >= 0


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (700, 3)])
def test_images_of_any_size(pipe, size):
    assert 0 <= pipe.check_image(Image.new("RGB", size, "grey")).score <= 1


@pytest.mark.parametrize("samples", [1, 160, 700])
@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
def test_very_short_audio(pipe, samples, rate):
    check = pipe.check_audio(Audio(np.zeros(samples, np.float32), rate))
    assert np.isfinite(list(check.parts.values())).all()


def test_wrong_arguments_of_checks(pipe):
    for call, expected in (
        (lambda: pipe.check_text(""), "expected a text, got an empty one"),
        (lambda: pipe.check_text(5), "expected a text, got int"),
        (lambda: pipe.check_text("a cat", beside="video"), "beside must be None, image or audio, got 'video'"),
        (lambda: pipe.check_text("a cat " * 50), "this model takes at most 15"),
        (lambda: pipe.check_image("none.png"), "there is no file 'none.png'"),
        (lambda: pipe.check_audio(Audio(np.zeros(0, np.float32), 16_000)), "got no samples"),
    ):
        with pytest.raises(UserError, match=expected):
            call()


# -- saved models and the command line --------------------------------------------------------------------------------


@pytest.fixture
def folder(plain, tmp_path) -> Path:
    return plain.save_pretrained(tmp_path / "model", builtin_tokenizers=TOKENIZERS)


def test_storing_checks_changes_nothing_else(folder, checks):
    before = json.loads((folder / "config.json").read_text())
    weights = (folder / "model.safetensors").read_bytes()
    store_input_checks(folder, checks)
    after = json.loads((folder / "config.json").read_text())
    assert Pipeline.from_pretrained(folder).input_checks == checks
    after.pop("input_checks")
    assert after.pop("checksum") != before.pop("checksum")
    assert after == before
    assert (folder / "model.safetensors").read_bytes() == weights
    with pytest.raises(CheckpointError, match="not a saved Triptych model"):
        store_input_checks(folder.parent, checks)


@pytest.mark.parametrize("broken", [{}, [], 5, {"false_alarm_rate": 0.1, "distributions": {"image": {"n": 3}}}])
def test_broken_checks_are_one_line(folder, broken):
    write_config(folder, read_raw_config(folder) | {"input_checks": broken})
    with pytest.raises(CheckpointError, match="not a saved Triptych model"):
        Pipeline.from_pretrained(folder)


def test_calibrate_generate_and_info(folder, raw, tmp_path, capsys):
    files = {name: str(tmp_path / name) for name in ("usual.png", "noise.png", "noise.json")}
    drawn(1).save(files["usual.png"])
    noise_image().save(files["noise.png"])
    caption = ["generate", "caption", "--model", str(folder), "--steps", "1"]
    assert main(["info", str(folder)]) == 0
    assert "none: unusual inputs get no warning" in capsys.readouterr().out
    assert main(["calibrate", str(folder), str(raw / "images"), "--false-alarm-rate", "0.05"]) == 0
    table = capsys.readouterr().out
    assert "text with image" in table
    assert "scores above 0.95 get a warning" in table
    assert main([*caption, files["usual.png"]]) == 0
    assert capsys.readouterr().err == ""
    assert main([*caption, files["noise.png"], "-n", "3", "--json", files["noise.json"]]) == 0
    printed = capsys.readouterr().err
    assert printed == (
        "triptych: warning: this image is unlike the training data (score 1.0000, threshold 0.95): "
        "the result may be wrong\n"
    )
    records = json.loads(Path(files["noise.json"]).read_text())
    assert [record["warnings"][0]["kind"] for record in records] == ["image"] * 3
    assert printed == f"triptych: warning: {records[0]['warnings'][0]['message']}\n"
    for switch in ("--no-check", "--quiet"):
        assert main([*caption, files["noise.png"], switch]) == 0
        assert capsys.readouterr().err == ""
    assert main(["info", str(folder)]) == 0
    assert "text with image, image; 5.0% false alarms" in capsys.readouterr().out
    assert main(["info", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["input_checks"]
    assert facts == {"false_alarm_rate": 0.05, "validation_inputs": {"text with image": COUNT, "image": COUNT}}


def test_calibrate_refuses_names_and_runs(folder, raw, tmp_path, capsys):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for model, expected in (
        ("scenes", "calibration is stored in a model's folder"),
        ("hf://me/mine", "calibration is stored in a model's folder"),
        (str(tmp_path / "run"), "is a run"),
        (str(tmp_path / "none"), "there is no model"),
    ):
        assert main(["calibrate", model, str(raw / "images")]) in (2, 4)
        assert expected in capsys.readouterr().err
    before = (folder / "config.json").read_bytes()
    assert main(["calibrate", str(folder), str(raw / "images")]) == 2
    assert "needs at least 200 validation inputs" in capsys.readouterr().err
    assert main(["calibrate", str(folder), str(tmp_path / "nothing")]) == 3
    assert (folder / "config.json").read_bytes() == before


def test_list_words(folder, plain, tmp_path, capsys):
    known = make(plain.bundle, Limits(seq_len=224, text_slot=16, audio_slot=64, words=("cat", "dog")))
    assert known.words == ("cat", "dog")
    model = str(known.save_pretrained(tmp_path / "words", builtin_tokenizers=TOKENIZERS))
    for command in (["generate", "--model", model], ["generate", "caption", "--model", model], ["info", model]):
        assert main([*command, "--list-words"]) == 0
        assert capsys.readouterr().out == "cat\ndog\n"
    assert main(["generate", "text-to-image", "--list-words", "--model", str(folder)]) == 0
    assert capsys.readouterr().out == "any text: this model has no word list\n"
    assert main(["generate"]) == 2
    assert "the following arguments are required: DIRECTION, INPUT" in capsys.readouterr().err


def test_the_demo_model_knows_what_is_unlike_its_data():
    pipe = Pipeline.from_pretrained("scenes", device="cpu")
    if pipe.input_checks is None:
        pytest.skip("the demo model is not calibrated")
    size = (pipe.bundle.image.resolution,) * 2
    greys = [Image.new("RGB", size, "#777777"), noise_image().resize(size)]
    assert all(each.is_unusual for each in pipe.check_image(greys))
    silence = Audio(np.zeros(16_000, np.float32), 16_000)
    assert all(each.is_unusual for each in pipe.check_audio([silence, noise_audio()]))
    examples = list(pipe.limits.examples)
    assert not any(each.is_unusual for each in pipe.check_text(examples, beside="image"))
    backwards = [" ".join(reversed(text.split())) for text in examples if len(text.split()) > 2]
    assert any(each.is_unusual for each in pipe.check_text(backwards, beside="image"))
