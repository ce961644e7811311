"""Faults 29 to 34 of docs/serving.md, with real processes and connections."""

import io
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from faulty_server import DEATH, POISON, SLOW
from server_process import FAULTY, ServerProcess, read_answer, running

ENDLESS = {
    "segments": [{"modality": "audio", "length": 120}],
    "num_steps": 120,
    "sampler": "random_order",
    "seed": SLOW,
}
"""A canvas that takes longer than any test waits."""
SHORT = {"segments": [{"modality": "text", "length": 4}], "num_steps": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with running("--max-running=2", "--max-queue=1", "--max-seconds=20", program=[FAULTY]) as process:
        assert process.client.post("/v1/canvas", json=SHORT).status_code == 200
        yield process
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(60) == 0  # it is idle, and stops at once


@pytest.fixture(scope="module")
def hurried() -> Iterator[ServerProcess]:
    """A server with a short deadline, for few clients."""
    with running("--max-seconds=4", "--max-connections=20", program=[FAULTY]) as process:
        process.client.post("/v1/canvas", json=SHORT)
        yield process


@pytest.fixture(autouse=True)
def _idle(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        process = request.getfixturevalue("server")
        process.wait_for(lambda: is_idle(process))
        assert process.client.post("/v1/canvas", json=SHORT).status_code == 200


def is_idle(server: ServerProcess) -> bool:
    return server.metric("triptych_running") == server.metric("triptych_queued") == 0


class Open:
    """A request on a connection of its own, whose answer is read later."""

    def __init__(self, server: ServerProcess, body: dict[str, Any]):
        data = json.dumps(body).encode()
        self._connection = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        head = f"POST /v1/canvas HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
        self._connection.sendall(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + data)
        self.answer = b""

    def read_until(self, what: bytes) -> None:
        while what not in self.answer:
            data = self._connection.recv(65_536)
            assert data, self.answer[-500:]
            self.answer += data

    def read_all(self) -> bytes:
        while data := self._connection.recv(65_536):
            self.answer += data
        return self.answer

    def leave(self) -> None:
        self._connection.close()


@contextmanager
def several(*requests: Open) -> Iterator[None]:
    try:
        yield
    finally:
        for each in requests:
            each.leave()


def num_running(server: ServerProcess) -> float:
    return server.metric("triptych_running")


@pytest.mark.parametrize("stream", [True, False])
def test_the_work_of_a_client_that_leaves_is_cancelled(server: ServerProcess, stream: bool) -> None:
    request = Open(server, {**ENDLESS, "stream": stream})
    if stream:
        request.read_until(b"canvas.step")
    server.wait_for(lambda: num_running(server) == 1)
    request.leave()
    start = time.monotonic()
    server.wait_for(lambda: is_idle(server))
    assert time.monotonic() - start < 10
    rounds = server.metric("triptych_round_seconds_count")
    time.sleep(0.3)
    assert server.metric("triptych_round_seconds_count") == rounds  # nobody works for it any more


def test_a_full_queue_refuses_with_429(server: ServerProcess) -> None:
    requests = [Open(server, {**ENDLESS, "stream": True}) for _ in range(2)]
    with several(*requests):
        for each in requests:
            each.read_until(b"canvas.step")
        waiting = Open(server, ENDLESS)
        with several(waiting):
            server.wait_for(lambda: server.metric("triptych_queued") == 1)
            refused = server.client.post("/v1/canvas", json=SHORT)
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
            assert server.client.get("/ready").status_code == 200


STREAMS = {
    "/v1/canvas": {**SHORT, "stream": True},
    "/v1/images/generations": {"prompt": "two cats", "stream": True},
    "/v1/audio/speech": {"input": "two cats", "stream_format": "sse"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "there are two"}], "stream": True},
    "/v1/completions": {"prompt": "there are two", "stream": True},
}
RECORDING = io.BytesIO()
soundfile.write(RECORDING, np.zeros(8000), 8000, format="WAV")


def ask_for_stream(server: ServerProcess, path: str) -> httpx.Response:
    if path == "/v1/audio/transcriptions":
        return server.client.post(path, files={"file": RECORDING.getvalue()}, data={"stream": "true"})
    return server.client.post(path, json=STREAMS[path])


@pytest.mark.parametrize("path", [*STREAMS, "/v1/audio/transcriptions"])
def test_a_full_queue_refuses_streams_with_429(server: ServerProcess, path: str) -> None:
    """The status is the answer's, not an event's: clients and balancers try again by it."""
    counted = f'triptych_requests_total{{method="POST",route="{path}",status="429"}} 1.0'
    requests = [Open(server, ENDLESS) for _ in range(3)]
    with several(*requests):
        server.wait_for(lambda: server.metric("triptych_queued") == 1)
        refused = ask_for_stream(server, path)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
    if path != "/v1/canvas":  # which others are refused at, too
        assert counted in server.client.get("/metrics").text


@pytest.mark.parametrize("stream", [True, False])
def test_several_results_are_refused_together(server: ServerProcess, stream: bool) -> None:
    """There is a place, but not for all of them: none of them runs for nobody."""
    company = [Open(server, ENDLESS) for _ in range(2)]
    with several(*company):
        server.wait_for(lambda: num_running(server) == 2)
        body = {"prompt": "two cats", "n": 8, "stream": stream, "num_steps": 64}
        assert server.client.post("/v1/images/generations", json=body).status_code == 429
        assert server.metric("triptych_queued") == 0


def test_the_others_end_if_one_of_several_results_fails(server: ServerProcess) -> None:
    before = server.metric("triptych_round_seconds_count")
    both = {"prompt": "two cats", "n": 2, "seed": POISON, "num_steps": 16, "sampler": "random_order"}  # and a slow one
    assert server.client.post("/v1/images/generations", json=both).status_code == 500
    server.wait_for(lambda: is_idle(server))
    assert server.metric("triptych_round_seconds_count") - before < 12


def test_a_poisoned_request_fails_alone(server: ServerProcess) -> None:
    alone = server.client.post("/v1/canvas", json={**SHORT, "seed": 5}).json()["segments"]
    company = Open(server, {**ENDLESS, "stream": True})
    with several(company):
        company.read_until(b"canvas.step")
        answers: dict[int, httpx.Response] = {}

        def ask(seed: int) -> None:
            answers[seed] = httpx.post(f"{server.address}/v1/canvas", json={**SHORT, "seed": seed}, timeout=60)

        for seed in (POISON, 5):
            ask(seed)
        company.answer = b""
        company.read_until(b"canvas.step")  # it goes on
    assert answers[POISON].status_code == 500
    assert answers[POISON].json()["error"]["message"] == "an error inside the server"
    assert answers[5].status_code == 200
    assert answers[5].json()["segments"] == alone


@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_that_passes_frees_the_place(hurried: ServerProcess, stream: bool) -> None:
    request = Open(hurried, {**ENDLESS, "stream": stream})
    with several(request):
        answer = request.read_all()
    assert (b" 200 OK" if stream else b" 504 ") in answer.splitlines()[0]
    assert (b'"code": "deadline"' if stream else b'"code":"deadline"') in answer
    hurried.wait_for(lambda: is_idle(hurried))


def test_more_connections_than_allowed_are_refused(hurried: ServerProcess) -> None:
    with ExitStack() as stack:
        address = ("127.0.0.1", hurried.port)
        connections = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(21)]
        answer = read_answer(connections[-1])
        assert answer.status == 503
        assert answer.json["error"]["code"] == "unavailable"
    hurried.wait_for(lambda: hurried.client.get("/ready").status_code == 200)


def test_ctrl_c_has_its_exit_code(hurried: ServerProcess) -> None:
    hurried.process.send_signal(signal.SIGINT)
    assert hurried.process.wait(60) == 130
    traces = [line for line in map(json.loads, hurried.log.splitlines()[:-1]) if "trace" in line]
    assert traces == []
    assert hurried.log.endswith("triptych: stopped.\n")


def test_an_engine_that_dies_makes_the_server_unavailable() -> None:
    """503, not ready, an error in open streams; and then the server ends, so that another one is started."""
    with running(program=[FAULTY]) as server:
        stream = Open(server, {**ENDLESS, "stream": True})
        with several(stream):
            stream.read_until(b"canvas.step")
            deadly = server.client.post("/v1/canvas", json={**SHORT, "seed": DEATH})
            assert deadly.status_code == 503
            last = stream.read_all()
        assert b"event: error" in last
        assert b'"code": "unavailable"' in last
        assert server.client.get("/ready").status_code == 503
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/metrics").text.count("triptych_ready{") == 1
        for path in ("/v1/canvas", "/v1/chat/completions"):
            after = ask_for_stream(server, path)
            assert after.status_code == 503
            assert after.headers["Retry-After"]
        assert server.process.wait(60) == 1
        assert server.log.splitlines()[-1] == "triptych: error: the engine of 'scenes' has died: see the log."


def test_a_server_that_stops_finishes_what_it_has() -> None:
    with running("--max-drain-seconds=6", program=[FAULTY]) as server:
        server.client.post("/v1/canvas", json=SHORT)
        endless = Open(server, {**ENDLESS, "stream": True})
        with several(endless):
            endless.read_until(b"canvas.step")
            short = Open(server, {**ENDLESS, "num_steps": 4})  # it ends within the time
            server.wait_for(lambda: num_running(server) == 2)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: server.client.get("/ready").status_code == 503)
            refused = server.client.post("/v1/canvas", json=SHORT)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "unavailable"
            assert server.client.get("/health").status_code == 200
            with several(short):
                assert short.read_all().startswith(b"HTTP/1.1 200")
            assert server.process.poll() is None
            ended = endless.read_all()
        assert time.monotonic() - start < 6 + 10
        assert b"event: error" in ended
        assert b'"code": "unavailable"' in ended
        assert server.process.wait(60) == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port))


def test_a_second_signal_ends_the_server_at_once() -> None:
    with running("--max-drain-seconds=300", program=[FAULTY]) as server:
        endless = Open(server, {**ENDLESS, "stream": True})
        with several(endless):
            endless.read_until(b"canvas.step")
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: server.client.get("/ready").status_code == 503)
            time.sleep(0.6)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 128 + signal.SIGTERM
