"""Faults that training survives, with real processes, signals, files and file systems (docs/faults.md)."""

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
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from faults import (
    assert_same_run,
    exit_code_of,
    fail_in,
    hang_in,
    kill_at_call,
    long_run,
    random_kills,
    size_of,
    start,
    start_ranks,
    train_alone,
    wait_for,
    write_slowly,
)
from train_fakes import assert_same_bits, broken_steps, events, run_it, tensors_of, tiny_run, with_loader

from triptych.data import shards
from triptych.errors import CheckpointError, DataError, UserError
from triptych.training import checkpoint as ckpt
from triptych.training import launch, loop
from triptych.training.config import GuardConfig, ParallelConfig, RunConfig
from triptych.training.logging import Console
from triptych.vocab import Task

SHARD = "shard-00001-model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def uninterrupted(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """An uninterrupted run."""
    config, folder = long_run(world, 60), tmp_path_factory.mktemp("uninterrupted") / "run"
    assert exit_code_of(start(train_alone, config, folder)) == 0
    return config, folder


# -- 1 to 3: killed ---------------------------------------------------------------------------------------------------


def test_random_kills_do_not_change_the_result(uninterrupted: tuple[RunConfig, Path], tmp_path: Path) -> None:
    """`make faults` does it fifty times."""
    config, folder = uninterrupted
    random_kills(config, tmp_path / "run", kills=4, seed=1)
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [
        ("torch.distributed.checkpoint.filesystem", "_write_files_from_queue", 3),  # before the tensors are written
        ("triptych.training.checkpointer", "sha256", 5),  # after the tensors are written
        ("triptych.training.checkpointer", "_sync", 11),  # when everything is written, before the rename
        ("os", "replace", 9),
    ],
)
def test_a_kill_while_saving_leaves_the_previous_checkpoint(
    module: str, name: str, number: int, uninterrupted: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, folder = uninterrupted
    killed = start(train_alone, config, tmp_path / "run", partial(kill_at_call, module, name, number))
    assert exit_code_of(killed) == -signal.SIGKILL
    assert any(tmp_path.glob("run/checkpoints/.partial-*"))
    for path in ckpt.list_checkpoints(tmp_path / "run" / "checkpoints"):
        ckpt.verify(path)
    assert exit_code_of(start(train_alone, config, tmp_path / "run")) == 0
    assert_same_run(folder, tmp_path / "run")
    assert not any(tmp_path.glob("run/checkpoints/.partial-*"))


# -- 4, 5: signals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_saves_and_exits_with_75(number: int, uninterrupted: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config, folder = uninterrupted
    config = replace(config, save_every=1000)
    process = start(train_alone, config, tmp_path / "run")
    wait_for(lambda: size_of(tmp_path / "run" / "records.jsonl") > 4000, process)
    os.kill(process.pid, number)
    assert exit_code_of(process) == 75
    (saved,) = ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert 0 < int(saved.name.removeprefix("step-")) < 60
    assert exit_code_of(start(train_alone, config, tmp_path / "run")) == 0
    assert_same_run(folder, tmp_path / "run")


def test_a_second_signal_while_saving_leaves_the_previous_checkpoint(
    uninterrupted: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, folder = uninterrupted
    run_it(config, tmp_path / "run", stop_after=3)
    process = start(train_alone, replace(config, save_every=1000), tmp_path / "run", partial(write_slowly, 1.5))
    wait_for(lambda: size_of(tmp_path / "run" / "records.jsonl") > 6000, process)
    os.kill(process.pid, signal.SIGTERM)
    wait_for(lambda: any(tmp_path.glob("run/checkpoints/.partial-*")), process)
    os.kill(process.pid, signal.SIGTERM)
    assert exit_code_of(process) != 0
    ckpt.verify(tmp_path / "run" / "checkpoints" / "step-00000003")
    assert exit_code_of(start(train_alone, config, tmp_path / "run")) == 0
    assert_same_run(folder, tmp_path / "run")


# -- 6 to 9: damaged checkpoints, in test_checkpoint.py ---------------------------------------------------------------
# -- 10 to 13: disks and folders --------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory. Mounting needs root."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("only root can mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_reported_and_saving_is_tried_again(
    uninterrupted: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, folder = uninterrupted
    config = replace(config, save_every=10, keep_last_checkpoints=1)
    with mounted(tmp_path / "small", "size=2m") as small:

        def fill_and_make_room(event: dict[str, Any]) -> None:
            if event["kind"] == "step" and event["step"] == 5:  # no room even for a record
                (small / "ballast").write_bytes(b"x" * (shutil.disk_usage(small).free - 4096))
            if event["kind"] == "step" and event["step"] == 34:
                (small / "ballast").unlink()

        run = run_it(config, small / "run", loggers=[fill_and_make_room])
        failed, saved = events(small / "run", "not saved"), events(small / "run", "saved")
        assert "No space left on device" in failed[0]["problem"]
        assert failed[0]["step"] == 10
        assert len(failed) > 5, "saving is not tried again soon"
        assert saved[0]["step"] <= 37
        assert saved[-1]["step"] == config.num_steps
        assert [event["step"] for event in events(small / "run", "step")] == list(range(1, config.num_steps + 1))
        assert_same_bits(tensors_of(run), ckpt.load(ckpt.list_checkpoints(folder / "checkpoints")[-1]).tensors)
        assert len(list((small / "run" / "checkpoints").iterdir())) == 1


def test_a_disk_that_stays_full_is_an_error_at_the_end(uninterrupted: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config = replace(uninterrupted[0], save_every=10, keep_last_checkpoints=2)
    with mounted(tmp_path / "small", "size=2m") as small:
        run_it(config, small / "run", stop_after=10)
        (small / "ballast").write_bytes(b"x" * (shutil.disk_usage(small).free - 20_000))
        with pytest.raises(
            CheckpointError, match=r"could not be saved .*No space left.* it resumes from step-00000010"
        ):
            run_it(config, small / "run", stop_after=25)
        assert [path.name for path in ckpt.list_checkpoints(small / "run" / "checkpoints")] == ["step-00000010"]
        (small / "ballast").unlink()
        run = run_it(config, small / "run")
    assert_same_bits(tensors_of(run), ckpt.load(ckpt.list_checkpoints(uninterrupted[1] / "checkpoints")[-1]).tensors)


def test_a_folder_that_cannot_be_written_fails_before_the_first_step(world: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "run", "size=1m") as folder:
        (folder / "checkpoints").mkdir()
        (folder / "lock").touch()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(UserError, match="Read-only"):
            run_it(tiny_run(world), folder)
        assert not (folder / "records.jsonl").exists()


def test_slow_saves_never_overlap(uninterrupted: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config = replace(uninterrupted[0], save_every=1, num_steps=12, keep_last_checkpoints=20)
    process = start(train_alone, config, tmp_path / "run", partial(write_slowly, 0.1))
    most = 0
    while process.is_alive():
        most = max(most, len(list(tmp_path.glob("run/checkpoints/.partial-*"))))
        time.sleep(0.002)
    assert (exit_code_of(process), most) == (0, 1)
    saved = ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [ckpt.load(path).step for path in saved] == list(range(1, 13))
    assert sum(event["blocked"] for event in events(tmp_path / "run", "saved")) > 0.5, "training did not wait"


def test_two_runs_cannot_use_one_folder(uninterrupted: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config, folder = uninterrupted
    process = start(train_alone, config, tmp_path / "run")
    wait_for(lambda: size_of(tmp_path / "run" / "records.jsonl") > 1000, process)
    with pytest.raises(UserError, match=f"is being trained by process {process.pid} on ") as caught:
        run_it(config, tmp_path / "run")
    assert caught.value.exit_code == 2
    process.kill()  # this releases the lock
    process.join()
    run_it(config, tmp_path / "run")
    assert_same_run(folder, tmp_path / "run")


# -- 14 to 16: bad steps ----------------------------------------------------------------------------------------------


def test_a_skipped_step_names_its_samples(world: Path, tmp_path: Path) -> None:
    with broken_steps({2}):
        run_it(tiny_run(world), tmp_path)
    steps = events(tmp_path, "step")
    assert [("samples" in event) for event in steps] == [False, False, True, False, False, False]
    assert len(steps[2]["samples"]) == 9
    folder, _, number = steps[2]["samples"][0].rpartition("#")
    assert Path(folder).parent == world / "train"
    assert 0 <= int(number) < 40


def test_too_many_skipped_steps_write_a_dump(world: Path, tmp_path: Path) -> None:
    with broken_steps(range(4, 30)), pytest.raises(loop.Diverged, match=r"their samples are in .*diverged-00000014"):
        run_it(tiny_run(world, num_steps=30), tmp_path)
    dump = json.loads((tmp_path / "diverged-00000014.json").read_text())
    assert [each["step"] for each in dump] == list(range(5, 15))
    assert {each["why"] for each in dump} == {"not finite"}
    assert all(len(each["samples"]) == 9 for each in dump)


@contextlib.contextmanager
def high_losses(steps: range) -> Iterator[None]:
    """Raise the loss of some steps far above the mean, without changing the gradient."""
    step_as_it_is = loop.train_step

    def corrupt(loss: Any) -> Any:
        return loss._replace(nll_n=loss.nll_n + 1000.0)

    def step_with_spike(model: Any, optimizer: Any, step: Any, *rest: Any) -> Any:
        if step.index not in steps:
            return step_as_it_is(model, optimizer, step, *rest)
        loss = model.loss
        with mock.patch.object(model, "loss", lambda *inputs: corrupt(loss(*inputs))):
            return step_as_it_is(model, optimizer, step, *rest)

    loop.train_step = step_with_spike
    try:
        yield
    finally:
        loop.train_step = step_as_it_is


GUARD = GuardConfig(spike_sigmas=50.0, spike_window=8, max_consecutive_skips=4, max_rollbacks=1)


def test_a_loss_spike_is_skipped(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=16, guard=GUARD, save_every=5)
    with high_losses(range(10, 12)):
        one = run_it(config, tmp_path / "one")
        run_it(config, tmp_path / "two", stop_after=11)  # between the two spikes
        two = run_it(config, tmp_path / "two")
    skipped = [event["skipped"] for event in events(tmp_path / "one", "step")]
    assert skipped == [None] * 10 + ["spike"] * 2 + [None] * 4
    assert_same_bits(tensors_of(one), tensors_of(two))


def test_a_series_of_spikes_rolls_back_and_skips_the_data(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=24, guard=GUARD, save_every=5, keep_last_checkpoints=1)
    with high_losses(range(12, 16)):
        run_it(config, tmp_path / "one")
        for stop in (11, 14, None):  # before and during the spikes
            run_it(config, tmp_path / "two", stop_after=stop)
    (event,) = events(tmp_path / "one", "rolled back")
    assert (event["step"], event["weights_of"]) == (16, 10)
    steps = events(tmp_path / "one", "step")
    assert [event["step"] for event in steps] == list(range(1, 25)), "data was used twice"
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


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_all_are_restarted(world: Path, tmp_path: Path) -> None:
    """Two ranks over gloo, started by torch's elastic agent."""
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
        _, errors = agent.communicate(timeout=180)
    finally:
        agent.kill()
    assert agent.returncode == 0, errors
    assert errors.count("triptych: a rank has crashed; all ranks resume from the newest checkpoint\n") == 1
    assert "torch" not in errors
    starts = events(tmp_path / "run", "run")
    assert len(starts) == 2
    assert starts[1]["step"] >= 10
    assert [event["step"] for event in events(tmp_path / "run", "step")] == list(range(1, 151))


def test_a_hanging_rank_makes_all_ranks_print_their_stacks(world: Path, tmp_path: Path) -> None:
    config = long_run(world, 50, parallel=ParallelConfig(hang_timeout=2.0, timeout=8.0))
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
        assert exit_code_of(processes[0], 60) != 0, "a waiting rank must fail after the timeout"
    finally:
        for process in processes:
            process.kill()


def test_an_error_on_one_rank_during_a_save_ends_all_ranks(world: Path, tmp_path: Path) -> None:
    config = long_run(world, 50, parallel=ParallelConfig(timeout=20.0))
    processes = [start(fail_in, config, tmp_path / "run", rank) for rank in range(2)]
    try:
        assert all(exit_code_of(process, 60) != 0 for process in processes)
    finally:
        for process in processes:
            process.kill()
    for path in ckpt.list_checkpoints(tmp_path / "run" / "checkpoints"):
        ckpt.verify(path)


@pytest.mark.parametrize(
    ("codes", "restarts", "expected", "times"),
    [([1, 1, 0], 3, 0, 3), ([2], 3, 2, 1), ([3], 3, 3, 1), ([4], 3, 4, 1), ([75], 3, 75, 1), ([1, 1], 1, 1, 2)],
)
def test_only_crashes_are_restarted(
    codes: list[int], restarts: int, expected: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining = iter(codes)
    launches: list[Any] = []

    def once(*arguments: Any) -> int:
        launches.append(arguments)
        return next(remaining)

    monkeypatch.setattr(launch, "_launch_once", once)
    assert launch.launch(["train", "nano"], 2, restarts) == expected
    assert len(launches) == times
    with pytest.raises(UserError, match="--nnodes needs --rdzv-endpoint HOST:PORT"):
        launch.launch(["train"], 2, nodes=2)


def test_any_number_of_ranks_resumes_what_another_number_saved(world: Path, tmp_path: Path) -> None:
    """Samples, order and masks are the same, so losses are equal up to rounding."""
    config = long_run(world, 24, save_every=100)
    run_it(config, tmp_path / "one")
    for size, stop in ((2, 6), (1, 12), (4, 18), (2, None)):
        assert [exit_code_of(process) for process in start_ranks(size, config, tmp_path / "many", stop)] == [0] * size
    one, many = (events(tmp_path / name, "step") for name in ("one", "many"))
    assert [event["tokens"] for event in one] == [event["tokens"] for event in many]
    assert [event["loss"] for event in many] == pytest.approx([event["loss"] for event in one], abs=2e-5)
    assert [event["ranks"] for event in events(tmp_path / "many", "run")] == [2, 1, 4, 2]


# -- 20 to 28: changes, loggers, clocks, memory -----------------------------------------------------------------------


def test_a_changed_configuration_is_refused_unless_forced(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path, stop_after=3)
    changed = replace(with_loader(config, global_batch=7, task_weights={"text": 1.0}), norm="tokens")
    with pytest.raises(CheckpointError) as caught:
        run_it(changed, tmp_path)
    for part in ("loader.global_batch was 9, is 7", "norm was 'sequence', is 'tokens'", "by --force"):
        assert part in str(caught.value)
    run = run_it(changed, tmp_path, force=True)
    (note,) = events(tmp_path, "note")
    assert note["text"].startswith("forced to resume after step 3, although ")
    assert "loader.global_batch was 9, is 7" in note["text"]
    assert run.state.step == 6


def test_a_missing_shard_is_waited_for_and_then_named(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    shutil.copytree(world / "train" / "text", tmp_path / "text")
    shard = tmp_path / "text" / "shard-00000.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    monkeypatch.setattr(time, "sleep", waited.append)
    with pytest.raises(DataError, match=r"shard-00000.safetensors is missing") as caught:
        shards.TokenDataset(tmp_path / "text")[0]
    assert (caught.value.exit_code, waited) == (3, [0.1, 0.5, 2.0])

    def comes_back(seconds: float) -> None:
        shard.write_bytes(content)

    monkeypatch.setattr(time, "sleep", comes_back)
    assert len(shards.TokenDataset(tmp_path / "text")[0].text)


def test_a_failing_logger_does_not_affect_training(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    received = []

    class Tracker:
        def __call__(self, event: dict[str, Any]) -> None:
            received.append(event["kind"])
            raise ConnectionError("the tracker is down")

    with_tracker = run_it(tiny_run(world), tmp_path / "one", loggers=[Tracker()])
    assert_same_bits(tensors_of(with_tracker), tensors_of(run_it(tiny_run(world), tmp_path / "two")))
    assert received == ["run"]
    assert "Tracker gets no more events of this run: it failed with ConnectionError" in capsys.readouterr().err


def test_failing_samples_do_not_affect_training(world: Path, tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise ConnectionError("the tracker is down")

    one = run_it(tiny_run(world), tmp_path / "one", on_validation=fails)
    assert_same_bits(tensors_of(one), tensors_of(run_it(tiny_run(world), tmp_path / "two")))
    (note,) = events(tmp_path / "one", "note")
    assert "samples are no longer shown" in note["text"]


def test_a_failing_terminal_does_not_affect_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", buffering=1) as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        one = run_it(tiny_run(world), tmp_path / "one", loggers=[Console()])
        with contextlib.suppress(OSError):
            full.close()
    assert_same_bits(tensors_of(one), tensors_of(run_it(tiny_run(world), tmp_path / "two")))


def test_a_clock_jump_does_not_affect_training(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_out_of_memory_advises_what_to_change(
    error: Exception, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(loop, "train_step", full)
    with pytest.raises(UserError, match=r"memory ran out at step 1: this run needs about .*try ") as caught:
        run_it(tiny_run(world), tmp_path / "run")
    assert caught.value.exit_code == 2
