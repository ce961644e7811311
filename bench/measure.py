"""What all benchmarks share: turns, the limits of the machine, tables and files.

Seconds mean little on a machine that others share, so everything is a ratio of what was measured side by side: one
after another, round by round, in one process.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from triptych.data.shards import Manifest, write_shard
from triptych.data.types import TokenSample
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.peak import matmul_peak
from triptych.vocab import Task

Call = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


def in_turns(calls: Mapping[Name, Call], rounds: int, warm: int = 1) -> dict[Name, float]:
    """Median seconds of each, in turns; the first rounds are not counted."""
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for number in range(warm + rounds):
        for name, call in calls.items():
            taken = _seconds(call)
            if number >= warm:
                times[name].append(taken)
        progress(f"round {number + 1} of {warm + rounds}")
    return {name: statistics.median(found) for name, found in times.items()}


def peak_bytes(call: Call) -> int:
    """The most that tensors made by a call take at once, as the profiler counts every allocation."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    now = most = 0
    changes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def flops_limit(seconds: float = 1.5) -> float:
    """FLOP/s of the best float32 matrix product of several sizes, with the threads that are set."""
    return matmul_peak(torch.device("cpu"), seconds)


def product(seconds: float = 0.3) -> tuple[Call, float]:
    """The best of several square products, often enough to take about so long; and its FLOPs.

    To be measured in turns with what is compared with it: so a neighbour on the machine slows both.
    """
    speeds = {}
    for size in (512, 1024, 2048):
        a, b = torch.randn(2, size, size)
        out = a @ b
        best = min(_seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out)) for _ in range(5))
        speeds[size] = 2 * size**3 / best
    size = max(speeds, key=lambda each: speeds[each])
    a, b = torch.randn(2, size, size)
    out, times = a @ b, max(1, round(seconds * speeds[size] / (2 * size**3)))

    def call() -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    return call, float(times * 2 * size**3)


def _seconds(call: Call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def bandwidth_limit(seconds: float = 1.0, size: int = 2**28) -> float:
    """Bytes a second that are read and written together when memory far beyond the caches is copied."""
    source, target = torch.zeros(size // 4), torch.empty(size // 4)
    target.copy_(source)
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * size / (time.perf_counter() - start))
    return best


# Tokens of media and of text in the embedded world, from and to.
LENGTHS = {Task.TEXT: ((0, 0), (8, 18)), Task.IMAGE_TEXT: ((16, 16), (8, 16)), Task.AUDIO_TEXT: ((25, 75), (8, 16))}


def random_data(folder: Path, bundle: TokenizerBundle) -> tuple[str, ...]:
    """Data sets of random tokens, of lengths as in the embedded world."""
    rng, vocabulary, found = np.random.default_rng(0), bundle.vocabulary, []
    sizes = {"text": vocabulary.text, "image": vocabulary.image, "audio": vocabulary.audio}
    for task, lengths in LENGTHS.items():
        path = folder / task.label
        path.mkdir(parents=True)
        ids = sizes[task.partner.name.lower()] if task.partner else 1
        samples = []
        for _ in range(2000):
            media, text = (int(rng.integers(low, high + 1)) for low, high in lengths)
            samples.append(TokenSample(task, rng.integers(ids, size=media), rng.integers(vocabulary.text, size=text)))
        info = write_shard(path / "shard-00000.safetensors", samples, vocabulary)
        made_by = {name: bundle.fingerprints[name] for name in ("text",)}
        Manifest(name=task.label, task=task.name, vocabulary=sizes, tokenizers=made_by, shards=[info]).save(path)
        found.append(str(path))
    return tuple(found)


def machine() -> dict[str, Any]:
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """What every benchmark takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    parser.add_argument("--short", action="store_true", help="a form that takes a minute, with fewer cases and rounds")
    parser.add_argument("--threads", type=int, help="of torch (default: as many as there are cores)")
    return parser


def begin(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    progress(f"{machine()}")


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """In Markdown, as documents have it."""
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    print(f"\n{title}\n\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join(_shown(row.get(name)) for name in names)} |")
    sys.stdout.flush()


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def save(args: argparse.Namespace, **tables: Any) -> None:
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"machine": machine(), **tables}, indent=1) + "\n")


def progress(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)
