"""The command line as a user meets it, in its own process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych import __version__
from triptych.cli.main import COMMANDS, main, parser_of
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


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from triptych.cli.main import main; code = main(['--help']);"
        "heavy = [name for name in ('torch', 'numpy', 'rich', 'PIL') if name in sys.modules];"
        "print(code, heavy, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    code, heavy = result.stderr.split(maxsplit=1)
    assert (code, heavy.strip()) == ("0", "[]")
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture) -> None:
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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_states_its_exit_codes_and_can_be_quiet(name: str) -> None:
    text = parser_of(name).format_help()
    assert "exit codes: 0 " in text
    assert "--quiet" in text
    if name == "train":
        assert "5 diverged" in text


def test_tokenize_says_which_transform_was_stored(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "in").mkdir()
    for n in range(3):
        Image.new("RGB", (40, 30), (80 * n, 0, 0)).save(tmp_path / "in" / f"{n}.png")
        (tmp_path / "in" / f"{n}.txt").write_text(f"red {n}")
    words = ["tokenize", str(tmp_path / "in"), "--workers", "0", "--out"]
    assert main([*words, str(tmp_path / "pad")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "3 image-text samples" in first
    assert second == "  images: whole, padded with white to a square; the same in every epoch (--image-transform pad)"
    assert main([*words, str(tmp_path / "paper"), "--image-transform", "paper", "--views", "2"]) == 0
    output = capsys.readouterr().out
    assert "6 image-text samples" in output
    assert "images: 2 random versions of each, a crop or the whole image, with even odds" in output
    assert "(--image-transform paper --views 2)" in output


def test_tokenize_says_what_became_of_long_recordings(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000, np.float32), 16_000)
    (tmp_path / "a.jsonl").write_text('{"audio_filepath": "a.wav", "text": "a cat"}\n')
    words = ["tokenize", str(tmp_path / "a.jsonl"), "--workers", "0", "--max-seconds", "0.5", "--out"]
    assert main([*words, str(tmp_path / "cut")]) == 0
    assert "  audio: recordings above 0.5 s are cut (--too-long cut)\n" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "skip"), "--too-long", "skip"]) == 3  # nothing is left


def test_quiet_silences_notes_and_keeps_results_and_errors(
    tokenizers: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["tokenize", str(texts), "--out", str(tmp_path / "out"), "--tokenizers", str(tokenizers), "--workers", "0"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--quiet"]) == 0  # says otherwise that the dataset is complete
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{tmp_path / 'out'}: 50 text samples")
    assert captured.err == ""
    assert main(["tokenize", str(tmp_path / "nothing"), "--out", str(tmp_path / "x"), "--quiet"]) == 3
    assert "no such file or folder" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"triptych {__version__}\n"


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["tokenise"], "unknown command 'tokenise'. Did you mean 'tokenize'?"),
        (["text-to-image", "a cat"], "a direction of `triptych generate`: triptych generate text-to-image INPUT"),
        (["frobnicate"], "unknown command 'frobnicate'. Known: "),
        (["tokenizers"], "`triptych tokenizers` needs a second word: tokenizers fit or tokenizers make."),
        (["data", "shw", "x"], "unknown command 'data shw'. Did you mean 'data show'?"),
        (["tokenize", "x", "--ouput", "y"], "unknown option --ouput. Did you mean '--out'"),
        (["tokenize", "x", "--out", "y", "--worker=3"], "unknown option --worker. Did you mean '--workers'?"),
        (["tokenize", "x", "--out", "y", "--format", "parket"], "unknown name 'parket'. Did you mean 'parquet'?"),
        (
            ["tokenize", "x", "--out", "y", "--workers", "two"],
            "--workers: expected a whole number of at least 0",
        ),
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


def test_a_closed_pipe_is_no_error(tokenizers: Path, texts: Path, tmp_path: Path) -> None:
    triptych("tokenize", texts, "--out", tmp_path / "out", "--tokenizers", tokenizers, "--workers", 0)
    process = subprocess.Popen(
        [*COMMAND, "data", "show", str(tmp_path), "-n", "50"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr.read() == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_command_says_how_to_resume(number: int, code: int, tokenizers: Path, tmp_path: Path) -> None:
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
    assert errors == "triptych: stopped; run the same command again to resume.\n"
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
        ["scenes", "make", "{file}/data", "--text", "1", "--images", "1", "--speech", "1", "--validation", "1"],
    ],
)
def test_a_folder_that_cannot_be_written_is_one_line(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = triptych(*(word.replace("{file}", str(tmp_path / "file")) for word in words))
    assert done.returncode == 2
    assert re.fullmatch(r"triptych: error: .+\n", done.stderr)


@pytest.mark.parametrize("words", [["help", "tokenize"], ["tokenize", "--help"]])
def test_help_on_a_command(words: list[str]) -> None:
    done = triptych(*words)
    assert done.returncode == 0
    assert "usage: triptych tokenize" in done.stdout


def test_help_on_a_group_lists_its_commands() -> None:
    done = triptych("data", "--help")
    assert done.returncode == 0
    assert "data show" in done.stdout
    assert "scenes" not in done.stdout


def test_help_of_a_group_and_of_a_command_without_its_arguments(capsys: pytest.CaptureFixture) -> None:
    for words in (["help", "scenes"], ["--help", "scenes"]):
        assert main(words) == 0
        assert "scenes make" in capsys.readouterr().out
    assert main(["train"]) == 2
    assert "name a recipe, or --resume RUN" in capsys.readouterr().err
