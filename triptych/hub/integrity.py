"""Checksums of a saved model, in its config.json: "files" has the size and SHA-256 of every other file, and "checksum"
is the SHA-256 of config.json's own content without that key.

One file holds them all, so one atomic write changes a setting and its checksum together. The model card is text for
people and may be edited: it is listed, but a change of it is no damage.
"""

import json
from pathlib import Path
from typing import Any

from triptych.errors import CheckpointError
from triptych.hub.source import CONFIG
from triptych.utils.checksums import checksums, differing_files, sha256_of_json
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json

WEIGHTS, CARD, TOKENIZERS = "model.safetensors", "README.md", "tokenizers"
_FILES, _CHECKSUM = "files", "checksum"  # keys of config.json
_MAX_CONFIG_BYTES = 16 << 20


def read_raw_config(folder: Path) -> dict[str, Any]:
    """The content of config.json, unchecked. Raises OSError or ValueError if it is no JSON object."""
    config = read_json(folder / CONFIG, _MAX_CONFIG_BYTES)
    if not isinstance(config, dict):
        raise ValueError(f"expected an object, got {type(config).__name__}")
    return config


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write config.json with its own checksum."""
    content = {key: value for key, value in config.items() if key != _CHECKSUM}
    content[_CHECKSUM] = sha256_of_json(content)
    write_atomically(folder / CONFIG, (json.dumps(content, indent=2) + "\n").encode())


def write_checksums(folder: Path, config: dict[str, Any]) -> None:
    """Write config.json with the checksums of the other files as they are now."""
    write_config(folder, {**config, _FILES: checksums(folder, _saved_files(folder))})


def has_checksums(config: dict[str, Any]) -> bool:
    """Whether the model was saved with checksums; earlier versions wrote none."""
    return _FILES in config or _CHECKSUM in config


def check_config(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a config.json that does not match its own checksum."""
    if not has_checksums(config):
        return
    content = {key: value for key, value in config.items() if key != _CHECKSUM}
    if not isinstance(config.get(_FILES), dict) or config.get(_CHECKSUM) != sha256_of_json(content):
        raise _damaged(folder, f"{CONFIG} does not match its checksum")


def check_files(folder: Path, config: dict[str, Any]) -> bool:
    """Refuse files that do not match the checksums in a checked config; returns whether the model card matches."""
    if not has_checksums(config):
        return True
    expected, present = {WEIGHTS: None, **config[_FILES]}, _saved_files(folder)  # a model without weights is none
    problems = differing_files(folder, present - {CARD}, {name: expected[name] for name in expected if name != CARD})
    if problems:
        raise _damaged(folder, "; ".join(problems))
    card = {CARD: expected[CARD]} if CARD in expected else {}
    return not differing_files(folder, present & {CARD}, card)


def _damaged(folder: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} is damaged: {what}. Restore it from a copy; or, if you have edited its files yourself, accept them "
        f"with `triptych verify {folder} --update`."
    )


def _saved_files(folder: Path) -> set[str]:
    """The files of a model that are ever read; hidden files, as some systems write them, are none."""
    tokenizers = (path for path in (folder / TOKENIZERS).rglob("*") if path.is_file() and path.name[0] != ".")
    files = [folder / name for name in (WEIGHTS, CARD) if (folder / name).is_file()]
    return {path.relative_to(folder).as_posix() for path in (*files, *tokenizers)}
