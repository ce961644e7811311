"""`triptych info`, `triptych models`, `triptych completion`."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from triptych.cli.main import COMMANDS, main
from triptych.hub.directions import DIRECTIONS


def test_info_of_the_demo_model(capsys: pytest.CaptureFixture) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "3.5M",
        "6 layers of width 192",
        "64 x 64 pixels as 16 tokens",
        "apache-2.0",
        "'a cat'",
        *DIRECTIONS,
    ):
        assert expected in text
    assert main(["info", "scenes", "--words"]) == 0
    words = capsys.readouterr().out.split()
    assert "cat" in words
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["words"] == words
    assert facts["parameters"] == 3_527_040
    assert facts["directions"] == list(DIRECTIONS)


def test_json_goes_to_a_file_and_takes_no_other_argument(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["models", "--json", str(tmp_path / "new" / "models.json")]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "new" / "models.json").read_text())[0]["model"] == "scenes"
    assert main(["info", "--json", "scenes"]) == 2
    assert "expected the name of a .json file or -, got 'scenes'; put --json last" in capsys.readouterr().err


def test_info_of_a_model_without_a_word_list(small_model: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["info", str(small_model)]) == 0
    text = capsys.readouterr().out
    assert "any text" in text
    assert "not stated" in text
    assert main(["info", "nowhere"]) == 2
    assert "there is no model 'nowhere'" in capsys.readouterr().err


def test_models_lists_built_in_saved_and_trained_ones(
    small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_model, tmp_path / "models" / "mine")
    (tmp_path / "runs" / "a" / "checkpoints" / "step-00000010").mkdir(parents=True)
    (tmp_path / "runs" / "refused" / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs" / "notes").mkdir()
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"model": "scenes", "kind": "built-in"},
        {"model": "models/mine", "kind": "saved model"},
        {"model": "runs/a", "kind": "training run"},
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        assert all(word in script for word in name.split())
    for word in ("guidance-scale", "text-to-image", "print-config"):
        assert word in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tok"], {"tokenize", "tokenizers"}),
        (["generate", "text-to-i"], {"text-to-image"}),
        (["generate", "caption", "--gui"], {"--guidance-scale"}),
        (["plan", "gr"], {"grid"}),
        (["generate", "caption", "--sampler", "mask"], {"maskgit"}),
        (["generate", "caption", "--model", "sc"], {"scenes"}),
        (["generate", "caption", "some"], {"some file.png"}),
        (["generate", "caption", "--out", "some"], {"some file.png"}),
        (["train", "na"], {"nano"}),
        (["da"], {"data"}),
        (["train", "scenes", "--print"], {"--print-config"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "some file.png").touch()
    (tmp_path / "data").mkdir()
    main(["completion", "bash"])
    script = capsys.readouterr().out
    line = " ".join(f"'{word}'" for word in words)
    script += f"COMP_WORDS=(triptych {line}); COMP_CWORD={len(words)}; _triptych; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    result = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert set(result.stdout.splitlines()) == expected, result.stderr
