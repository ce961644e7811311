"""Processes that end when the one that started them is gone, even if it was killed."""

import os
import signal
import threading
import time
from collections.abc import Mapping

_PARENT = "TRIPTYCH_PARENT"
_POLL_SECONDS, _GRACE_SECONDS = 0.5, 600
_EXIT_CODE = 75


def with_parent(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a command that is to end with this process."""
    return {**environment, _PARENT: str(os.getpid())}


def grace_seconds() -> float:
    """How long a process that is asked to stop may take to save, before it is killed."""
    return float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _GRACE_SECONDS))


def follow_parent() -> None:
    """From now on, end when the process that started this one ends, if it asked for that with `with_parent`.

    This process gets SIGTERM, so that a run can save; if it does not end within `grace_seconds`, it is killed.
    """
    parent = os.environ.pop(_PARENT, None)  # not for the processes that this one starts
    if parent is not None:
        threading.Thread(target=_follow, args=(int(parent), grace_seconds()), daemon=True).start()


def _follow(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os._exit(_EXIT_CODE)
