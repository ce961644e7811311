"""Real processes that train a tiny model and are killed at random moments.

As a program it is the long version of the tests: `python tests/training/faults.py --kills 50`.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from train_fakes import assert_same_bits, events, make_world, run_it, tiny_run, with_loader

from triptych.data.pack import Packed
from triptych.errors import DataError
from triptych.training import checkpoint as ckpt
from triptych.training import loop
from triptych.training.config import ParallelConfig, RunConfig
from triptych.training.ranks import Ranks, init_ranks, shutdown_ranks
from triptych.training.signals import RunStopped

# Forked from a server that has imported everything, so that a new process costs milliseconds.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["triptych.training.run"])
_MAX_SECONDS = 120.0


def long_run(world: Path, num_steps: int = 400, **changes: Any) -> RunConfig:
    """A run that saves every three steps and logs every step."""
    config = replace(
        tiny_run(world, layout=Packed(row_length=40)), num_steps=num_steps, save_every=3, validation_data=()
    )
    return replace(with_loader(config, prefetch=2), **changes)


def train_alone(config: RunConfig, folder: Path, prepare: Callable[[], None] | None = None) -> None:
    """One process that starts or resumes a run and trains it to the end."""
    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    try:
        run_it(config, folder)
    except RunStopped as stop:
        sys.exit(stop.exit_code)


def train_rank(rank: int, size: int, port: int, config: RunConfig, folder: Path, stop_after: int | None) -> None:
    """One of several processes."""
    torch.set_num_threads(1)
    shared = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank}
    os.environ.update({name: str(value) for name, value in shared.items()})
    ranks = init_ranks(config.parallel.timeout) if size > 1 else Ranks()
    run_it(config, folder, ranks=ranks, stop_after=stop_after)
    shutdown_ranks()


def start(target: Callable[..., None], *args: Any) -> Any:
    process = _CONTEXT.Process(target=target, args=args)
    process.start()
    return process


def start_ranks(size: int, config: RunConfig, folder: Path, stop_after: int | None = None) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [start(train_rank, rank, size, port, config, folder, stop_after) for rank in range(size)]


def exit_code_of(process: Any, seconds: float = _MAX_SECONDS) -> int:
    """Wait for a process; its exit code."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"the process did not end within {seconds} s")
    return process.exitcode


def wait_for(condition: Callable[[], bool], process: Any, seconds: float = _MAX_SECONDS) -> bool:
    """Wait until a condition is true or the process ends; whether it is true."""
    until = time.monotonic() + seconds
    while process.is_alive():
        if condition():
            return True
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.0005)
    return condition()


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def random_kills(
    config: RunConfig, folder: Path, kills: int, seed: int = 0, report: Callable[[str], None] = print
) -> int:
    """SIGKILL a run `kills` times at random moments, then let it end; returns how many kills hit a save."""
    rng, records, hits = random.Random(seed), folder / "records.jsonl", 0
    for number in range(kills):
        process = start(train_alone, config, folder)
        if number % 2:  # some records later
            target = size_of(records) + rng.randrange(200, 6000)
            alive = wait_for(lambda target=target: size_of(records) > target, process)
        else:  # as soon as a save has started
            alive = wait_for(lambda: any(folder.glob("checkpoints/.partial-*")), process)
        time.sleep(rng.random() * 0.01)
        hits += any(folder.glob("checkpoints/.partial-*"))
        process.kill()
        process.join()
        assert alive, "the run ended before it could be killed: more steps are needed"
        saved = ckpt.list_checkpoints(folder / "checkpoints")
        report(f"kill {number + 1} of {kills}: newest checkpoint {saved[-1].name if saved else 'none'}")
    assert exit_code_of(start(train_alone, config, folder), 600) == 0
    return hits


def random_rank_kills(
    config: RunConfig, folder: Path, kills: int, seed: int = 0, report: Callable[[str], None] = print
) -> None:
    """SIGKILL one of two ranks `kills` times; the other one must end on SIGTERM. Then let both train to the end."""
    rng, records = random.Random(seed), folder / "records.jsonl"
    for number in range(kills):
        processes = start_ranks(2, config, folder)
        target, victim = size_of(records) + rng.randrange(200, 4000), rng.randrange(2)
        assert wait_for(lambda target=target: size_of(records) > target, processes[victim])
        processes[victim].kill()
        processes[1 - victim].join(2)
        processes[1 - victim].terminate()  # as the agent does
        assert exit_code_of(processes[1 - victim], 5 * config.parallel.timeout) != 0
        processes[victim].join()
        saved = ckpt.list_checkpoints(folder / "checkpoints")
        report(f"rank {victim} killed, {number + 1} of {kills}: newest {saved[-1].name if saved else 'none'}")
    assert [exit_code_of(process) for process in start_ranks(2, config, folder)] == [0, 0]


# -- faults inside a process ------------------------------------------------------------------------------------------


def kill_at_call(module_name: str, name: str, number: int) -> None:
    """Kill this process at the call with this number of a function."""
    module = import_module(module_name)
    function, calls = getattr(module, name), iter(range(1, 10**9))

    def counted(*args: Any, **options: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)

    setattr(module, name, counted)


def write_slowly(seconds: float) -> None:
    write = filesystem._write_files_from_queue

    def slow(**options: Any) -> None:
        time.sleep(seconds)
        write(**options)

    filesystem._write_files_from_queue = slow


def hang_in(stderr: Path, config: RunConfig, folder: Path, rank: int) -> None:
    """A rank that writes its stderr to a file; rank 1 hangs at step 5."""
    stderr.parent.mkdir(exist_ok=True)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    step_as_it_is = loop.train_step

    def hang_for_ever() -> None:
        while True:
            time.sleep(1)

    def step_or_hang(model: Any, optimizer: Any, step: Any, *rest: Any) -> Any:
        if step.index == 5 and rank == 1:
            hang_for_ever()
        return step_as_it_is(model, optimizer, step, *rest)

    loop.train_step = step_or_hang
    train_rank(rank, 2, port_of(folder), config, folder, None)


def fail_in(config: RunConfig, folder: Path, rank: int) -> None:
    """A rank that saves slowly; rank 1 raises an error during the save."""
    write_slowly(1.0)
    step_as_it_is = loop.train_step

    def step_or_fail(model: Any, optimizer: Any, step: Any, *rest: Any) -> Any:
        if step.index == 3 and rank == 1:
            raise DataError("a shard is damaged")
        return step_as_it_is(model, optimizer, step, *rest)

    loop.train_step = step_or_fail
    train_rank(rank, 2, port_of(folder), config, folder, None)


def port_of(folder: Path) -> int:
    """A port that depends on the folder, the same for both ranks."""
    return 20_000 + sum(str(folder).encode()) * 7919 % 20_000


# -- programs that are killed -----------------------------------------------------------------------------------------


def assert_same_run(one: Path, other: Path) -> None:
    """The same weights, optimizer state and moving average, and the same record of every step."""
    newest = [ckpt.list_checkpoints(folder / "checkpoints")[-1] for folder in (one, other)]
    assert newest[0].name == newest[1].name
    assert_same_bits(*(ckpt.load(path).tensors for path in newest))
    names = ("step", "loss", "nll", "grad_norm", "tokens", "lr", "skipped")
    steps = [[{name: event[name] for name in names} for event in events(folder, "step")] for folder in (one, other)]
    assert steps[0] == steps[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rank-kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = long_run(make_world(folder / "world"), args.steps)
        assert exit_code_of(start(train_alone, config, folder / "uninterrupted"), 600) == 0
        hits = random_kills(config, folder / "killed", args.kills, args.seed)
        assert_same_run(folder / "uninterrupted", folder / "killed")
        steps = len(events(folder / "killed", "step"))
        print(json.dumps({"kills": args.kills, "while saving": hits, "steps": steps, "bitwise equal": True}))
        config = long_run(folder / "world", 300, parallel=ParallelConfig(timeout=15.0, hang_timeout=20.0))
        # With a high learning rate, rounding differences would grow beyond any tolerance within 200 steps.
        config = replace(config, optimizer=replace(config.optimizer, lr=1e-3))
        assert exit_code_of(start(train_alone, config, folder / "one"), 600) == 0
        random_rank_kills(config, folder / "two", args.rank_kills, args.seed)
        one, two = ([event["loss"] for event in events(folder / name, "step")] for name in ("one", "two"))
        farthest = max(abs(a - b) for a, b in zip(one, two, strict=True))
        assert farthest < 1e-4, farthest
        print(json.dumps({"kills of a rank of two": args.rank_kills, "steps": len(two), "losses differ by": farthest}))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
