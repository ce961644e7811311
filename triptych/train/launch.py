"""Several processes on this machine, started, watched and restarted by PyTorch's elastic agent, as `torchrun` does."""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from triptych.errors import UserError

_GRACE = 600  # seconds that ranks have to save after a signal, before they are killed


def launch(words: Sequence[str], processes: int, max_restarts: int) -> int:
    """Run `python -m triptych WORDS` as so many ranks; returns the exit code.

    When a rank dies, the others are stopped and all begin again from the newest checkpoint, so many times.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if processes < 1 or max_restarts < 0:
        raise UserError(f"--nproc must be at least 1 and --max-restarts 0, got {processes} and {max_restarts}.")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)  # ranks speak for themselves
    # Threads of several processes that fight over cores are slower than one each.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"triptych-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=max_restarts,
        signals_to_handle="SIGTERM,SIGINT,SIGUSR1",
        shutdown_timeout=_GRACE,
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
