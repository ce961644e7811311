"""Memory of training: the prediction of `triptych.model.memory` against measurements.

    python bench/memory.py [--only NAME ...] [--json]

Every shape is trained for a few steps by the real training loop on real shards, in a new process (or several, if it is
sharded). The measurement is the peak resident memory of a rank (VmHWM) minus the resident memory before the model was
built. A tiny model is trained the same way first, so that libraries and their caches are not counted. The process exits
before it would write a checkpoint.

Every shape is measured twice. For "measured", MALLOC_MMAP_THRESHOLD_=131072 fixes that threshold of glibc at its
initial value: freed memory is returned to the system, so resident memory is memory in use, which is what is predicted.
For "as it is", glibc raises the threshold after the first large free, and then caches freed blocks of up to 32 MiB.
That is faster, but fragments memory.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

STEPS = 3
TARGET = 0.15
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, and how it is trained."""

    layers: int
    width: int
    heads: int
    d_ff: int
    ids: int
    """Text ids; images and audio have a tenth as many each."""
    rows: int
    """Rows of a micro-batch on one rank."""
    seq_len: int
    sequences_per_row: int = 1
    """With more than one, attention uses buckets."""
    micro_batches: int = 1
    scope: str = "full"
    ema: bool = False
    checkpoint: bool = False
    ranks: int = 1
    precision: str = "float32"


SHAPES = {
    "small": Shape(layers=4, width=256, heads=4, d_ff=640, ids=1_000, rows=8, seq_len=256),
    # Activations dominate: memory peaks in the backward pass of the last block or norm, or in the head.
    "wide mlp": Shape(layers=6, width=384, heads=6, d_ff=1536, ids=300, rows=16, seq_len=256),
    "narrow mlp": Shape(layers=8, width=512, heads=8, d_ff=512, ids=300, rows=8, seq_len=512),
    "deep": Shape(layers=24, width=192, heads=4, d_ff=512, ids=2_000, rows=16, seq_len=144),
    "one long row": Shape(layers=4, width=384, heads=6, d_ff=1024, ids=2_000, rows=1, seq_len=3256),
    "packed": Shape(layers=6, width=256, heads=4, d_ff=640, ids=2_000, rows=4, seq_len=512, sequences_per_row=3),
    # Weights dominate: all gradients, or accumulated gradients with the activations of one micro-batch.
    "wide": Shape(layers=6, width=1024, heads=8, d_ff=2816, ids=2_000, rows=2, seq_len=128),
    "wide, micro-batches": Shape(
        layers=6, width=768, heads=8, d_ff=2048, ids=2_000, rows=4, seq_len=256, micro_batches=3
    ),
    "wide, ema": Shape(layers=8, width=768, heads=8, d_ff=2048, ids=2_000, rows=4, seq_len=128, ema=True),
    # The loss head dominates.
    "the paper's ids": Shape(layers=4, width=256, heads=4, d_ff=640, ids=98_000, rows=4, seq_len=256),
    "the paper's ids, ema": Shape(
        layers=2, width=384, heads=6, d_ff=1024, ids=98_000, rows=4, seq_len=256, scope="modality", ema=True
    ),
    # Activation checkpointing.
    "small, checkpointed": Shape(
        layers=8, width=256, heads=4, d_ff=640, ids=1_000, rows=8, seq_len=256, checkpoint=True
    ),
    "deep, checkpointed": Shape(
        layers=24, width=384, heads=6, d_ff=1024, ids=2_000, rows=16, seq_len=256, checkpoint=True
    ),
    # FSDP2.
    "two ranks": Shape(layers=8, width=768, heads=8, d_ff=2048, ids=16_000, rows=4, seq_len=256, ranks=2),
    "two ranks, micro-batches": Shape(
        layers=8, width=512, heads=8, d_ff=1408, ids=16_000, rows=4, seq_len=256, ranks=2, micro_batches=2, ema=True
    ),
    "bfloat16": Shape(layers=6, width=512, heads=8, d_ff=1408, ids=16_000, rows=8, seq_len=256, precision="bfloat16"),
}


def tiny(shape: Shape) -> Shape:
    """A small shape for the warm-up, trained the same way."""
    return replace(shape, layers=2, width=32, heads=2, d_ff=64, ids=500, seq_len=32)


# -- in the training process ------------------------------------------------------------------------------------------


def resident(name: str) -> int:
    """Resident memory in bytes: the current value (VmRSS) or the peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(name)


def write_data(folder: Path, shape: Shape) -> None:
    """A dataset of random texts, and a tokenizer bundle that has only vocabulary sizes."""
    import numpy as np

    from triptych.data.shards import Manifest, write_shard
    from triptych.data.types import TokenSample
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.vocab import Task

    vocabulary = vocabulary_of(shape)
    rng = np.random.default_rng(0)
    nothing = np.zeros(0, np.int32)
    texts = [rng.integers(shape.ids, size=500, dtype=np.int32) for _ in range(200)]
    (folder / "text").mkdir(parents=True)
    info = write_shard(
        folder / "text/shard-00000.safetensors", [TokenSample(Task.TEXT, nothing, text) for text in texts], vocabulary
    )
    sizes = asdict(vocabulary)
    manifest = Manifest(name="text", task="TEXT", vocabulary=sizes, tokenizers={"text": "a" * 64}, shards=[info])
    manifest.save(folder / "text")
    TokenizerBundle(vocabulary).save(folder / "tokenizers")


def vocabulary_of(shape: Shape) -> Any:
    from triptych.vocab import Vocabulary

    return Vocabulary(text=shape.ids, image=shape.ids // 10, audio=shape.ids // 10)


def run_config(shape: Shape, folder: Path) -> Any:
    from triptych.data.loader import LoaderConfig
    from triptych.data.pack import Packed
    from triptych.model.transformer import ModelConfig
    from triptych.training.config import OptimizerConfig, ParallelConfig, RunConfig

    rows = shape.rows * shape.micro_batches * shape.ranks
    return RunConfig(
        recipe="bench",
        model=ModelConfig(
            num_layers=shape.layers,
            width=shape.width,
            num_heads=shape.heads,
            d_ff=shape.d_ff,
            softmax_scope=shape.scope,  # type: ignore[arg-type]
        ),
        loader=LoaderConfig(
            seq_len=shape.seq_len,
            global_batch=rows * shape.sequences_per_row,
            layout=Packed(row_length=shape.seq_len * shape.sequences_per_row, micro_batch_rows=shape.rows),
            task_weights={"text": 1.0},
            p_subsample=0.0,
        ),
        optimizer=OptimizerConfig(lr=1e-4, clip=1.0),
        parallel=ParallelConfig(precision=shape.precision, checkpoint_activations=shape.checkpoint),  # type: ignore[arg-type]
        num_steps=100,
        ema_decay=0.9 if shape.ema else None,
        data=(str(folder / "text"),),
        tokenizers=str(folder / "tokenizers"),
        log_every=1,
        threads=1,
    )


def train_and_measure(shape: Shape, folder: Path) -> None:
    """Train, write the measured memory to the folder, and exit."""
    import torch

    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training.loop import train_loop
    from triptych.training.ranks import init_ranks
    from triptych.training.setup import open_run

    torch.set_num_threads(1)
    ranks, cpu = init_ranks(), torch.device("cpu")
    small = run_config(tiny(shape), folder / "small")
    bundle = TokenizerBundle.load(small.tokenizers)
    with open_run(small, folder / "small/run", bundle, cpu, ranks) as run:
        train_loop(run, [], stop_after=2)

    config = run_config(shape, folder / "real")
    bundle = TokenizerBundle.load(config.tokenizers)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = resident("VmRSS")

    def record(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == STEPS:
            (folder / "measured.json").write_text(json.dumps({"before": before, "peak": resident("VmHWM")}))
            os._exit(0)  # before a checkpoint is written; the other ranks stop when this one is gone

    with open_run(config, folder / "real/run", bundle, cpu, ranks) as run:
        train_loop(run, [record])


# -- in the main process ----------------------------------------------------------------------------------------------


def predict(shape: Shape) -> Any:
    from triptych.model.memory import MemoryInputs, memory

    config = run_config(shape, Path())
    inputs = MemoryInputs(
        rows=shape.rows,
        row_length=shape.seq_len * shape.sequences_per_row,
        context=shape.seq_len if shape.sequences_per_row > 1 else None,
        predicted=0.5,  # mean of the linear schedule
        accumulates=shape.micro_batches > 1,
        has_ema=shape.ema,
    )
    return memory(config.model, vocabulary_of(shape), inputs.with_parallel(config.parallel, shape.ranks))


def measure(shape: Shape, *, returns_freed: bool) -> int:
    """Bytes used by training in new processes, on the first rank; `returns_freed` fixes glibc's threshold."""
    malloc = {"MALLOC_MMAP_THRESHOLD_": "131072"} if returns_freed else {}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        for name, data_shape in (("small", tiny(shape)), ("real", shape)):
            write_data(Path(folder) / name, data_shape)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, __file__, "--train", json.dumps(asdict(shape)), folder]
        rendezvous = {"WORLD_SIZE": str(shape.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = []
        for rank in range(shape.ranks):
            environment = os.environ | {"OMP_NUM_THREADS": "1"} | malloc
            if shape.ranks > 1:
                environment |= rendezvous | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            )
        stderr = processes[0].communicate()[1]
        for other in processes[1:]:
            other.kill()
            other.communicate()
        if processes[0].returncode:
            raise SystemExit(f"a training process failed:\n{stderr[-3000:]}")
        resident_bytes = json.loads((Path(folder) / "measured.json").read_text())
        return resident_bytes["peak"] - resident_bytes["before"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), metavar="NAME", help="only these shapes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--train", nargs=2, metavar=("SHAPE", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train_and_measure(Shape(**json.loads(args.train[0])), Path(args.train[1]))
        return
    if not args.json:
        print(
            f"{'shape':25} {'memory peaks in':15} {'predicted':>9} {'measured':>9} {'ratio':>6} {'as it is':>9}   (MiB)"
        )
    records = []
    for name in args.only or SHAPES:
        shape = SHAPES[name]
        expected, measured, as_it_is = (
            predict(shape),
            measure(shape, returns_freed=True),
            measure(shape, returns_freed=False),
        )
        record = {
            "name": name,
            "shape": asdict(shape),
            "moment": expected.phase,
            "items": expected.items,
            "predicted": expected.total,
            "measured": measured,
            "ratio": round(expected.total / measured, 4),
            "as_it_is": as_it_is,
        }
        records.append(record)
        if not args.json:
            sizes = " ".join(f"{bytes_ / MIB:9,.0f}" for bytes_ in (expected.total, measured))
            print(f"{name:25} {expected.phase:15} {sizes} {record['ratio']:6.2f} {as_it_is / MIB:9,.0f}", flush=True)
    if args.json:
        print(json.dumps(records, indent=2))
    else:
        inaccurate = [record["name"] for record in records if abs(record["ratio"] - 1) > TARGET]
        print(f"errors above {TARGET:.0%}: {', '.join(inaccurate) or 'none'}")


if __name__ == "__main__":
    main()
