"""Checkpoints: folders of safetensors and JSON, written aside and published by a rename, checked by SHA-256.

RUN/checkpoints/step-00001000/
    model.safetensors       weights
    ema.safetensors         their running mean, if the run keeps one
    optimizer.safetensors   moments by parameter name: "NAME/exp_avg", "NAME/exp_avg_sq", "NAME/step"
    state.json              step, position in the data, configuration, vocabulary, tokenizers
    manifest.json           SHA-256 of the other files; written last
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triptych.errors import CheckpointError

_PARTIAL = ".partial-"


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on as if it had never stopped."""

    step: int
    """Steps that are done."""
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    state: dict[str, Any]


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's moments by parameter name: no numbering that a change of groups could shift."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    if not tensors:  # every step before the checkpoint was skipped
        return
    for name, parameter in model.named_parameters():
        found = {
            key.rpartition("/")[2]: value.to(parameter.device)
            for key, value in tensors.items()
            if key.rpartition("/")[0] == name
        }
        if not found:
            raise CheckpointError(f"the checkpoint has no optimizer state for {name}; it is of another model.")
        optimizer.state[parameter] = found


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint under `folder`, then delete all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{checkpoint.step:08d}"
    partial = folder / f"{_PARTIAL}{final.name}"
    for leftover in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(leftover)
    partial.mkdir()
    _save_tensors(checkpoint.model, partial / "model.safetensors")
    _save_tensors(checkpoint.optimizer, partial / "optimizer.safetensors")
    if checkpoint.ema is not None:
        _save_tensors(checkpoint.ema, partial / "ema.safetensors")
    state = {"step": checkpoint.step, **checkpoint.state}
    (partial / "state.json").write_text(json.dumps(state, indent=2) + "\n")
    hashes = {path.name: _sha256(path) for path in sorted(partial.iterdir())}
    (partial / "manifest.json").write_text(json.dumps({"version": 1, "sha256": hashes}, indent=2) + "\n")
    for path in (*partial.iterdir(), partial):
        _sync(path)
    replaced = folder / f"{_PARTIAL}replaced"
    if final.exists():  # the same step was saved before a stop: what is there was published whole, but may be older
        os.replace(final, replaced)
    os.replace(partial, final)
    _sync(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def list_checkpoints(folder: Path) -> list[Path]:
    """Published checkpoints, oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def load(path: Path) -> Checkpoint:
    """Read a checkpoint after comparing every file with its checksum."""
    verify(path)
    state = json.loads((path / "state.json").read_text())
    ema = path / "ema.safetensors"
    return Checkpoint(
        step=state["step"],
        model=load_file(path / "model.safetensors"),
        optimizer=load_file(path / "optimizer.safetensors"),
        ema=load_file(ema) if ema.exists() else None,
        state={key: value for key, value in state.items() if key != "step"},
    )


def verify(path: Path) -> None:
    """Refuse a checkpoint that is not exactly what was written."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["version"] != 1:
            raise ValueError(f"version {manifest['version']}")
        found = {name: _sha256(path / name) for name in manifest["sha256"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint ({error!r}).") from error
    for name, expected in manifest["sha256"].items():
        if found[name] != expected:
            raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the one in manifest.json.")


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
