"""The server under load: throughput, latency, memory, and whether every result equals the offline one.

    python bench/serve.py                  throughput with 1, 8 and 32 clients, and the time to the first frame
    python bench/serve.py --minutes 10     memory under load of 8 clients

Clients ask for all directions in turn. "One at a time" is the same server with --max-running 1: a result has each pass
for itself. The servers are measured in turns; all of them answer the same requests, and every answer is compared with
the offline result.
"""

import asyncio
import base64
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from measure import base_parser, markdown_table, print_table, progress, save_results, start_benchmark, write_section

from triptych import Pipeline
from triptych.sample.canvas import lay_out
from triptych.serve.media import data_uri, encode_audio, encode_image

MODEL = "scenes"
CLIENTS = (1, 8, 32)
_TEXTS = ("two dogs left of a red heart", "three foxes", "a cat", "a green hat")
_BEGINNINGS = ("there are two", "a picture of", "there is a", "three")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Ask:
    """A request, and the result it must have."""

    name: str
    path: str
    request: Mapping[str, Any]
    """Arguments of httpx."""
    read: Callable[[httpx.Response], Any]
    expected: Any


def asks_of(pipe: Pipeline, variants: int = 4) -> list[Ask]:
    """Every direction with several inputs and seeds, and the offline results."""
    asks = []
    for seed, (text, beginning) in enumerate(itertools.islice(zip(_TEXTS, _BEGINNINGS), variants)):
        image, audio = pipe.text_to_image(text, seed=seed), pipe.text_to_speech(text, seed=seed)
        png, wav = encode_image(image), encode_audio(audio)
        question = "how many cats are there"
        shown = {"type": "image_url", "image_url": {"url": data_uri(png, "image/png")}}
        asked = [shown, {"type": "text", "text": question}]
        recording = {"file": ("a.wav", wav, "audio/wav")}
        asks += [
            _ask("draw", "images/generations", _png, png, {"prompt": text, "seed": seed}),
            _ask("speak", "audio/speech", _content, wav, {"input": text, "response_format": "wav", "seed": seed}),
            _ask("caption", "chat/completions", _message, pipe.caption(image, seed=seed), _chat([shown], seed)),
            _ask("answer", "chat/completions", _message, pipe.answer(image, question, seed=seed), _chat(asked, seed)),
            _ask(
                "complete",
                "completions",
                lambda response, beginning=beginning: _words(f"{beginning} {response.json()['choices'][0]['text']}"),
                _words(pipe.complete(beginning, seed=seed)),
                {"prompt": beginning, "seed": seed},
            ),
            Ask(
                "transcribe",
                "/v1/audio/transcriptions",
                {"files": recording, "data": {"seed": str(seed)}},
                lambda response: response.json()["text"],
                pipe.transcribe(wav, seed=seed),
            ),
        ]
    return asks


def _ask(name: str, path: str, read: Callable[[httpx.Response], Any], expected: Any, body: Any) -> Ask:
    return Ask(name, f"/v1/{path}", {"json": body}, read, expected)


def _chat(content: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "seed": seed}


def _png(response: httpx.Response) -> bytes:
    return base64.b64decode(response.json()["data"][0]["b64_json"])


def _content(response: httpx.Response) -> bytes:
    return response.content


def _message(response: httpx.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


def _words(text: str) -> list[str]:
    return text.split()


# -- servers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningServer:
    address: str
    pid: int

    @property
    def cpu_seconds(self) -> float:
        """Of the server and its replicas."""
        return sum(sum(map(int, fields[11:13])) for fields in self._processes().values()) / _TICKS

    @property
    def memory(self) -> float:
        """MiB in use by the server and its replicas; what they share counts once for each."""
        return sum(int(fields[21]) for fields in self._processes().values()) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _processes(self) -> dict[int, list[str]]:
        """Fields of /proc/PID/stat after the name, of the server and everything it has started."""
        stats = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
        members, size = {self.pid}, 0
        while len(members) > size:
            size = len(members)
            members |= {pid for pid, fields in stats.items() if int(fields[1]) in members}
        return {pid: stats[pid] for pid in members if pid in stats}


@contextmanager
def running_server(*options: str) -> Iterator[RunningServer]:
    command = [sys.executable, "-m", "triptych", "serve", "--port", "0", "--model", MODEL, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+", process.stdout.readline())
            assert address is not None, "the server did not start"
            yield RunningServer(address[0], process.pid)
        finally:
            process.terminate()


# -- load -------------------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)
    """Of every answered request."""
    lost: list[str] = field(default_factory=list)
    """Requests without an answer, or with an error."""
    wrong: list[str] = field(default_factory=list)
    """Requests whose result is not the offline one."""

    def add(self, other: "Traffic") -> None:
        self.seconds += other.seconds
        self.lost += other.lost
        self.wrong += other.wrong


async def send(client: httpx.AsyncClient, ask: Ask, traffic: Traffic) -> None:
    start = time.perf_counter()
    try:
        response = await client.post(ask.path, **ask.request)
    except httpx.HTTPError as error:
        traffic.lost.append(f"{ask.name}: {error!r}")
        return
    if response.status_code != 200:
        traffic.lost.append(f"{ask.name}: {response.status_code} {response.text[:200]}")
        return
    traffic.seconds.append(time.perf_counter() - start)
    if ask.read(response) != ask.expected:
        traffic.wrong.append(ask.name)


async def load(address: str, asks: Iterator[Ask], clients: int) -> Traffic:
    """Clients that ask one thing after another, until there is nothing left."""
    traffic = Traffic()
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=httpx.Limits(max_connections=None)) as client:

        async def ask_on() -> None:
            for ask in asks:
                await send(client, ask, traffic)

        await asyncio.gather(*(ask_on() for _ in range(clients)))
    return traffic


@dataclass
class Cell:
    """A server with a number of clients, over all rounds."""

    traffic: Traffic = field(default_factory=Traffic)
    rates: list[float] = field(default_factory=list)
    """Requests per second in each round."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Per request, in each round."""

    def measure(self, server: RunningServer, asks: Sequence[Ask], clients: int) -> None:
        start, cpu = time.perf_counter(), server.cpu_seconds
        self.traffic.add(asyncio.run(load(server.address, iter(asks), clients)))
        self.rates.append(len(asks) / (time.perf_counter() - start))
        self.cpu_seconds.append((server.cpu_seconds - cpu) / len(asks))


def throughput(
    servers: Mapping[str, RunningServer], asks: Sequence[Ask], rounds: int, clients: Sequence[int] = CLIENTS
) -> list[dict[str, Any]]:
    """One row per server and number of clients. Ratios are to the first server with as many clients, round by round."""
    cells = {(name, count): Cell() for count in clients for name in servers}
    for server in servers.values():  # the first requests import and allocate
        asyncio.run(load(server.address, iter(asks), 2))
    for number in range(rounds):
        for (name, count), cell in cells.items():
            cell.measure(servers[name], asks, count)
            progress(f"round {number + 1} of {rounds}: {name}, {count} clients: {cell.rates[-1]:.1f} requests/s")
    rows = []
    for (name, count), cell in cells.items():
        base = cells[next(iter(servers)), count]
        rows.append(
            {
                "server": name,
                "clients": count,
                "requests/s": statistics.median(cell.rates),
                "ratio": statistics.median(ours / theirs for ours, theirs in zip(cell.rates, base.rates)),
                "CPU ms per request": 1000 * statistics.median(cell.cpu_seconds),
                "CPU ratio": statistics.median(
                    theirs / ours for ours, theirs in zip(cell.cpu_seconds, base.cpu_seconds)
                ),
                "p50 s": float(np.quantile(cell.traffic.seconds, 0.5)),
                "p99 s": float(np.quantile(cell.traffic.seconds, 0.99)),
                "requests": rounds * len(asks),
                "lost": len(cell.traffic.lost),
                "unlike offline": len(cell.traffic.wrong),
            }
        )
        for problem in cell.traffic.lost[:3]:
            progress(f"lost with {name}, {count} clients: {problem}")
    return rows


def memory_under_load(server: RunningServer, asks: Sequence[Ask], minutes: float, clients: int = 8) -> dict[str, Any]:
    """Memory while clients ask on; the slope is that of the second half."""
    end = time.monotonic() + 60 * minutes
    times: list[float] = []
    sizes: list[float] = []

    def until_the_end() -> Iterator[Ask]:
        for ask in itertools.cycle(asks):
            if time.monotonic() > end:
                return
            if not times or time.monotonic() - times[-1] > 60 * minutes / 200:
                times.append(time.monotonic())
                sizes.append(server.memory)
            yield ask

    traffic = asyncio.run(load(server.address, until_the_end(), clients))
    half = len(times) // 2
    return {
        "minutes": minutes,
        "requests": len(traffic.seconds),
        "MiB after warm-up": sizes[len(sizes) // 10],
        "MiB at the end": sizes[-1],
        "MiB per minute, second half": slope(times[half:], sizes[half:]) * 60,
        "lost": len(traffic.lost),
        "unlike offline": len(traffic.wrong),
    }


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Of the least-squares line."""
    return float(np.polyfit(np.asarray(times) - times[0], values, 1)[0])


# -- the first frame --------------------------------------------------------------------------------------------------


def first_frame(server: RunningServer, pipe: Pipeline, rounds: int) -> dict[str, Any]:
    """Time to the first step of a streamed canvas, and of the forward pass behind it, in turns."""
    canvas = pipe._requests.text_to_image(_TEXTS[0]).canvas
    tokens = torch.from_numpy(lay_out(canvas, pipe.vocabulary).tokens)[None]
    positions = torch.arange(tokens.shape[1])[None]
    body = {"segments": [{"modality": "text", "content": _TEXTS[0]}, {"modality": "image"}], "stream": True}
    frames, passes = [], []
    with httpx.Client(base_url=server.address, timeout=600) as client, torch.inference_mode():
        for _ in range(rounds + 2):
            start = time.perf_counter()
            pipe.model(tokens, positions)
            passes.append(time.perf_counter() - start)
            start = time.perf_counter()
            with client.stream("POST", "/v1/canvas", json=body) as response:
                assert any("canvas.step" in line for line in response.iter_lines())
                frames.append(time.perf_counter() - start)
    frame, forward = statistics.median(frames[2:]), statistics.median(passes[2:])
    return {"first frame, ms": 1000 * frame, "forward pass, ms": 1000 * forward, "ratio": frame / forward}


# -- results ----------------------------------------------------------------------------------------------------------


def section(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The part of the documentation."""
    return "\n".join(markdown_table(rows) for rows in tables.values())


def main() -> None:
    parser = base_parser(__doc__)
    parser.add_argument("--replicas", type=int, default=os.cpu_count() or 1, help="default: the number of cores")
    parser.add_argument("--minutes", type=float, help="measure memory under load for so long, and nothing else")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--docs", type=Path, help="the page to write the tables to")
    args = parser.parse_args()
    start_benchmark(args)
    pipe = Pipeline.from_pretrained(MODEL)
    asks = asks_of(pipe, 1 if args.short else len(_TEXTS))
    replicas = ("--replicas", str(args.replicas))
    stored: Path | None = args.json
    tables: dict[str, list[dict[str, Any]]] = json.loads(stored.read_text()) if stored and stored.exists() else {}
    tables.pop("machine", None)
    with ExitStack() as stack:
        if args.minutes:
            server = stack.enter_context(running_server(*replicas))
            tables["memory"] = [memory_under_load(server, asks, args.minutes)]
        else:
            servers = {
                "one at a time": stack.enter_context(running_server("--max-running", "1")),
                "one engine": stack.enter_context(running_server()),
                f"{args.replicas} replicas": stack.enter_context(running_server(*replicas)),
            }
            clients = (1, 8) if args.short else CLIENTS
            tables["throughput"] = throughput(servers, asks * (2 if args.short else 4), args.rounds, clients)
            tables["first_frame"] = [first_frame(servers["one engine"], pipe, 10 if args.short else 50)]
    for name, rows in tables.items():
        print_table(name, rows)
    save_results(args, **tables)
    if args.docs:
        write_section(args.docs, "serve", section(tables))


if __name__ == "__main__":
    main()
