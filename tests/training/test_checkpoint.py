"""Checkpoints are complete or absent, and anything but the exact bytes that were written is refused."""

import json
import os
import pickle
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import filesystem
from train_fakes import assert_same_bits, events, run_it, tensors_of, tiny_run

from triptych.cli.main import main
from triptych.errors import CheckpointError
from triptych.hub.export import model_of_run
from triptych.training import checkpoint as ckpt
from triptych.training import checkpointer as checkpointing
from triptych.utils.checksums import sha256

SHARD = "shard-00001-model-00001-of-00001.safetensors"


def tensors(value: float = 0.5) -> dict[str, torch.Tensor]:
    weights = {"a": torch.full((3,), value), "b": torch.arange(4.0).reshape(2, 2).T}  # b is not contiguous
    moments = {f"optimizer/{name}/{kind}": weights[name] + 1 for name in weights for kind in ("exp_avg", "exp_avg_sq")}
    return {
        **{f"model/{name}": weight for name, weight in weights.items()},
        **moments,
        "optimizer/a/step": torch.ones(()),
    }


def save(folder: Path, step: int, value: float = 0.5, keep: int = 1) -> Path:
    checkpointer = checkpointing.AsyncCheckpointer(folder, keep)
    assert checkpointer.save(step, tensors(value), {"config": {"lr": 0.1}}) == []
    saved = checkpointer.wait()
    checkpointer.close()
    if saved.path is None:
        raise OSError(saved.problem)
    return saved.path


def test_a_checkpoint_loads_what_was_saved(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "checkpoints", 7)
    assert path.name == "step-00000007"
    loaded, written = ckpt.load(path), tensors()
    assert (loaded.step, loaded.state) == (7, {"config": {"lr": 0.1}})
    assert loaded.tensors.keys() == written.keys()
    assert all(torch.equal(loaded.tensors[name], written[name]) for name in written)
    assert loaded.part("model").keys() == {"a", "b"}
    assert ckpt.load(path, "model").part("optimizer") == {}


def test_changes_during_a_save_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save copies the tensors, so training can continue immediately."""
    released, changing = threading.Event(), tensors()
    write = filesystem._write_files_from_queue
    monkeypatch.setattr(filesystem, "_write_files_from_queue", lambda **given: released.wait(30) and write(**given))
    checkpointer = checkpointing.AsyncCheckpointer(tmp_path, keep=1)
    checkpointer.save(1, changing, {})
    for tensor in changing.values():
        tensor.zero_()
    assert checkpointer.is_saving
    assert not checkpointer.is_done
    assert ckpt.list_checkpoints(tmp_path) == []
    released.set()
    saved = checkpointer.wait()
    assert saved.path is not None
    loaded = ckpt.load(saved.path).tensors
    assert all(torch.equal(loaded[name], value) for name, value in tensors().items())


def test_a_save_waits_for_the_previous_one(tmp_path: Path) -> None:
    checkpointer = checkpointing.AsyncCheckpointer(tmp_path, keep=5)
    assert checkpointer.save(1, tensors(0.25), {}) == []
    (first,) = checkpointer.save(2, tensors(0.5), {})
    assert first.path == tmp_path / "step-00000001"
    assert checkpointer.wait().path == tmp_path / "step-00000002"
    assert [float(ckpt.load(path).tensors["model/a"][0]) for path in ckpt.list_checkpoints(tmp_path)] == [0.25, 0.5]


def test_the_checkpoint_format_does_not_change(world: Path, tmp_path: Path) -> None:
    """Runs of older versions must resume."""
    run = run_it(tiny_run(world, validation_data=()), tmp_path, stop_after=1)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    assert sorted(each.name for each in path.iterdir()) == ["manifest.json", SHARD, "state.json"]
    state = json.loads((path / "state.json").read_text())
    assert list(state) == ["step", "loader", "config", "shape", "vocabulary", "tokenizers", "guard"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("triptych-checkpoint", 2)
    assert sorted(manifest["sha256"]) == [SHARD, "state.json"]
    loaded = ckpt.load(path)
    names = {name for name, _ in run.state.model.named_parameters()}
    assert loaded.part("model").keys() == loaded.part("ema").keys() == names
    assert loaded.part("optimizer").keys() == {
        f"{name}/{k}" for name in names for k in ("step", "exp_avg", "exp_avg_sq")
    }
    for name, value in tensors_of(run).items():
        assert torch.equal(loaded.tensors[name], value)


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [0, 6])
@pytest.mark.parametrize("name", [SHARD, "state.json"])
def test_a_flipped_bit_is_detected(name: str, bit: int, tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    content = (path / name).read_bytes()
    for place in (0, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        (path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{name} is damaged") as caught:
            ckpt.load(path)
        assert caught.value.exit_code == 4


def test_every_damaged_byte_of_the_manifest_is_detected(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
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


@pytest.mark.parametrize("name", [SHARD, "state.json", "manifest.json"])
def test_a_missing_or_truncated_file_is_detected(name: str, tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError):
        ckpt.load(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match="is not a complete checkpoint"):
        ckpt.load(path)


@pytest.mark.parametrize("text", ["[]", "{}", "1", '{"version": 2, "sha256": 3}', '{"version": 2, "sha256": {}}'])
def test_an_invalid_manifest_is_refused(text: str, tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not a complete checkpoint"):
        ckpt.load(path)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_not_exported(world: Path, tmp_path: Path) -> None:
    run_it(tiny_run(world, validation_data=()), tmp_path, stop_after=1)
    shard = next(tmp_path.glob("checkpoints/step-*/shard*"))
    damage(shard)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=f"{shard} is damaged"):
        model_of_run(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def sign(path: Path) -> None:
    """Make the manifest match a shard that was changed."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"][SHARD] = sha256(path / SHARD)
    (path / "manifest.json").write_text(json.dumps(manifest))


def forged(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """A tensor of the same size with contents that no run saves."""
    match what:
        case "NaN" | "infinity":
            other = tensor.clone()
            other.view(-1)[-1] = float("nan" if what == "NaN" else "-inf")
            return other
        case "int8":
            return tensor.to(torch.int8)
        case "float64":
            return tensor.double()
    return tensor.reshape(1, *tensor.shape)


@pytest.mark.parametrize("name", ["model/norm.weight", "ema/norm.weight", "optimizer/norm.weight/exp_avg_sq"])
@pytest.mark.parametrize("what", ["NaN", "infinity", "int8", "float64", "one more dimension"])
def test_forged_tensors_are_refused(what: str, name: str, trained: Path, tmp_path: Path, world: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    (path,) = ckpt.list_checkpoints(folder / "checkpoints")
    loaded = load_file(path / SHARD)
    with safe_open(path / SHARD, "pt") as file:
        about = file.metadata()
    if what == "one more dimension":
        sharding = json.loads(about["DCP_SHARDING_INFO"])
        sharding[name]["saved_offsets"] = [0, *sharding[name]["saved_offsets"]]
        about = {**about, "DCP_SHARDING_INFO": json.dumps(sharding)}
    save_file({**loaded, name: forged(loaded[name], what)}, path / SHARD, about)
    sign(path)
    with pytest.raises(CheckpointError, match=name) as caught:
        run_it(tiny_run(world, validation_data=()), folder)
    assert str(path / SHARD) in str(caught.value)
    if name.startswith("ema"):  # what is exported
        with pytest.raises(CheckpointError, match=r"norm\.weight"):
            model_of_run(folder)
        assert main(["export", str(folder), "--out", str(tmp_path / "model")]) == 4
        assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("offset", [[1], [2**40], [-1]])
def test_parts_that_make_no_tensor_are_refused(offset: list[int], trained: Path, tmp_path: Path, world: Path) -> None:
    """A hostile offset would make the reader allocate a huge tensor, or leave a part of one uninitialised."""
    folder = shutil.copytree(trained, tmp_path / "run")
    (path,) = ckpt.list_checkpoints(folder / "checkpoints")
    with safe_open(path / SHARD, "pt") as file:
        about = file.metadata()
    sharding = json.loads(about["DCP_SHARDING_INFO"])
    sharding["ema/norm.weight"]["saved_offsets"] = offset
    save_file(load_file(path / SHARD), path / SHARD, {**about, "DCP_SHARDING_INFO": json.dumps(sharding)})
    sign(path)
    for call in (lambda: run_it(tiny_run(world, validation_data=()), folder), lambda: model_of_run(folder)):
        with pytest.raises(CheckpointError, match=r"does not hold the tensors of a run: .*ema/norm\.weight"):
            call()


@pytest.fixture(scope="module")
def trained(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run_it(tiny_run(world, validation_data=()), folder, stop_after=1)
    return folder


@pytest.mark.parametrize("what", ["extra file", "link", "missing tensor", "another shape"])
def test_foreign_content_is_refused(what: str, world: Path, tmp_path: Path) -> None:
    """Even if the manifest was changed to match."""
    config = tiny_run(world, validation_data=())
    run_it(config, tmp_path, stop_after=1)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    if what == "extra file":
        (path / ".metadata").write_bytes(pickle.dumps({}))  # DCP's own form of a checkpoint would unpickle it
    elif what == "link":
        shutil.copy(path / SHARD, tmp_path / "elsewhere")
        (path / SHARD).unlink()
        (path / SHARD).symlink_to(tmp_path / "elsewhere")
    else:
        loaded = load_file(path / SHARD)
        with safe_open(path / SHARD, "pt") as file:
            about = file.metadata()
        name = "model/norm.weight"
        loaded = (
            {**loaded, name: torch.ones(3)} if what == "another shape" else {k: loaded[k] for k in loaded if k != name}
        )
        save_file(loaded, path / SHARD, about)
        sign(path)
    with pytest.raises(CheckpointError) as caught:
        run_it(config, tmp_path)
    assert {"extra file": "unexpected .metadata", "link": "is damaged"}.get(what, "does not fit this run") in str(
        caught.value
    )


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_renamed_and_the_previous_one_is_used(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, save_every=2, keep_last_checkpoints=3)
    uninterrupted = run_it(config, tmp_path / "uninterrupted")
    run_it(config, tmp_path / "damaged", stop_after=5)
    folder = tmp_path / "damaged" / "checkpoints"
    assert [path.name for path in ckpt.list_checkpoints(folder)] == [f"step-0000000{step}" for step in (2, 4, 5)]
    damage(folder / "step-00000005" / SHARD)
    (folder / "step-00000004" / "manifest.json").unlink()
    again = run_it(config, tmp_path / "damaged")
    assert_same_bits(tensors_of(again), tensors_of(uninterrupted))
    assert sorted(path.name for path in folder.glob("bad-*")) == ["bad-step-00000004", "bad-step-00000005"]
    notes = [event["text"] for event in events(tmp_path / "damaged", "note")]
    assert "step-00000005" in notes[0]
    assert "is damaged" in notes[0]
    assert "renamed to bad-step-00000004" in notes[1]


def test_a_checkpoint_of_another_version_is_not_touched(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, validation_data=())
    run_it(config, tmp_path, stop_after=2)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 3}))
    with pytest.raises(CheckpointError, match="is a checkpoint of version 3, but this software reads version 2"):
        run_it(config, tmp_path)
    assert path.exists()


def test_a_failed_read_is_not_damage(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, sha256 = tiny_run(world, validation_data=()), ckpt.sha256
    run_it(config, tmp_path, stop_after=2)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    failures = iter([True, True])

    def unreliable(file: Path) -> str:
        if next(failures, False):
            raise OSError(5, "Input/output error")
        return sha256(file)

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(ckpt, "sha256", unreliable)
    ckpt.verify(path)
    failures = iter([True] * 100)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Input/output error\)"):
        run_it(config, tmp_path)
    assert path.exists()


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_a_manifest_that_cannot_be_read_does_not_condemn_its_checkpoint(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, read_json = tiny_run(world, validation_data=()), ckpt.read_json
    run_it(config, tmp_path, stop_after=2)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    failures = iter([True, True])

    def unreliable(file: Path) -> Any:
        if file.name == name and next(failures, False):
            raise OSError(5, "Input/output error")
        return read_json(file)

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(ckpt, "read_json", unreliable)
    ckpt.verify(path)
    failures = iter([True] * 100)
    with pytest.raises(ckpt.CheckpointUnavailable, match=rf"{name} cannot be read \(Input/output error\). Is the file"):
        run_it(config, tmp_path)
    assert path.exists()
    failures = iter([])
    assert run_it(config, tmp_path).state.step == config.num_steps


def test_missing_checkpoints_are_an_error(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, validation_data=())
    run_it(config, tmp_path, stop_after=2)
    shutil.rmtree(tmp_path / "checkpoints")
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="has saved step 2, but its checkpoints are gone"):
        run_it(config, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_a_folder_that_is_not_shared_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".partial-step-00000001").mkdir()
    with pytest.raises(OSError, match=r"rank 0 cannot see .*: all nodes must share the folder of the run"):
        checkpointing.publish(tmp_path, tmp_path / ".partial-step-00000001", {"step": 1}, {"shard-00002-x": "0"}, 1)
    assert ckpt.list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_run_never_restarts_silently(again: bool, world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, save_every=2)
    run_it(config, tmp_path, stop_after=4)
    for path in ckpt.list_checkpoints(tmp_path / "checkpoints"):
        (path / SHARD).write_bytes(b"")
    for _ in range(1 + again):
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* is valid") as caught:
            run_it(config, tmp_path)
    assert caught.value.exit_code == 4
    assert len(list(tmp_path.glob("checkpoints/bad-*"))) == 2


# -- saving -----------------------------------------------------------------------------------------------------------


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 100_000_000, 15):
        save(tmp_path, step, keep=2)
    assert [path.name for path in ckpt.list_checkpoints(tmp_path)] == ["step-00000015", "step-100000000"]
    save(tmp_path, 100_000_001)
    assert [path.name for path in tmp_path.iterdir()] == ["step-100000001"]


def test_partial_checkpoints_are_ignored_and_deleted_by_the_next_save(tmp_path: Path) -> None:
    assert ckpt.list_checkpoints(tmp_path / "nowhere") == []
    first = save(tmp_path, 1, keep=3)
    shutil.copytree(first, tmp_path / ".partial-step-00000002")
    (tmp_path / ".partial-step-00000002" / "manifest.json").unlink()
    assert ckpt.list_checkpoints(tmp_path) == [first]
    third = save(tmp_path, 3, keep=3)
    assert sorted(tmp_path.iterdir()) == [first, third]


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_before_the_rename_leaves_the_previous_checkpoint(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the same step is saved again."""
    first = save(tmp_path, 1, 0.25)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, step, 0.75)
    assert ckpt.list_checkpoints(tmp_path) == [first]
    assert float(ckpt.load(first).tensors["model/a"][0]) == 0.25
    path = save(tmp_path, step, 0.75)
    assert list(tmp_path.iterdir()) == [path]
    assert float(ckpt.load(path).tensors["model/a"][0]) == 0.75


@pytest.mark.parametrize(
    "place", [(checkpointing, "sha256"), (checkpointing, "_sync"), (filesystem, "_write_files_from_queue")]
)
def test_a_failed_write_leaves_the_previous_checkpoint(
    place: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(tmp_path, 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*place, full)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 2)
    assert list(tmp_path.iterdir()) == [first]
    ckpt.verify(first)
