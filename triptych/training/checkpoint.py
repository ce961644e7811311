"""Checkpoints: folders of safetensors and JSON, written to a temporary folder, then renamed; verified by SHA-256.

RUN/checkpoints/step-00001000/
    shard-00001-*.safetensors   rank 0's part of every tensor: "model/NAME", "ema/NAME", "optimizer/NAME/exp_avg"
    shard-00002-*.safetensors   rank 1's part ...
    state.json                  step, position in the data, configuration, vocabulary, tokenizers
    manifest.json               SHA-256 of the other files; written last

The shards have the safetensors format of torch.distributed.checkpoint (DCP), whose file headers say where each part of
a tensor belongs. So any number of ranks can read what any other number has written, and nothing is ever unpickled.
"""

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from triptych.errors import CheckpointError
from triptych.training.checkpoint_contents import check_headers, not_finite, read_headers
from triptych.training.distributed import local
from triptych.training.ranks import Ranks
from triptych.utils.checksums import sha256
from triptych.utils.files import with_retries
from triptych.utils.json_files import read_json
from triptych.utils.legacy import with_current_keys, with_current_model_keys
from triptych.utils.tensors import is_finite

PARTIAL = ".partial-"
"""Prefix of the folder of a checkpoint that is being written."""
STATE, MANIFEST, VERSION = "state.json", "manifest.json", 2
_BAD = "bad-"
T = TypeVar("T")
# DCP warns about a process without a process group, which is the usual case here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def checkpoint_name(step: int) -> str:
    """Name of the folder of a checkpoint."""
    return f"step-{step:08d}"


MAX_STEP = 2**53
"""Beyond any run; exact in every number format that a state is used in."""


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
    if path.is_symlink():
        raise CheckpointUnavailable(f"{path} is a link. A checkpoint is a folder of its run: copy it here.")
    try:
        manifest = _read(path / MANIFEST)
        if isinstance(manifest["version"], int) and manifest["version"] != VERSION:
            raise CheckpointUnavailable(
                f"{path} is a checkpoint of version {manifest['version']}, but this software reads version {VERSION}. "
                "Use the version of Triptych that wrote it, or start a new run with another --out."
            )
        if manifest["format"] != "triptych-checkpoint":
            raise ValueError(f"it is a {manifest['format']}")
        expected: dict[str, str] = dict(manifest["sha256"])
        present = _readable(path, lambda: {file.name for file in path.iterdir()}) - {MANIFEST}
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError) as error:
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
            raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the one in {MANIFEST}.")
    return read_state(path)


def read_state(path: Path) -> dict[str, Any]:
    """The contents of `state.json`, with current configuration keys."""
    try:
        state = _read(path / STATE)
        step = state["step"]
        if type(step) is not int or not 0 <= step <= MAX_STEP or not isinstance(state.get("guard", {}), dict):
            raise TypeError("step or guard")
        for key, rename in (("config", with_current_keys), ("shape", with_current_model_keys)):
            if key in state:
                state[key] = rename(state[key])
        return state
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / STATE} is not the state of a run ({error!r}).") from error


def is_rollback_target(path: Path) -> bool:
    """Whether a run may roll back to this checkpoint: one saved on schedule, not by a stop.

    An interrupted run and an uninterrupted one have the same scheduled checkpoints, so they roll back to the same one.
    """
    try:
        return bool(read_state(path).get("guard", {}).get("is_anchor"))
    except CheckpointError:
        return False


def load_into(path: Path, tensors: dict[str, Tensor], ranks: Ranks) -> None:
    """Fill tensors from a verified checkpoint, whatever number of ranks wrote it. All ranks must call it."""
    check_headers(path, tensors)
    reader = dcp.HuggingFaceStorageReader(str(path))
    try:
        dcp.load(tensors, storage_reader=reader, no_dist=ranks.size == 1)
    except (Exception, dcp.CheckpointException) as error:  # CheckpointException is a BaseException
        raise CheckpointError(f"{path} does not fit this run: {reason(error)}") from error
    bad = next((name for name, tensor in tensors.items() if not is_finite(local(tensor))), None)
    if ranks.any([bad is not None])[0]:  # all ranks end, not only the one that has the number
        raise not_finite(path, next(name for name in ranks.gather(bad) if name is not None))


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
    tensors = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in read_headers(path).items()
        if not parts or name.partition("/")[0] in parts
    }
    load_into(path, tensors, Ranks())
    return Checkpoint(state["step"], {key: value for key, value in state.items() if key != "step"}, tensors)


def _sha256_of_file(path: Path) -> str:
    """The hash of a regular file."""
    return "a link" if path.is_symlink() else _readable(path, lambda: sha256(path))


def _read(path: Path) -> Any:
    """The contents of a JSON file of a checkpoint."""
    return _readable(path, lambda: read_json(path))


def _readable(path: Path, read: Callable[[], T]) -> T:
    """What `read` returns. Reads that fail are tried again, because that is not damage; a file that is not there is."""

    def attempt() -> T:
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise CheckpointError(f"{path.parent} is not a complete checkpoint ({error!r}).") from error

    try:
        return with_retries(attempt, OSError)
    except OSError as error:
        raise CheckpointUnavailable(
            f"{path} cannot be read ({reason(error)}). Is the file system available?"
        ) from error


def reason(error: BaseException) -> str:
    """One line that says why a file could not be written or read."""
    for inner in getattr(error, "failures", {}).values():  # DCP: rank -> (error, stack)
        return reason(inner[0] if isinstance(inner, tuple) else inner)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
