"""Two ranks train the same model as one rank."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import train_fakes
from train_fakes import broken_steps, events, run_it, tiny_run

from triptych.data.pack import Packed, RowLayout
from triptych.errors import UserError
from triptych.training import checkpoint as ckpt
from triptych.training.ranks import Ranks, init_ranks, rank_device
from triptych.training.run import train


def test_without_torchrun_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = init_ranks()
    assert (ranks, ranks.is_rank0) == (Ranks(0, 1), True)
    assert ranks.sum([1.5, 2]) == [1.5, 2]
    assert (ranks.any([True, False]), ranks.gather("a"), ranks.broadcast("b")) == ([True, False], ["a"], "b")
    assert (ranks.run_on_rank0(lambda: 3), ranks.new_group()) == (3, ranks)
    ranks.barrier()
    assert not Ranks(1, 2).is_rank0


@pytest.mark.parametrize(
    ("name", "size", "local_rank", "expected"),
    [
        ("cuda", "2", "1", "cuda:1"),
        ("cuda", "4", "0", "cuda:0"),
        ("cuda", "2", None, "cuda:0"),  # a launcher that gives every process one device
        ("cuda:3", "2", "1", "cuda:3"),
        ("cpu", "2", "1", "cpu"),
        ("cuda", "1", "0", "cuda"),
        ("cuda", None, None, "cuda"),
    ],
)
def test_every_rank_uses_its_own_device(
    name: str, size: str | None, local_rank: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("WORLD_SIZE", size), ("LOCAL_RANK", local_rank)):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert rank_device(name) == expected


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="it has the device that is to be missing")
def test_train_uses_the_device_of_the_rank(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "7")
    overrides = ["validation_data=", f"data={world / 'train' / 'text'}"]
    with pytest.raises(UserError, match="the device 'cuda:7' cannot be used"):
        train("nano", overrides, out=tmp_path / "run", device="cuda")


@pytest.fixture(scope="module")
def two_ranks(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder that two processes wrote, and the results of each."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, train_fakes.__file__, str(world), str(folder)],
            env={**os.environ, **shared, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return folder, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("name", "layout"), [("complete", None), ("packed", Packed(row_length=40))])
def test_two_ranks_train_like_one(
    name: str, layout: RowLayout | None, two_ranks: tuple[Path, list[dict[str, Any]]], world: Path, tmp_path: Path
) -> None:
    folder, results = two_ranks
    alone = run_it(tiny_run(world, layout=layout), tmp_path)
    one, both = events(tmp_path, "step"), events(folder / name, "step")
    assert [event["step"] for event in both] == [1, 2, 3, 4, 5, 6]
    for expected, actual in zip(one, both):
        assert actual["loss"] == pytest.approx(expected["loss"], abs=2e-5)  # rounded to five decimals
        assert actual["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        assert actual["nll"] == pytest.approx(expected["nll"], abs=2e-5)
        assert actual["tokens"] == expected["tokens"]
    saved = ckpt.load(ckpt.list_checkpoints(folder / name / "checkpoints")[-1])
    for key, value in alone.state.model.state_dict().items():
        torch.testing.assert_close(saved.tensors[f"model/{key}"], value, atol=1e-5, rtol=1e-4, msg=key)
    # The sums are equal to the bit on both ranks.
    assert [each["size"] for each in results] == [2, 2]
    assert results[0]["sums"] == results[1]["sums"]


def test_only_rank_0_writes_records(two_ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = two_ranks
    for kind, count in (("run", 1), ("validation", 2), ("saved", 1), ("end", 1)):
        assert len(events(folder / "complete", kind)) == count, kind


def test_a_step_that_fails_on_one_rank_is_skipped_by_both(
    two_ranks: tuple[Path, list[dict[str, Any]]], world: Path, tmp_path: Path
) -> None:
    folder, results = two_ranks
    with broken_steps({2}):
        run_it(tiny_run(world), tmp_path)
    one, both = events(tmp_path, "step"), events(folder / "broken", "step")
    assert [event["skipped"] for event in both] == [None, None, "not finite", None, None, None]
    assert (both[2]["loss"], both[2]["grad_norm"]) == (None, None)
    for key in ("loss", "grad_norm"):
        actual, expected = ([event[key] for event in each if not event["skipped"]] for each in (both, one))
        assert actual == pytest.approx(expected, rel=1e-4, abs=2e-5)
    assert results[0]["sums"][2] == results[1]["sums"][2] != results[0]["sums"][0]
    assert results[0]["diverged"] == results[1]["diverged"]
    assert "10 steps in a row, up to 11, was not finite" in results[0]["diverged"]


def test_a_signal_on_one_rank_stops_both_at_the_same_step(
    two_ranks: tuple[Path, list[dict[str, Any]]], world: Path, tmp_path: Path
) -> None:
    folder, results = two_ranks
    assert [each["stopped"] for each in results] == [[signal.SIGTERM, 3]] * 2
    assert [path.name for path in ckpt.list_checkpoints(folder / "stopped" / "checkpoints")] == ["step-00000003"]
    # One rank resumes where two were stopped.
    run_it(tiny_run(world), folder / "stopped")
    losses = [[event["loss"] for event in events(folder / name, "step")] for name in ("stopped", "complete")]
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
