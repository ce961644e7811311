"""Exclusive locks on files. The operating system releases them when a process ends, even if it is killed."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import IO, Any

from triptych.errors import UserError


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


class FolderLock:
    """Lets one process at a time write to a folder. `activity` and `option` are for the message to the second one."""

    def __init__(self, folder: Path, activity: str = "written", option: str = "--out"):
        self.path = folder / "lock"
        self.activity, self.option = activity, option
        self._file: IO[str] | None = None
        self._is_new = not folder.exists()

    def take(self) -> None:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._file = hold_lock(self.path, f"process {os.getpid()} on {socket.gethostname()}")
        except AlreadyLocked as error:
            owner = error.owner or "another process"
            raise UserError(
                f"{folder} is being {self.activity} by {owner}: stop that run, or choose another {self.option}."
            ) from None
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be locked ({error.strerror}). Choose another {self.option}."
            ) from error

    def release(self, *, undo: bool = False) -> None:
        """Release the lock; with `undo`, also remove the lock file and the folder if `take` created the folder."""
        if self._file is None:
            return
        if undo and self._is_new:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()
        self._file.close()
