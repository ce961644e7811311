"""What must be survived while training, with real processes, signals, files and file systems (docs/faults.md)."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import (
    assert_same_run,
    ended,
    long_run,
    random_kills,
    size_of,
    start,
    start_ranks,
    train_alone,
    wait_for,
)
from torch.distributed.checkpoint import filesystem
from train_fakes import CPU, assert_same_bits, broken_steps, events, run_it, tensors_of, tiny_run, with_loader

import triptych.training.peak
from triptych.cli.main import main
from triptych.data import shards
from triptych.errors import CheckpointError, DataError, UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training import launch, loop, setup
from triptych.training.config import GuardConfig, ParallelConfig, RunConfig
from triptych.training.logging import Console
from triptych.vocab import Task

SHARD = "shard-00001-model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """A run that nothing happened to."""
    config, folder = long_run(world, 60), tmp_path_factory.mktemp("whole") / "run"
    assert ended(start(train_alone, config, folder)) == 0
    return config, folder


# -- 1 to 3: killed ---------------------------------------------------------------------------------------------------


def test_kills_at_random_moments_change_nothing(whole: tuple[RunConfig, Path], tmp_path: Path) -> None:
    """1. `make faults` does it fifty times."""
    config, folder = whole
    random_kills(config, tmp_path / "run", kills=4, seed=1)
    assert_same_run(folder, tmp_path / "run")


def kill_at_call(module_name: str, name: str, number: int) -> None:
    """From now on, the call of this number of a function is the last thing that this process does."""
    module = import_module(module_name)
    function, calls = getattr(module, name), iter(range(1, 10**9))

    def counted(*args: Any, **options: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)

    setattr(module, name, counted)


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [
        ("torch.distributed.checkpoint.filesystem", "_write_files_from_queue", 3),  # 2: before the tensors are written
        ("triptych.training.checkpoint", "sha256", 5),  # 2: when they are, but not the rest
        ("triptych.training.checkpoint", "_sync", 11),  # 3: when all is written, before the rename
        ("os", "replace", 9),
    ],
)
def test_a_kill_while_saving_leaves_the_checkpoint_before(
    module: str, name: str, number: int, whole: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, folder = whole
    killed = start(train_alone, config, tmp_path / "run", partial(kill_at_call, module, name, number))
    assert ended(killed) == -signal.SIGKILL
    assert any(tmp_path.glob("run/checkpoints/.partial-*"))
    for path in ckpt.list_checkpoints(tmp_path / "run" / "checkpoints"):
        ckpt.verify(path)
    assert ended(start(train_alone, config, tmp_path / "run")) == 0
    assert_same_run(folder, tmp_path / "run")
    assert not any(tmp_path.glob("run/checkpoints/.partial-*"))


# -- 4, 5: asked to stop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_saves_and_says_preempted(number: int, whole: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config, folder = whole
    config = replace(config, save_every=1000)
    process = start(train_alone, config, tmp_path / "run")
    wait_for(lambda: size_of(tmp_path / "run" / "records.jsonl") > 4000, process)
    os.kill(process.pid, number)
    assert ended(process) == 75
    (saved,) = ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert 0 < int(saved.name.removeprefix("step-")) < 60
    assert ended(start(train_alone, config, tmp_path / "run")) == 0
    assert_same_run(folder, tmp_path / "run")


def write_slowly(seconds: float) -> None:
    write = filesystem._write_files_from_queue

    def slow(**options: Any) -> None:
        time.sleep(seconds)
        write(**options)

    filesystem._write_files_from_queue = slow


def test_a_second_signal_while_saving_leaves_the_older_checkpoint(
    whole: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, folder = whole
    run_it(config, tmp_path / "run", stop_after=3)
    process = start(train_alone, replace(config, save_every=1000), tmp_path / "run", partial(write_slowly, 1.5))
    wait_for(lambda: size_of(tmp_path / "run" / "records.jsonl") > 6000, process)
    os.kill(process.pid, signal.SIGTERM)
    wait_for(lambda: any(tmp_path.glob("run/checkpoints/.partial-*")), process)
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) != 0
    ckpt.verify(tmp_path / "run" / "checkpoints" / "step-00000003")
    assert ended(start(train_alone, config, tmp_path / "run")) == 0
    assert_same_run(folder, tmp_path / "run")


# -- 6 to 9: damaged checkpoints: test_checkpoint.py ------------------------------------------------------------------
# -- 10 to 13: where checkpoints go -----------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory; only root can have one."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("a file system of its own can only be mounted by root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_warned_about_and_tried_again(whole: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config, folder = whole
    config = replace(config, save_every=10, keep_last_checkpoints=1)
    with mounted(tmp_path / "small", "size=2m") as small:

        def fill_and_make_room(event: dict[str, Any]) -> None:
            if event["kind"] == "step" and event["step"] == 5:  # not even a record fits
                (small / "ballast").write_bytes(b"x" * (shutil.disk_usage(small).free - 4096))
            if event["kind"] == "step" and event["step"] == 34:
                (small / "ballast").unlink()

        run = run_it(config, small / "run", listeners=[fill_and_make_room])
        failed, saved = events(small / "run", "not saved"), events(small / "run", "saved")
        assert "No space left on device" in failed[0]["problem"]
        assert failed[0]["step"] == 10
        assert len(failed) > 5, "it is to be tried again soon"
        assert saved[0]["step"] <= 37
        assert saved[-1]["step"] == config.num_steps
        assert [event["step"] for event in events(small / "run", "step")] == list(range(1, config.num_steps + 1))
        assert_same_bits(tensors_of(run), ckpt.load(ckpt.list_checkpoints(folder / "checkpoints")[-1]).tensors)
        assert len(list((small / "run" / "checkpoints").iterdir())) == 1


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_loses_nothing(
    whole: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config = replace(whole[0], save_every=10, keep_last_checkpoints=2)
    with mounted(tmp_path / "small", "size=2m") as small:
        run_it(config, small / "run", stop_after=10)
        (small / "ballast").write_bytes(b"x" * (shutil.disk_usage(small).free - 20_000))
        with pytest.raises(
            CheckpointError, match=r"could not be saved .*No space left.* it goes on from step-00000010"
        ):
            run_it(config, small / "run", stop_after=25)
        assert [path.name for path in ckpt.list_checkpoints(small / "run" / "checkpoints")] == ["step-00000010"]
        (small / "ballast").unlink()
        run = run_it(config, small / "run")
    assert_same_bits(tensors_of(run), ckpt.load(ckpt.list_checkpoints(whole[1] / "checkpoints")[-1]).tensors)


def test_a_folder_that_cannot_be_written_fails_before_the_first_step(world: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "run", "size=1m") as folder:
        (folder / "checkpoints").mkdir()
        (folder / "lock").touch()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises((CheckpointError, OSError), match="Read-only"):
            run_it(tiny_run(world), folder)
        assert not (folder / "records.jsonl").exists()


def test_saves_that_are_slower_than_their_interval_never_mix(whole: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config = replace(whole[0], save_every=1, num_steps=12, keep_last_checkpoints=20)
    process = start(train_alone, config, tmp_path / "run", partial(write_slowly, 0.1))
    most = 0
    while process.is_alive():
        most = max(most, len(list(tmp_path.glob("run/checkpoints/.partial-*"))))
        time.sleep(0.002)
    assert (ended(process), most) == (0, 1)
    found = ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [ckpt.load(path).step for path in found] == list(range(1, 13))
    assert sum(event["blocked"] for event in events(tmp_path / "run", "saved")) > 0.5, "training waits for them"


def test_two_runs_never_share_a_folder(whole: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config, folder = whole
    process = start(train_alone, config, tmp_path / "run")
    wait_for(lambda: size_of(tmp_path / "run" / "records.jsonl") > 1000, process)
    with pytest.raises(UserError, match=f"is being trained by process {process.pid} on ") as caught:
        run_it(config, tmp_path / "run")
    assert caught.value.exit_code == 2
    process.kill()  # the lock dies with it
    process.join()
    run_it(config, tmp_path / "run")
    assert_same_run(folder, tmp_path / "run")


# -- 14 to 16: steps that go wrong ------------------------------------------------------------------------------------


def test_a_step_that_is_left_out_names_its_samples(world: Path, tmp_path: Path) -> None:
    with broken_steps({2}):
        run_it(tiny_run(world), tmp_path)
    found = events(tmp_path, "step")
    assert [("samples" in event) for event in found] == [False, False, True, False, False, False]
    assert len(found[2]["samples"]) == 9
    folder, _, number = found[2]["samples"][0].rpartition("#")
    assert Path(folder).parent == world / "train"
    assert 0 <= int(number) < 40


def test_too_many_steps_that_are_not_finite_leave_a_dump(world: Path, tmp_path: Path) -> None:
    with broken_steps(range(4, 30)), pytest.raises(loop.Diverged, match=r"their samples are in .*diverged-00000014"):
        run_it(tiny_run(world, num_steps=30), tmp_path)
    dump = json.loads((tmp_path / "diverged-00000014.json").read_text())
    assert [each["step"] for each in dump] == list(range(5, 15))
    assert {each["why"] for each in dump} == {"not finite"}
    assert all(len(each["samples"]) == 9 for each in dump)


@contextlib.contextmanager
def high_losses(steps: range) -> Iterator[None]:
    """Steps whose loss is far above what it should be; their gradient is as it is."""
    step_as_it_is = loop.train_step

    def spoil(_model: Any, _inputs: Any, loss: Any) -> Any:
        return loss._replace(nll_n=loss.nll_n + 1000.0)

    def step_with_spike(model: Any, optimizer: Any, step: Any, *rest: Any) -> Any:
        hook = model.register_forward_hook(spoil) if step.index in steps else None
        try:
            return step_as_it_is(model, optimizer, step, *rest)
        finally:
            if hook is not None:
                hook.remove()

    loop.train_step = step_with_spike
    try:
        yield
    finally:
        loop.train_step = step_as_it_is


GUARD = GuardConfig(spike_sigmas=50.0, spike_window=8, max_consecutive_skips=4, max_rollbacks=1)


def test_a_spike_is_left_out(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=16, guard=GUARD, save_every=5)
    with high_losses(range(10, 12)):
        one = run_it(config, tmp_path / "one")
        run_it(config, tmp_path / "two", stop_after=11)  # between the two
        two = run_it(config, tmp_path / "two")
    skipped = [event["skipped"] for event in events(tmp_path / "one", "step")]
    assert skipped == [None] * 10 + ["spike"] * 2 + [None] * 4
    assert_same_bits(tensors_of(one), tensors_of(two))


def test_a_series_of_spikes_goes_back_and_steps_over_the_data(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=24, guard=GUARD, save_every=5, keep_last_checkpoints=1)
    with high_losses(range(12, 16)):
        run_it(config, tmp_path / "one")
        for stop in (11, 14, None):  # before them, and in their middle
            run_it(config, tmp_path / "two", stop_after=stop)
    (event,) = events(tmp_path / "one", "rolled back")
    assert (event["step"], event["weights_of"]) == (16, 10)
    steps = events(tmp_path / "one", "step")
    assert [event["step"] for event in steps] == list(range(1, 25)), "no data twice"
    assert_same_bits(*(ckpt.load(tmp_path / n / "checkpoints" / "step-00000024").tensors for n in ("one", "two")))
    with high_losses(range(12, 24)), pytest.raises(loop.Diverged, match="4 steps in a row, up to 20, was far above"):
        run_it(config, tmp_path / "three")


# -- 17 to 19: several ranks ------------------------------------------------------------------------------------------


def words(world: Path, out: Path, *more: str) -> list[str]:
    train = ",".join(str(world / "train" / task.label) for task in Task)
    shape = ["model.num_layers=1", "model.width=16", "model.num_heads=2", "model.d_ff=24", "loader.seq_len=24"]
    data = [f"data={train}", "validation_data=", f"tokenizers={world / 'tokenizers'}", "loader.global_batch=6"]
    ends = ["loader.open_ends.text=8", "loader.open_ends.audio=10"]
    return ["train", "nano", "--out", str(out), *data, *shape, *ends, "log_every=1", *more]


def test_a_killed_rank_ends_the_others_and_the_agent_begins_again(world: Path, tmp_path: Path) -> None:
    """17. The agent is torch's own; two ranks over gloo."""
    command = [sys.executable, "-m", "triptych", *words(world, tmp_path / "run", "num_steps=150", "save_every=10")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    agent = subprocess.Popen([*command, "--nproc", "2"], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        newest = tmp_path / "run" / "checkpoints" / "step-00000020"
        until = time.monotonic() + 120
        while not newest.exists():
            assert agent.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        children = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True).stdout.split()
        ranks = [pid for pid in children if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
        os.kill(int(ranks[0]), signal.SIGKILL)
        assert agent.wait(180) == 0
    finally:
        agent.kill()
    starts = events(tmp_path / "run", "run")
    assert len(starts) == 2
    assert starts[1]["step"] >= 10
    assert [event["step"] for event in events(tmp_path / "run", "step")] == list(range(1, 151))


def test_a_rank_that_hangs_is_seen_on_all_of_them(world: Path, tmp_path: Path) -> None:
    config = long_run(world, 50, parallel=ParallelConfig(watch=2.0, timeout=8.0))
    stacks = tmp_path / "stacks"
    processes = [start(hang_in, stacks / str(rank), config, tmp_path / "run", rank) for rank in range(2)]
    try:
        until = time.monotonic() + 60
        texts = ["", ""]
        while not all("do" in text and "File" in text for text in texts):
            assert time.monotonic() < until, texts
            time.sleep(0.2)
            texts = [(stacks / str(rank)).read_text() if (stacks / str(rank)).exists() else "" for rank in range(2)]
        assert "hang_for_ever" in texts[1]
        assert "hang_for_ever" not in texts[0]
        assert ended(processes[0], 60) != 0, "who waits gives up after the time-out"
    finally:
        for process in processes:
            process.kill()


def hang_in(stderr: Path, config: RunConfig, folder: Path, rank: int) -> None:
    """A rank that writes its stderr to a file; the second one hangs at step 5."""
    from faults import train_rank

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


def test_an_error_on_one_rank_while_a_save_is_under_way_ends_all(world: Path, tmp_path: Path) -> None:
    config = long_run(world, 50, parallel=ParallelConfig(timeout=20.0))
    processes = [start(fail_in, config, tmp_path / "run", rank) for rank in range(2)]
    try:
        assert all(ended(process, 60) != 0 for process in processes)
    finally:
        for process in processes:
            process.kill()
    for path in ckpt.list_checkpoints(tmp_path / "run" / "checkpoints"):
        ckpt.verify(path)


def fail_in(config: RunConfig, folder: Path, rank: int) -> None:
    """A rank that saves slowly; the second one has an error of its own meanwhile."""
    from faults import train_rank

    write_slowly(1.0)
    step_as_it_is = loop.train_step

    def step_or_fail(model: Any, optimizer: Any, step: Any, *rest: Any) -> Any:
        if step.index == 3 and rank == 1:
            raise DataError("a shard is damaged")
        return step_as_it_is(model, optimizer, step, *rest)

    loop.train_step = step_or_fail
    train_rank(rank, 2, port_of(folder), config, folder, None)


@pytest.mark.parametrize(
    ("codes", "restarts", "expected", "times"),
    [([1, 1, 0], 3, 0, 3), ([2], 3, 2, 1), ([3], 3, 3, 1), ([4], 3, 4, 1), ([75], 3, 75, 1), ([1, 1], 1, 1, 2)],
)
def test_what_will_not_mend_itself_is_not_tried_again(
    codes: list[int], restarts: int, expected: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(codes)
    asked: list[Any] = []

    def once(*given: Any) -> int:
        asked.append(given)
        return next(left)

    monkeypatch.setattr(launch, "_launch_once", once)
    assert launch.launch(["train", "nano"], 2, restarts) == expected
    assert len(asked) == times
    with pytest.raises(UserError, match="--nnodes needs --meet HOST:PORT"):
        launch.launch(["train"], 2, nodes=2)


def port_of(folder: Path) -> int:
    """A port that both ranks of a folder find."""
    return 20_000 + sum(str(folder).encode()) * 7919 % 20_000


def test_any_number_of_ranks_goes_on_where_another_stopped(world: Path, tmp_path: Path) -> None:
    """19. The same samples in the same order under the same masks: the same numbers of tokens, losses to rounding."""
    config = long_run(world, 24, save_every=100)
    run_it(config, tmp_path / "one")
    for size, stop in ((2, 6), (1, 12), (4, 18), (2, None)):
        assert [ended(process) for process in start_ranks(size, config, tmp_path / "many", stop)] == [0] * size
    one, many = (events(tmp_path / name, "step") for name in ("one", "many"))
    assert [event["tokens"] for event in one] == [event["tokens"] for event in many]
    assert [event["loss"] for event in many] == pytest.approx([event["loss"] for event in one], abs=2e-5)
    assert [event["ranks"] for event in events(tmp_path / "many", "run")] == [2, 1, 4, 2]


# -- 20 to 28: what changed, what fails around it ---------------------------------------------------------------------


def test_what_changed_is_refused_unless_forced(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path, stop_after=3)
    changed = replace(with_loader(config, global_batch=7, task_weights={"text": 1.0}), norm="tokens")
    with pytest.raises(CheckpointError) as caught:
        run_it(changed, tmp_path)
    for part in ("loader.global_batch was 9, is 7", "norm was 'sequence', is 'tokens'", "by --force"):
        assert part in str(caught.value)
    bundle = TokenizerBundle.load(config.tokenizers)
    run = setup.start(changed, tmp_path, bundle, CPU, force=True)
    loop.train(run, [], bundle)
    (note,) = events(tmp_path, "note")
    assert note["text"].startswith("forced to go on after step 3, although ")
    assert "loader.global_batch was 9, is 7" in note["text"]
    assert run.step == 6


def test_a_shard_that_is_missing_is_waited_for_and_then_named(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    shutil.copytree(world / "train" / "text", tmp_path / "text")
    shard = tmp_path / "text" / "shard-00000.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    monkeypatch.setattr(shards.time, "sleep", waited.append)
    with pytest.raises(DataError, match=r"shard-00000.safetensors is missing") as caught:
        shards.TokenDataset(tmp_path / "text")[0]
    assert (caught.value.exit_code, waited) == (3, [0.1, 0.5, 2.0])

    def comes_back(seconds: float) -> None:
        shard.write_bytes(content)

    monkeypatch.setattr(shards.time, "sleep", comes_back)
    assert len(shards.TokenDataset(tmp_path / "text")[0].text)


def test_a_tracker_that_fails_does_not_touch_the_training(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    heard = []

    class Tracker:
        def __call__(self, event: dict[str, Any]) -> None:
            heard.append(event["kind"])
            raise ConnectionError("the tracker is down")

    with_tracker = run_it(tiny_run(world), tmp_path / "one", listeners=[Tracker()])
    assert_same_bits(tensors_of(with_tracker), tensors_of(run_it(tiny_run(world), tmp_path / "two")))
    assert heard == ["run"]
    assert "Tracker no longer hears of this run: it failed with ConnectionError" in capsys.readouterr().err


def test_samples_that_cannot_be_shown_do_not_touch_the_training(world: Path, tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise ConnectionError("the tracker is down")

    one = run_it(tiny_run(world), tmp_path / "one", on_validation=fails)
    assert_same_bits(tensors_of(one), tensors_of(run_it(tiny_run(world), tmp_path / "two")))
    (note,) = events(tmp_path / "one", "note")
    assert "samples are no longer shown" in note["text"]


def test_a_terminal_that_cannot_be_written_does_not_touch_the_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", buffering=1) as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        one = run_it(tiny_run(world), tmp_path / "one", listeners=[Console()])
        with contextlib.suppress(OSError):
            full.close()
    assert_same_bits(tensors_of(one), tensors_of(run_it(tiny_run(world), tmp_path / "two")))


def test_a_clock_that_jumps_changes_nothing(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_it(tiny_run(world), tmp_path / "one")
    times = iter(range(10**9, 0, -(10**6)))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(times)))  # backwards, by days
        jumping = run_it(tiny_run(world), tmp_path / "two")
    assert_same_bits(tensors_of(plain), tensors_of(jumping))
    losses = [[event["loss"] for event in events(tmp_path / name, "step")] for name in ("one", "two")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        MemoryError(),
    ],
)
def test_out_of_memory_says_what_to_change(
    error: Exception, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def full(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(loop, "train_step", full)
    monkeypatch.setattr(triptych.training.peak, "matmul_peak", lambda device: 1e12)
    assert main(words(world, tmp_path / "run", "num_steps=3")) == 2
    said = capsys.readouterr().err
    assert "memory ran out at step 1: this run needs about " in said
    assert "try " in said
