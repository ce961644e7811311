"""`triptych` with faults that a request can cause by its seed, and with an internet of its own."""

import os
import socket
import sys
import time
from typing import Any

from triptych.cli.main import main
from triptych.serve import engine, remote

POISON, SLOW, DEATH = 666, 667, 700
"""Seeds: a request that no forward pass can take, one that takes long, and one that the engine does not survive."""
_PAUSE = 0.3  # seconds before each forward pass of a slow request
PUBLIC = "93.184.216.34"
HOSTS = {
    "public.test": [PUBLIC],
    "private.test": ["10.0.0.1"],
    "metadata.test": ["169.254.169.254"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "nat64.test": ["64:ff9b::7f00:1"],
    "both.test": [PUBLIC, "127.0.0.1"],
    "rebinding.test": [PUBLIC],
}
_real_fill, _real_states, _real_choose = (
    engine._Task._fill,
    engine._SuspendingNetwork.hidden_states,
    engine.Engine._choose,
)
_real_resolve = remote._resolve


def _fill(self: Any, network: Any, device: Any) -> Any:
    network.is_poisoned, network.is_slow = self.job.seed == POISON, self.job.seed == SLOW
    return _real_fill(self, network, device)


def _hidden_states(self: Any, tokens: Any, positions: Any, *, query_idx: Any) -> Any:
    if self.is_slow:
        time.sleep(_PAUSE)
    return _real_states(self, tokens, positions, query_idx=query_idx + 10**6 * self.is_poisoned)


def _choose(self: Any, tasks: Any) -> Any:
    if any(task.job.seed == DEATH and task.tokens_had for task in tasks):
        raise MemoryError
    return _real_choose(self, tasks)


def _resolve(host: str, port: int) -> list[tuple]:
    if host not in HOSTS:
        return _real_resolve(host, port)
    addresses = HOSTS[host]
    if host == "rebinding.test":
        HOSTS[host] = ["127.0.0.1"]  # from now on
    return [(None, None, None, "", (address, port)) for address in addresses]


def _connect(address: str, port: int, seconds: float) -> socket.socket:
    """The public host is a server of the test; no other may ever be connected to."""
    assert address == PUBLIC, address
    return socket.create_connection(("127.0.0.1", int(os.environ["MEDIA_PORT"])), timeout=seconds)


engine._Task._fill = _fill  # type: ignore[method-assign]
engine._SuspendingNetwork.hidden_states = _hidden_states  # type: ignore[method-assign]
engine.Engine._choose = _choose  # type: ignore[method-assign]
remote._resolve = _resolve
remote._connect = _connect

if __name__ == "__main__":
    sys.exit(main())
