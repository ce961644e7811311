"""`triptych sweep`: several processes do the runs of a grid; failed, diverged, killed and stopped runs."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from train_fakes import make_world, world_changes

from triptych.cli.main import main

SMALL = ("--low", "5e8", "--high", "8e8", "--budgets", "2", "--tokens-per-parameter", "0.01,1e6")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*world_changes(make_world(tmp_path_factory.mktemp("world"))), "validation.sequences=8"]


def command(*words: object) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as end:  # argparse
        return int(end.code or 0)


@pytest.mark.slow
def test_several_processes_share_a_grid(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    budgets = (*SMALL, "--sizes", "2")
    assert command("plan", "grid", "proxy", *budgets, "--out", grid, *world) == 0
    assert "start or join its runs with: triptych sweep" in capsys.readouterr().out
    assert command("plan", "grid", "proxy", *budgets, "--out", grid, "--commands", *world) == 0
    commands = capsys.readouterr().out.splitlines()
    assert len(commands) == 4
    assert all(line.startswith("triptych train proxy ") for line in commands)
    sweep = [sys.executable, "-m", "triptych", "sweep", str(grid)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(sweep, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    output = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    records = [json.loads(line) for line in (grid / "records.jsonl").read_text().splitlines()]
    planned = {run["key"]: run for run in json.loads((grid / "grid.json").read_text())["runs"]}
    assert {record["key"] for record in records} == set(planned)
    assert len(records) == 4
    for record in records:
        assert 0 < record["loss"] < 20
        plan = planned[record["key"]]
        assert record["N"] == plan["N"]
        assert record["D"] == int(record["D"]) == pytest.approx(plan["D"], rel=0.2)  # as trained, not as planned
        assert record["C"] / record["D"] == pytest.approx(plan["C"] / plan["D"])
        terms = [value for name, value in record["held_out"].items() if "|" not in name]
        assert min(terms) < record["loss"] < max(terms)
    before = (grid / "records.jsonl").read_text()
    assert command("sweep", grid) == 0
    assert "all 4 runs are finished" in capsys.readouterr().out
    assert (grid / "records.jsonl").read_text() == before
    assert command("fit", grid / "records.jsonl") == 3
    assert "needs at least 10 different runs, got 4" in capsys.readouterr().err
    assert command("plan", "grid", "proxy", *SMALL, "--sizes", "1", "--out", grid, *world) == 2
    assert "holds another grid" in capsys.readouterr().err


def _trains_in(process: Path, folder: Path) -> bool:
    try:
        return str(folder) in (process / "cmdline").read_text() and "train" in (process / "cmdline").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_a_killed_sweep_ends_its_run_and_another_one_waits_for_it_and_takes_it_over(
    world: list[str], tmp_path: Path
) -> None:
    grid = tmp_path / "grid"
    words = ("--low", "2e9", "--high", "2.1e9", "--budgets", "2", "--sizes", "1", "--tokens-per-parameter", "0.01,1e6")
    assert command("plan", "grid", "proxy", *words, "--out", grid, *world, "save_every=50") == 0
    sweep = [sys.executable, "-m", "triptych", "sweep", str(grid)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    started = time.monotonic()
    while not list(grid.glob("runs/*/checkpoints/step-*")) and time.monotonic() - started < 120:
        time.sleep(0.05)
    (child,) = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _trains_in(path, grid)]
    os.kill(child, signal.SIGSTOP)  # so that the first run does not end before the second one
    other = subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert other.stdout is not None
    lines: list[str] = []
    while not lines or "waiting for" not in lines[-1]:
        lines.append(other.stdout.readline())
        assert lines[-1], lines
    assert lines[-1].startswith("1 of 2 runs are finished; waiting for ")
    assert f"process {process.pid}" in lines[-1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    os.kill(child, signal.SIGCONT)
    started = time.monotonic()
    while _trains_in(Path(f"/proc/{child}"), grid):
        assert time.monotonic() - started < 60, "the run goes on without the sweep"
        time.sleep(0.05)
    for claim in (grid / "claims").glob("[!.]*"):
        os.utime(claim, (0, 0))  # expired
    output, errors = other.communicate(timeout=120)
    assert (other.returncode, errors) == (0, "")
    assert "all 2 runs are finished" in output
    assert "resuming at step" in next(grid.glob("runs/2e+09*.log")).read_text()
    assert len((grid / "records.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_failed_runs_are_reported_and_the_others_finished(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    assert command("plan", "grid", "proxy", *SMALL, "--sizes", "2", "--out", grid, *world) == 0
    content = json.loads((grid / "grid.json").read_text())
    for run in content["runs"][1:3]:
        run["changes"].append("optimizer.nothing=1")
    (grid / "grid.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert command("sweep", grid) == 2
    output = capsys.readouterr()
    assert "2 of 4 runs are finished, 2 failed" in output.err
    assert "unknown key 'optimizer.nothing'" in output.err
    assert ".log)" in output.err
    assert output.err.count("\n") == 1
    assert len((grid / "records.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_diverged_run_is_recorded(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    harsh = ["optimizer.lr=1e30", "optimizer.clip=none"]
    assert command("plan", "grid", "proxy", *SMALL, "--sizes", "1", "--out", grid, *world, *harsh) == 0
    assert command("sweep", grid, "--nproc", "1") == 0
    records = [json.loads(line) for line in (grid / "records.jsonl").read_text().splitlines()]
    assert [(record["loss"], record["diverged"]) for record in records] == [(None, True)] * 2
    capsys.readouterr()
    assert command("fit", grid / "records.jsonl", "--skip-diverged") == 3
    assert "holds no runs with a finite loss" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_lets_its_run_save(world: list[str], tmp_path: Path, number: int) -> None:
    grid = tmp_path / "grid"
    words = ("--low", "5e10", "--high", "6e10", "--budgets", "2", "--sizes", "1", *SMALL[-2:])
    assert command("plan", "grid", "proxy", *words, "--out", grid, *world, "save_every=100000", "log_every=1") == 0
    sweep = [sys.executable, "-m", "triptych", "sweep", str(grid)]
    # Background processes of a script ignore SIGINT, and so would their children.
    default_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=default_sigint
    )
    started = time.monotonic()
    while not any("step" in log.read_text() for log in grid.glob("runs/*.log")) and time.monotonic() - started < 120:
        time.sleep(0.05)
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 75)
    assert "the same command resumes" in output
    assert "saved step" in next(grid.glob("runs/*.log")).read_text()
    assert list(grid.glob("runs/*/checkpoints/step-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["validation_data="], "compared on validation data: add validation_data="),
        (["data="], "the recipe 'proxy' names no data"),
        (["data=nowhere"], "nowhere holds no dataset"),
    ],
)
def test_missing_data_is_reported_before_training(world, tmp_path: Path, change, message, capsys) -> None:
    grid = tmp_path / "grid"
    assert command("plan", "grid", "proxy", *SMALL, "--out", grid, *world, *change) == 2
    assert message in capsys.readouterr().err
    assert not grid.exists()
    assert command("plan", "grid", "proxy", *SMALL, "--out", grid, *world) == 0
    content = json.loads((grid / "grid.json").read_text())
    for run in content["runs"]:
        run["changes"] += change
    (grid / "grid.json").write_text(json.dumps(content))
    assert command("sweep", grid) == 2
    assert message in capsys.readouterr().err
    assert not (grid / "runs").exists()


def test_damaged_records_and_grids_are_refused(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    assert command("plan", "grid", "proxy", *SMALL, "--out", grid, *world) == 0
    (grid / "records.jsonl").write_text("[1]\n")
    assert command("sweep", grid) == 0  # its runs are made, as if the line were not there
    assert "records.jsonl: line 1 is damaged and left out" in capsys.readouterr().err
    (grid / "grid.json").write_text('{"runs": []}')
    assert command("sweep", grid) == 3
    assert "holds no runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "nothing"], "holds no grid. Plan one with: triptych plan grid"),
    ],
)
def test_wrong_folders_are_reported_in_one_line(words: list[str], message: str, capsys) -> None:
    assert command(*words) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1


def test_losses_of_an_earlier_definition_are_not_mixed_with_new_ones(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    assert command("plan", "grid", "proxy", *SMALL, "--out", grid, *world) == 0
    old = {"key": "1e+08 FLOPs 16 x 1 seed 0", "N": 3024, "loss": 3.0, "held_out": {"text": 2.9}}
    (grid / "records.jsonl").write_text(json.dumps(old) + "\n")
    assert command("sweep", grid) == 2
    assert "do not follow the training mixture (an earlier version computed them)" in capsys.readouterr().err
    assert not (grid / "runs").exists()
