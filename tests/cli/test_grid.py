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
    assert command("plan", "grid", "--json", "--budgets", "3") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total"]["runs"] == len(result["runs"])
    assert result["total"]["flops"] == pytest.approx(sum(run["C"] for run in result["runs"]))


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
