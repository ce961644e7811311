"""A server with the built-in model, in a thread of the test process."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from openai import OpenAI

from triptych import Pipeline
from triptych.serve.app import create_app
from triptych.serve.limits import ServeLimits
from triptych.serve.service import Service


@pytest.fixture(scope="session")
def pipe() -> Pipeline:
    """The model that `server` serves."""
    return Pipeline.from_pretrained("scenes")


@pytest.fixture(scope="session")
def server(pipe: Pipeline) -> Iterator[str]:
    """The address of a server, without a slash at the end."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = create_app(Service({"scenes": pipe}, ServeLimits()))
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not running.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    running.should_exit = True
    thread.join(30)


@pytest.fixture(scope="session")
def client(server: str) -> OpenAI:
    """OpenAI's client of the server."""
    return OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
