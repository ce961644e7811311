"""The command line as a user meets it: in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triptych import __version__
from triptych.cli.main import COMMANDS, main
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Vocabulary

COMMAND = [sys.executable, "-m", "triptych"]


def triptych(*words: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "tokenizers"
    text = ByteBPE.train(["the cat sat on the mat and the dog lay on the cat"] * 3, 280)
    TokenizerBundle(Vocabulary(text=text.vocab_size, image=16, audio=16), text=text).save(folder)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"the cat number {n} sat on the mat"}) + "\n" for n in range(50)))
    return path


# -- help -------------------------------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    script = (
        "import sys, time; start = time.perf_counter(); from triptych.cli.main import main; code = main(['--help']);"
        "took = time.perf_counter() - start;"
        "heavy = [name for name in ('torch', 'numpy', 'rich', 'PIL') if name in sys.modules];"
        "print(code, took, heavy, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    code, took, heavy = result.stderr.split(maxsplit=2)
    assert (code, heavy.strip()) == ("0", "[]")
    assert float(took) < 0.3
    for name, verb in COMMANDS.items():
        assert f"triptych {name}" in result.stdout
        assert verb.summary in result.stdout


def test_help_answers_well_under_half_a_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        assert triptych("--help").returncode == 0
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize("name", COMMANDS)
def test_every_verb_explains_itself(name: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*name.split(), "--help"])
    assert caught.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith(f"usage: triptych {name}")
    assert len(output) > 200


def test_the_help_of_tokenize_is_enough_to_use_it(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["tokenize", "--help"])
    output = capsys.readouterr().out
    for word in (
        "librispeech",
        "*.jsonl",
        "*.parquet",
        "*.tar",
        "cat.png + cat.txt",
        "--max-bad",
        "bad.jsonl",
        "examples:",
    ):
        assert word in output


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"triptych {__version__}\n"


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["tokenise"], "unknown verb 'tokenise'. Did you mean 'tokenize'?"),
        (["frobnicate"], "unknown verb 'frobnicate'. Known: "),
        (["tokenizers"], "`triptych tokenizers` needs a second word: tokenizers make."),
        (["data", "shw", "x"], "unknown verb 'data shw'. Did you mean 'data show'?"),
        (["tokenize", "x", "--ouput", "y"], "unknown option --ouput. Did you mean '--out'?"),
        (["tokenize", "x", "--out", "y", "--worker=3"], "unknown option --worker. Did you mean '--workers'?"),
        (["tokenize", "x", "--out", "y", "--format", "parket"], "unknown name 'parket'. Did you mean 'parquet'?"),
        (["tokenize", "x", "--out", "y", "--workers", "two"], "argument --workers: invalid int value: 'two'"),
        (["tokenize", "x", "--out", "y", "-x"], "unexpected argument '-x'."),
        (["tokenize", "x"], "the following arguments are required: --out"),
        (["data", "show"], "the following arguments are required: FOLDER"),
    ],
)
def test_mistakes_are_answered_in_one_line(words: list[str], answer: str, capsys: pytest.CaptureFixture) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("triptych: error: ")
    assert captured.err.count("\n") == 1
    assert answer in captured.err


def test_errors_have_their_exit_codes(tokenizers: Path, texts: Path, tmp_path: Path) -> None:
    missing = triptych("tokenize", tmp_path / "nothing", "--out", tmp_path / "out", "--tokenizers", tokenizers)
    assert (missing.returncode, missing.stderr) == (
        3,
        f"triptych: error: no such file or folder: {tmp_path / 'nothing'}\n",
    )
    unknown = triptych("tokenize", texts, "--out", tmp_path / "out", "--tokenizers", "scene")
    assert unknown.returncode == 2
    assert "Did you mean 'scenes'?" in unknown.stderr
    texts.write_text("{\n" * 30)
    bad = triptych(
        "tokenize", texts, "--out", tmp_path / "out", "--tokenizers", tokenizers, "--workers", 0, "--task", "text"
    )
    assert bad.returncode == 3
    assert "samples are bad" in bad.stderr
    assert "Traceback" not in missing.stderr + unknown.stderr + bad.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["imge", "a cat"], "unknown name 'imge'. Did you mean 'image'?"),
        (["image"], "the following arguments are required: INPUT"),
        (["image", "a", "cat"], "`generate image` takes TEXT, got 2 inputs. Put texts in quotes."),
        (["answer", "{png}"], "`generate answer` takes PICTURE QUESTION, got 1 inputs. Put texts in quotes."),
        (["fill-text", "a", "b", "c"], "`generate fill-text` takes TEXT with ___ [PICTURE or SOUND], got 3 inputs."),
        (["caption", "{none}.png"], "there is no file '{none}.png'."),
        (["transcribe", "{none}.wav"], "there is no file '{none}.wav'."),
        (["caption", "{wav}"], "{wav} is not a picture in one of the formats PNG, JPEG"),
        (["transcribe", "{png}"], "{png} is not a sound in one of the formats WAV, FLAC, OGG, MP3."),
        (["fill-text", "a ___", "{none}.wav"], "there is no file '{none}.wav'."),
        (["fill-image", "{png}"], "this needs --box: LEFT,TOP,RIGHT,BOTTOM in pixels."),
        (["fill-image", "{png}", "--box", "0,0,8"], "--box must be LEFT,TOP,RIGHT,BOTTOM in pixels, got '0,0,8'."),
        (["fill-image", "{png}", "--box", "0,0,8,x"], "--box must be LEFT,TOP,RIGHT,BOTTOM in pixels, got '0,0,8,x'."),
        (["fill-speech", "{wav}"], "this needs --interval: FROM,TO in seconds."),
        (["fill-speech", "{wav}", "--interval", "1"], "--interval must be FROM,TO in seconds, got '1'."),
        (["image", "a cat", "--out", "cat.jpg"], "this makes a .png file, got --out cat.jpg."),
        (["speech", "a cat", "--out", "cat.png"], "this makes a .wav file, got --out cat.png."),
        (
            ["caption", "{png}", "--out", "cat.txt"],
            "`generate caption` prints a text; --out is for pictures and sounds.",
        ),
        (["image", "a cat", "--count", "0"], "--count must be at least 1, got 0."),
        (["image", "a cat", "--steps", "few"], "argument --steps: invalid int value: 'few'"),
        (
            ["image", "a cat", "--guidance-skale", "3"],
            "unknown option --guidance-skale. Did you mean '--guidance-scale'?",
        ),
        (["image", "a cat", "--model", "scene"], "Did you mean 'scenes'?"),
    ],
)
def test_mistakes_in_generate_are_found_before_a_model_is_loaded(
    words: list[str], answer: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import soundfile
    from PIL import Image

    names = {name: str(tmp_path / f"a.{name}") for name in ("png", "wav")} | {"none": str(tmp_path / "none")}
    Image.new("RGB", (16, 16)).save(names["png"])
    soundfile.write(names["wav"], [0.0] * 1600, 16_000)
    given = [word.format(**names) for word in words]
    assert main(["generate", *given]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("triptych: error: ")
    assert captured.err.count("\n") == 1
    assert answer.format(**names) in captured.err


# -- the whole way ----------------------------------------------------------------------------------------------------


def test_tokenize_show_and_verify(tokenizers: Path, texts: Path, tmp_path: Path) -> None:
    command = ("tokenize", texts, "--out", tmp_path / "out", "--tokenizers", tokenizers)
    made = triptych(*command)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(f"{tmp_path / 'out'}: 50 text samples, ")
    again = triptych(*command)
    assert again.returncode == 0
    assert "already complete" in again.stderr
    shown = triptych("data", "show", tmp_path, "--render", tmp_path / "files", "-n", 2)
    assert shown.returncode == 0, shown.stderr
    assert "#49: the cat number 49 sat on the mat" in shown.stdout
    assert (tmp_path / "files" / "out-000049.txt").read_text() == "the cat number 49 sat on the mat"
    verified = triptych("verify", tmp_path / "out")
    assert (verified.returncode, verified.stdout) == (0, f"{tmp_path / 'out'}: intact (shards: 1)\n")
    shard = tmp_path / "out" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert triptych("verify", tmp_path / "out").returncode == 3


def test_a_reader_that_leaves_early_is_no_error(tokenizers: Path, texts: Path, tmp_path: Path) -> None:
    triptych("tokenize", texts, "--out", tmp_path / "out", "--tokenizers", tokenizers, "--workers", 0)
    process = subprocess.Popen(
        [*COMMAND, "data", "show", str(tmp_path), "-n", "50"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr.read() == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_run_says_how_to_go_on(number: int, code: int, tokenizers: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    line = json.dumps({"text": "the cat sat on the mat " * 200}) + "\n"
    path.write_text(line * 6000)
    words = ["tokenize", path, "--out", tmp_path / "out", "--tokenizers", tokenizers, "--samples-per-shard", 100]
    process = subprocess.Popen(
        [*COMMAND, *map(str, words), "--workers", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list((tmp_path / "out").glob("shard-*")):
        assert process.poll() is None
        time.sleep(0.002)
    # Ctrl-C reaches the workers too, as it does in a terminal.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors == "triptych: stopped; run the same command again to go on.\n"
    wait_until_gone(process.pid)


def wait_until_gone(group: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("some process of the run is still there")


@pytest.mark.parametrize(
    "words",
    [
        ["scenes", "write", "/proc/nope/raw", "--task", "text"],
        ["scenes", "make", "{file}/data", "--text", "1", "--pictures", "1", "--speech", "1", "--validation", "1"],
    ],
)
def test_a_place_that_cannot_be_written_is_one_line(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = triptych(*(word.replace("{file}", str(tmp_path / "file")) for word in words))
    assert done.returncode == 2
    assert re.fullmatch(r"triptych: error: .+\n", done.stderr)


@pytest.mark.parametrize("words", [["help", "tokenize"], ["tokenize", "--help"]])
def test_help_on_a_verb(words: list[str]) -> None:
    done = triptych(*words)
    assert done.returncode == 0
    assert "usage: triptych tokenize" in done.stdout


def test_help_on_a_group_lists_its_verbs() -> None:
    done = triptych("data", "--help")
    assert done.returncode == 0
    assert "triptych data show" in done.stdout
    assert "triptych scenes" not in done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one that knows nothing."""
    from triptych.hub.pipeline import Limits, Pipeline
    from triptych.model.transformer import ModelConfig, Transformer, initialise

    bundle = TokenizerBundle.load("scenes")
    shape = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.3)
    network = Transformer(shape, bundle.vocabulary)
    initialise(network, 1)
    folder = tmp_path_factory.mktemp("generate") / "model"
    Pipeline(network, bundle, Limits(seq_len=224, text_slot=12, audio_slot=32)).save_pretrained(folder)
    return folder


def test_generate_in_every_direction(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def run(*words: object) -> list[str]:
        assert main(["generate", *map(str, words), "--model", str(model), "--steps", "1"]) == 0
        return capsys.readouterr().out.splitlines()

    png, wav = tmp_path / "new" / "a.png", tmp_path / "a.wav"
    assert run("image", "a cat", "--out", png) == [str(png)]
    assert run("speech", "a cat", "--seconds", "0.3", "--out", wav.with_suffix("")) == [str(wav)]
    assert len(run("caption", png, "--count", 2)) == 2
    assert run("caption", png, "there are")[0].startswith("there are")
    assert len(run("answer", png, "how many cats are there?")) == 1
    assert len(run("transcribe", wav)) == 1
    assert run("text", "a picture of")[0].startswith("a picture of")
    assert run("fill-text", "a ___ cat", png)[0].startswith("a")
    assert run("fill-text", "a ___ cat", wav)[0].startswith("a")
    filled = run("fill-image", png, "a cat", "--box", "0,0,32,64", "--out", tmp_path / "b", "--count", 2, "--seed", 3)
    assert filled == [str(tmp_path / "b-0.png"), str(tmp_path / "b-1.png")]
    assert run("fill-speech", wav, "--interval", "0.1,0.2", "--out", tmp_path / "c.wav") == [str(tmp_path / "c.wav")]
    assert run("speech-to-image", wav, "--out", tmp_path / "d.png")[-1] == str(tmp_path / "d.png")
    assert run("image-to-speech", png, "--out", tmp_path / "e.wav")[-1] == str(tmp_path / "e.wav")
    assert {path.name for path in tmp_path.iterdir()} >= {"a.wav", "b-0.png", "b-1.png", "c.wav", "d.png", "e.wav"}


def test_the_seeds_of_several_follow_each_other(model: Path, tmp_path: Path) -> None:
    words = ["generate", "image", "a cat", "--model", str(model), "--steps", "1"]
    assert main([*words, "--seed", "4", "--out", str(tmp_path / "one.png")]) == 0
    assert main([*words, "--seed", "3", "--count", "2", "--out", str(tmp_path / "two.png")]) == 0
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two-1.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "two-0.png").read_bytes()
