"""The application under Ray Serve, on a local cluster of two nodes."""

import base64
import io
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image

from triptych import Pipeline
from triptych.serve.app import Access
from triptych.serve.engine import Engine
from triptych.serve.limits import ServeLimits

try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError:
    ray = None

needs_ray = pytest.mark.skipif(ray is None, reason="needs Ray: pip install ray[serve]")
NUM_NODES = 2


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def address(monkeypatch_module) -> Iterator[str]:
    """The address of an application with one replica on each node."""
    from ray import serve

    from triptych.serve.ray_app import SPREAD, start

    # On a busy machine Ray is slow to start, and by default its workers give way to everything else.
    for name, value in (
        ("RAY_raylet_start_wait_time_s", "300"),
        ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "300"),
        ("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "300"),
        ("RAY_worker_niceness", "0"),
        SPREAD,
    ):
        monkeypatch_module.setenv(name, value)
    # Each node has room for one replica only.
    nodes = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=nodes)
    for _ in range(NUM_NODES - 1):
        cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    ray.init(address=cluster.address, log_to_driver=False, include_dashboard=False)
    try:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        start({"scenes": "scenes"}, ServeLimits(), Access(), host="127.0.0.1", port=port, replicas=NUM_NODES)
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


@needs_ray
@pytest.mark.slow
def test_two_nodes_answer_as_offline(address):
    pipe = Pipeline.from_pretrained("scenes")
    answered_by_one = 0.0
    with httpx.Client(base_url=address, timeout=300) as client:
        assert client.get("/ready").json() == {"status": "ready"}
        end = time.monotonic() + 120
        for seed in range(100):
            answer = client.post("/v1/images/generations", json={"prompt": "two cats", "seed": seed})
            assert answer.status_code == 200, answer.text
            if seed < 4:
                image = Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
                assert np.array_equal(np.asarray(image), np.asarray(pipe.text_to_image("two cats", seed=seed)))
            answered_by_one = _answered(client)
            if 0 < answered_by_one <= seed or time.monotonic() > end:
                break
        assert 0 < answered_by_one <= seed, "only one replica answers"
    assert len(_nodes_of_replicas()) == NUM_NODES


@needs_ray
@pytest.mark.slow
def test_streams_and_errors_pass_through(address):
    with httpx.Client(base_url=address, timeout=300) as client:
        segments = [{"modality": "text", "content": "two cats"}, {"modality": "image"}]
        body = {"segments": segments, "stream": True, "num_steps": 4}
        with client.stream("POST", "/v1/canvas", json=body) as answer:
            names = [line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: ")]
        assert names[0] == "canvas.created"
        assert names[-1] == "canvas.completed"
        assert names.count("canvas.step") >= 1
        wrong = client.post("/v1/images/generations", json={"prompt": "two cats", "num_steps": 0})
        assert wrong.status_code == 400
        assert "num_steps" in wrong.json()["error"]["message"]


@needs_ray
@pytest.mark.slow
def test_a_replica_whose_engine_has_died_is_replaced(address):
    def break_engine(actor: object) -> None:
        """Run in the process of a replica: its engine dies at the next request, as by a fault of the server."""

        def fail(engine: Engine, tasks: object) -> None:
            raise MemoryError

        Engine._round = fail

    before = _replicas()
    with httpx.Client(base_url=address, timeout=300) as client:
        for each in before.values():
            ray.get(ray.get_actor(each, namespace="serve").__ray_call__.remote(break_engine))
        broken = [client.post("/v1/images/generations", json={"prompt": "two cats"}).status_code for _ in range(20)]
        assert 503 in broken
        end = time.monotonic() + 300
        while before.keys() & _replicas().keys():
            assert time.monotonic() < end, "a replica with a dead engine is kept"
            # An engine that has had no request yet is not dead.
            client.post("/v1/images/generations", json={"prompt": "two cats"})
            time.sleep(0.2)
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert client.post("/v1/images/generations", json={"prompt": "two cats"}).status_code == 200


def _answered(client: httpx.Client) -> float:
    """How many images the replica that answers now has drawn."""
    lines = client.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("triptych_requests_total") and "images/generations" in line]
    return sum(float(line.split()[-1]) for line in counts)


def _replicas() -> dict[str, str]:
    """Names of the actors of the replicas, by id."""
    return {each["replica_id"]: each["actor_name"] for each in _replica_details()}


def _nodes_of_replicas() -> set[str]:
    return {each["node_id"] for each in _replica_details()}


def _replica_details() -> list[dict[str, str]]:
    from ray.serve.context import _get_global_client

    from triptych.serve.ray_app import NAME

    return _get_global_client().get_serve_details()["applications"][NAME]["deployments"][NAME]["replicas"]


@pytest.mark.skipif(ray is not None, reason="Ray is installed")
def test_without_ray_the_command_says_what_to_install():
    command = [sys.executable, "-m", "triptych", "serve", "--ray"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 2
    assert "serve-ray" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
