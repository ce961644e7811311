"""A run of several ranks opens nothing to the network, and executes nothing that another process sends it."""

import os
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hostile_client
import pytest
from hostile_client import LOOPBACK, listening, process_tree
from test_faults import words
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from train_fakes import events

from triptych.errors import UserError
from triptych.training import rendezvous


@contextmanager
def launchers(commands: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "triptych", *command], env=environment, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def wait_until_saved(run: Path, processes: list[subprocess.Popen[str]]) -> None:
    until = time.monotonic() + 180
    while not any(run.glob("checkpoints/step-*")):
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def attack(ports: list[int], marker: Path, pids: list[int]) -> int:
    """Attack every port; how many of them belonged to a store that took the attack."""
    client = [sys.executable, hostile_client.__file__, str(marker), ",".join(map(str, ports)), *map(str, pids)]
    return int(subprocess.run(client, capture_output=True, text=True, check=True, timeout=300).stdout)


@pytest.mark.slow
def test_one_machine_listens_on_loopback_only_and_runs_no_foreign_code(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [*words(world, run, "num_steps=100000", "save_every=20"), "--nproc", "2"]
    with launchers([command]) as processes:
        (launcher,) = processes
        wait_until_saved(run, processes)
        pids = process_tree(launcher.pid)
        sockets = listening(pids)
        assert len(pids) >= 3
        assert sockets, "gloo connects the two ranks by TCP"
        assert set(sockets.values()) == {LOOPBACK}
        assert not listening([launcher.pid]), "no rendezvous store listens"
        assert attack(list(sockets), tmp_path / "executed", pids) == 0, "a store listens"
        assert not (tmp_path / "executed").exists()
        step = len(events(run, "step"))
        until = time.monotonic() + 60
        while len(events(run, "step")) == step:
            assert time.monotonic() < until, "the attack stopped training"
            time.sleep(0.1)
        launcher.send_signal(signal.SIGTERM)
        _, errors = launcher.communicate(timeout=60)
        assert launcher.returncode == 75, errors


@pytest.mark.slow
def test_several_machines_bind_to_one_address_and_run_no_foreign_code(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    command = [*words(world, run, "num_steps=100000", "save_every=20"), "--nproc", "1", "--nnodes", "2"]
    command += ["--rdzv-endpoint", f"{LOOPBACK}:{port}"]
    with launchers([command, command]) as processes:
        wait_until_saved(run, processes)
        pids = [pid for process in processes for pid in process_tree(process.pid)]
        sockets = listening(pids)
        assert port in sockets
        assert set(sockets.values()) == {LOOPBACK}
        assert attack(list(sockets), tmp_path / "executed", pids) > 0
        time.sleep(6)  # agents read the state of the rendezvous every five seconds
        assert not (tmp_path / "executed").exists()
        for process in processes:
            process.send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=60) for process in processes]
        assert sum("train on several machines in a trusted network only" in errors for _, errors in outputs) == 1
        assert any("a message that no machine of this run has signed" in errors for _, errors in outputs), outputs


# -- the parts --------------------------------------------------------------------------------------------------------


def test_machines_of_a_run_share_a_key_that_only_their_user_can_read(tmp_path: Path) -> None:
    key = rendezvous.shared_key(tmp_path / "run")
    assert rendezvous.shared_key(tmp_path / "run") == key
    assert rendezvous.shared_key(tmp_path / "other") != key
    (path,) = (tmp_path / "run").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert rendezvous.run_id(key) != rendezvous.run_id(rendezvous.shared_key(tmp_path / "other"))
    assert key.hex() not in rendezvous.run_id(key)
    path.write_text("no key")
    with pytest.raises(UserError, match=r"rendezvous.key, by which the machines of a run know each other, cannot be"):
        rendezvous.shared_key(tmp_path / "run")


def test_only_signed_states_are_unpickled() -> None:
    store = HashStore()
    ours, theirs = (
        rendezvous.SignedBackend(C10dRendezvousBackend(store, "run"), key) for key in (b"a" * 32, b"b" * 32)
    )
    assert ours.get_state() is None
    result = ours.set_state(b"state")
    assert result is not None
    assert result[0] == b"state"
    assert result[2], "it was not stored"
    assert ours.get_state() == (b"state", result[1])
    again = ours.set_state(b"newer", result[1])
    assert again is not None
    assert again[0] == b"newer"
    lost = ours.set_state(b"too late", result[1])  # another machine was first
    assert lost is not None
    assert (lost[0], lost[2]) == (b"newer", False)
    with pytest.raises(RendezvousStateError, match="no machine of this run has signed"):
        theirs.get_state()
    store.set("torch.rendezvous.run", b64encode(b"forged" * 10).decode())
    with pytest.raises(RendezvousStateError, match="no machine of this run has signed"):
        ours.get_state()


@pytest.mark.parametrize("endpoint", ["node0", "node0:", ":29500", "node0:0", "node0:70000", "node0:port", ""])
def test_a_wrong_endpoint_is_one_clear_line(endpoint: str) -> None:
    with pytest.raises(UserError, match=r"--rdzv-endpoint must be HOST:PORT, as in node0:29500, got"):
        rendezvous.split_endpoint(endpoint)


def test_endpoints_of_both_families() -> None:
    assert rendezvous.split_endpoint("node0:29500") == ("node0", 29500)
    assert rendezvous.split_endpoint("[::1]:29500") == ("::1", 29500)


def test_a_name_that_means_only_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems whose hosts file gives the host name the address 127.0.1.1."""
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 29_500))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address])
    with pytest.raises(UserError, match=r"the name node0 means 127.0.1.1 on this machine, which other machines cannot"):
        rendezvous.open_store("node0", 29_500)


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are looked up by a call of Linux")
def test_the_interface_of_an_address() -> None:
    assert rendezvous.interface_of(LOOPBACK) == rendezvous.LOOPBACK_INTERFACE
    assert rendezvous.interface_of("192.0.2.1") is None
    assert rendezvous.local_address(LOOPBACK, 1) == LOOPBACK
