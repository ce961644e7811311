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
    said = capsys.readouterr().out
    assert "261 runs, 3.91e+23 FLOPs" in said
    assert "hours of one h100 at 40% of its peak, $" in said
    assert command("plan", "grid", "--json", "--budgets", "3") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"]["runs"] == len(found["runs"])
    assert found["total"]["flops"] == pytest.approx(sum(run["C"] for run in found["runs"]))


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
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
