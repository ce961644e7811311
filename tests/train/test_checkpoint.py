"""Checkpoints: whole or not there, exactly what was written or refused."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from train_fakes import run_it, tensors_of, tiny_run

from triptych.cli import main
from triptych.errors import CheckpointError
from triptych.train import checkpoint as ckpt


def small(step: int, value: float = 0.5, ema: bool = True) -> ckpt.Checkpoint:
    weights = {"a": torch.full((3,), value), "b": torch.arange(4.0).reshape(2, 2).T}  # b is not contiguous
    moments = {f"{name}/{kind}": weights[name] + 1 for name in weights for kind in ("exp_avg", "exp_avg_sq")}
    return ckpt.Checkpoint(step, weights, moments, dict(weights) if ema else None, {"config": {"lr": 0.1}})


@pytest.mark.parametrize("ema", [True, False])
def test_what_is_saved_is_what_is_loaded(ema: bool, tmp_path: Path) -> None:
    written = small(7, ema=ema)
    path = ckpt.save(tmp_path / "new" / "checkpoints", written, keep=2)
    assert path.name == "step-00000007"
    found = ckpt.load(path)
    assert (found.step, found.state) == (7, {"config": {"lr": 0.1}})
    for one, other in ((found.model, written.model), (found.optimizer, written.optimizer)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert (found.ema is None) == (not ema)


def test_the_format_of_a_checkpoint_stays(world: Path, tmp_path: Path) -> None:
    """Runs that were started with older versions go on."""
    run = run_it(tiny_run(world, validation_data=()), tmp_path, stop_after=1)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    names = ["ema.safetensors", "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert sorted(each.name for each in path.iterdir()) == names
    state = json.loads((path / "state.json").read_text())
    assert list(state) == ["step", "loader", "config", "shape", "vocabulary", "tokenizers"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["version"], sorted(manifest["sha256"])) == (1, [name for name in names if name != "manifest.json"])
    found = ckpt.load(path)
    assert set(found.model) == {name for name, _ in run.model.named_parameters()}
    moments = ("step", "exp_avg", "exp_avg_sq")
    assert set(found.optimizer) == {f"{name}/{key}" for name in found.model for key in moments}
    for name, value in tensors_of(run).items():
        kind, _, rest = name.partition("/")
        assert torch.equal({"model": found.model, "ema": found.ema, "optimizer": found.optimizer}[kind][rest], value)


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [0, 6])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"])
def test_a_flipped_bit_is_found(name: str, bit: int, tmp_path: Path) -> None:
    path = ckpt.save(tmp_path, small(1), keep=1)
    content = (path / name).read_bytes()
    for place in (0, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        (path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{name} is damaged") as caught:
            ckpt.load(path)
        assert caught.value.exit_code == 4


def test_every_damaged_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
    path = ckpt.save(tmp_path, small(1), keep=1)
    manifest = path / "manifest.json"
    content = manifest.read_bytes()
    for place in range(len(content) - 1):  # the last is a line feed, which means nothing
        damaged = bytearray(content)
        damaged[place] ^= 1
        manifest.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            ckpt.verify(path)
    manifest.write_bytes(content)
    ckpt.verify(path)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json", "manifest.json"]
)
def test_a_missing_or_cut_file_is_found(name: str, tmp_path: Path) -> None:
    path = ckpt.save(tmp_path, small(1), keep=1)
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError):
        ckpt.load(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        ckpt.load(path)


@pytest.mark.parametrize("text", ["[]", "{}", "1", '{"version": 1, "sha256": 3}', '{"version": 2, "sha256": {}}'])
def test_a_manifest_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = ckpt.save(tmp_path, small(1), keep=1)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        ckpt.load(path)


def test_a_damaged_checkpoint_stops_the_run_with_code_4(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run_it(tiny_run(world, validation_data=()), tmp_path, stop_after=1)
    weights = next(tmp_path.glob("checkpoints/step-*/model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "model")]) == 4
    assert f"{weights} is damaged" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(CheckpointError, match="is damaged"):
        run_it(tiny_run(world, validation_data=()), tmp_path)


def test_an_optimizer_of_another_model_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    moments = {f"weight/{key}": torch.zeros(2, 2) for key in ("exp_avg", "exp_avg_sq", "step")}
    with pytest.raises(CheckpointError, match="no optimizer state for bias"):
        ckpt.restore_optimizer(optimizer, model, moments)


# -- saving -----------------------------------------------------------------------------------------------------------


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 100_000_000, 15):
        ckpt.save(tmp_path, small(step), keep=2)
    assert [path.name for path in ckpt.list_checkpoints(tmp_path)] == ["step-00000015", "step-100000000"]
    ckpt.save(tmp_path, small(100_000_001), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-100000001"]


def test_unfinished_ones_are_not_seen_and_go_with_the_next(tmp_path: Path) -> None:
    assert ckpt.list_checkpoints(tmp_path / "nowhere") == []
    first = ckpt.save(tmp_path, small(1), keep=3)
    shutil.copytree(first, tmp_path / ".partial-step-00000002")
    (tmp_path / ".partial-step-00000002" / "manifest.json").unlink()
    assert ckpt.list_checkpoints(tmp_path) == [first]
    third = ckpt.save(tmp_path, small(3), keep=3)
    assert sorted(tmp_path.iterdir()) == [first, third]


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_before_the_last_moment_leaves_the_previous_one(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the same step is saved again."""
    first = ckpt.save(tmp_path, small(1, 0.25), keep=1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(tmp_path, small(step, 0.75), keep=1)
    assert ckpt.list_checkpoints(tmp_path) == [first]
    assert float(ckpt.load(first).model["a"][0]) == 0.25
    path = ckpt.save(tmp_path, small(step, 0.75), keep=1)
    assert list(tmp_path.iterdir()) == [path]
    assert float(ckpt.load(path).model["a"][0]) == 0.75


@pytest.mark.parametrize("name", ["_sha256", "_sync", "save_file"])
def test_a_failure_while_writing_leaves_the_previous_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ckpt.save(tmp_path, small(1), keep=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ckpt, name, full)
        with pytest.raises(OSError, match="No space left"):
            ckpt.save(tmp_path, small(2), keep=1)
    assert ckpt.list_checkpoints(tmp_path) == [first]
    ckpt.verify(first)
