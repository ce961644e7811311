"""Files on disks that fail: writes that a crash cannot cut in half, reads that are tried again."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

RETRY_SECONDS = (0.1, 0.5, 2.0)
"""Pauses before a read is tried again."""

T = TypeVar("T")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file, flush it to disk, then rename it: a reader sees the old file or the complete new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def with_retries(read: Callable[[], T], errors: type[Exception] | tuple[type[Exception], ...]) -> T:
    """Call `read`, up to three more times after `errors`: shared file systems fail for short times."""
    for pause in RETRY_SECONDS:
        try:
            return read()
        except errors:
            time.sleep(pause)
    return read()
