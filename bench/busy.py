"""The part `--busy` of bench/sample.py: sampling beside another process that computes, and without it.

On a busy machine a thread is often not running when the others wait for it. Code that waits often loses more.
"""

import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure as shared
import torch
from measure import markdown_table, progress, time_interleaved

THREADS = (1, 2)
CONDITIONS = ("quiet", "busy")
Samplers = Mapping[str, Callable[[], object]]
"""Calls that give the same tokens; the first is ours."""

# It ends with the benchmark, even if that is killed.
_COMPETITOR = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np
a = np.ones((1024, 1024), np.float32)
print("started", flush=True)
while os.getppid() == int(sys.argv[1]):
    a @ a
"""


@contextmanager
def competitor(condition: str) -> Iterator[None]:
    """When "busy", another process multiplies matrices meanwhile, with one thread."""
    if condition == "quiet":
        yield
        return
    command = [sys.executable, "-c", _COMPETITOR, str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n", "the competing process did not start"
            yield
        finally:
            process.kill()


def measure(
    cases: Mapping[str, Samplers], tokens: int, rounds: int, numbers_of_threads: Sequence[int] = THREADS
) -> list[dict[str, Any]]:
    """Median seconds of every sampler by rule, number of threads and condition. `tokens` are drawn by each call."""
    before, rows = torch.get_num_threads(), []
    try:
        for threads, (rule, samplers) in itertools.product(numbers_of_threads, cases.items()):
            torch.set_num_threads(threads)
            times: dict[str, list[dict[str, float]]] = {condition: [] for condition in CONDITIONS}
            # Round by round, so that what else happens on the machine changes both conditions.
            for number, condition in itertools.product(range(rounds), CONDITIONS):
                progress(f"{rule}, {threads} threads, {condition}, round {number + 1} of {rounds}")
                with competitor(condition):
                    times[condition].append(time_interleaved(samplers, rounds=1, warm=0))
            for condition, measured in times.items():
                seconds = {name: statistics.median(one[name] for one in measured) for name in samplers}
                rows.append(
                    {"what": rule, "threads": threads, "condition": condition, "tokens": tokens, "seconds": seconds}
                )
                progress(f"{rows[-1]}")
    finally:
        torch.set_num_threads(before)
    return rows


def merged(earlier: Sequence[dict[str, Any]], measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measurements, and earlier ones of other rules and numbers of threads, which may be measured one by one."""
    again = {_case(row) for row in measured}
    return sorted((*(row for row in earlier if _case(row) not in again), *measured), key=lambda row: row["threads"])


def _case(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["what"], row["threads"]


def summary(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per rule and number of threads: our speed, and our speedups, quiet and busy."""
    pairs: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for one in measured:
        pairs.setdefault(_case(one), {})[one["condition"]] = one
    rows = []
    for (what, threads), by_condition in pairs.items():
        quiet, busy = (by_condition[condition] for condition in CONDITIONS)
        ours, *others = quiet["seconds"]
        row = {"what": what, "threads": threads}
        row |= {f"tokens/s, {one['condition']}": one["tokens"] / one["seconds"][ours] for one in (quiet, busy)}
        for name in others:
            speedups = [one["seconds"][name] / one["seconds"][ours] for one in (quiet, busy)]
            row |= {
                f"over {name}, quiet": speedups[0],
                f"over {name}, busy": speedups[1],
                f"over {name}, busy / quiet": speedups[1] / speedups[0],
            }
        rows.append(row)
    return rows


def write_section(path: Path, measured: Sequence[Mapping[str, Any]]) -> None:
    """Replace the table of a page."""
    shared.write_section(path, "busy", markdown_table(summary(measured)) if measured else "")
