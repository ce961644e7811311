"""`triptych generate`: mistakes are found before a model is loaded; results go where they should."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych.cli.main import main
from triptych.hub.directions import DIRECTIONS


@pytest.fixture(scope="module")
def model(small_model: Path) -> str:
    return str(small_model)


@pytest.fixture
def names(tmp_path: Path) -> dict[str, str]:
    """Files to be named on the command line."""
    names = {name: str(tmp_path / f"a.{name}") for name in ("png", "wav")} | {"none": str(tmp_path / "none")}
    Image.new("RGB", (16, 16)).save(names["png"])
    soundfile.write(names["wav"], [0.0] * 1600, 16_000)
    return names | {"here": str(tmp_path)}


def fails(words: list[str], capsys: pytest.CaptureFixture, code: int = 2) -> str:
    assert main(["generate", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("triptych: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["text-to-imge", "a cat"], "unknown direction 'text-to-imge'. Did you mean 'text-to-image'"),
        (["image", "a cat"], "unknown direction 'image'. Did you mean 'text-to-image'?"),
        (["text_to_image", "a cat"], "unknown direction 'text_to_image'. Did you mean 'text-to-image'?"),
        (["tts", "a cat"], "unknown direction 'tts'. Did you mean 'text-to-speech'?"),
        (["text-to-image"], "`generate text-to-image` takes TEXT, got 0 inputs."),
        (["text-to-image", "a", "cat"], "`generate text-to-image` takes TEXT, got 2 inputs. Put texts in quotes."),
        (["text-to-image", " "], "expected a text, got an empty one."),
        (["text-to-image", "-", "-"], "`generate text-to-image` takes TEXT, got 2 inputs."),
        (["answer", "-", "-"], "standard input (-) can be read once."),
        (["answer", "{png}"], "`generate answer` takes IMAGE QUESTION, got 1 input."),
        (["answer", "{png}", ""], "expected a question, got an empty one."),
        (["infill-text", "a", "b", "c"], "`generate infill-text` takes TEXT [IMAGE|AUDIO], got 3 inputs."),
        (["infill-text", "a cat"], "expected a text with gaps, written ___, got 'a cat'."),
        (["a cat"], "'a cat' is no direction: name one first, for example text-to-image 'a cat'."),
        (["image-to-text", "{png}"], "Did you mean 'caption'?"),
        (["caption", "."], "'.' is a folder: expected the file of an image or audio."),
        (["caption", "{none}.png"], "there is no file '{none}.png'."),
        (["transcribe", "{none}.wav"], "there is no file '{none}.wav'."),
        (["caption", "{wav}"], "{wav} is not an image in one of the formats PNG, JPEG"),
        (["transcribe", "{png}"], "{png} is not an audio file in one of the formats WAV, FLAC, OGG, MP3."),
        (["infill-text", "a ___", "{none}.wav"], "there is no file '{none}.wav'."),
        (["infill-image", "{png}"], "this needs --box: LEFT,TOP,RIGHT,BOTTOM in pixels."),
        (["infill-image", "{png}", "--box", "0,0,8"], "--box must be LEFT,TOP,RIGHT,BOTTOM in pixels, got '0,0,8'."),
        (
            ["infill-image", "{png}", "--box", "0,0,8,x"],
            "--box must be LEFT,TOP,RIGHT,BOTTOM in pixels, got '0,0,8,x'.",
        ),
        (
            ["infill-image", "{png}", "--box", "0,0,99,9"],
            "the box must be left, top, right, bottom within 16 x 16 pixels",
        ),
        (["text-to-image", "a cat", "--box", "0,0,9,9"], "`generate text-to-image` takes no --box."),
        (["text-to-image", "a cat", "--seconds", "2"], "`generate text-to-image` takes no --seconds."),
        (["text-to-image", "a cat", "--voice", "emma"], "`generate text-to-image` takes no --voice."),
        (["text-to-speech", "a cat", "--num-tokens", "2"], "`generate text-to-speech` takes no --num-tokens."),
        (["infill-audio", "{wav}"], "this needs --interval: FROM,TO in seconds."),
        (["infill-audio", "{wav}", "--interval", "1"], "--interval must be FROM,TO in seconds, got '1'."),
        (["infill-audio", "{wav}", "--interval", "0,nan"], "--interval must be FROM,TO in seconds, got '0,nan'."),
        (["text-to-image", "a cat", "--out", "cat.gif"], "writes .png, .jpg, .jpeg, .webp, got --out 'cat.gif'."),
        (["text-to-speech", "a cat", "--out", "cat.png"], "writes .wav, .flac, .ogg, got --out 'cat.png'."),
        (["caption", "{png}", "--out", "cat.png"], "`generate caption` writes .txt, got --out 'cat.png'."),
        (["text-to-image", "a cat", "--out", "{png}"], "{png} exists; use --force to replace it, or another --out."),
        (["text-to-image", "a cat", "-n", "2", "--out", "-"], "--out - writes one result"),
        (["text-to-image", "a cat", "--num-samples", "0"], "expected a positive whole number, got '0'"),
        (["text-to-image", "a cat", "--seed", "-1"], "--seed must lie between 0 and 2^64 - 1, got -1."),
        (["text-to-image", "a cat", "--steps", "few"], "expected a positive whole number, got 'few'"),
        (["text-to-image", "a cat", "--steps", "0"], "expected a positive whole number, got '0'"),
        (["text-to-image", "a cat", "--temperature", "-1"], "temperature must be"),
        (["text-to-image", "a cat", "--sampler", "maskgitt"], "Did you mean 'maskgit'?"),
        (["text-to-image", "a cat", "--preset", "papr"], "unknown preset 'papr'. Did you mean 'paper'?"),
        (["text-to-image", "a cat", "--sampler-option", "eta=1"], "--sampler-option needs --sampler NAME"),
        (["text-to-image", "a cat", "--sampler", "remdm", "--sampler-option", "eta"], "must be KEY=VALUE, got 'eta'"),
        (["text-to-image", "a cat", "--sampler", "remdm", "--sampler-option", "etta=1"], "Did you mean 'eta'?"),
        (["text-to-image", "a cat", "--guidance", "3"], "unknown option --guidance. Did you mean '--guidance-scale'?"),
        (["text-to-image", "a cat", "--model", "scene"], "Did you mean 'scenes'?"),
        (["text-to-image", "a cat", "--model", "{here}/runs/x"], "it is no built-in name and no folder."),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(
    words: list[str],
    answer: str,
    names: dict[str, str],
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import triptych.hub.format
    from triptych.hub.pipeline import Pipeline

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Pipeline, "from_pretrained", refuse)
    monkeypatch.setattr(triptych.hub.format, "read_model", refuse)
    assert answer.format(**names) in fails([word.format(**names) for word in words], capsys)


def test_mistakes_in_names_and_numbers_do_not_load_torch(names: dict[str, str]) -> None:
    script = (
        "import sys; from triptych.cli.main import main; code = main(sys.argv[1:]); print(code, 'torch' in sys.modules)"
    )
    for words in (["text-to-image", " "], ["caption", "nowhere.png"], ["text-to-image", "a cat", "--model", "nowhere"]):
        result = subprocess.run(
            [sys.executable, "-c", script, "generate", *words], capture_output=True, text=True, cwd=names["here"]
        )
        assert result.stdout.split() == ["2", "False"], (words, result.stderr)


def test_every_direction(model: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    used = set()

    def run(direction: str, *words: object) -> list[str]:
        used.add(direction)
        assert main(["generate", direction, *map(str, words), "--model", model, "--steps", "1"]) == 0
        return capsys.readouterr().out.splitlines()

    png, wav = tmp_path / "new" / "a.png", tmp_path / "a.wav"
    assert run("text-to-image", "a cat", "--out", png) == [str(png)]
    assert run("text-to-speech", "a cat", "--seconds", "0.3", "--out", wav.with_suffix("")) == [str(wav)]
    assert len(run("caption", png, "--num-samples", 2)) == 2
    assert run("caption", png, "there are")[0].startswith("there are")
    assert len(run("answer", png, "how many cats are there?")) == 1
    assert len(run("transcribe", wav)) == 1
    assert run("complete", "a picture of")[0].startswith("a picture of")
    assert run("complete", "a picture of", "--num-tokens", "2")[0].startswith("a picture of")
    assert run("infill-text", "a ___ cat", png)[0].startswith("a")
    assert run("infill-text", "a ___ cat", wav)[0].startswith("a")
    filled = run("infill-image", png, "a cat", "--box", "0,0,32,64", "--out", tmp_path / "b", "-n", 2, "--seed", 3)
    assert filled == [str(tmp_path / "b-0.png"), str(tmp_path / "b-1.png")]
    assert run("infill-audio", wav, "--interval", "0.1,0.2", "--out", tmp_path / "c.wav") == [str(tmp_path / "c.wav")]
    assert run("speech-to-image", wav, "--out", tmp_path / "d.png")[-1] == str(tmp_path / "d.png")
    assert run("image-to-speech", png, "--out", tmp_path / "e.flac")[-1] == str(tmp_path / "e.flac")
    assert used == set(DIRECTIONS)
    assert {path.name for path in tmp_path.iterdir()} >= {"a.wav", "b-0.png", "b-1.png", "c.wav", "d.png", "e.flac"}


def test_infill_image_says_which_pixels_it_repaints(model: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    Image.new("RGB", (64, 64), "white").save(tmp_path / "a.png")
    words = ["generate", "infill-image", str(tmp_path / "a.png"), "--model", model, "--steps", "1", "--force"]
    assert main([*words, "--box", "5,5,20,20", "--out", str(tmp_path / "b.png")]) == 0
    assert "repaints the pixels 0,0,32,32: whole image codes" in capsys.readouterr().err
    assert main([*words, "--box", "5,5,20,20", "--repaint", "box", "--out", str(tmp_path / "c.png")]) == 0
    assert capsys.readouterr().err == ""
    changed = (np.asarray(Image.open(tmp_path / "c.png")) != 255).any(-1)
    changed[5:20, 5:20] = False
    assert not changed.any()


def test_seeds_of_several_samples_are_consecutive(model: str, tmp_path: Path) -> None:
    words = ["generate", "text-to-image", "a cat", "--model", model, "--steps", "1"]
    assert main([*words, "--seed", "4", "--out", str(tmp_path / "one.png")]) == 0
    assert main([*words, "--seed", "3", "--num-samples", "2", "--out", str(tmp_path / "two.png")]) == 0
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two-1.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "two-0.png").read_bytes()


def test_many_samples_are_written_as_they_are_made(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure in the third batch leaves the files of the first two."""
    from triptych.hub.pipeline import Pipeline

    draw, calls = Pipeline.text_to_image, []

    def third_fails(self: Pipeline, text: list[str], **sampling: object) -> object:
        calls.append(len(text))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return draw(self, text, **sampling)  # type: ignore[arg-type]

    monkeypatch.setattr(Pipeline, "text_to_image", third_fails)
    words = ["text-to-image", "a cat", "--model", model, "--steps", "1", "-n", "40", "--out", str(tmp_path / "a.png")]
    assert main(["generate", *words]) == 130
    captured = capsys.readouterr()
    assert calls == [16, 16, 8]
    assert len(list(tmp_path.glob("a-*.png"))) == 32
    assert captured.out.splitlines() == [str(tmp_path / f"a-{number}.png") for number in range(32)]
    assert "16 of 40\n32 of 40\n" in captured.err


def test_existing_files_are_kept_without_force(model: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["text-to-image", "a cat", "--model", model, "--steps", "1", "--out", str(tmp_path / "a.png")]
    (tmp_path / "a.png").write_bytes(b"mine")
    assert "a.png exists" in fails(words, capsys)
    assert (tmp_path / "a.png").read_bytes() == b"mine"
    assert main(["generate", *words, "--force"]) == 0
    assert (tmp_path / "a.png").read_bytes() != b"mine"


def test_without_out_a_free_name_is_used(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("text-to-image.png", "text-to-image-1.png"):
        assert main(["generate", "text-to-image", "a cat", "--model", model, "--steps", "1"]) == 0
        assert capsys.readouterr().out == f"{expected}\n"


def test_texts_go_to_a_file_and_json_tells_all(model: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["generate", "complete", "a cat", "--model", model, "--steps", "1", "-n", "3", "--seed", "5"]
    assert main([*words, "--out", str(tmp_path / "texts.txt")]) == 0
    assert capsys.readouterr().out == ""
    assert len((tmp_path / "texts.txt").read_text().splitlines()) == 3
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in rows] == [5, 6, 7]
    assert [row["text"] for row in rows] == (tmp_path / "texts.txt").read_text().splitlines()


def test_standard_input_and_output(model: str, tmp_path: Path) -> None:
    def run(*words: str, given: bytes) -> bytes:
        command = [sys.executable, "-m", "triptych", "generate", *words, "--model", model, "--steps", "1"]
        result = subprocess.run(command, input=given, capture_output=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    png = run("text-to-image", "-", "--out", "-", given=b"a cat\n")
    assert Image.open(io.BytesIO(png)).size == (64, 64)
    assert run("caption", "-", given=png).decode().endswith("\n")


def test_a_refused_command_keeps_the_file_it_would_replace(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("keep\n")
    words = ["generate", "complete", "two", "--out", str(path), "--force"]
    assert main([*words, "--model", "runs/typo"]) == 2
    assert main([*words, "--model", model, "--num-tokens", "900"]) == 2
    assert path.read_text() == "keep\n"
    assert main([*words, "--model", model, "--steps", "1", "-n", "2"]) == 0
    assert len(path.read_text().splitlines()) == 2
    assert main([*words[:3], "--out", f"{tmp_path}/"]) == 2
    assert main([*words[:3], "--out", ".."]) == 2


def test_two_results_do_not_share_standard_output(model: str, capsys: pytest.CaptureFixture) -> None:
    assert "both write to standard output" in fails(["text-to-image", "a cat", "--out", "-", "--json"], capsys)
