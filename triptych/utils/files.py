"""Files on disks that fail: writes that a crash cannot cut in half, reads that are tried again."""

import errno
import os
import stat
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from triptych.errors import DamageWarning, DataError

RETRY_SECONDS = (0.1, 0.5, 2.0)
"""Pauses before a read is tried again."""

_MOST_NAMED = 5  # folders in a warning

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


def open_regular(path: str | Path) -> int:
    """A descriptor to read a file from. Anything else, such as a pipe without a writer, is an `OSError`, not a wait."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(kind) else "not a regular file", str(path))
    return handle


def files_below(folder: Path, skip: Callable[[OSError], None] | None = None) -> list[Path]:
    """Everything below a folder but folders and what is hidden, sorted.

    `skip` gets the error of each folder in it that cannot be listed; by default a warning counts and names them.
    """
    skipped: list[OSError] = []

    def on_error(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise DataError(f"the folder {folder} cannot be read: {error.strerror}.") from error
        (skip or skipped.append)(error)

    files: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=on_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += (Path(parent, name) for name in names if not name.startswith("."))
    if skipped:
        shown = ", ".join(f"{error.filename} ({error.strerror})" for error in skipped[:_MOST_NAMED])
        more = f" and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
        warnings.warn(f"{len(skipped)} folders are left out: {shown}{more}", DamageWarning, stacklevel=2)
    return sorted(files)


def with_retries(read: Callable[[], T], errors: type[Exception] | tuple[type[Exception], ...]) -> T:
    """Call `read`, up to three more times after `errors`: shared file systems fail for short times."""
    for pause in RETRY_SECONDS:
        try:
            return read()
        except errors:
            time.sleep(pause)
    return read()
