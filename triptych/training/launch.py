"""Start several ranks on this machine with PyTorch's elastic agent, as `torchrun` does; restart them after a crash."""

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from triptych.errors import UserError
from triptych.training.signals import exit_code_after

_GRACE_SECONDS = 600  # for ranks to save after a signal, before they are killed
_FINAL_CODES = (0, 2, 3, 4, 5, 75, 130)  # a restart would not help, or was not wanted
_PRINTED = "TRIPTYCH_PRINTED"  # environment variable: folder with a file for each message that a rank has printed


def launch(
    words: Sequence[str], processes: int, max_restarts: int = 0, nodes: int = 1, endpoint: str | None = None
) -> int:
    """Run `python -m triptych WORDS` as `processes` ranks on this machine, one of `nodes`; returns the exit code.

    When a rank crashes, the others are stopped and all ranks resume from the newest checkpoint, at most `max_restarts`
    times. Errors that a user has to fix are not tried again.
    """
    if processes < 1 or nodes < 1 or max_restarts < 0:
        raise UserError(
            f"--nproc and --nnodes must be at least 1 and --max-restarts 0, got {processes}, {nodes}, {max_restarts}."
        )
    if nodes > 1 and endpoint is None:
        raise UserError(
            "--nnodes needs --rdzv-endpoint HOST:PORT, the address of one machine, the same on all of them."
        )
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Processes that share cores are fastest with few threads each.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    if nodes > 1:  # the agents of all machines restart together
        return _launch_once(words, processes, max_restarts, nodes, endpoint)
    code = 0
    for restarts_left in range(max_restarts, -1, -1):
        code = _launch_once(words, processes, 0, 1, None)
        if code in _FINAL_CODES or not restarts_left:
            break
        print("triptych: a rank has crashed; all ranks resume from the newest checkpoint", file=sys.stderr)
    return code


def is_first_to_print(message: str, *, alone: bool = False) -> bool:
    """Whether no other rank of this `launch` has printed the same message; true in a process of another origin.

    `alone`: whether no other rank has printed anything.
    """
    folder = os.environ.get(_PRINTED)
    if folder is None:
        return True
    try:
        attempt = Path(folder) / os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # ranks that restarted report anew
        attempt.mkdir(exist_ok=True)
        if alone and any(attempt.iterdir()):
            return False
        (attempt / hashlib.sha256(message.encode()).hexdigest()).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _launch_once(words: Sequence[str], processes: int, max_restarts: int, nodes: int, endpoint: str | None) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=processes,
        run_id="triptych" if nodes > 1 else f"triptych-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint or "localhost:0",
        local_addr=None if nodes > 1 else "localhost",
        max_restarts=max_restarts,
        signals_to_handle="SIGTERM,SIGINT,SIGUSR1,SIGHUP,SIGQUIT",
        shutdown_timeout=int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _GRACE_SECONDS)),
    )
    with tempfile.TemporaryDirectory(prefix="triptych-") as printed:
        os.environ[_PRINTED] = printed
        logging.disable(logging.CRITICAL)  # of the agent: ranks report their own errors
        try:
            elastic_launch(config, sys.executable)("-m", "triptych", *words)
            return 0
        except SignalException as stop:
            return exit_code_after(stop.sigval)
        except ChildFailedError as failed:
            _, first = failed.get_first_failure()
            # A negative code is the number of the signal that killed the rank.
            return first.exitcode if 0 < first.exitcode < 128 else 1
        finally:
            del os.environ[_PRINTED]
            logging.disable(logging.NOTSET)
