"""Exclusive locks on files. The operating system releases them when a process ends, even if it is killed."""

import fcntl
from pathlib import Path
from typing import IO, Any


class AlreadyLocked(Exception):
    """Another process holds the lock."""

    def __init__(self, owner: str):
        super().__init__(f"locked by {owner or 'another process'}")
        self.owner = owner
        """What that process wrote into the file about itself; may be empty."""


def lock_file(file: IO[Any]) -> None:
    """Lock an open file until it is closed; wait while another process holds the lock."""
    fcntl.flock(file, fcntl.LOCK_EX)


def hold_lock(path: Path, owner: str) -> IO[str]:
    """Lock a file, created if missing, and write the owner into it. Closing the returned file releases the lock.

    Raises `AlreadyLocked`, or `OSError` where the file system has no locks.
    """
    file = open(path, "a+")  # noqa: SIM115 (the caller closes it)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(owner)
        file.flush()
    except (BlockingIOError, PermissionError):  # which one depends on the system
        file.seek(0)
        running = file.read().strip()
        file.close()
        raise AlreadyLocked(running) from None
    except OSError:
        file.close()
        raise
    return file
