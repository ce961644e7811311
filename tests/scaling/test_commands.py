"""The commands as users type them: fit anyone's table, plan for a budget, plan a grid and do its runs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from train_fakes import make_world

from triptych.cli import main
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
    assert command("fit", table, "--rounds", "6", "--json", "--budget", "1e21") == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["chosen"] == "additive"
    assert set(found["fits"]) == {"joint", "additive"}
    low, high = found["fits"]["additive"]["intervals"]["a"]
    assert low < CHINCHILLA.a < high
    best = found["best"][0]
    assert best["intervals"]["N"][0] < best["N"] < best["intervals"]["N"][1]
    assert 6 * best["N"] * best["D"] == pytest.approx(1e21)
    kept = tmp_path / "fit.json"
    kept.write_text(text)
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
        (["--figure", "fit.gif"], "must end in .png, .pdf or .svg"),
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
        (["plan", "--budget", "1e12"], "name another with RECIPE"),
        (["plan", "--budget", "1e21", "--gpus", "8"], "--budget goes without --gpus"),
        (["plan", "--budget", "1e21", "--law", "nothing.json"], "triptych fit RUNS --json > nothing.json"),
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


def test_a_file_that_is_no_fit_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "fit.json").write_text('{"chosen": "joint"}')
    assert command("plan", "--budget", "1e21", "--law", tmp_path / "fit.json") == 3
    assert "is not what `triptych fit RUNS --json` prints" in capsys.readouterr().err


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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = make_world(tmp_path_factory.mktemp("world"))
    tasks = ("text", "image-text", "audio-text")
    return [
        f"tokenizers={folder / 'tokenizers'}",
        "data=" + ",".join(str(folder / "train" / task) for task in tasks),
        "validation_data=" + ",".join(str(folder / "validation" / task) for task in tasks),
        "validation.sequences=8",
        "world=none",
    ]


def test_a_grid_is_swept_by_several_processes_once(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    budgets = ("--low", "5e8", "--high", "8e8", "--budgets", "2", "--sizes", "2", "--tokens-per-parameter", "0.01,1e6")
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
        assert (record["N"], record["C"]) == (planned[record["key"]]["N"], planned[record["key"]]["C"])
        whole = [value for name, value in record["held_out"].items() if "|" not in name]
        assert min(whole) < record["loss"] < max(whole)
    before = (grid / "records.jsonl").read_text()
    assert command("sweep", grid) == 0
    assert "all 4 runs are done" in capsys.readouterr().out
    assert (grid / "records.jsonl").read_text() == before
    assert command("fit", grid / "records.jsonl") == 3
    assert "needs at least 10 different runs, got 4" in capsys.readouterr().err
    assert command("plan", "grid", "family", *budgets[:-4], "--out", grid, *world) == 2
    assert "holds another grid" in capsys.readouterr().err


def test_a_swept_run_that_was_killed_goes_on(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    words = ("--low", "2e9", "--high", "2.1e9", "--budgets", "2", "--sizes", "1", "--tokens-per-parameter", "0.01,1e6")
    assert command("plan", "grid", "family", *words, "--out", grid, *world, "save_every=50") == 0
    sweep = [sys.executable, "-m", "triptych", "sweep", str(grid)]
    process = subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    began = time.monotonic()
    while not list(grid.glob("runs/*/checkpoints/step-*")) and time.monotonic() - began < 120:
        time.sleep(0.05)
    os.killpg(process.pid, 9)
    process.communicate()
    assert not (grid / "records.jsonl").exists()
    for claim in (grid / "claims").glob("[!.]*"):
        os.utime(claim, (0, 0))  # as if a minute had passed
    capsys.readouterr()
    assert command("sweep", grid) == 0
    assert "going on after step" in next(grid.glob("runs/2e+09*.log")).read_text()
    assert len((grid / "records.jsonl").read_text().splitlines()) == 2


def test_a_run_that_fails_is_named_with_its_log(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    words = ("--low", "1e8", "--high", "2e8", "--budgets", "2", "--sizes", "1", "--tokens-per-parameter", "0.01,1e6")
    assert command("plan", "grid", "family", *words, "--out", grid, *world) == 0
    content = (grid / "grid.json").read_text()
    (grid / "grid.json").write_text(content.replace("optimizer.lr=", "optimizer.nothing="))
    capsys.readouterr()
    assert command("sweep", grid) == 2
    said = capsys.readouterr().err
    assert "unknown key 'optimizer.nothing'" in said
    assert ".log)" in said
    assert not (grid / "records.jsonl").exists()


def test_a_run_without_validation_is_no_result(world: list[str], tmp_path: Path, capsys) -> None:
    grid = tmp_path / "grid"
    words = ("--low", "1e8", "--high", "2e8", "--budgets", "2", "--sizes", "1", "--tokens-per-parameter", "0.01,1e6")
    assert command("plan", "grid", "family", *words, "--out", grid, *world, "validation_data=") == 0
    assert command("sweep", grid) == 2
    assert "its recipe needs validation_data=FOLDER" in capsys.readouterr().err
