"""Save checkpoints in the background."""

import json
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor

from triptych.errors import CheckpointError
from triptych.training.checkpoint import (
    MANIFEST,
    PARTIAL,
    STATE,
    VERSION,
    checkpoint_name,
    is_rollback_target,
    list_checkpoints,
    reason,
)
from triptych.training.ranks import Ranks
from triptych.utils.checksums import sha256


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
        partial = self.folder / f"{PARTIAL}{checkpoint_name(step)}"
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
            hashes_or_problem = reason(error)
        parts, path = self._thread_ranks.gather(hashes_or_problem), None
        problem = next((part for part in parts if isinstance(part, str)), "")
        if self.ranks.is_rank0:
            try:
                if not problem:
                    hashes = {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}
                    path = publish(self.folder, partial, state, hashes, self.keep)
            except OSError as error:
                problem = reason(error)
            if problem:
                shutil.rmtree(partial, ignore_errors=True)
        path, problem = self._thread_ranks.broadcast((path, problem))
        return SaveResult(state["step"], path, problem, seconds=time.monotonic() - start)


def _prepare(folder: Path, partial: Path) -> str:
    """Create the temporary folder and delete old ones; returns why it cannot, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{PARTIAL}*"):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        partial.mkdir()
    except OSError as error:
        return reason(error)
    return ""


def publish(folder: Path, partial: Path, state: dict[str, Any], hashes: dict[str, str], keep: int) -> Path:
    """Rename a written checkpoint to its final name, then delete all but the newest `keep`."""
    missing = [name for name in hashes if not (partial / name).is_file()]
    if missing:
        raise OSError(f"rank 0 cannot see {missing[0]}: all nodes must share the folder of the run")
    (partial / STATE).write_text(json.dumps(state, indent=2) + "\n")
    hashes = {**hashes, STATE: sha256(partial / STATE)}
    manifest = {"format": "triptych-checkpoint", "version": VERSION, "sha256": hashes}
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (partial / STATE, partial / MANIFEST, partial):
        _sync(path)
    final, replaced = folder / checkpoint_name(state["step"]), folder / f"{PARTIAL}replaced"
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


def check_writable(folder: Path) -> None:
    """Raise an error before the first step if checkpoints cannot be written."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be written to {folder} ({reason(error)}). Choose another --out, or make room."
        ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
