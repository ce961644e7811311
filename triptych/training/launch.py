"""Start several ranks on this machine with PyTorch's elastic agent, as `torchrun` does; restart them after a crash."""

import hashlib
import logging
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.training.signals import STOP_SIGNALS, exit_code_after
from triptych.utils.parent import grace_seconds, with_parent

STORE_FILE = "TRIPTYCH_STORE"
"""Environment variable: the file by which ranks of one machine find each other."""
_HANDLED = (*STOP_SIGNALS, signal.SIGQUIT)
_FINAL_CODES = (0, 2, 3, 4, 5, 75, 130)  # a restart would not help, or was not wanted
_PRINTED = "TRIPTYCH_PRINTED"  # environment variable: folder with a file for each message that a rank has printed


class LaunchFailed(UserError):
    """The machines of a run did not meet, or lost each other."""

    exit_code = 1


def launch(
    words: Sequence[str],
    processes: int,
    max_restarts: int = 0,
    nodes: int = 1,
    endpoint: str | None = None,
    run: Path = Path("."),
) -> int:
    """Run `python -m triptych WORDS` as `processes` ranks on this machine, one of `nodes`; returns the exit code.

    `run` is the folder of the run, which all machines share.

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
        return _launch_once(words, processes, max_restarts, nodes, endpoint, run)
    code = 0
    for restarts_left in range(max_restarts, -1, -1):
        code = _launch_once(words, processes, 0, 1, None, run)
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


def _launch_once(
    words: Sequence[str], processes: int, max_restarts: int, nodes: int, endpoint: str | None, run: Path
) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from triptych.training import rendezvous

    rendezvous.register()
    shared: dict[str, Any] = {"rdzv_backend": rendezvous.ONE_MACHINE, "run_id": f"triptych-{secrets.token_hex(16)}"}
    if endpoint is not None and nodes > 1:
        key = rendezvous.shared_key(run)
        shared = {
            "rdzv_backend": rendezvous.SEVERAL_MACHINES,
            "rdzv_endpoint": endpoint,
            "rdzv_configs": {"key": key.hex()},
            "run_id": rendezvous.run_id(key),
        }
    handled = [number for number in _HANDLED if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=processes,
        local_addr=None if nodes > 1 else "localhost",
        max_restarts=max_restarts,
        signals_to_handle=",".join(number.name for number in handled),
        shutdown_timeout=int(grace_seconds()),
        **shared,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="triptych-") as folder, _for_ranks(folder, nodes, endpoint):
            elastic_launch(config, sys.executable)("-m", "triptych", *words)
        return 0
    except SignalException as stop:
        return exit_code_after(stop.sigval)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        # A negative code is the number of the signal that killed the rank.
        return first.exitcode if 0 < first.exitcode < 128 else 1
    except RendezvousError as error:
        raise LaunchFailed(
            f"the machines of the run did not meet, or lost each other, at {endpoint}: {error}"
        ) from error


@contextmanager
def _for_ranks(folder: str, nodes: int, endpoint: str | None) -> Iterator[None]:
    """The environment that ranks inherit; torch's log lines and signal handlers are undone at the end."""
    from triptych.training.rendezvous import LOOPBACK_INTERFACE, interface_of, local_address, split_endpoint

    variables = {_PRINTED: folder, **with_parent({})}
    if nodes == 1:
        variables |= {STORE_FILE: str(Path(folder) / "store")}
        variables |= {"GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE, "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE}
    elif endpoint is not None and "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = interface_of(local_address(*split_endpoint(endpoint)))
        variables |= {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    before = {name: os.environ.get(name) for name in variables}
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    os.environ.update(variables)
    logging.disable(logging.CRITICAL)  # of the agent: ranks report their own errors
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        for number, handler in handlers.items():
            signal.signal(number, handler)
