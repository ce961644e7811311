"""`triptych.train`: messages, stops, mistakes; and the same as a command in processes of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from train_fakes import (
    assert_same_bits,
    broken_steps,
    events,
    saved_tensors,
    tiny_run,
    world_changes,
)

from triptych.data.steps import Step
from triptych.errors import CheckpointError, UserError
from triptych.recipes import recipe
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training import loop
from triptych.training import run as run_module
from triptych.training.ranks import Ranks
from triptych.training.run import train
from triptych.training.signals import RunStopped
from triptych.training.step import train_step


@pytest.fixture(autouse=True)
def _fast_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "matmul_peak", lambda device, dtype: 1e12)


def overrides(world: Path, *more: str) -> list[str]:
    """Changes that make the recipe `nano` tiny."""
    return [
        *world_changes(world),
        "model.num_layers=1",
        "model.width=16",
        "model.num_heads=2",
        "model.d_ff=24",
        "loader.seq_len=24",
        "loader.global_batch=6",
        "loader.open_ends.text=8",
        "loader.open_ends.audio=10",
        "validation.sequences=4",
        "threads=1",
        "log_every=1",
        *more,
    ]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- the function -----------------------------------------------------------------------------------------------------


def test_train_reports_progress_and_returns_the_folder(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    changes, out = overrides(world, "num_steps=2"), tmp_path / "run"
    assert train("nano", changes, out=str(out), device="cpu") == out
    first = capsys.readouterr()
    assert first.out == ""
    for line in ("nano: ", "step      2/2  loss ", "validation, nats per token: all", "done: 2 steps"):
        assert line in first.err
    assert f"try it: triptych generate text-to-image {recipe('nano').prompts.examples[0]!r} --model {out}" in first.err
    before = content(out)
    assert train("nano", changes, out=out, device="cpu") == out
    assert capsys.readouterr().err == f"{out} is complete: 2 of 2 steps\n"
    assert content(out) == before
    with pytest.raises(CheckpointError, match=f"optimizer.lr was {recipe('nano').optimizer.lr}, is 0.5"):
        train("nano", [*changes, "optimizer.lr=0.5"], out=out, device="cpu")


def test_train_takes_a_configuration_and_can_be_quiet(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = train(tiny_run(world), ["num_steps=2"], device="cpu", quiet=True)
    assert folder == Path("runs/nano")
    assert len(events(folder, "step")) == 2
    assert tuple(capsys.readouterr()) == ("", "")


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_cpu_that_lacks_bfloat16_is_named(
    is_slow: bool, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(run_module, "matmul_peak", lambda device, dtype: dtype.itemsize ** (1 if is_slow else -1))
    changes = overrides(world, "num_steps=1", "parallel.precision=bfloat16-products")
    train("nano", changes, out=tmp_path / "run", device="cpu")
    assert ("warning: products in bfloat16 are slower than in float32" in capsys.readouterr().err) == is_slow


def test_stop_after_is_not_the_end(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def run(stop_after: int) -> str:
        train("nano", overrides(world, "num_steps=4"), out=out, device="cpu", stop_after=stop_after)
        return capsys.readouterr().err

    out, how = tmp_path / "run", "run the same command without --stop-after to resume\n"
    first = run(2)
    assert first.endswith(f"stopped at step 2 of 4; {how}")
    assert "done:" not in first
    assert events(out, "end") == []
    before = content(out)
    assert run(2) == f"{out} is at step 2 of 4; {how}"
    assert content(out) == before
    last = run(9)
    assert last.startswith("resuming at step 2 of 4\n")
    assert "done: 4 steps" in last
    assert "stopped" not in last
    assert len(events(out, "end")) == 1


def send_signals_at_step_3(number: int, pause: float) -> Any:
    """A training step that sends this process two signals."""

    def step_with_signals(model: Any, optimizer: Any, step: Step, *rest: Any) -> Any:
        if step.index == 3:
            os.kill(os.getpid(), number)
            time.sleep(pause)
            os.kill(os.getpid(), number)
        return train_step(model, optimizer, step, *rest)

    return step_with_signals


@pytest.mark.parametrize(
    ("save_every", "lost"),
    [
        (2, "1 of 3 steps are lost; run the same command to resume at step 2"),
        (100, "3 of 3 steps are lost; run the same command to start again"),
    ],
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_second_signal_stops_without_saving(
    number: int,
    code: int,
    save_every: int,
    lost: str,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(loop, "train_step", send_signals_at_step_3(number, pause=0.6))
    with pytest.raises(RunStopped) as caught:
        train("nano", overrides(world, "num_steps=9", f"save_every={save_every}"), out=tmp_path / "run", device="cpu")
    stop = caught.value
    assert (stop.signal, stop.step, stop.saved, stop.exit_code) == (number, 3, False, code)
    assert capsys.readouterr().err.endswith(f"stopped without saving: {lost}\n")
    saved = [path.name for path in ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert saved == (["step-00000002"] if save_every == 2 else [])


def test_a_repeated_signal_is_not_a_second_one(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A scheduler signals all processes of a job, and a parent process forwards the signal."""
    monkeypatch.setattr(loop, "train_step", send_signals_at_step_3(signal.SIGTERM, pause=0))
    with pytest.raises(RunStopped) as caught:
        train("nano", overrides(world, "num_steps=9", "save_every=100"), out=tmp_path / "run", device="cpu")
    assert (caught.value.saved, caught.value.exit_code) == (True, 75)
    assert "saved step 4; run the same command to resume" in capsys.readouterr().err


def test_a_diverging_run_reports_every_skipped_step(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with broken_steps(range(1, 30)), pytest.raises(loop.Diverged, match="of 10 steps in a row, up to 11, was not"):
        train("nano", overrides(world, "num_steps=30"), out=tmp_path / "run", device="cpu")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "step     11/30  skipped, not finite: loss, gradient"
    assert lines[-10].startswith("step      2/30  skipped")


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_writes_for_tensorboard(
    rank: int, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, used = [], []

    class FakeLogger:
        show_samples = None

        def __init__(self, folder: Path, bundle: TokenizerBundle):
            folders.append(folder)

        def __call__(self, event: dict[str, Any]) -> None: ...

    class Rank(Ranks):
        is_rank0 = rank == 0  # type: ignore[assignment]

    monkeypatch.setattr("triptych.training.tensorboard.TensorBoardLogger", FakeLogger)
    monkeypatch.setattr(run_module, "init_ranks", lambda *_: Rank(rank))
    monkeypatch.setattr(run_module, "train_loop", lambda run, loggers, **_: used.extend(loggers))
    train(tiny_run(world, tensorboard=True), out=tmp_path / "run", device="cpu")
    assert folders == ([tmp_path / "run"] if rank == 0 else [])
    assert sum(isinstance(logger, FakeLogger) for logger in used) == len(folders)


def test_a_missing_tensorboard_is_named_before_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.raises(UserError, match=r'needs the package \'tensorboard\'.*-e "\.\[train\]"'):
        train("nano", overrides(world, "tensorboard=true", "num_steps=1"), out=tmp_path / "run", device="cpu")
    assert not list(tmp_path.rglob("records.jsonl"))


COUNTS = "num_steps, log_every, save_every and keep_last_checkpoints must be at least 1."


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("scene", None, "unknown recipe 'scene'. Did you mean 'scenes'"),
        ("nano", "optimizer.lrr=1", "unknown key 'optimizer.lrr'. Did you mean 'optimizer.lr'?"),
        ("nano", "num_step=3", "unknown key 'num_step'. Did you mean 'num_steps'?"),
        ("nano", "num_steps", "expected key=value, got 'num_steps'"),
        ("nano", "data=nowhere", "nowhere holds no dataset. "),
        ("nano", "data=nowhere", "`triptych scenes make data/scenes`"),
        (
            "nano",
            "data=nowhere",
            "`triptych tokenize FOLDER --out data/mine`, then `triptych train own data=data/mine`",
        ),
        ("paper_base", None, "the recipe 'paper_base' names no data. For your own files: `triptych tokenize "),
        ("nano", "threads=-1", "threads must lie between 1 and 4096, or be none for all, got -1."),
        ("nano", "threads=0", "threads must lie between 1 and 4096, or be none for all, got 0."),
        ("nano", "threads=1e9", "threads must lie between 1 and 4096"),
        ("nano", "num_steps=1e300", "num_steps must lie between -2**63 and 2**63, got '1e300'."),
        ("nano", f"corrupt.seed={2**64}", "corrupt.seed must lie between -2**63 and 2**63"),
        ("nano", "keep_last_checkpoints=0", COUNTS),
        ("nano", "save_every=-1", COUNTS),
        ("nano", "model.num_heads=5", "width=128 must be a multiple of 2 * num_heads=10"),
        ("nano", "z_loss_weight=inf", "z_loss_weight must lie between 0 and 1e+06, got inf."),
        ("nano", "z_loss_weight=1e300", "z_loss_weight must lie between 0 and 1e+06, got 1e+300."),
        ("nano", "optimizer.clip=inf", "clip must be positive and finite, or none, got inf."),
        ("nano", "optimizer.weight_decay=inf", "weight_decay and warmup_steps must be finite"),
    ],
)
def test_mistakes_are_named(
    name: str, change: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        train(name, [] if change is None else [change], device="cpu")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_stop_after_must_be_positive() -> None:
    with pytest.raises(UserError, match="stop_after must be at least 1, got 0"):
        train("nano", stop_after=0)


# -- processes --------------------------------------------------------------------------------------------------------


def command(world: Path, out: Path, *more: str) -> list[str]:
    words = ["train", "nano", *overrides(world, *more), "--out", str(out), "--device", "cpu"]
    return [sys.executable, "-m", "triptych", *words]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_process_resumes_to_the_same_weights(
    number: int, code: int, world: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    # Too many steps to finish before the signal; both runs end two steps after it.
    long = ("num_steps=100000", "save_every=100000", "validation.every=100000")
    process = subprocess.Popen(
        command(world, tmp_path / "run", *long),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # Background processes of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step      3/"):
            break
    process.send_signal(number)
    errors = process.stderr.read()
    assert process.wait(60) == code, errors
    (saved,) = ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")
    step = int(saved.name.removeprefix("step-"))
    assert step >= 3
    assert f"saved step {step}; run the same command to resume" in errors
    assert "Traceback" not in errors

    train("nano", overrides(world, *long), out=tmp_path / "run", device="cpu", stop_after=step + 2)
    assert f"resuming at step {step} of 100000" in capfd.readouterr().err
    train("nano", overrides(world, *long), out=tmp_path / "uninterrupted", device="cpu", stop_after=step + 2)
    assert_same_bits(saved_tensors(tmp_path / "run"), saved_tensors(tmp_path / "uninterrupted"))
    parts, uninterrupted = (events(tmp_path / name, "step") for name in ("run", "uninterrupted"))
    assert [event["step"] for event in parts] == list(range(1, step + 3))
    assert [event["loss"] for event in parts] == [event["loss"] for event in uninterrupted]


def start_two_ranks(world: Path, out: Path, *more: str) -> subprocess.Popen:
    """`triptych train --nproc 2`, with all output in one pipe."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_")}
    words = [*command(world, out, *more), "--nproc", "2"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@pytest.mark.slow
def test_two_ranks_print_each_message_once(world: Path, tmp_path: Path) -> None:
    process = start_two_ranks(world, tmp_path / "run", "num_steps=100000", "save_every=2", "validation.every=100000")
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step      3/"):
            process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert lines[0].startswith("nano: ")
    assert lines[-1].startswith("saved step ")
    assert all(line.startswith(("nano: ", "step ", "saved step ")) for line in lines), lines  # nothing of torch
    assert len(set(lines)) == len(lines)


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "code"), [("parallel.shard=7", 2), ("tokenizers=nowhere", 2)])
def test_two_ranks_print_an_error_once(mistake: str, code: int, world: Path, tmp_path: Path) -> None:
    process = start_two_ranks(world, tmp_path / "run", mistake)
    output, _ = process.communicate(timeout=300)
    lines = output.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("triptych: error: ")
    assert process.returncode == code


def test_a_rank_that_fails_keeps_its_exit_code_whatever_its_connections_do_at_exit() -> None:
    program = """
import atexit, os, sys
import torch.distributed as dist
from triptych.cli.main import main
from triptych.training import ranks
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
atexit.register(os.abort)  # as a thread of gloo does now and then, when it is destroyed while it runs
sys.argv = ["triptych", "train", "nano", "tokenizers=nowhere"]
sys.exit(main())
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert process.returncode == 2, process.stderr
    assert len(process.stderr.splitlines()) == 1, process.stderr
