"""`triptych fit`: fit a law to any table of runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.cli.main import main
from triptych.scaling.published import CHINCHILLA

SIZES = np.repeat(np.geomspace(1e8, 1e10, 6), 6)
TOKENS = np.tile(np.geomspace(2e9, 6e11, 6), 6)
LOSS = CHINCHILLA.loss(SIZES, TOKENS) * np.exp(0.003 * np.random.default_rng(0).standard_normal(36))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    rows = [f"{n},{d},{loss}" for n, d, loss in zip(SIZES, TOKENS, LOSS)]
    path.write_text("\n".join(["params,tokens,val_loss", *rows]) + "\n")
    return path


def command(*words: object) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as end:  # argparse
        return int(end.code or 0)


def test_text_output_and_figure(table: Path, tmp_path: Path, capsys) -> None:
    assert command("fit", table, "--rounds", "6", "--budget", "1e21", "--figure", tmp_path / "fit.png") == 0
    output = capsys.readouterr().out
    assert "36 runs, N 100M to 10B, D 2B to 600B" in output
    assert "the additive law predicts held-out runs better than the joint law" in output
    assert "90% intervals from 6 rounds" in output
    assert "with 6 N FLOPs per token" in output
    assert min(Image.open(tmp_path / "fit.png").size) > 600


def test_json_output_and_a_plan_made_from_it(table: Path, tmp_path: Path, capsys) -> None:
    kept = tmp_path / "fit.json"
    assert command("fit", table, "--rounds", "6", "--json", "--budget", "1e21", "--save", kept) == 0
    text = capsys.readouterr().out
    assert kept.read_text() == text
    result = json.loads(text)
    assert result["chosen"] == "additive"
    assert set(result["fits"]) == {"joint", "additive"}
    low, high = result["fits"]["additive"]["intervals"]["a"]
    assert low < CHINCHILLA.a < high
    best = result["best"][0]
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
        (["--columns", "N"], "--columns takes NAME=COLUMN"),
        (["--columns", "N=parms"], "has no column 'parms'. Did you mean 'params'?"),
        (["--unit", "1e-9"], "if both are in billions, use --unit 1e9"),
        (["--rounds", "1"], "--rounds must be at least 2 for the intervals, got 1"),
        (["--budget", "-3"], "expected a positive number, got '-3'"),
        (["--drop-worst", "30"], "needs at least 10 different runs, got 6"),
        (["--figure", "fit.gif"], "must be a .png, .pdf or .svg in an existing folder"),
        (["--figure", "nowhere/fit.png"], "must be a .png, .pdf or .svg in an existing folder"),
        (["--save", "nowhere/fit.json"], "--save must be a file in an existing folder"),
        (["--seed", "-1"], "--seed must not be negative, got -1"),
        (["--law", "noise", "--budget", "1e20"], "--budget needs a law of N and D"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(table: Path, words: list[str], message: str, capsys) -> None:
    assert command("fit", table, *words) in (2, 3)
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_losses_that_follow_no_law_still_have_a_fit(tmp_path: Path, capsys) -> None:
    rows = [f"{n},{d},{loss}" for n, d, loss in zip(SIZES, TOKENS, np.random.default_rng(0).uniform(2, 3, 36))]
    (tmp_path / "runs.csv").write_text("\n".join(["N,D,loss", *rows]) + "\n")
    assert command("fit", tmp_path / "runs.csv", "--rounds", "4", "--figure", tmp_path / "fit.png") == 0
    assert "not determined" in capsys.readouterr().out
    assert (tmp_path / "fit.png").exists()
    assert command("fit", tmp_path / "runs.csv", "--rounds", "4", "--json") == 0
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert not result["comparison"]["is_clear"]


def test_noise_law_cannot_plan_a_budget(tmp_path: Path, capsys) -> None:
    rows = [f"{s},{b},{1.5 + 3 * s**-0.3 + 2 * b**-0.4}" for s in (10, 30, 100, 300) for b in (2, 4, 8, 16)]
    (tmp_path / "runs.csv").write_text("\n".join(["S,Bv,loss", *rows]) + "\n")
    assert command("fit", tmp_path / "runs.csv", "--law", "noise", "--json") == 0
    kept = tmp_path / "noise.json"
    kept.write_text(capsys.readouterr().out)
    assert json.loads(kept.read_text())["fits"]["noise"]["law"]["a"] == pytest.approx(0.3, rel=0.01)
    assert command("plan", "--budget", "1e21", "--law", kept) == 3
    assert "holds a law of S and Bv; expected one of N and D" in capsys.readouterr().err


def test_other_files_than_fits_are_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "fit.json").write_text('{"chosen": "joint"}')
    assert command("plan", "--budget", "1e21", "--law", tmp_path / "fit.json") == 3
    assert "is not a file written by `triptych fit RUNS --save`" in capsys.readouterr().err


def test_runs_of_a_single_budget_give_no_optimum(tmp_path: Path, capsys) -> None:
    sizes = np.geomspace(1e8, 3e9, 14)
    tokens = 1e20 / (6 * sizes) * np.exp(0.08 * np.random.default_rng(0).standard_normal(14))
    rows = [f"{n},{d},{loss}" for n, d, loss in zip(sizes, tokens, CHINCHILLA.loss(sizes, tokens))]
    (tmp_path / "runs.csv").write_text("\n".join(["N,D,loss", *rows]) + "\n")
    assert command("fit", tmp_path / "runs.csv", "--budget", "1e21") == 3
    output = capsys.readouterr()
    assert not output.out
    assert output.err.count("\n") == 1
    assert "N and D are tied in these runs, as with a single budget (correlation of their logs -0.998;" in output.err
    assert "add runs with at least two D, a factor of 2 or more apart, at each N" in output.err


# -- the critical number of steps -------------------------------------------------------------------------------------


@pytest.fixture
def sweeps(tmp_path: Path) -> Path:
    """S_crit grows as D^0.5 and does not depend on N."""
    rows = [
        f"{n},{d},{steps},{2 + np.log1p((40 * (d / 1e8) ** 0.5 / steps) ** 2) + 1e-3 * (steps % 7)}"
        for n, d in ((1e6, 1e8), (1e6, 4e8), (1e6, 16e8), (8e6, 1e8))
        for steps in 20 * 2 ** np.arange(7)
    ]
    path = tmp_path / "sweeps.csv"
    path.write_text("\n".join(["N,D,steps,loss", *rows]) + "\n")
    return path


def test_the_plateau_law_of_anyones_runs(sweeps: Path, tmp_path: Path, capsys) -> None:
    words = ("fit", sweeps, "--law", "plateau", "--rounds", "8", "--delta", "0.05")
    assert command(*words, "--figure", tmp_path / "plateau.png") == 0
    output = capsys.readouterr().out
    assert "28 runs in 4 sweeps over the number of steps" in output
    assert "S_crit grows as D^0.50" in output
    assert "tokens (" in output
    assert Image.open(tmp_path / "plateau.png").width > 500
    assert command(*words, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["law"]["xi"] == pytest.approx(0.5, abs=0.02)
    assert result["law"]["nu"] == pytest.approx(0, abs=0.02)
    assert result["sweeps"][0]["S_crit"] == pytest.approx(40 * 0.05**-0.5, rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--law", "plateau", "--budget", "1e21"], "--budget cannot be combined with --law plateau"),
        (["--law", "plateau", "--delta", "2"], "--delta is a fraction below 1"),
        (["--law", "joint", "--delta", "0.1"], "--delta belongs to --law plateau"),
        (["--law", "plateau", "--columns", "steps=nothing"], "has no column 'nothing'"),
    ],
)
def test_wrong_plateau_options_are_reported_in_one_line(sweeps: Path, words: list[str], message: str, capsys) -> None:
    assert command("fit", sweeps, *words) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
