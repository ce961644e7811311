"""`triptych plan grid`: plan an isoFLOP grid."""

import json

import pytest

from triptych.cli.main import main


def command(*words: object) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as end:  # argparse
        return int(end.code or 0)


def test_the_papers_grid_and_its_cost(capsys) -> None:
    assert command("plan", "grid", "--gpu", "h100", "--price-per-hour", "2") == 0
    output = capsys.readouterr().out
    assert "261 runs, 3.91e+23 FLOPs" in output
    assert "hours of one h100 at 40% of its peak, $" in output
    assert "hyperparameters the same for all modules" in output
    assert "warm-up 1,000 steps, at most a quarter of the run" in output
    assert command("plan", "grid", "--json", "--budgets", "3") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total"]["runs"] == len(result["runs"])
    assert result["total"]["flops"] == pytest.approx(sum(run["C"] for run in result["runs"]))


def test_hours_of_each_run_and_of_all(capsys) -> None:
    words = ("--budgets", "3", "--sizes", "2")
    assert command("plan", "grid", *words, "--gpu", "a100", "--mfu", "0.5", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    for run in result["runs"]:
        assert run["hours"] == pytest.approx(run["C"] / (312e12 * 0.5) / 3600)
    assert result["total"]["hours"] == pytest.approx(sum(run["hours"] for run in result["runs"]))
    assert result["machine"] == {"name": "a100", "mfu": 0.5}
    # Without --gpu: an h100 for the paper's models, this machine for the proxy's.
    assert command("plan", "grid", *words) == 0
    output = capsys.readouterr().out
    assert "time of a run" in output
    first, last = (line for line in output.splitlines() if line.startswith(("    5e+18", "    1e+22")))
    assert first.endswith("3.5 hours")
    assert last.endswith("293 days")
    assert "hours of one h100 at 40% of its peak\n" in output
    assert command("plan", "grid", "proxy", "--low", "1e11", "--high", "2e13", *words) == 0
    output = capsys.readouterr().out
    assert "hours of one cpu at 40% of its peak" in output
    assert "warm-up 0.125 of the run" in output


def test_multipliers_per_module_are_an_option(capsys) -> None:
    words = ("--budgets", "2", "--sizes", "1", "--json")
    for changes, expected in (((), "none"), (("transfer.per_module=paper",), "paper")):
        assert command("plan", "grid", *changes, *words) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["per_module"] == expected
        for run in result["runs"]:
            assert ("transfer.per_module=paper" in run["changes"]) == (expected == "paper")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "grid", "--low", "1e22", "--high", "1e20"], "budgets need a low and a higher end"),
        (["plan", "grid", "--tokens-per-parameter", "20"], "expected two numbers, the smaller first, got '20'"),
        (["plan", "grid", "--sizes", "0"], "expected a positive whole number, got '0'"),
        (["plan", "grid", "--commands"], "--commands needs --out"),
        (["plan", "grid", "--price-per-hour", "2"], "--price-per-hour needs --gpu"),
    ],
)
def test_wrong_grids_are_reported_in_one_line(words: list[str], message: str, capsys) -> None:
    assert command(*words) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
