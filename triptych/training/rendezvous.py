"""How launchers and ranks meet: over files on one machine, over a signed rendezvous on several.

PyTorch's own rendezvous listens on all interfaces, asks for no password, and unpickles what it is sent. Here one
machine needs no sockets at all. Several machines use a store that is bound to one address, and unpickle only what is
signed with a key in the folder of the run, which they share. The links between the ranks (gloo, NCCL) have no password
either: on several machines they need a trusted network.
"""

import fcntl
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import struct
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import HashStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    Token,
)

from triptych.errors import UserError

ONE_MACHINE, SEVERAL_MACHINES = "triptych-files", "triptych-signed"
"""Names of the two kinds of rendezvous for PyTorch's launcher."""
LOOPBACK_INTERFACE = "lo" if sys.platform == "linux" else "lo0"
_KEY_FILE = "rendezvous.key"
_KEY_BYTES, _TAG_BYTES = 32, 32
_CONNECT = timedelta(seconds=60)
_BACKLOG = 4096
_SIOCGIFADDR = 0x8915  # Linux: the address of an interface


def register() -> None:
    """Make both kinds known to PyTorch's launcher."""
    for name, create in ((ONE_MACHINE, _OneMachine), (SEVERAL_MACHINES, _several_machines)):
        with suppress(ValueError):  # registered before
            rendezvous_handler_registry.register(name, create)


# -- one machine ------------------------------------------------------------------------------------------------------


class _OneMachine(RendezvousHandler):
    """A launcher that is alone has nobody to meet. Its ranks meet in a file, see `init_ranks`."""

    def __init__(self, params: RendezvousParameters):
        self._run_id = params.run_id

    def get_backend(self) -> str:
        return ONE_MACHINE

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("localhost", 0))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


# -- several machines -------------------------------------------------------------------------------------------------


def shared_key(folder: Path) -> bytes:
    """The key of a run, in a file that only its user can read; the first machine writes it."""
    path = folder / _KEY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            own = folder / f".{_KEY_FILE}.{secrets.token_hex(8)}"
            own.touch(mode=0o600)
            own.write_text(secrets.token_hex(_KEY_BYTES))
            with suppress(FileExistsError):  # another machine was first
                os.link(own, path)
            own.unlink()
        return bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}, by which the machines of a run know each other, cannot be used ({error}). All of them must be "
            "able to write to the folder of the run; delete the file if it is damaged."
        ) from error


class SignedBackend(RendezvousBackend):
    """State of a rendezvous in a store that others may write to: what is not signed with the key is an error."""

    def __init__(self, inner: RendezvousBackend, key: bytes):
        self._inner, self._key = inner, key

    @property
    def name(self) -> str:
        return SEVERAL_MACHINES

    def get_state(self) -> tuple[bytes, Token] | None:
        result = self._inner.get_state()
        return None if result is None else (self._verified(result[0]), result[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        result = self._inner.set_state(self._tag(state) + state, token)
        return None if result is None else (self._verified(result[0]), result[1], result[2])

    def _tag(self, state: bytes) -> bytes:
        return hmac.digest(self._key, state, "sha256")

    def _verified(self, signed: bytes) -> bytes:
        tag, state = signed[:_TAG_BYTES], signed[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(state)):
            raise RendezvousStateError("the rendezvous holds a message that no machine of this run has signed")
        return state


class _Bound(DynamicRendezvousHandler):
    """PyTorch's rendezvous, with the store for the ranks bound to one address."""

    def _create_tcp_store_server(self, master_addr: str, master_port: int) -> TCPStore:
        return _serve(_listen(master_addr, master_port), master_addr)


def _several_machines(params: RendezvousParameters) -> RendezvousHandler:
    host, port = split_endpoint(params.endpoint)
    store = open_store(host, port)
    backend = SignedBackend(C10dRendezvousBackend(store, params.run_id), bytes.fromhex(params.get("key")))
    return _Bound.from_backend(
        params.run_id, store, backend, params.min_nodes, params.max_nodes, local_address(host, port)
    )


def run_id(key: bytes) -> str:
    """A name that all machines of a run know, and nobody else."""
    return f"triptych-{hashlib.sha256(key).hexdigest()[:32]}"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of --rdzv-endpoint."""
    host, _, port = endpoint.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--rdzv-endpoint must be HOST:PORT, as in node0:29500, got {endpoint!r}.")
    return host, int(port)


def open_store(host: str, port: int) -> TCPStore:
    """The store of all machines: served by the one that has this address, on that address only."""
    address = _resolve(host, port)
    try:
        server = _listen(address, port)
    except OSError:  # the address of another machine, or another launcher of this machine serves it
        return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_CONNECT)
    if ipaddress.ip_address(address).is_loopback and host not in ("localhost", address):
        server.close()
        raise UserError(
            f"--rdzv-endpoint: the name {host} means {address} on this machine, which other machines cannot reach. "
            f"Give its address in the network of the run, as in 10.0.0.1:{port}."
        )
    print(
        f"triptych: warning: everyone who can reach {address} or the ranks of this run can disturb it and, by the "
        "links between the ranks, run code: train on several machines in a trusted network only "
        "(docs/distributed.md).",
        file=sys.stderr,
    )
    return _serve(server, address)


def local_address(host: str, port: int) -> str:
    """The address of this machine in the network of the endpoint."""
    family, _, _, _, address = _resolved(host, port)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # of a datagram socket: chooses a route, sends nothing
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The network interface with this address; None if it is not known."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def _resolved(host: str, port: int) -> tuple[Any, ...]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"--rdzv-endpoint: the host {host} is not known ({error.strerror}).") from error


def _resolve(host: str, port: int) -> str:
    return str(_resolved(host, port)[4][0])


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(_BACKLOG)
    except OSError:
        server.close()
        raise
    return server


def _serve(server: socket.socket, address: str) -> TCPStore:
    port = server.getsockname()[1]
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_CONNECT,
        multi_tenant=True,
        master_listen_fd=server.detach(),
    )
