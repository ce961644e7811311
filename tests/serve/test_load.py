"""The server under load: no request is lost, results equal offline ones, and shared passes cost less than single ones.

bench/serve.py makes the same measurements at length.
"""

import asyncio
import os
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import serve as bench
from measure import write_section

from triptych import Pipeline


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.from_pretrained(bench.MODEL)


@pytest.fixture(scope="module")
def asks(pipe) -> list[bench.Ask]:
    return bench.asks_of(pipe, 2)


@pytest.fixture(scope="module")
def server() -> Iterator[bench.RunningServer]:
    with bench.running_server("--replicas", "2") as running:
        yield running


def test_every_direction_equals_offline_beside_all_others(server, asks):
    """Twice as many clients as requests of a kind, so that unlike requests share forward passes."""
    traffic = asyncio.run(bench.load(server.address, iter(asks * 2), clients=8))
    assert traffic.lost == []
    assert traffic.wrong == []
    assert len(traffic.seconds) == 2 * len(asks)


def test_a_wrong_result_and_a_lost_request_are_noticed(server, asks):
    wrong = bench.Ask(asks[0].name, asks[0].path, asks[0].request, asks[0].read, b"another image")
    lost = bench.Ask("lost", "/v1/nothing", {"json": {}}, asks[0].read, b"")
    traffic = asyncio.run(bench.load(server.address, iter([wrong, lost]), clients=2))
    assert traffic.wrong == ["draw"]
    assert len(traffic.lost) == 1
    assert "404" in traffic.lost[0]


def test_shared_passes_cost_less_than_single_ones(asks):
    """CPU time, which other load on the machine hardly changes. Captions are left out: they fill passes alone."""
    few = [ask for ask in asks if ask.name in ("draw", "complete")] * 8
    with bench.running_server("--max-queue", "64") as server:
        asyncio.run(bench.load(server.address, iter(few[:4]), clients=1))
        alone, shared = bench.Cell(), bench.Cell()
        alone.measure(server, few, clients=1)
        shared.measure(server, few, clients=16)
    assert not alone.traffic.lost + shared.traffic.lost
    assert shared.cpu_seconds[0] < 0.9 * alone.cpu_seconds[0]


def test_a_server_has_its_replicas_and_their_memory(server):
    processes = server._processes()
    assert server.pid in processes
    assert len(processes) >= 3
    assert server.memory > 100
    assert server.cpu_seconds > 0
    assert os.getpid() not in processes


def test_memory_is_sampled_under_load(server, asks):
    row = bench.memory_under_load(server, [ask for ask in asks if ask.name == "answer"], minutes=0.03)
    assert row["requests"] > 0
    assert row["lost"] == row["unlike offline"] == 0
    assert np.isfinite(row["MiB per minute, second half"])


def test_slope_is_that_of_the_line():
    assert bench.slope([5.0, 6.0, 8.0], [1.0, 3.0, 7.0]) == pytest.approx(2.0)


def test_the_first_frame_comes_with_the_first_step(server, pipe):
    row = bench.first_frame(server, pipe, rounds=3)
    assert row["ratio"] == pytest.approx(row["first frame, ms"] / row["forward pass, ms"])
    assert row["ratio"] > 1


def test_clients_that_leave_free_their_places(server, asks):
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.address) as client:
            for ask in asks:
                with pytest.raises(httpx.TimeoutException):
                    await client.post(ask.path, **ask.request, timeout=0.002)

    asyncio.run(leave())
    traffic = asyncio.run(bench.load(server.address, iter(asks), clients=4))
    assert not traffic.lost
    assert not traffic.wrong
    metrics = httpx.get(f"{server.address}/metrics").text
    running = [line for line in metrics.splitlines() if line.startswith(("triptych_running", "triptych_queued"))]
    assert len(running) == 2
    assert all(line.endswith(" 0.0") for line in running)


def test_a_page_gets_its_section(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- serve: begin -->\nold\n<!-- serve: end -->\nafter\n")
    write_section(page, "serve", bench.section({"throughput": [{"clients": 8, "ratio": 2.5}]}))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| 8 | 2.5 |" in text
    assert "old" not in text
