"""Several processes on this machine, started, watched and restarted by PyTorch's elastic agent, as `torchrun` does."""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from triptych.errors import UserError

_GRACE = 600  # seconds that ranks have to save after a signal, before they are killed
_FINAL = (0, 2, 3, 4, 5, 75, 130)  # exit codes after which to begin again would change nothing, or was not asked for


def launch(
    words: Sequence[str], processes: int, max_restarts: int = 0, nodes: int = 1, endpoint: str | None = None
) -> int:
    """Run `python -m triptych WORDS` as so many ranks on this machine, of so many; returns the exit code.

    When a rank crashes, the others are stopped and all begin again from the newest checkpoint, so many times. What a
    user has to mend is not tried again.
    """
    if processes < 1 or nodes < 1 or max_restarts < 0:
        raise UserError(
            f"--nproc and --nnodes must be at least 1 and --max-restarts 0, got {processes}, {nodes}, {max_restarts}."
        )
    if nodes > 1 and endpoint is None:
        raise UserError("--nnodes needs --meet HOST:PORT: a place on one of the machines, the same for all of them.")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)  # ranks speak for themselves
    # Threads of several processes that fight over cores are slower than one each.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    if nodes > 1:  # the agents of all machines begin again together
        return _launch_once(words, processes, max_restarts, nodes, endpoint)
    code = 0
    for _ in range(max_restarts + 1):
        code = _launch_once(words, processes, 0, 1, None)
        if code in _FINAL:
            break
        print("triptych: a rank has crashed; all begin again from the newest checkpoint", file=sys.stderr)
    return code


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
        shutdown_timeout=int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _GRACE)),
    )
    try:
        elastic_launch(config, sys.executable)("-m", "triptych", *words)
        return 0
    except SignalException as stop:
        return 130 if stop.sigval == signal.SIGINT else 75
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        # A negative code is the number of the signal that killed it.
        return first.exitcode if 0 < first.exitcode < 128 else 1
