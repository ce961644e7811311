"""How much memory training takes, as `triptych.model.count.memory` says and as it is.

python bench/memory.py [--only NAME ...] [--json]

Every shape is trained for a few steps by the real loop, from real shards, in a process of its own (or several, where it
is sharded). Measured is the largest resident memory of a rank (VmHWM), less what was resident before the model was
built, after a tiny model had been trained the same way: libraries and what they keep are not counted. The process ends
before it would write a checkpoint.

It is measured twice. "measured" is with MALLOC_MMAP_THRESHOLD_=131072: glibc begins with that value, and so keeps it.
What is freed is given back, and what is resident is what is in use, as predicted. "as it is" is without: after the
first large piece is freed, glibc keeps pieces of up to 32 MiB to use them again, which is faster and leaves holes.
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
    """A model and how it is trained."""

    layers: int
    width: int
    heads: int
    d_ff: int
    ids: int
    """Of text; pictures and sounds have a tenth of it each."""
    rows: int
    """Of a micro-batch on one rank."""
    seq_len: int
    sequences_per_row: int = 1
    """With more than one, attention is by buckets."""
    micro_batches: int = 1
    scope: str = "full"
    ema: bool = False
    checkpoint: bool = False
    ranks: int = 1
    precision: str = "float32"


SHAPES = {
    "small": Shape(layers=4, width=256, heads=4, d_ff=640, ids=1_000, rows=8, seq_len=256),
    # Activations: the fullest moment is the backward pass of the last block, of the last norm, or the head.
    "wide mlp": Shape(layers=6, width=384, heads=6, d_ff=1536, ids=300, rows=16, seq_len=256),
    "narrow mlp": Shape(layers=8, width=512, heads=8, d_ff=512, ids=300, rows=8, seq_len=512),
    "deep": Shape(layers=24, width=192, heads=4, d_ff=512, ids=2_000, rows=16, seq_len=144),
    "one long row": Shape(layers=4, width=384, heads=6, d_ff=1024, ids=2_000, rows=1, seq_len=3256),
    "packed": Shape(layers=6, width=256, heads=4, d_ff=640, ids=2_000, rows=4, seq_len=512, sequences_per_row=3),
    # Weights: all gradients, or those of the micro-batches before with the activations of this one.
    "wide": Shape(layers=6, width=1024, heads=8, d_ff=2816, ids=2_000, rows=2, seq_len=128),
    "wide, micro-batches": Shape(
        layers=6, width=768, heads=8, d_ff=2048, ids=2_000, rows=4, seq_len=256, micro_batches=3
    ),
    "wide, ema": Shape(layers=8, width=768, heads=8, d_ff=2048, ids=2_000, rows=4, seq_len=128, ema=True),
    # The head.
    "the paper's ids": Shape(layers=4, width=256, heads=4, d_ff=640, ids=98_000, rows=4, seq_len=256),
    "the paper's ids, ema": Shape(
        layers=2, width=384, heads=6, d_ff=1024, ids=98_000, rows=4, seq_len=256, scope="modality", ema=True
    ),
    # Blocks that are computed again.
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
    """To warm up with: trained the same way."""
    return replace(shape, layers=2, width=32, heads=2, d_ff=64, ids=500, seq_len=32)


# -- inside of a process that trains ----------------------------------------------------------------------------------


def resident(name: str) -> int:
    """VmRSS, what is resident now, or VmHWM, the most there has been; in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(name)


def write_world(folder: Path, shape: Shape) -> None:
    """A data set of random texts, and tokenizers that are only their sizes."""
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


def run_config(shape: Shape, world: Path) -> Any:
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
        data=(str(world / "text"),),
        tokenizers=str(world / "tokenizers"),
        log_every=1,
        threads=1,
    )


def train_and_measure(shape: Shape, folder: Path) -> None:
    """Train, write how much memory it took beside the data, and end at once."""
    import torch

    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training import loop, setup
    from triptych.training.ranks import join

    torch.set_num_threads(1)
    ranks, cpu = join(), torch.device("cpu")
    small = run_config(tiny(shape), folder / "small")
    bundle = TokenizerBundle.load(small.tokenizers)
    loop.train(setup.start(small, folder / "small/run", bundle, cpu, ranks), [], bundle, stop_after=2)

    config = run_config(shape, folder / "real")
    bundle = TokenizerBundle.load(config.tokenizers)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = resident("VmRSS")

    def note(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == STEPS:
            (folder / "measured.json").write_text(json.dumps({"before": before, "most": resident("VmHWM")}))
            os._exit(0)  # before a checkpoint is written; other ranks end when this one is gone

    loop.train(setup.start(config, folder / "real/run", bundle, cpu, ranks), [note], bundle)


# -- outside ----------------------------------------------------------------------------------------------------------


def predict(shape: Shape) -> Any:
    from triptych.model.count import MemoryInputs, memory

    config = run_config(shape, Path())
    load = MemoryInputs.of(
        config.parallel,
        shape.ranks,
        rows=shape.rows,
        row_length=shape.seq_len * shape.sequences_per_row,
        context=shape.seq_len if shape.sequences_per_row > 1 else None,
        predicted=0.5,  # of the linear schedule
        accumulates=shape.micro_batches > 1,
        has_ema=shape.ema,
    )
    return memory(config.model, vocabulary_of(shape), load)


def measure(shape: Shape, *, gives_back: bool) -> int:
    """Bytes that training took in processes of their own; of several ranks, the first."""
    malloc = {"MALLOC_MMAP_THRESHOLD_": "131072"} if gives_back else {}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        for name, each in (("small", tiny(shape)), ("real", shape)):
            write_world(Path(folder) / name, each)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, __file__, "--train", json.dumps(asdict(shape)), folder]
        several = {"WORLD_SIZE": str(shape.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = []
        for rank in range(shape.ranks):
            environment = os.environ | {"OMP_NUM_THREADS": "1"} | malloc
            if shape.ranks > 1:
                environment |= several | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            )
        said = processes[0].communicate()[1]
        for other in processes[1:]:
            other.kill()
            other.communicate()
        if processes[0].returncode:
            raise SystemExit(f"a training process failed:\n{said[-3000:]}")
        found = json.loads((Path(folder) / "measured.json").read_text())
        return found["most"] - found["before"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), metavar="NAME", help="some of the shapes")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--train", nargs=2, metavar=("SHAPE", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train_and_measure(Shape(**json.loads(args.train[0])), Path(args.train[1]))
        return
    if not args.json:
        print(
            f"{'shape':25} {'fullest moment':15} {'predicted':>9} {'measured':>9} {'ratio':>6} {'as it is':>9}   (MiB)"
        )
    records = []
    for name in args.only or SHAPES:
        shape = SHAPES[name]
        expected, measured, as_it_is = predict(shape), measure(shape, gives_back=True), measure(shape, gives_back=False)
        record = {
            "name": name,
            "shape": asdict(shape),
            "moment": expected.moment,
            "items": expected.items,
            "predicted": expected.total,
            "measured": measured,
            "ratio": round(expected.total / measured, 4),
            "as_it_is": as_it_is,
        }
        records.append(record)
        if not args.json:
            sizes = " ".join(f"{bytes_ / MIB:9,.0f}" for bytes_ in (expected.total, measured))
            print(f"{name:25} {expected.moment:15} {sizes} {record['ratio']:6.2f} {as_it_is / MIB:9,.0f}", flush=True)
    if args.json:
        print(json.dumps(records, indent=2))
    else:
        far = [record["name"] for record in records if abs(record["ratio"] - 1) > TARGET]
        print(f"further off than {TARGET:.0%}: {', '.join(far) or 'none'}")


if __name__ == "__main__":
    main()
