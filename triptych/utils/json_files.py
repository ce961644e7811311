"""The one reader of JSON. Files may be damaged or hostile: size and depth are bounded, and a problem is one line.

Python's parser alone raises RecursionError for deep nesting, waits for ever for the writer of a FIFO, and takes a
content that is nested almost too deep, at which the next function fails that walks through it.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from triptych.errors import DataError

MAX_BYTES = 256 << 20
"""Largest file or text that is read; the merges of a large vocabulary take some ten MB."""
_MAX_TEXT_BYTES = 32 << 20
"""Largest file of text for people: prompts, a model card, keys."""
MAX_DEPTH = 64
"""Most objects and arrays within each other."""


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The content of a file. Raises OSError if it cannot be read, and DataError, a ValueError, if it is not JSON."""
    content = read_bounded(path, max_bytes)
    try:
        return parse_json(content, max_bytes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def parse_json(text: str | bytes, max_bytes: int = MAX_BYTES, *, allow_nan: bool = True) -> Any:
    """The content of a text, or of one line of a file. Raises DataError, a ValueError, if it is not JSON.

    `allow_nan`: whether NaN and Infinity are numbers, as in Python's JSON, but not in the standard.
    """
    if len(text) > max_bytes:
        raise DataError(f"expected at most {max_bytes:,} bytes of JSON, got {len(text):,}.")
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        content = json.loads(decoded, parse_constant=None if allow_nan else _refuse)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except RecursionError:
        raise DataError(_TOO_DEEP) from None  # the chained error would hold a thousand frames
    except ValueError as error:  # also of a number with thousands of digits
        raise DataError(f"not JSON ({error}).") from error
    _check_depth(content)
    return content


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The bytes of a regular file of a limited size. Raises OSError if it cannot be read, and DataError otherwise."""
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: not a regular file.")
        if status.st_size > max_bytes:
            raise DataError(f"{path}: expected at most {max_bytes:,} bytes, got {status.st_size:,}.")
        return file.read(status.st_size)  # a larger number would be allocated at once


def read_text(path: Path, encoding: str = "utf-8", *, errors: str = "strict") -> str:
    """The text of a file, as `read_bounded`. Raises OSError, or a ValueError: also of what is not in the encoding."""
    return read_bounded(path, _MAX_TEXT_BYTES).decode(encoding, errors)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


_TOO_DEEP = f"expected JSON of at most {MAX_DEPTH} levels, got a deeper one."


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise DataError(_TOO_DEEP)
