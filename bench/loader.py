"""Speed of the loader on one core, and padding, by layout and distribution of lengths.

Synthetic shards are written to a temporary folder. Speed is compared with a plain numpy copy of the same token files
into int32 rows, measured in the same run: reading without shuffling, mixing, packing and checksums. Times are CPU time
of one thread, so that other processes have little effect.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from triptych.data.loader import Loader, LoaderConfig
from triptych.data.pack import Grouped, Packed, Padded, RowLayout
from triptych.data.shards import Manifest, TokenDataset, write_shard
from triptych.data.types import TokenSample
from triptych.vocab import Task, Vocabulary, paper_vocabulary

Lengths = Callable[[np.random.Generator], tuple[int, int]]  # media and text tokens of one sample

MIXES: dict[str, dict] = {
    "paper": {
        "vocabulary": paper_vocabulary(),
        "seq_len": 3256,
        "samples": {
            Task.TEXT: (8_000, lambda rng: (0, int(rng.lognormal(6.0, 1.0)) + 10)),
            Task.IMAGE_TEXT: (4_000, lambda rng: (1_024, int(rng.integers(30, 251)))),
            Task.AUDIO_TEXT: (3_000, lambda rng: _audio(rng.uniform(3, 30))),
        },
    },
    "scenes": {
        "vocabulary": Vocabulary(text=2_048, image=1_024, audio=1_024),
        "seq_len": 256,
        "samples": {
            Task.TEXT: (60_000, lambda rng: (0, int(rng.integers(20, 61)))),
            Task.IMAGE_TEXT: (10_000, lambda rng: (64, int(rng.integers(11, 61)))),
            Task.AUDIO_TEXT: (10_000, lambda rng: (int(rng.integers(80, 201)), int(rng.integers(10, 46)))),
        },
    },
}


def _audio(seconds: float) -> tuple[int, int]:
    """Four codebooks at 25 frames per second, and 3.5 text tokens per second."""
    return 4 * int(25 * seconds), int(3.5 * seconds)


def write_dataset(folder: Path, task: Task, vocabulary: Vocabulary, number: int, lengths: Lengths) -> TokenDataset:
    rng = np.random.default_rng(task)
    folder.mkdir()
    media_size = vocabulary.data_size(task.partner) if task.partner is not None else 1
    shards = []
    for shard, count in enumerate(np.diff(np.linspace(0, number, 5).astype(int))):
        samples = []
        for _ in range(count):
            media, text = lengths(rng)
            samples.append(
                TokenSample(task, rng.integers(media_size, size=media), rng.integers(vocabulary.text, size=text))
            )
        shards.append(write_shard(folder / f"shard-{shard:05}.safetensors", samples, vocabulary))
    sizes = {"text": vocabulary.text, "image": vocabulary.image, "audio": vocabulary.audio}
    Manifest(name=task.label, task=task.name, vocabulary=sizes, tokenizers={}, shards=shards).save(folder)
    return TokenDataset(folder)


def copy_speed(datasets: list[TokenDataset], width: int, seconds: float) -> float:
    """Tokens per second of a plain copy of the shards' tokens into int32 rows."""
    out = np.empty((256, width), np.int32)
    copied, start = 0, time.process_time()
    while time.process_time() < start + seconds:
        for dataset in datasets:
            for number in range(len(dataset.manifest.shards)):
                tokens = dataset.shard(number).tokens
                for row in range(len(tokens) // width):
                    out[row % len(out)] = tokens[row * width : (row + 1) * width]
                copied += len(tokens) // width * width
    return copied / (time.process_time() - start)


def loader_speed(datasets: list[TokenDataset], config: LoaderConfig, seconds: float) -> dict[str, float]:
    tokens = positions = steps = micro_batches = 0
    with Loader(datasets, config) as loader:
        next(loader)  # opens the shards
        start = time.process_time()
        while time.process_time() < start + seconds:
            step = next(loader)
            tokens, positions, steps = tokens + step.num_tokens, positions + step.num_positions, steps + 1
            micro_batches += len(step.micro_batches)
        elapsed = time.process_time() - start
    return {
        "tokens_per_second": tokens / elapsed,
        "padding": 1 - tokens / positions,
        "micro_batches": micro_batches / steps,
        "steps": steps,
    }


def row_lengths(mix: str, global_batch: int, steps: int = 20) -> None:
    """Print the padding of the packed layout for rows of 1 to 8 times seq_len, on one rank and on four."""
    seq_len = MIXES[mix]["seq_len"]
    config = LoaderConfig(seq_len=seq_len, global_batch=global_batch, layout=Padded(), prefetch=0)
    with (
        tempfile.TemporaryDirectory() as folder,
        Loader(write_mix(Path(folder), mix), config, num_steps=steps) as loader,
    ):
        lengths = [np.bincount(batch.segment_ids.ravel())[1:] for step in loader for batch in step.micro_batches]
    for ranks in (1, 4):
        shares = []
        for sequences in (1, 2, 3, 4, 8):
            layout = Packed(row_length=sequences * seq_len)
            placements = [placement for batch in lengths for placement in layout.arrange(batch, seq_len, ranks)]
            positions = sum(placement.num_rows * placement.width for placement in placements)
            shares.append(f"{sequences} x {1 - sum(batch.sum() for batch in lengths) / positions:6.1%}")
        print(f"{mix:8} {ranks} rank{'s' if ranks > 1 else ' '}   {'   '.join(shares)}")


def write_mix(folder: Path, mix: str) -> list[TokenDataset]:
    vocabulary, samples = MIXES[mix]["vocabulary"], MIXES[mix]["samples"]
    return [write_dataset(folder / task.label, task, vocabulary, *spec) for task, spec in samples.items()]


def run(mix: str, global_batch: int, seconds: float) -> list[dict]:
    seq_len = MIXES[mix]["seq_len"]
    layouts: list[RowLayout] = [Padded(), Packed(), Grouped()]
    records = []
    with tempfile.TemporaryDirectory() as folder:
        datasets = write_mix(Path(folder), mix)
        for layout in layouts:
            config = LoaderConfig(seq_len=seq_len, global_batch=global_batch, layout=layout, prefetch=0)
            copied = copy_speed(datasets, seq_len, seconds / 4)
            record = loader_speed(datasets, config, seconds)
            ratio = record["tokens_per_second"] / copied
            records.append({"mix": mix, "layout": type(layout).__name__.lower(), **record, "ratio_to_copy": ratio})
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", choices=[*MIXES, "all"], default="all", help="distribution of lengths (default: all)")
    parser.add_argument("--global-batch", type=int, default=256, help="sequences per step (default: 256)")
    parser.add_argument("--seconds", type=float, default=4.0, help="time per measurement (default: 4)")
    parser.add_argument("--rows", action="store_true", help="print only the padding of packed rows, by row length")
    parser.add_argument("--json", type=Path, help="also write the records to this file")
    arguments = parser.parse_args()

    mixes = list(MIXES) if arguments.mix == "all" else [arguments.mix]
    if arguments.rows:
        for mix in mixes:
            row_lengths(mix, arguments.global_batch)
        return
    records = [record for mix in mixes for record in run(mix, arguments.global_batch, arguments.seconds)]
    print(f"{'mix':8} {'layout':8} {'tokens/s':>12} {'of a copy':>10} {'padding':>8} {'micro-batches':>14}")
    for r in records:
        print(
            f"{r['mix']:8} {r['layout']:8} {r['tokens_per_second']:>12,.0f} {r['ratio_to_copy']:>10.1%} "
            f"{r['padding']:>8.1%} {r['micro_batches']:>14.1f}"
        )
    print(json.dumps(records))
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
