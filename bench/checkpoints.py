"""What saving costs: steps a second with a checkpoint every 20 steps against none, and how long one takes.

    python bench/checkpoints.py [--json FILE] [--steps N] [--repeats N]

The recipe `scenes`, on random tokens of its own lengths, with and without saves in turns, in one process.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import random_data

from triptych.recipes import recipe
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import RunConfig
from triptych.training.logging import read_records
from triptych.training.loop import train_loop
from triptych.training.ranks import Ranks
from triptych.training.setup import open_run

EVERY = 20


def seconds(config: RunConfig, folder: Path, bundle: TokenizerBundle) -> float:
    """Of all steps but the first, which warms up, and without the last save, which is waited for."""
    times: list[float] = []
    with open_run(config, folder, bundle, torch.device("cpu")) as run:
        train_loop(run, [lambda event: times.append(time.perf_counter()) if event["kind"] == "step" else None])
    return times[-1] - times[0]


def measure(steps: int, repeats: int) -> dict[str, Any]:
    bundle = TokenizerBundle.load("scenes")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = replace(
            recipe("scenes"),
            data=random_data(folder / "data", bundle),
            validation_data=(),
            num_steps=steps,
            log_every=1,
        )
        ratios = []
        for number in range(repeats):
            without = seconds(replace(config, save_every=10**9), folder / f"none-{number}", bundle)
            saving = seconds(replace(config, save_every=EVERY), folder / f"saves-{number}", bundle)
            ratios.append(without / saving)
        saved = [event for event in read_records(folder / "saves-0" / "records.jsonl") if event["kind"] == "saved"]
        newest = ckpt.list_checkpoints(folder / "saves-0" / "checkpoints")[-1]
        with open_run(config, folder / "saves-0", bundle, torch.device("cpu")) as run:
            began = time.perf_counter()
            ckpt.verify(newest)
            verified = time.perf_counter()
            ckpt.load_into(newest, run.state.tensors, Ranks())
            loaded = time.perf_counter()
        step = without / (steps - 1)
        return {
            "throughput with saves over without": statistics.median(ratios),
            "each": ratios,
            "saves every": EVERY,
            "checkpoint, MB": sum(path.stat().st_size for path in newest.iterdir()) / 1e6,
            "one step, s": step,
            "training waits for a save, steps": statistics.median(event["blocked"] for event in saved[:-1]) / step,
            "a save takes, steps": statistics.median(event["seconds"] for event in saved[:-1]) / step,
            "verifying takes, steps": (verified - began) / step,
            "loading takes, steps": (loaded - verified) / step,
            "threads": torch.get_num_threads(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=121)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    found = measure(args.steps, args.repeats)
    for name, value in found.items():
        shown = ", ".join(f"{each:.3f}" for each in value) if isinstance(value, list) else f"{value:.4g}"
        print(f"{name:36} {shown}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
