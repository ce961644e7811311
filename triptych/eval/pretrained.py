"""Pretrained judges of the classes in transformers, from a folder or from the Hugging Face Hub.

A folder holds what `save_pretrained` writes: config.json, model.safetensors, and the files of its processor. Weights in
pickle files are not loaded.
"""

import hashlib
import importlib.metadata
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import CheckpointError, UserError, require
from triptych.eval.metrics import file_sha256
from triptych.hub.source import HUB_PREFIX
from triptych.utils.json_files import read_json

_WEIGHTS = "model.safetensors"
_FILES = ("*.json", "*.txt", "*.model", "model*.safetensors")  # what is downloaded
# What is loaded beside the weights: of the model, its image or audio processor, and its tokenizer.
_BESIDE = ("*config.json", "tokenizer*", "vocab*", "merges.txt", "*tokens*.json", "normalizer.json", "*.model")
_EXTRA = "codecs"


@dataclass(frozen=True)
class Pretrained:
    """A folder with weights, and what it is called."""

    folder: Path
    name: str
    """For people and records: the name on the hub or of the folder, without the folders above it."""
    model_type: str
    """The architecture, as config.json names it: "dinov2", "clip"."""
    sha256: str
    """Of all files that are loaded and of the version of transformers, which both decide what the judge says."""


def find_pretrained(source: str | Path, kinds: tuple[str, ...], purpose: str) -> Pretrained:
    """The folder of a model of one of these architectures; a name on the hub is downloaded unless it is cached.

    `kinds` are names of `model_type`; empty takes any. `purpose` is for errors: "features of DINOv2".
    """
    require("transformers", _EXTRA, purpose)
    text = str(source).removeprefix(HUB_PREFIX)
    folder = Path(source)
    if not folder.is_dir():
        if text.count("/") != 1 or text.startswith((".", "/", "~")):
            raise UserError(f"{purpose}: there is no folder {str(source)!r}; give a folder, or OWNER/NAME on the hub.")
        folder = download(text, _FILES, f"{purpose}: {text}")
    try:
        model_type = str(read_json(folder / "config.json")["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{purpose}: {folder} has no config.json of a transformers model ({error!r}).") from error
    if kinds and model_type not in kinds:
        raise CheckpointError(f"{purpose}: expected a model of type {' or '.join(kinds)}, {folder} has {model_type!r}.")
    name = text if folder != Path(source) else folder.resolve().name
    return Pretrained(folder, name, model_type, _loaded_sha256(folder, purpose))


def download(name: str, files: Sequence[str], what: str) -> Path:
    """The folder of a model on the hub; offline, that of an earlier download. `what` names it in errors."""
    from huggingface_hub import snapshot_download

    try:
        try:
            return Path(snapshot_download(name, allow_patterns=list(files)))
        except Exception:  # offline: what was downloaded before may do
            return Path(snapshot_download(name, allow_patterns=list(files), local_files_only=True))
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise CheckpointError(
            f"{what} is not in the local cache and cannot be downloaded ({type(error).__name__}: {reason}). "
            "Download it where there is internet, and give its folder."
        ) from error


def _loaded_sha256(folder: Path, purpose: str) -> str:
    """Of the names and hashes of the weights and of the files beside them, and of the version of transformers."""
    weights = [folder / _WEIGHTS] if (folder / _WEIGHTS).is_file() else sorted(folder.glob("model-*.safetensors"))
    if not weights:
        raise CheckpointError(f"{purpose}: {folder} has no weights: expected {_WEIGHTS}, written by save_pretrained.")
    others = {path for pattern in _BESIDE for path in folder.glob(pattern) if path.is_file()}
    hashes = [f"{path.name} {file_sha256(path.resolve())}\n" for path in weights]
    hashes += [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in sorted(others)]
    version = f"transformers {importlib.metadata.version('transformers')}\n"
    return hashlib.sha256("".join([*hashes, version]).encode()).hexdigest()


def load_weights(model_class: Any, pretrained: Pretrained, purpose: str, device: str = "cpu") -> Any:
    """The model in float32, ready to use. Weights that are missing or of another shape are an error.

    (transformers would fill them with random numbers and go on.)
    """
    try:
        with _quiet():
            model, info = model_class.from_pretrained(
                str(pretrained.folder), use_safetensors=True, local_files_only=True, output_loading_info=True
            )
    except Exception as error:  # transformers and safetensors raise errors of many kinds
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{purpose}: {pretrained.folder} cannot be loaded ({type(error).__name__}: {reason})."
        ) from error
    absent = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if absent:
        raise CheckpointError(
            f"{purpose}: {pretrained.folder} lacks {len(absent)} weights of its model, such as {absent[0]}."
        )
    return model.float().eval().requires_grad_(False).to(device)


def load_processor(auto_class: Any, pretrained: Pretrained, purpose: str, **options: Any) -> Any:
    """A tokenizer or an image processor of the folder."""
    try:
        with _quiet():
            return auto_class.from_pretrained(str(pretrained.folder), local_files_only=True, **options)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{purpose}: {pretrained.folder} has no processor that can be loaded ({type(error).__name__}: {reason})."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the log lines and progress bars of transformers."""
    from transformers.utils import logging as log

    level, had_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if had_bars:
            log.enable_progress_bar()
