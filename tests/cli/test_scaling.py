"""The commands as users type them: fit anyone's table, plan for a budget, plan a grid and do its runs."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from train_fakes import make_world, world_changes

from triptych.cli.main import main
from triptych.scaling.published import CHINCHILLA, PAPER

SIZES = np.repeat(np.geomspace(1e8, 1e10, 6), 6)
TOKENS = np.tile(np.geomspace(2e9, 6e11, 6), 6)
LOSS = CHINCHILLA.loss(SIZES, TOKENS) * np.exp(0.003 * np.random.default_rng(0).standard_normal(36))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    rows = [f"{n},{d},{loss}" for n, d, loss in zip(SIZES, TOKENS, LOSS)]
    path.write_text("\n".join(["params,tokens,val_loss", *rows]) + "\n")
    return path


def command(*words: str) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as end:  # argparse
        return int(end.code or 0)


# -- fit --------------------------------------------------------------------------------------------------------------


def test_a_table_for_people(table: Path, tmp_path: Path, capsys) -> None:
    assert command("fit", table, "--rounds", "6", "--budget", "1e21", "--figure", tmp_path / "fit.png") == 0
    said = capsys.readouterr().out
    assert "36 runs, N 100M to 10B, D 2B to 600B" in said
    assert "the additive law predicts held-out runs better than the joint one" in said
    assert "90% intervals of 6 rounds" in said
    assert "with 6 N FLOPs a token" in said
    assert min(Image.open(tmp_path / "fit.png").size) > 600


def test_json_for_programs_and_a_plan_made_of_it(table: Path, tmp_path: Path, capsys) -> None:
    kept = tmp_path / "fit.json"
    assert command("fit", table, "--rounds", "6", "--json", "--budget", "1e21", "--save", kept) == 0
    text = capsys.readouterr().out
    assert kept.read_text() == text
    found = json.loads(text)
    assert found["chosen"] == "additive"
    assert set(found["fits"]) == {"joint", "additive"}
    low, high = found["fits"]["additive"]["intervals"]["a"]
    assert low < CHINCHILLA.a < high
    best = found["best"][0]
    assert best["intervals"]["N"][0] < best["N"] < best["intervals"]["N"][1]
    assert 6 * best["N"] * best["D"] == pytest.approx(1e21)
    assert command("plan", "--budget", "1e21", "--law", kept, "--json") == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert advice[0]["law"] == str(kept)
    assert advice[0]["N"] == pytest.approx(best["N"], rel=0.15)  # FLOPs are counted, not 6 N
    assert advice[0]["D"] < best["D"]
    assert advice[0]["intervals"]["N"][0] < advice[0]["N"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--law", "jont"], "unknown name 'jont'. Did you mean 'joint'?"),
        (["--law", "noise"], "no column for S"),
        (["--columns", "N"], "--columns takes NAME=THEIRS"),
        (["--columns", "N=parms"], "has no column 'parms'. Did you mean 'params'?"),
        (["--unit", "1e-9"], "if both N and D are in billions, give --unit 1e9"),
        (["--rounds", "1"], "--rounds must be at least 2, got 1"),
        (["--budget", "-3"], "expected a positive number, got '-3'"),
        (["--drop-worst", "30"], "needs at least 10 different runs, got 6"),
        (["--figure", "fit.gif"], "must be a .png, .pdf or .svg in a folder that is there"),
        (["--figure", "nowhere/fit.png"], "must be a .png, .pdf or .svg in a folder that is there"),
        (["--save", "nowhere/fit.json"], "--save must be a file in a folder that is there"),
        (["--seed", "-1"], "--seed must not be negative, got -1"),
        (["--law", "noise", "--budget", "1e20"], "--budget needs a law of N and D"),
    ],
)
def test_wrong_words_are_one_line(table: Path, words: list[str], message: str, capsys) -> None:
    assert command("fit", table, *words) in (2, 3)
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


# -- plan for a budget ------------------------------------------------------------------------------------------------


def test_a_plan_for_a_budget_is_the_least_of_the_law_over_real_models(capsys) -> None:
    """Of all members of the family, each with its exact FLOPs, the one that comes out has the least loss."""
    from triptych.scaling.family import family_for

    assert command("plan", "--budget", "1e21", "--json") == 0
    advice = {each["law"]: each for each in json.loads(capsys.readouterr().out)["advice"]}
    family = family_for("aspect_8")
    tokens = 1e21 / np.array(family.per_token)
    # A N^-p + B / D with B = K p A, whatever A is:
    by_paper = np.array(family.sizes, float) ** -PAPER.p + PAPER.K * PAPER.p / tokens
    best = family.members[int(by_paper.argmin())].model
    assert advice["paper, a/b = .14/.17"]["model"]["num_layers"] == best.num_layers
    by_chinchilla = CHINCHILLA.loss(family.sizes, tokens)
    best = family.members[int(by_chinchilla.argmin())].model
    assert advice["Chinchilla, corrected"]["model"]["num_layers"] == best.num_layers
    for each in advice.values():
        assert each["model"]["flops"] == pytest.approx(1e21, rel=1e-3)
        assert each["command"].startswith(f"triptych train aspect_{each['model']['num_layers']} ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "which recipe?"),
        (["plan", "--budget", "0"], "expected a positive number, got '0'"),
        (["plan", "--budget", "1e21", "--gpus", "8"], "--budget goes without --gpus"),
        (["plan", "--budget", "1e21", "--law", "nothing.json"], "triptych fit RUNS --save nothing.json"),
        (["plan", "--budget", "1e21", "aspect_8", "num_steps=4"], "num_steps follows from the budget"),
        (["plan", "scenes", "--law", "x.json"], "--law needs --budget"),
        (["plan", "grid", "--low", "1e22", "--high", "1e20"], "budgets need a low and a higher end"),
        (["plan", "grid", "--tokens-per-parameter", "20"], "expected two numbers, the smaller first, got '20'"),
        (["plan", "grid", "--sizes", "0"], "expected a positive whole number, got '0'"),
        (["plan", "grid", "--commands"], "--commands needs --out"),
        (["plan", "grid", "--price-per-hour", "2"], "--price-per-hour needs --gpu"),
        (["plan", "gird"], "unknown recipe 'gird'"),
        (["sweep", "nothing"], "holds no grid. Plan one with: triptych plan grid"),
    ],
)
def test_wrong_plans_are_one_line(words: list[str], message: str, capsys) -> None:
    assert command(*words) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_budget_beyond_a_family_or_a_law_is_answered_with_what_there_is(capsys) -> None:
    assert command("plan", "--budget", "1e12") == 0
    said = capsys.readouterr().out
    assert said.count("none of the family") == 4
    assert said.count("far from its runs") == 4
    assert command("plan", "family", "--budget", "1e6") == 0
    assert capsys.readouterr().out.count("no size is best") == 4
    assert command("plan", "--budget", "1e21", "complementary_masks=true") == 0
    assert "aspect_" in capsys.readouterr().out


def test_losses_that_follow_no_law_have_no_advice_but_a_fit(tmp_path: Path, capsys) -> None:
    rows = [f"{n},{d},{loss}" for n, d, loss in zip(SIZES, TOKENS, np.random.default_rng(0).uniform(2, 3, 36))]
    (tmp_path / "runs.csv").write_text("\n".join(["N,D,loss", *rows]) + "\n")
    assert command("fit", tmp_path / "runs.csv", "--rounds", "4", "--figure", tmp_path / "fit.png") == 0
    assert "not decided" in capsys.readouterr().out
    assert (tmp_path / "fit.png").exists()
    assert command("fit", tmp_path / "runs.csv", "--rounds", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert not found["comparison"]["is_clear"]


def test_a_law_of_noise_is_no_law_of_size(tmp_path: Path, capsys) -> None:
    rows = [f"{s},{b},{1.5 + 3 * s**-0.3 + 2 * b**-0.4}" for s in (10, 30, 100, 300) for b in (2, 4, 8, 16)]
    (tmp_path / "runs.csv").write_text("\n".join(["S,Bv,loss", *rows]) + "\n")
    assert command("fit", tmp_path / "runs.csv", "--law", "noise", "--json") == 0
    kept = tmp_path / "noise.json"
    kept.write_text(capsys.readouterr().out)
    assert json.loads(kept.read_text())["fits"]["noise"]["law"]["a"] == pytest.approx(0.3, rel=0.01)
    assert command("plan", "--budget", "1e21", "--law", kept) == 3
    assert "holds a law of S and Bv; expected one of N and D" in capsys.readouterr().err


def test_a_file_that_is_no_fit_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "fit.json").write_text('{"chosen": "joint"}')
    assert command("plan", "--budget", "1e21", "--law", tmp_path / "fit.json") == 3
    assert "is not what `triptych fit RUNS --save` writes" in capsys.readouterr().err


# -- a grid, and its runs ---------------------------------------------------------------------------------------------


def test_the_paper_s_grid_and_what_it_costs(capsys) -> None:
    assert command("plan", "grid", "--gpu", "h100", "--price-per-hour", "2") == 0
    said = capsys.readouterr().out
    assert "261 runs, 3.91e+23 FLOPs" in said
    assert "hours of one h100 at 40% of its peak, $" in said
    assert command("plan", "grid", "--json", "--budgets", "3") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"]["runs"] == len(found["runs"])
    assert found["total"]["flops"] == pytest.approx(sum(run["C"] for run in found["runs"]))


SMALL = ("--low", "5e8", "--high", "8e8", "--budgets", "2", "--tokens-per-parameter", "0.01,1e6")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*world_changes(make_world(tmp_path_factory.mktemp("world"))), "validation.sequences=8"]


def test_a_grid_is_swept_by_several_processes_once(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    budgets = (*SMALL, "--sizes", "2")
    assert command("plan", "grid", "family", *budgets, "--out", grid, *world) == 0
    assert "begin or join it with: triptych sweep" in capsys.readouterr().out
    assert command("plan", "grid", "family", *budgets, "--out", grid, "--commands", *world) == 0
    commands = capsys.readouterr().out.splitlines()
    assert len(commands) == 4
    assert all(line.startswith("triptych train family ") for line in commands)
    sweep = [sys.executable, "-m", "triptych", "sweep", str(grid)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(sweep, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    records = [json.loads(line) for line in (grid / "records.jsonl").read_text().splitlines()]
    planned = {run["key"]: run for run in json.loads((grid / "grid.json").read_text())["runs"]}
    assert {record["key"] for record in records} == set(planned)
    assert len(records) == 4
    for record in records:
        assert 0 < record["loss"] < 20
        plan = planned[record["key"]]
        assert record["N"] == plan["N"]
        assert record["D"] == int(record["D"]) == pytest.approx(plan["D"], rel=0.2)  # as they were, not as planned
        assert record["C"] / record["D"] == pytest.approx(plan["C"] / plan["D"])
        whole = [value for name, value in record["held_out"].items() if "|" not in name]
        assert min(whole) < record["loss"] < max(whole)
    before = (grid / "records.jsonl").read_text()
    assert command("sweep", grid) == 0
    assert "all 4 runs are done" in capsys.readouterr().out
    assert (grid / "records.jsonl").read_text() == before
    assert command("fit", grid / "records.jsonl") == 3
    assert "needs at least 10 different runs, got 4" in capsys.readouterr().err
    assert command("plan", "grid", "family", *SMALL, "--sizes", "1", "--out", grid, *world) == 2
    assert "holds another grid" in capsys.readouterr().err


def _is_at(process: Path, folder: Path) -> bool:
    try:
        return str(folder) in (process / "cmdline").read_text() and "train" in (process / "cmdline").read_text()
    except OSError:
        return False


def test_a_swept_run_that_was_killed_goes_on(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    words = ("--low", "2e9", "--high", "2.1e9", "--budgets", "2", "--sizes", "1", "--tokens-per-parameter", "0.01,1e6")
    assert command("plan", "grid", "family", *words, "--out", grid, *world, "save_every=50") == 0
    sweep = [sys.executable, "-m", "triptych", "sweep", str(grid)]
    process = subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    began = time.monotonic()
    while not list(grid.glob("runs/*/checkpoints/step-*")) and time.monotonic() - began < 120:
        time.sleep(0.05)
    os.kill(process.pid, 9)
    process.communicate()
    (child,) = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_at(path, grid)]
    os.kill(child, 9)
    while Path(f"/proc/{child}").exists() and _is_at(Path(f"/proc/{child}"), grid):
        time.sleep(0.05)
    assert not (grid / "records.jsonl").exists()
    for claim in (grid / "claims").glob("[!.]*"):
        os.utime(claim, (0, 0))  # as if a minute had passed
    capsys.readouterr()
    assert command("sweep", grid) == 0
    assert "going on after step" in next(grid.glob("runs/2e+09*.log")).read_text()
    assert len((grid / "records.jsonl").read_text().splitlines()) == 2


def test_runs_that_fail_are_named_and_the_others_done(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    assert command("plan", "grid", "family", *SMALL, "--sizes", "2", "--out", grid, *world) == 0
    content = json.loads((grid / "grid.json").read_text())
    for run in content["runs"][1:3]:
        run["changes"].append("optimizer.nothing=1")
    (grid / "grid.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert command("sweep", grid) == 2
    said = capsys.readouterr()
    assert "2 of 4 runs are done, 2 ended without a result" in said.err
    assert "unknown key 'optimizer.nothing'" in said.err
    assert ".log)" in said.err
    assert said.err.count("\n") == 1
    assert len((grid / "records.jsonl").read_text().splitlines()) == 2


def test_a_run_that_diverges_is_a_result(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    harsh = ["optimizer.lr=1e30", "optimizer.clip=none"]
    assert command("plan", "grid", "family", *SMALL, "--sizes", "1", "--out", grid, *world, *harsh) == 0
    assert command("sweep", grid, "--nproc", "1") == 0
    records = [json.loads(line) for line in (grid / "records.jsonl").read_text().splitlines()]
    assert [(record["loss"], record["diverged"]) for record in records] == [(None, True)] * 2
    capsys.readouterr()
    assert command("fit", grid / "records.jsonl", "--skip-diverged") == 3
    assert "holds no runs that did not diverge" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_lets_its_run_save(world: list[str], tmp_path: Path, number: int) -> None:
    grid = tmp_path / "grid"
    words = ("--low", "5e10", "--high", "6e10", "--budgets", "2", "--sizes", "1", *SMALL[-2:])
    assert command("plan", "grid", "family", *words, "--out", grid, *world, "save_every=100000", "log_every=1") == 0
    sweep = [sys.executable, "-m", "triptych", "sweep", str(grid)]
    # What runs in the background of a script ignores Ctrl-C, and so would what it starts.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)
    began = time.monotonic()
    while not any("step" in log.read_text() for log in grid.glob("runs/*.log")) and time.monotonic() - began < 120:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 75)
    assert "the same command goes on" in said
    assert "saved step" in next(grid.glob("runs/*.log")).read_text()
    assert list(grid.glob("runs/*/checkpoints/step-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["validation_data="], "compared on held-out data: add validation_data="),
        (["data="], "names no data; add data=FOLDER"),
        (["data=nowhere"], "nowhere holds no data set"),
    ],
)
def test_what_a_grid_needs_is_missed_before_anything_is_trained(world, tmp_path: Path, change, message, capsys) -> None:
    grid = tmp_path / "grid"
    assert command("plan", "grid", "family", *SMALL, "--out", grid, *world, *change) == 2
    assert message in capsys.readouterr().err
    assert not grid.exists()
    assert command("plan", "grid", "family", *SMALL, "--out", grid, *world) == 0
    content = json.loads((grid / "grid.json").read_text())
    for run in content["runs"]:
        run["changes"] += change
    (grid / "grid.json").write_text(json.dumps(content))
    assert command("sweep", grid) == 2
    assert message in capsys.readouterr().err
    assert not (grid / "runs").exists()


def test_records_that_are_none_are_refused(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    assert command("plan", "grid", "family", *SMALL, "--out", grid, *world) == 0
    (grid / "records.jsonl").write_text("[1]\n")
    assert command("sweep", grid) == 3
    assert "line 1 is not a record with a key" in capsys.readouterr().err
    (grid / "grid.json").write_text('{"runs": []}')
    assert command("sweep", grid) == 3
    assert "holds no runs" in capsys.readouterr().err
