"""Models that attack whoever serves them: bad inputs 30 to 34 and 36, as `triptych serve --model` meets them."""

import ast
import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import triptych
from triptych.cli.main import main
from triptych.errors import CheckpointError
from triptych.hub.integrity import read_raw_config, write_checksums
from triptych.hub.pipeline import Pipeline

PACKAGE = Path(triptych.__file__).parent
WEIGHTS = "model.safetensors"


class Touch:
    """A pickle that would run code."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(PACKAGE / "assets" / "models" / "scenes", tmp_path / "model")


def forge(folder: Path, **changes: Any) -> None:
    """Make the checksums those of the files as they are now, as an attacker could."""
    write_checksums(folder, {**read_raw_config(folder), **changes})


def refused(model: Path, capsys: pytest.CaptureFixture) -> str:
    """The one line that `triptych serve` says of a model before it ends."""
    assert main(["serve", "--port", "0", "--model", str(model)]) in (2, 4)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize("name", ["model.pt", "model.ckpt", "pytorch_model.bin", "model.pkl", "model.pth"])
@pytest.mark.parametrize("in_folder", [False, True], ids=["file", "folder"])
def test_pickles_are_refused_and_nothing_runs(
    name: str, in_folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    trace, folder = tmp_path / "trace", tmp_path / "model"
    folder.mkdir()
    torch.save({"weight": Touch(trace)}, folder / name)
    (folder / "config.json").write_text("{}")
    refused(folder if in_folder else folder / name, capsys)
    assert not trace.exists()


def test_a_pickle_beside_or_instead_of_the_weights_is_not_read(copy: Path, tmp_path: Path, capsys: Any) -> None:
    trace = tmp_path / "trace"
    (copy / WEIGHTS).write_bytes(pickle.dumps(Touch(trace)))
    forge(copy)
    assert "safetensors" in refused(copy, capsys)
    (copy / WEIGHTS).unlink()
    torch.save({"weight": Touch(trace)}, copy / "pytorch_model.bin")
    refused(copy, capsys)
    assert not trace.exists()


def test_the_pickle_of_a_distributed_checkpoint_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    trace, folder = tmp_path / "trace", tmp_path / "run"
    for checkpoint in (folder, folder / "checkpoints" / "step-00000001"):
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / ".metadata").write_bytes(pickle.dumps(Touch(trace)))
        (checkpoint / "__0_0.distcp").write_bytes(pickle.dumps(Touch(trace)))
    refused(folder, capsys)
    refused(folder / "checkpoints" / "step-00000001", capsys)
    assert not trace.exists()


def safetensors_file(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        safetensors_file({}, b"", length=2**63 - 1),
        safetensors_file({}, b"", length=2**64 - 1),
        safetensors_file({n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"}, bytes(8)),
        safetensors_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**60]}}, bytes(8)),
        safetensors_file({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors_file({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}}, bytes(8)),
        safetensors_file({"a": {"dtype": "F4096", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    ],
    ids=["8 EB header", "16 EB header", "overlap", "beyond the end", "overflow", "negative", "dtype"],
)
def test_forged_safetensors_are_refused(content: bytes, copy: Path, capsys: pytest.CaptureFixture) -> None:
    (copy / WEIGHTS).write_bytes(content)
    forge(copy)
    assert WEIGHTS in refused(copy, capsys)


def test_a_configuration_runs_no_code(copy: Path) -> None:
    """`auto_map` and `trust_remote_code` mean nothing here, whether a model with them is loaded or refused."""
    (copy / "evil.py").write_text("raise SystemExit('it ran')\n")
    auto = {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}
    forge(copy, auto_map=auto, trust_remote_code=True, architectures=["evil.Model"])
    with suppress(CheckpointError):
        assert isinstance(Pipeline.from_pretrained(copy), Pipeline)


@pytest.mark.parametrize("count", [10**12, 2**63, -1, 0, 1.5, "many", None])
def test_a_vocabulary_without_bounds_is_refused(count: Any, copy: Path, capsys: pytest.CaptureFixture) -> None:
    shutil.copytree(PACKAGE / "assets" / "tokenizers" / "scenes", copy / "tokenizers")
    path = copy / "tokenizers" / "vocab.json"
    vocabulary = json.loads(path.read_text())
    key = next(key for key, value in vocabulary.items() if isinstance(value, int))
    path.write_text(json.dumps({**vocabulary, key: count}))
    config = read_raw_config(copy)
    del config["builtin_tokenizers"]
    write_checksums(copy, config)
    refused(copy, capsys)


def test_links_show_nothing_of_other_files(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    for name in (WEIGHTS, "config.json"):
        original = (copy / name).read_bytes()
        (copy / name).unlink()
        (copy / name).symlink_to(secret)
        assert "a secret" not in refused(copy, capsys)
        (copy / name).unlink()
        (copy / name).write_bytes(original)


def test_no_yaml_is_read() -> None:
    """There is no YAML to put `!!python/object` into, and none of what runs code when it reads."""
    readers = {"yaml", "ruamel", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not readers & {name.partition(".")[0] for name in names}, path
