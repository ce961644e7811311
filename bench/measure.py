"""Shared by all benchmarks: interleaved timing, the limits of the machine, tables and result files.

Absolute times mean little on a shared machine. So benchmarks report ratios of times that were measured interleaved:
all candidates in one process, one after another, round by round.
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


def time_interleaved(calls: Mapping[Name, Call], rounds: int, warm: int = 1) -> dict[Name, float]:
    """Median seconds of each call, measured in turns, after `warm` rounds that are not counted."""
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for number in range(warm + rounds):
        for name, call in calls.items():
            seconds = _seconds(call)
            if number >= warm:
                times[name].append(seconds)
        progress(f"round {number + 1} of {warm + rounds}")
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def peak_bytes(call: Call) -> int:
    """Peak memory of the tensors that a call allocates, from the profiler's record of allocations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    current = peak = 0
    changes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def flops_limit(seconds: float = 1.5) -> float:
    """FLOP/s of the fastest float32 matrix product of several sizes, with torch's current number of threads."""
    return matmul_peak(torch.device("cpu"), seconds=seconds)


def product(seconds: float = 0.3) -> tuple[Call, float]:
    """A call that repeats the fastest of several square matrix products for about `seconds`, and its FLOPs.

    Time it interleaved with whatever is compared with it, so that other load on the machine slows both.
    """
    speeds = {}
    for size in (512, 1024, 2048):
        a, b = torch.randn(2, size, size)
        out = a @ b
        best = min(_seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out)) for _ in range(5))
        speeds[size] = 2 * size**3 / best
    size = max(speeds, key=lambda size: speeds[size])
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
    """Bytes per second, read and written together, when copying more memory than fits in the caches."""
    source, target = torch.zeros(size // 4), torch.empty(size // 4)
    target.copy_(source)
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * size / (time.perf_counter() - start))
    return best


# Minimum and maximum number of media and text tokens in the built-in toy dataset (scenes).
LENGTHS = {Task.TEXT: ((0, 0), (8, 18)), Task.IMAGE_TEXT: ((16, 16), (8, 16)), Task.AUDIO_TEXT: ((25, 75), (8, 16))}


def random_data(folder: Path, bundle: TokenizerBundle) -> tuple[str, ...]:
    """Folders of datasets with random tokens, and the lengths of the built-in toy dataset (scenes)."""
    rng, vocabulary, folders = np.random.default_rng(0), bundle.vocabulary, []
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
        fingerprints = {name: bundle.fingerprints[name] for name in ("text",)}
        Manifest(name=task.label, task=task.name, vocabulary=sizes, tokenizers=fingerprints, shards=[info]).save(path)
        folders.append(str(path))
    return tuple(folders)


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


def base_parser(doc: str | None) -> argparse.ArgumentParser:
    """Options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--short", action="store_true", help="fewer cases and rounds: takes about a minute")
    parser.add_argument("--threads", type=int, help="torch threads (default: the number of cores)")
    return parser


def start_benchmark(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    progress(f"{machine()}")


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a Markdown table."""
    if rows:
        print(f"\n{title}\n\n{markdown_table(rows)}", end="", flush=True)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_shown(row.get(name)) for name in names)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the part of a page between the markers of a name."""
    before, after = read_around(path, name)
    text = text or "Not measured yet.\n"
    path.write_text(f"{before}<!-- {name}: begin -->\n{text}<!-- {name}: end -->{after}")


def read_around(path: Path, name: str) -> tuple[str, str]:
    """The page before and after that part."""
    text, begin, end = path.read_text(), f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    assert text.count(begin) == text.count(end) == 1, f"{path} has no section between {begin} and {end}"
    before, rest = text.split(begin)
    return before, rest.split(end)[1]


def save_results(args: argparse.Namespace, **tables: Any) -> None:
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"machine": machine(), **tables}, indent=1) + "\n")


def progress(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)
