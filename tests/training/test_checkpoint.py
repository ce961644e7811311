"""Checkpoints: whole or not there, exactly what was written or refused."""

import json
import os
import pickle
import shutil
import threading
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
from triptych.training import checkpoint as ckpt

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
    saver = ckpt.Saver(folder, keep)
    assert saver.begin(step, tensors(value), {"config": {"lr": 0.1}}) == []
    saved = saver.finish()
    saver.close()
    if saved.path is None:
        raise OSError(saved.problem)
    return saved.path


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "checkpoints", 7)
    assert path.name == "step-00000007"
    found, written = ckpt.load(path), tensors()
    assert (found.step, found.state) == (7, {"config": {"lr": 0.1}})
    assert found.tensors.keys() == written.keys()
    assert all(torch.equal(found.tensors[name], written[name]) for name in written)
    assert found.part("model").keys() == {"a", "b"}
    assert ckpt.load(path, "model").part("optimizer") == {}


def test_what_changes_while_it_is_written_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving takes a copy: the next steps may begin at once."""
    single_pass, changing = threading.Event(), tensors()
    write = filesystem._write_files_from_queue
    monkeypatch.setattr(filesystem, "_write_files_from_queue", lambda **given: single_pass.wait(30) and write(**given))
    saver = ckpt.Saver(tmp_path, keep=1)
    saver.begin(1, changing, {})
    for tensor in changing.values():
        tensor.zero_()
    assert saver.is_busy
    assert not saver.is_done
    assert ckpt.list_checkpoints(tmp_path) == []
    single_pass.set()
    saved = saver.finish()
    assert saved.path is not None
    found = ckpt.load(saved.path).tensors
    assert all(torch.equal(found[name], value) for name, value in tensors().items())


def test_a_save_that_is_due_waits_for_the_one_before(tmp_path: Path) -> None:
    saver = ckpt.Saver(tmp_path, keep=5)
    assert saver.begin(1, tensors(0.25), {}) == []
    (first,) = saver.begin(2, tensors(0.5), {})
    assert first.path == tmp_path / "step-00000001"
    assert saver.finish().path == tmp_path / "step-00000002"
    assert [float(ckpt.load(path).tensors["model/a"][0]) for path in ckpt.list_checkpoints(tmp_path)] == [0.25, 0.5]


def test_the_format_of_a_checkpoint_stays(world: Path, tmp_path: Path) -> None:
    """Runs that were started with older versions go on."""
    run = run_it(tiny_run(world, validation_data=()), tmp_path, stop_after=1)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    assert sorted(each.name for each in path.iterdir()) == ["manifest.json", SHARD, "state.json"]
    state = json.loads((path / "state.json").read_text())
    assert list(state) == ["step", "loader", "config", "shape", "vocabulary", "tokenizers", "guard"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("triptych-checkpoint", 2)
    assert sorted(manifest["sha256"]) == [SHARD, "state.json"]
    found = ckpt.load(path)
    names = {name for name, _ in run.model.named_parameters()}
    assert found.part("model").keys() == found.part("ema").keys() == names
    assert found.part("optimizer").keys() == {
        f"{name}/{k}" for name in names for k in ("step", "exp_avg", "exp_avg_sq")
    }
    for name, value in tensors_of(run).items():
        assert torch.equal(found.tensors[name], value)


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [0, 6])
@pytest.mark.parametrize("name", [SHARD, "state.json"])
def test_a_flipped_bit_is_found(name: str, bit: int, tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    content = (path / name).read_bytes()
    for place in (0, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        (path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{name} is damaged") as caught:
            ckpt.load(path)
        assert caught.value.exit_code == 4


def test_every_damaged_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
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
def test_a_missing_or_cut_file_is_found(name: str, tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError):
        ckpt.load(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        ckpt.load(path)


@pytest.mark.parametrize("text", ["[]", "{}", "1", '{"version": 2, "sha256": 3}', '{"version": 2, "sha256": {}}'])
def test_a_manifest_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        ckpt.load(path)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_not_exported(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run_it(tiny_run(world, validation_data=()), tmp_path, stop_after=1)
    shard = next(tmp_path.glob("checkpoints/step-*/shard*"))
    damage(shard)
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "model")]) == 4
    assert f"{shard} is damaged" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("what", ["a file more", "a link", "no tensor", "another shape"])
def test_what_was_not_written_by_us_is_refused(what: str, world: Path, tmp_path: Path) -> None:
    """Also where the manifest was made to fit."""
    config = tiny_run(world, validation_data=())
    run_it(config, tmp_path, stop_after=1)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    if what == "a file more":
        (path / ".metadata").write_bytes(pickle.dumps({}))  # DCP's own form of a checkpoint would unpickle it
    elif what == "a link":
        shutil.copy(path / SHARD, tmp_path / "elsewhere")
        (path / SHARD).unlink()
        (path / SHARD).symlink_to(tmp_path / "elsewhere")
    else:
        found = load_file(path / SHARD)
        with safe_open(path / SHARD, "pt") as file:
            about = file.metadata()
        name = "model/norm.weight"
        found = {**found, name: torch.ones(3)} if what == "another shape" else {k: found[k] for k in found if k != name}
        save_file(found, path / SHARD, about)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["sha256"][SHARD] = ckpt.sha256(path / SHARD)
        (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError) as caught:
        run_it(config, tmp_path)
    assert {"a file more": "with .metadata", "a link": "is damaged"}.get(what, "does not fit this run") in str(
        caught.value
    )


# -- what is found at the beginning of a run --------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, save_every=2, keep_last_checkpoints=3)
    whole = run_it(config, tmp_path / "whole")
    run_it(config, tmp_path / "damaged", stop_after=5)
    folder = tmp_path / "damaged" / "checkpoints"
    assert [path.name for path in ckpt.list_checkpoints(folder)] == [f"step-0000000{step}" for step in (2, 4, 5)]
    damage(folder / "step-00000005" / SHARD)
    (folder / "step-00000004" / "manifest.json").unlink()
    again = run_it(config, tmp_path / "damaged")
    assert_same_bits(tensors_of(again), tensors_of(whole))
    assert sorted(path.name for path in folder.glob("bad-*")) == ["bad-step-00000004", "bad-step-00000005"]
    notes = [event["text"] for event in events(tmp_path / "damaged", "note")]
    assert "step-00000005" in notes[0]
    assert "is damaged" in notes[0]
    assert "set aside as bad-step-00000004" in notes[1]


def test_checkpoints_of_another_version_stay_where_they_are(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, validation_data=())
    run_it(config, tmp_path, stop_after=2)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 3}))
    with pytest.raises(CheckpointError, match="is a checkpoint of version 3, and this software reads version 2"):
        run_it(config, tmp_path)
    assert path.exists()


def test_a_file_that_cannot_be_read_now_is_no_damage(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, sha256 = tiny_run(world, validation_data=()), ckpt.sha256
    run_it(config, tmp_path, stop_after=2)
    (path,) = ckpt.list_checkpoints(tmp_path / "checkpoints")
    failures = iter([True, True])

    def moody(file: Path) -> str:
        if next(failures, False):
            raise OSError(5, "Input/output error")
        return sha256(file)

    monkeypatch.setattr(ckpt.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(ckpt, "sha256", moody)
    ckpt.verify(path)
    failures = iter([True] * 100)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Input/output error\)"):
        run_it(config, tmp_path)
    assert path.exists()


def test_checkpoints_that_are_gone_are_missed(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, validation_data=())
    run_it(config, tmp_path, stop_after=2)
    shutil.rmtree(tmp_path / "checkpoints")
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="has saved step 2, but its checkpoints are gone"):
        run_it(config, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_a_folder_that_the_first_rank_does_not_share_is_noticed(tmp_path: Path) -> None:
    (tmp_path / ".partial-step-00000001").mkdir()
    with pytest.raises(OSError, match="all nodes must share the folder of the run"):
        ckpt.publish(tmp_path, tmp_path / ".partial-step-00000001", {"step": 1}, {"shard-00002-x": "0"}, 1)
    assert ckpt.list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_run_never_begins_anew_in_silence(again: bool, world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, save_every=2)
    run_it(config, tmp_path, stop_after=4)
    for path in ckpt.list_checkpoints(tmp_path / "checkpoints"):
        (path / SHARD).write_bytes(b"")
    for _ in range(1 + again):
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole") as caught:
            run_it(config, tmp_path)
    assert caught.value.exit_code == 4
    assert len(list(tmp_path.glob("checkpoints/bad-*"))) == 2


# -- saving -----------------------------------------------------------------------------------------------------------


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 100_000_000, 15):
        save(tmp_path, step, keep=2)
    assert [path.name for path in ckpt.list_checkpoints(tmp_path)] == ["step-00000015", "step-100000000"]
    save(tmp_path, 100_000_001)
    assert [path.name for path in tmp_path.iterdir()] == ["step-100000001"]


def test_unfinished_ones_are_not_seen_and_go_with_the_next(tmp_path: Path) -> None:
    assert ckpt.list_checkpoints(tmp_path / "nowhere") == []
    first = save(tmp_path, 1, keep=3)
    shutil.copytree(first, tmp_path / ".partial-step-00000002")
    (tmp_path / ".partial-step-00000002" / "manifest.json").unlink()
    assert ckpt.list_checkpoints(tmp_path) == [first]
    third = save(tmp_path, 3, keep=3)
    assert sorted(tmp_path.iterdir()) == [first, third]


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_before_the_last_moment_leaves_the_previous_one(
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


@pytest.mark.parametrize("place", [(ckpt, "sha256"), (ckpt, "_sync"), (filesystem, "_write_files_from_queue")])
def test_a_failure_while_writing_leaves_the_previous_one(
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
