"""Tiny datasets to train on in milliseconds, and helpers for the tests of training.

As a program it is one of several ranks: `python train_fakes.py WORLD FOLDER`, in the environment of torchrun.
"""

import json
import math
import os
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from triptych.data.loader import Loader
from triptych.data.pack import Grouped, Packed, RowLayout
from triptych.data.shards import Manifest, write_shard
from triptych.data.steps import LoaderConfig, Step
from triptych.data.types import TokenSample
from triptych.diffusion.corrupt import CorruptConfig
from triptych.model.transformer import Loss, ModelConfig
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training import loop
from triptych.training.config import OptimizerConfig, RunConfig, ValidationConfig
from triptych.training.distributed import full, local
from triptych.training.logging import Logger, read_records
from triptych.training.ranks import Ranks, init_ranks, shutdown_ranks
from triptych.training.setup import open_run
from triptych.training.signals import RunStopped
from triptych.training.state import Run
from triptych.vocab import Task, Vocabulary

TINY = Vocabulary(text=23, image=11, audio=7)
CPU = torch.device("cpu")


def write_set(folder: Path, task: Task, pairs: Sequence[tuple[Any, Any]], vocabulary: Vocabulary = TINY) -> str:
    """A dataset of (media, text) pairs of local ids."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = [TokenSample(task, np.array(media, np.int32), np.array(text, np.int32)) for media, text in pairs]
    info = write_shard(folder / "shard-00000.safetensors", samples, vocabulary)
    sizes = {"text": vocabulary.text, "image": vocabulary.image, "audio": vocabulary.audio}
    Manifest(name=folder.name, task=task.name, vocabulary=sizes, tokenizers={"text": "a" * 64}, shards=[info]).save(
        folder
    )
    return str(folder)


def random_pairs(task: Task, count: int, seed: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng([seed, task])
    sizes = {Task.TEXT: 1, Task.IMAGE_TEXT: TINY.image, Task.AUDIO_TEXT: TINY.audio}
    return [
        (
            rng.integers(sizes[task], size=0 if task == Task.TEXT else rng.integers(3, 9)),
            rng.integers(TINY.text, size=rng.integers(1, 7)),
        )
        for _ in range(count)
    ]


def make_world(folder: Path) -> Path:
    """Three training datasets, three validation datasets and tokenizers in a folder."""
    for split, count, seed in (("train", 40, 1), ("validation", 30, 2)):
        for task in Task:
            write_set(folder / split / task.label, task, random_pairs(task, count, seed))
    TokenizerBundle(TINY).save(folder / "tokenizers")
    return folder


def tiny_run(world: Path, *, layout: RowLayout | None = None, **changes: Any) -> RunConfig:
    """A run of 6 steps of a one-layer model, with every feature turned on."""
    chosen = {
        "recipe": "nano",
        "model": ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.1),
        "loader": LoaderConfig(
            seq_len=20,
            global_batch=9,
            layout=layout or Grouped(max_tokens=64, overhead=4),
            document_attention=True,
            prefetch=0,
        ),
        "corrupt": CorruptConfig(p_one_sided=0.3, p_prompt_masked=0.1),
        "optimizer": OptimizerConfig(lr=1e-2, clip=1.0, warmup_steps=2),
        "num_steps": 6,
        "ema_decay": 0.9,
        "data": tuple(str(world / "train" / task.label) for task in Task),
        "validation_data": tuple(str(world / "validation" / task.label) for task in Task),
        "validation": ValidationConfig(every=4, sequences=4, draws=1),
        "tokenizers": str(world / "tokenizers"),
        "log_every": 1,
        "save_every": 100,
    }
    return RunConfig(**{**chosen, **changes})  # type: ignore[arg-type]


def run_it(
    config: RunConfig,
    folder: Path,
    *,
    ranks: Ranks = Ranks(),  # noqa: B008
    loggers: Sequence[Logger] = (),
    force: bool = False,
    **options: Any,
) -> Run:
    """Start or resume a run, and train it."""
    with open_run(config, folder, TokenizerBundle.load(config.tokenizers), CPU, ranks, force=force) as run:
        loop.train_loop(run, list(loggers), **options)
    return run


@contextmanager
def broken_steps(indices: Collection[int], *what: str) -> Iterator[None]:
    """Make the "loss" or the "gradient" of some steps NaN; by default both."""
    step_as_it_is, what = loop.train_step, what or ("loss", "gradient")

    def corrupt(loss: Loss) -> Loss:
        return loss._replace(
            nll_n=loss.nll_n * (math.nan if "loss" in what else 1),
            total=loss.total * (math.nan if "gradient" in what else 1),
        )

    def step_with_nan(model, optimizer, step, *rest):  # type: ignore[no-untyped-def]
        if step.index not in indices:
            return step_as_it_is(model, optimizer, step, *rest)
        loss = model.loss
        with mock.patch.object(model, "loss", lambda *inputs: corrupt(loss(*inputs))):
            return step_as_it_is(model, optimizer, step, *rest)

    loop.train_step = step_with_nan
    try:
        yield
    finally:
        loop.train_step = step_as_it_is


def first_step(config: RunConfig, index: int = 0) -> Step:
    with Loader(list(config.data), config.loader, start_step=index) as loader:
        return next(loader)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_records(folder / "records.jsonl") if event["kind"] == kind]


def tensors_of(run: Run) -> dict[str, torch.Tensor]:
    """Copies of weights, their moving average and optimizer state; of sharded tensors, this rank's part."""
    return {name: local(value).clone() for name, value in run.state.tensors.items()}


def saved_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the newest checkpoint."""
    return ckpt.load(ckpt.list_checkpoints(folder / "checkpoints")[-1]).tensors


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


# -- one of several ranks ---------------------------------------------------------------------------------------------


def rank_to_the_end(world: Path, folder: Path) -> dict[str, Any]:
    """Several runs: complete ones; one with steps that fail on the last rank; one that a signal to that rank stops."""
    ranks = init_ranks()
    config = tiny_run(world)
    complete = run_it(config, folder / "complete", ranks=ranks)
    packed = run_it(tiny_run(world, layout=Packed(row_length=40)), folder / "packed", ranks=ranks)

    with broken_steps({2} if ranks.rank == ranks.size - 1 else ()):
        broken = run_it(config, folder / "broken", ranks=ranks)
    diverged = None
    with broken_steps(range(1, 30) if ranks.rank == ranks.size - 1 else ()):
        try:
            run_it(replace(config, num_steps=30), folder / "diverged", ranks=ranks)
        except loop.Diverged as error:
            diverged = str(error)

    step_as_it_is = loop.train_step

    def step_with_signal(model, optimizer, step, *rest):  # type: ignore[no-untyped-def]
        if step.index == 2 and ranks.rank == ranks.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step_as_it_is(model, optimizer, step, *rest)

    loop.train_step = step_with_signal
    try:
        run_it(config, folder / "stopped", ranks=ranks)
        stopped = None
    except RunStopped as stop:
        stopped = [int(stop.signal), stop.step]
    sums = [
        float(sum(full(value.detach()).double().sum() for value in run.state.tensors.values()))
        for run in (complete, packed, broken)
    ]
    shutdown_ranks()
    return {"rank": ranks.rank, "size": ranks.size, "sums": sums, "diverged": diverged, "stopped": stopped}


def main() -> None:
    torch.set_num_threads(1)
    world, folder = Path(sys.argv[1]), Path(sys.argv[2])
    result = rank_to_the_end(world, folder)
    (folder / f"rank-{result['rank']}.json").write_text(json.dumps(result))


def with_loader(config: RunConfig, **changes: Any) -> RunConfig:
    return replace(config, loader=replace(config.loader, **changes))


def world_changes(world: Path) -> list[str]:
    """Overrides that make a recipe train on this world."""
    tasks = [task.label for task in Task]
    return [
        f"tokenizers={world / 'tokenizers'}",
        "data=" + ",".join(str(world / "train" / task) for task in tasks),
        "validation_data=" + ",".join(str(world / "validation" / task) for task in tasks),
    ]


if __name__ == "__main__":
    main()
