"""The interface of all tokenizers. Concrete classes are final: wrap them, do not subclass them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from PIL.Image import Image

from triptych.errors import CheckpointError, UserError
from triptych.utils.json_files import read_json
from triptych.utils.media import Audio
from triptych.vocab import Modality

Item = TypeVar("Item")

MAX_RESOLUTION = 1 << 13
"""Most pixels along an image of a tokenizer; more is a damaged or hostile file."""


class Tokenizer(Protocol[Item]):
    """Item is `str` for text, `PIL.Image.Image` (RGB) for images, `Audio` for audio.

    Encoding and decoding are batched and deterministic: an item's ids do not depend on the rest of the batch.
    Ids are local (from 0), 1-D, int32. `fingerprint` is the SHA-256 of everything that decides the meaning of an id.
    A saved tokenizer is a folder with `tokenizer.json` (field "kind") and its weights, without pickle.
    """

    modality: Modality

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, items: Sequence[Item]) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[np.ndarray]) -> list[Item]: ...

    def save(self, folder: Path) -> None: ...

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer[Item]": ...


class ImageTokenizer(Tokenizer[Image], Protocol):
    """Encodes an image as a square of `num_codebooks` ids each, row by row from the top."""

    @property
    def num_codebooks(self) -> int: ...

    @property
    def resolution(self) -> int:
        """Width and height of an image in pixels."""

    @property
    def tokens_per_image(self) -> int: ...


class AudioTokenizer(Tokenizer[Audio], Protocol):
    """Encodes audio as frames of `num_codebooks` ids each."""

    @property
    def num_codebooks(self) -> int: ...

    @property
    def frame_rate(self) -> float:
        """Frames per second."""


def check_image_ids(row: np.ndarray, tokens_per_image: int, vocab_size: int) -> None:
    """Raise an error unless these are the ids of one image."""
    if np.shape(row) != (tokens_per_image,):
        raise UserError(f"an image has {tokens_per_image} tokens, got {np.shape(row)}.")
    if np.min(row) < 0 or np.max(row) >= vocab_size:
        raise UserError(f"image token ids must be in [0, {vocab_size}), got {np.min(row)} to {np.max(row)}.")


def write_spec(folder: Path, kind: str, **fields: Any) -> None:
    """Write `tokenizer.json`, which identifies a saved tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({"kind": kind, "version": 1, **fields}, indent=2) + "\n")


def read_spec(folder: Path, known: Sequence[str] | None = None) -> dict[str, Any]:
    """Read `tokenizer.json`; its kind must be one of `known`, if given."""
    path = folder / "tokenizer.json"
    try:
        spec = read_json(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} holds no tokenizer: {path.name} is missing.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error
    is_known = isinstance(spec, dict) and spec.get("version") == 1 and (known is None or spec.get("kind") in known)
    if not is_known:
        kinds = f"one of the kinds {', '.join(known)}" if known else "a kind of tokenizer"
        raise CheckpointError(f"{path} must name {kinds} (version 1), got {str(spec)[:200]}.")
    return spec


def hash_arrays(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of a configuration and named arrays, independent of their order."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}:{array.dtype}:{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
