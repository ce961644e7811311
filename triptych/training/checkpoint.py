"""Checkpoints: folders of safetensors and JSON, written aside and published by a rename, checked by SHA-256.

RUN/checkpoints/step-00001000/
    shard-00001-*.safetensors   what rank 0 holds of every tensor: "model/NAME", "ema/NAME", "optimizer/NAME/exp_avg"
    shard-00002-*.safetensors   what rank 1 holds ...
    state.json                  step, position in the data, configuration, vocabulary, tokenizers
    manifest.json               SHA-256 of the other files; written last

The shards are those of torch.distributed.checkpoint in its safetensors form: where a piece belongs stands in its file's
header, so any number of ranks reads what any other number wrote, and nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from triptych.errors import CheckpointError
from triptych.training.ranks import Ranks

_PARTIAL, _BAD = ".partial-", "bad-"
_VERSION = 2
_STATE, _MANIFEST = "state.json", "manifest.json"
_PATIENCE = (0.1, 0.5, 2.0)  # seconds before a file that cannot be read is tried again
# One process without a process group is what most of our users have, and no reason to warn.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


# -- what is saved ----------------------------------------------------------------------------------------------------


def run_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, ema: nn.Module | None) -> dict[str, Tensor]:
    """All that training changes, by name: no numbering that a change of groups could shift. Nothing is copied."""
    found = {f"model/{name}": value for name, value in model.state_dict().items()}
    if ema is not None:
        found |= {f"ema/{name}": value for name, value in ema.state_dict().items()}
    for name, parameter in model.named_parameters():
        found |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state[parameter].items()}
    return found


def init_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's state before its first step, which it would else make by itself: now it can be loaded into."""
    for _, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }


# -- saving -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """How a save ended, the same on all ranks."""

    step: int
    path: Path | None
    """None if it could not be written; then the newest checkpoint is the one before."""
    problem: str = ""
    blocked: float = 0.0
    """Seconds that training waited for it."""
    seconds: float = 0.0
    """Seconds from its beginning to the rename."""


class Saver:
    """Writes checkpoints beside the training: tensors are copied, then written, hashed and published in a thread.

    Never two at a time: a save that is due while another is being written waits for it.
    """

    def __init__(self, folder: Path, keep: int, ranks: Ranks = Ranks()):  # noqa: B008 (frozen)
        self.folder, self.keep, self.ranks = folder, keep, ranks
        self._beside = ranks.new_group()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Saved] | None = None
        self._blocked = 0.0

    @property
    def is_busy(self) -> bool:
        return self._pending is not None

    @property
    def is_done(self) -> bool:
        """Whether what was begun has ended, well or not, and this rank knows."""
        return self._pending is not None and self._pending.done()

    def begin(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> list[Saved]:
        """Copy what is to be saved and begin to write it. All ranks must call it.

        Returns how the save before ended, if it had to be waited for, and why this one cannot begin, if it cannot.
        """
        before = [self.finish()] if self._pending is not None else []
        began = time.monotonic()
        partial = self.folder / f"{_PARTIAL}{_name(step)}"
        problem = self.ranks.broadcast(_try_to_begin(self.folder, partial) if self.ranks.is_rank0 else "")
        if problem:
            return [*before, Saved(step, None, problem)]
        writing = dcp.async_save(
            dict(tensors),
            storage_writer=dcp.HuggingFaceStorageWriter(str(partial), save_distributed=True),
            process_group=self._beside.group,
            no_dist=self.ranks.size == 1,
        )
        assert isinstance(writing, Future)
        self._pending = self._thread.submit(self._complete, writing, partial, {"step": step, **state}, began)
        self._blocked = time.monotonic() - began
        return before

    def finish(self) -> Saved:
        """Wait for what was begun."""
        assert self._pending is not None
        began = time.monotonic()
        saved = self._pending.result()
        self._pending = None
        return replace(saved, blocked=self._blocked + time.monotonic() - began)

    def close(self) -> None:
        """Let what was begun end. Among several ranks nobody waits for it: another one may be gone."""
        self._thread.shutdown(wait=self.ranks.size == 1)

    def _complete(self, writing: "Future[Any]", partial: Path, state: dict[str, Any], began: float) -> Saved:
        """Hash what this rank has written; the first one publishes it, and tells the others how that ended."""
        mine: dict[str, str] | str
        try:
            writing.result()
            mine = {path.name: sha256(path) for path in partial.glob(f"shard-{self.ranks.rank + 1:05d}-*")}
        except (Exception, dcp.CheckpointException) as error:  # the second, of any rank, is no Exception
            mine = _reason(error)
        found, path = self._beside.gather(mine), None
        problem = next((each for each in found if isinstance(each, str)), "")
        if self.ranks.is_rank0:
            try:
                if not problem:
                    hashes = {name: value for each in found if isinstance(each, dict) for name, value in each.items()}
                    path = publish(self.folder, partial, state, hashes, self.keep)
            except OSError as error:
                problem = _reason(error)
            if problem:
                shutil.rmtree(partial, ignore_errors=True)
        path, problem = self._beside.broadcast((path, problem))
        return Saved(state["step"], path, problem, seconds=time.monotonic() - began)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _try_to_begin(folder: Path, partial: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(leftover)
        partial.mkdir()
    except OSError as error:
        return _reason(error)
    return ""


def _reason(error: BaseException) -> str:
    """One line of why a file could not be written."""
    for inner in getattr(error, "failures", {}).values():  # DCP: rank -> (error, stack)
        return _reason(inner[0] if isinstance(inner, tuple) else inner)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def publish(folder: Path, partial: Path, state: dict[str, Any], hashes: dict[str, str], keep: int) -> Path:
    """Give a written checkpoint its name, then delete all but the newest `keep`."""
    unseen = [name for name in hashes if not (partial / name).is_file()]
    if unseen:
        raise OSError(f"{unseen[0]} cannot be seen by the first rank: all nodes must share the folder of the run")
    (partial / _STATE).write_text(json.dumps(state, indent=2) + "\n")
    hashes = {**hashes, _STATE: sha256(partial / _STATE)}
    manifest = {"format": "triptych-checkpoint", "version": _VERSION, "sha256": hashes}
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (partial / _STATE, partial / _MANIFEST, partial):
        _sync(path)
    final, replaced = folder / _name(state["step"]), folder / f"{_PARTIAL}replaced"
    if final.exists():  # the same step was saved before a stop: what is there was published whole, but may be older
        os.replace(final, replaced)
    os.replace(partial, final)
    _sync(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in _superfluous(list_checkpoints(folder), keep):
        shutil.rmtree(old, ignore_errors=True)
    return final


def _superfluous(found: list[Path], keep: int) -> list[Path]:
    """All but the newest ones, and the newest one that a run may be rolled back to."""
    old = found[:-keep]
    if not any(is_anchor(path) for path in found[-keep:]):
        anchors = [path for path in old if is_anchor(path)]
        old = [path for path in old if path not in anchors[-1:]]
    return old


def is_anchor(path: Path) -> bool:
    """Whether a checkpoint was saved when it was due, and not because of a stop: there it is in every run alike."""
    try:
        return bool(read_state(path).get("guard", {}).get("is_anchor"))
    except CheckpointError:
        return False


def check_writable(folder: Path) -> None:
    """Find out before the first step whether there is a place for checkpoints."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be written to {folder} ({_reason(error)}). Choose another --out, or make room."
        ) from error


# -- finding and reading ----------------------------------------------------------------------------------------------


class CheckpointUnavailable(CheckpointError):
    """A checkpoint that may be whole, but cannot be used here and now: it is left where it is."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Published checkpoints, oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def newest_valid(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and a line for each newer one that was not: those are set aside.

    If there are checkpoints and none is whole, that is an error: nothing is ever begun anew in silence.
    """
    bad: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            verify(path)
            return path, bad
        except CheckpointUnavailable:
            raise
        except CheckpointError as error:
            aside = _set_aside(path)
            bad.append(f"{error} It was set aside as {aside.name}.")
    if bad or any(folder.glob(f"{_BAD}*")):
        raise CheckpointError(
            f"no checkpoint in {folder} is whole: {' '.join(bad) or 'all were set aside before.'} "
            "Restore one from a copy, or begin anew with another --out."
        )
    return None, []


def _set_aside(path: Path) -> Path:
    number = 0
    while (aside := path.with_name(f"{_BAD}{path.name}{f'-{number}' if number else ''}")).exists():
        number += 1
    os.replace(path, aside)
    return aside


def verify(path: Path) -> dict[str, Any]:
    """Refuse a checkpoint that is not exactly what was written; returns its state."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        if isinstance(manifest["version"], int) and manifest["version"] != _VERSION:
            raise CheckpointUnavailable(
                f"{path} is a checkpoint of version {manifest['version']}, and this software reads version {_VERSION}: "
                "use the Triptych that wrote it, or begin anew with another --out."
            )
        if manifest["format"] != "triptych-checkpoint":
            raise ValueError(f"it is a {manifest['format']}")
        expected: dict[str, str] = dict(manifest["sha256"])
        there = {each.name for each in path.iterdir()} - {_MANIFEST}
    except CheckpointUnavailable:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint ({error!r}).") from error
    if there != expected.keys():
        missing, strange = sorted(expected.keys() - there), sorted(there - expected.keys())
        what = "; ".join(
            f"{word} {', '.join(names)}" for word, names in (("without", missing), ("with", strange)) if names
        )
        raise CheckpointError(f"{path} is not a whole checkpoint ({what}).")
    with ThreadPoolExecutor(4) as threads:
        found = dict(zip(expected, threads.map(lambda name: _sha256_or_reason(path / name), expected)))
    for name in sorted(expected):
        if found[name] != expected[name]:
            raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the one in {_MANIFEST}.")
    return read_state(path)


def read_state(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    try:
        state = json.loads((path / _STATE).read_text())
        if not isinstance(state["step"], int) or not isinstance(state.get("guard", {}), dict):
            raise TypeError("step or guard")
        return state
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / _STATE} is not the state of a run ({error!r}).") from error


def load_into(path: Path, tensors: dict[str, Tensor], ranks: Ranks) -> None:
    """Fill tensors from a checkpoint that was verified, whatever number of ranks wrote it. All ranks must call it."""
    reader = dcp.HuggingFaceStorageReader(str(path))
    try:
        dcp.load(tensors, storage_reader=reader, no_dist=ranks.size == 1)
    except (Exception, dcp.CheckpointException) as error:  # the second, of any rank, is no Exception
        raise CheckpointError(f"{path} does not fit this run: {_reason(error)}") from error


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds of the weights, whole, on the CPU."""

    step: int
    state: dict[str, Any]
    tensors: dict[str, Tensor]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of "model", "ema" or "optimizer", without that in front."""
        return {key.partition("/")[2]: value for key, value in self.tensors.items() if key.startswith(f"{name}/")}


def load(path: Path, *parts: str) -> Checkpoint:
    """Read a checkpoint, or the parts of it that are named, in one process, after comparing all files with their
    checksums."""
    state = verify(path)
    try:
        found = dcp.HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    except Exception as error:  # of safetensors, or of what a header says
        raise CheckpointError(f"{path} holds something else than the tensors of a run: {_reason(error)}") from error
    wanted = {name: meta for name, meta in found.items() if not parts or name.partition("/")[0] in parts}
    tensors = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in wanted.items()
        if isinstance(meta, dcp.TensorStorageMetadata)  # safetensors hold nothing else
    }
    load_into(path, tensors, Ranks())
    return Checkpoint(state["step"], {key: value for key, value in state.items() if key != "step"}, tensors)


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_or_reason(path: Path) -> str:
    if path.is_symlink():
        return "a link"
    for wait in (*_PATIENCE, None):
        try:
            return sha256(path)
        except OSError as error:  # a bad moment of the file system, and no damage
            if wait is None:
                raise CheckpointUnavailable(
                    f"{path} cannot be read ({_reason(error)}). Is the file system there?"
                ) from error
            time.sleep(wait)
    raise AssertionError


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
