"""A server as users start it: `triptych serve` in a process of its own."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

_START_SECONDS = 240.0
FAULTY = str(Path(__file__).parent / "faulty_server.py")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ServerProcess:
    """A running server. Its working folder is empty, and it has a log."""

    def __init__(self, process: subprocess.Popen, folder: Path, address: str):
        self.process, self.folder, self.address = process, folder, address
        self.port = int(address.rpartition(":")[2])
        self.client = httpx.Client(base_url=address, timeout=120)

    @property
    def log(self) -> str:
        return (self.folder.parent / "log").read_text()

    def requests(self) -> list[dict[str, Any]]:
        """The log's lines about requests."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == "request"]

    @property
    def resident(self) -> int:
        """Resident memory in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server has ended")

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].split()[0] == name)

    def raw(self, *parts: bytes, pause: float = 0.0, seconds: float = 60.0) -> Answer:
        """Send bytes as they are; stops sending when the server answers or closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)
            except OSError:
                pass
            return read_answer(connection)

    def wait_for(self, is_so: Any, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.05)


def read_answer(connection: socket.socket) -> Answer:
    """Read until the announced end of the answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += _some(connection)
    return Answer(int(first.split()[1]), headers, body)


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    assert data, "the connection was closed without an answer"
    return data


@contextmanager
def running(
    *options: str, python: Sequence[str] = (), program: Sequence[str] = ("-m", "triptych"), **environment: str
) -> Iterator[ServerProcess]:
    """A server with these options."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        folder.mkdir()
        command = [sys.executable, *python, *program, "serve", "--port", "0", *options]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
        with open(Path(name) / "log", "wb") as log, open(Path(name) / "out", "wb") as out:
            process = subprocess.Popen(command, cwd=folder, env=variables, stdout=out, stderr=log)
        try:
            server = ServerProcess(process, folder, _address(process, Path(name)))
            try:
                yield server
            finally:
                server.client.close()
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen, folder: Path) -> str:
    end = time.monotonic() + _START_SECONDS
    while "http" not in (folder / "out").read_text():
        assert process.poll() is None, f"the server has ended: {(folder / 'log').read_text()}"
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.1)
    return (folder / "out").read_text().split()[-1]
