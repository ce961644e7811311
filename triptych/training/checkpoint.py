"""Checkpoints: folders of safetensors and JSON, written to a temporary folder, then renamed; verified by SHA-256.

RUN/checkpoints/step-00001000/
    shard-00001-*.safetensors   rank 0's part of every tensor: "model/NAME", "ema/NAME", "optimizer/NAME/exp_avg"
    shard-00002-*.safetensors   rank 1's part ...
    state.json                  step, position in the data, configuration, vocabulary, tokenizers
    manifest.json               SHA-256 of the other files; written last

The shards have the safetensors format of torch.distributed.checkpoint (DCP), whose file headers say where each part of
a tensor belongs. So any number of ranks can read what any other number has written, and nothing is ever unpickled.
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
from triptych.utils.files import with_retries
from triptych.utils.legacy import with_current_keys, with_current_model_keys

_PARTIAL, _BAD = ".partial-", "bad-"
_VERSION = 2
_STATE, _MANIFEST = "state.json", "manifest.json"
# DCP warns about a process without a process group, which is the usual case here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


# -- tensors ----------------------------------------------------------------------------------------------------------


def run_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, ema: nn.Module | None) -> dict[str, Tensor]:
    """All tensors that training changes, by parameter name rather than by index in a group. Nothing is copied."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    if ema is not None:
        tensors |= {f"ema/{name}": value for name, value in ema.state_dict().items()}
    for name, parameter in model.named_parameters():
        tensors |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state[parameter].items()}
    return tensors


def init_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Create the optimizer's state before its first step, so that a checkpoint can be loaded into it."""
    for _, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }


# -- saving -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SaveResult:
    """The outcome of a save, the same on all ranks."""

    step: int
    path: Path | None
    """Folder of the checkpoint; None if it could not be written."""
    problem: str = ""
    """Why it could not be written."""
    blocked: float = 0.0
    """Seconds that training waited for it."""
    seconds: float = 0.0
    """Seconds from the start of the save to the rename."""


class AsyncCheckpointer:
    """Saves checkpoints in the background: tensors are copied, then written, hashed and published in a thread.

    There is at most one save at a time: the next one waits for it.
    """

    def __init__(self, folder: Path, keep: int, ranks: Ranks = Ranks()):  # noqa: B008 (frozen)
        self.folder, self.keep, self.ranks = folder, keep, ranks
        self._thread_ranks = ranks.new_group()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[SaveResult] | None = None
        self._blocked = 0.0

    @property
    def is_saving(self) -> bool:
        """Whether there is a save whose result `wait` has not returned yet."""
        return self._pending is not None

    @property
    def is_done(self) -> bool:
        """Whether that save has succeeded or failed on this rank."""
        return self._pending is not None and self._pending.done()

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> list[SaveResult]:
        """Copy the tensors and start to write them. All ranks must call it.

        Returns the result of the previous save, if it was still pending, and of this one if it could not start.
        """
        previous = [self.wait()] if self._pending is not None else []
        start = time.monotonic()
        partial = self.folder / f"{_PARTIAL}{_name(step)}"
        problem = self.ranks.broadcast(_prepare(self.folder, partial) if self.ranks.is_rank0 else "")
        if problem:
            return [*previous, SaveResult(step, None, problem)]
        writing = dcp.async_save(
            dict(tensors),
            storage_writer=dcp.HuggingFaceStorageWriter(str(partial), save_distributed=True),
            process_group=self._thread_ranks.group,
            no_dist=self.ranks.size == 1,
        )
        assert isinstance(writing, Future)
        self._pending = self._thread.submit(self._complete, writing, partial, {"step": step, **state}, start)
        self._blocked = time.monotonic() - start
        return previous

    def wait(self) -> SaveResult:
        """Wait for the pending save."""
        assert self._pending is not None
        start = time.monotonic()
        result = self._pending.result()
        self._pending = None
        return replace(result, blocked=self._blocked + time.monotonic() - start)

    def close(self) -> None:
        """Let the pending save finish. With several ranks nobody waits for it: another rank may be dead."""
        self._thread.shutdown(wait=self.ranks.size == 1)

    def _complete(self, writing: "Future[Any]", partial: Path, state: dict[str, Any], start: float) -> SaveResult:
        """Hash what this rank has written; rank 0 publishes the checkpoint and sends the outcome to the others."""
        hashes_or_problem: dict[str, str] | str
        try:
            writing.result()
            hashes_or_problem = {path.name: sha256(path) for path in partial.glob(f"shard-{self.ranks.rank + 1:05d}-*")}
        except (Exception, dcp.CheckpointException) as error:  # CheckpointException is a BaseException
            hashes_or_problem = _reason(error)
        parts, path = self._thread_ranks.gather(hashes_or_problem), None
        problem = next((part for part in parts if isinstance(part, str)), "")
        if self.ranks.is_rank0:
            try:
                if not problem:
                    hashes = {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}
                    path = publish(self.folder, partial, state, hashes, self.keep)
            except OSError as error:
                problem = _reason(error)
            if problem:
                shutil.rmtree(partial, ignore_errors=True)
        path, problem = self._thread_ranks.broadcast((path, problem))
        return SaveResult(state["step"], path, problem, seconds=time.monotonic() - start)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _prepare(folder: Path, partial: Path) -> str:
    """Create the temporary folder and delete old ones; returns why it cannot, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(leftover)
        partial.mkdir()
    except OSError as error:
        return _reason(error)
    return ""


def _reason(error: BaseException) -> str:
    """One line that says why a file could not be written or read."""
    for inner in getattr(error, "failures", {}).values():  # DCP: rank -> (error, stack)
        return _reason(inner[0] if isinstance(inner, tuple) else inner)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def publish(folder: Path, partial: Path, state: dict[str, Any], hashes: dict[str, str], keep: int) -> Path:
    """Rename a written checkpoint to its final name, then delete all but the newest `keep`."""
    missing = [name for name in hashes if not (partial / name).is_file()]
    if missing:
        raise OSError(f"rank 0 cannot see {missing[0]}: all nodes must share the folder of the run")
    (partial / _STATE).write_text(json.dumps(state, indent=2) + "\n")
    hashes = {**hashes, _STATE: sha256(partial / _STATE)}
    manifest = {"format": "triptych-checkpoint", "version": _VERSION, "sha256": hashes}
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (partial / _STATE, partial / _MANIFEST, partial):
        _sync(path)
    final, replaced = folder / _name(state["step"]), folder / f"{_PARTIAL}replaced"
    if final.exists():  # the same step was saved before; the existing checkpoint is complete, but may be older
        os.replace(final, replaced)
    os.replace(partial, final)
    _sync(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in _expired(list_checkpoints(folder), keep):
        shutil.rmtree(old, ignore_errors=True)
    return final


def _expired(checkpoints: list[Path], keep: int) -> list[Path]:
    """All but the newest `keep` and the newest rollback target."""
    old = checkpoints[:-keep]
    if not any(is_rollback_target(path) for path in checkpoints[-keep:]):
        targets = [path for path in old if is_rollback_target(path)]
        old = [path for path in old if path not in targets[-1:]]
    return old


def is_rollback_target(path: Path) -> bool:
    """Whether a run may roll back to this checkpoint: one saved on schedule, not by a stop.

    An interrupted run and an uninterrupted one have the same scheduled checkpoints, so they roll back to the same one.
    """
    try:
        return bool(read_state(path).get("guard", {}).get("is_anchor"))
    except CheckpointError:
        return False


def check_writable(folder: Path) -> None:
    """Raise an error before the first step if checkpoints cannot be written."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be written to {folder} ({_reason(error)}). Choose another --out, or make room."
        ) from error


# -- reading ----------------------------------------------------------------------------------------------------------


class CheckpointUnavailable(CheckpointError):
    """A checkpoint that may be valid, but cannot be read now or by this version. It is left where it is."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Published checkpoints, oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def newest_valid(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest valid checkpoint, and a message for each newer one that is damaged; those are renamed to bad-*.

    Checkpoints of which none is valid are an error: a run never restarts from step 0 silently.
    """
    bad: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            verify(path)
            return path, bad
        except CheckpointUnavailable:
            raise
        except CheckpointError as error:
            renamed = _rename_to_bad(path)
            bad.append(f"{error} It was renamed to {renamed.name}.")
    if bad or any(folder.glob(f"{_BAD}*")):
        raise CheckpointError(
            f"no checkpoint in {folder} is valid: {' '.join(bad) or f'all were renamed to {_BAD}* before.'} "
            "Restore one from a copy, or start a new run with another --out."
        )
    return None, []


def _rename_to_bad(path: Path) -> Path:
    number = 0
    while (renamed := path.with_name(f"{_BAD}{path.name}{f'-{number}' if number else ''}")).exists():
        number += 1
    os.replace(path, renamed)
    return renamed


def verify(path: Path) -> dict[str, Any]:
    """Raise an error unless the checkpoint is exactly what was written; returns its state."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        if isinstance(manifest["version"], int) and manifest["version"] != _VERSION:
            raise CheckpointUnavailable(
                f"{path} is a checkpoint of version {manifest['version']}, but this software reads version {_VERSION}. "
                "Use the version of Triptych that wrote it, or start a new run with another --out."
            )
        if manifest["format"] != "triptych-checkpoint":
            raise ValueError(f"it is a {manifest['format']}")
        expected: dict[str, str] = dict(manifest["sha256"])
        present = {file.name for file in path.iterdir()} - {_MANIFEST}
    except CheckpointUnavailable:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not a complete checkpoint ({error!r}).") from error
    if present != expected.keys():
        missing, extra = sorted(expected.keys() - present), sorted(present - expected.keys())
        what = "; ".join(
            f"{word} {', '.join(names)}" for word, names in (("missing", missing), ("unexpected", extra)) if names
        )
        raise CheckpointError(f"{path} is not a complete checkpoint ({what}).")
    with ThreadPoolExecutor(4) as threads:
        actual = dict(zip(expected, threads.map(lambda name: _sha256_of_file(path / name), expected)))
    for name in sorted(expected):
        if actual[name] != expected[name]:
            raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the one in {_MANIFEST}.")
    return read_state(path)


def read_state(path: Path) -> dict[str, Any]:
    """The contents of `state.json`, with current configuration keys."""
    try:
        state = json.loads((path / _STATE).read_text())
        if not isinstance(state["step"], int) or not isinstance(state.get("guard", {}), dict):
            raise TypeError("step or guard")
        for key, rename in (("config", with_current_keys), ("shape", with_current_model_keys)):
            if key in state:
                state[key] = rename(state[key])
        return state
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / _STATE} is not the state of a run ({error!r}).") from error


def load_into(path: Path, tensors: dict[str, Tensor], ranks: Ranks) -> None:
    """Fill tensors from a verified checkpoint, whatever number of ranks wrote it. All ranks must call it."""
    reader = dcp.HuggingFaceStorageReader(str(path))
    try:
        dcp.load(tensors, storage_reader=reader, no_dist=ranks.size == 1)
    except (Exception, dcp.CheckpointException) as error:  # CheckpointException is a BaseException
        raise CheckpointError(f"{path} does not fit this run: {_reason(error)}") from error


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, or parts of one, with full tensors on the CPU."""

    step: int
    state: dict[str, Any]
    tensors: dict[str, Tensor]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of "model", "ema" or "optimizer", without that prefix."""
        return {key.partition("/")[2]: value for key, value in self.tensors.items() if key.startswith(f"{name}/")}


def load(path: Path, *parts: str) -> Checkpoint:
    """Verify a checkpoint and read it, or only the named parts of it, in one process."""
    state = verify(path)
    try:
        metadata = dcp.HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    except Exception as error:  # of safetensors, or a malformed header
        raise CheckpointError(f"{path} does not hold the tensors of a run: {_reason(error)}") from error
    wanted = {name: meta for name, meta in metadata.items() if not parts or name.partition("/")[0] in parts}
    tensors = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in wanted.items()
        if isinstance(meta, dcp.TensorStorageMetadata)  # always true of safetensors
    }
    load_into(path, tensors, Ranks())
    return Checkpoint(state["step"], {key: value for key, value in state.items() if key != "step"}, tensors)


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_file(path: Path) -> str:
    """The hash of a regular file; reads that fail are tried again, because that is not damage."""
    if path.is_symlink():
        return "a link"
    try:
        return with_retries(lambda: sha256(path), OSError)
    except OSError as error:
        raise CheckpointUnavailable(
            f"{path} cannot be read ({_reason(error)}). Is the file system available?"
        ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
