"""A quick sample of the fuzz loops; `make faults` runs the long form."""

import json
import random
from dataclasses import replace
from pathlib import Path

import fuzz
import limited
import pytest
from measure import read_around, write_section

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    tally = fuzz.fuzz(name, 20.0, seed=0, keep=tmp_path, most=40)
    assert tally.faults == []
    assert tally.tried == 40
    assert tally.peak < 1_500_000_000


@pytest.mark.parametrize("name", [name for name, target in fuzz.TARGETS.items() if target.words])
def test_commands_with_damaged_files_end_as_documented(name: str, tmp_path: Path) -> None:
    tally = fuzz.fuzz_commands(name, 60.0, seed=0, keep=tmp_path, most=4)
    assert tally.faults == []
    assert tally.commands == 4


def test_ends_of_commands_are_told_apart() -> None:
    good = limited.Outcome(3, "", "triptych: error: no\n", 0, 1.0)
    assert fuzz._kind_of(good) == fuzz._kind_of(replace(good, code=0, err="a note\n")) == ""
    assert fuzz._kind_of(replace(good, hung=True)) == "hangs"
    assert fuzz._kind_of(replace(good, err="Traceback ...")) == "tracebacks"
    assert fuzz._kind_of(replace(good, code=-11)) == "wrong exit codes"
    for err in ("", "triptych: error: a\ntriptych: error: b\n", "triptych: error: \x1b[31m\n"):
        assert fuzz._kind_of(replace(good, err=err)) == "unclear errors"


def test_the_page_has_the_stored_report(tmp_path: Path) -> None:
    stored, page = ROOT / "bench" / "results" / "fuzz.json", ROOT / "docs" / "faults.md"
    kept = json.loads(stored.read_text())
    copy = tmp_path / "page.md"
    copy.write_text(page.read_text())
    write_section(copy, "fuzz", fuzz.report(kept["targets"], kept["minutes"]))
    assert copy.read_text() == page.read_text(), "run tests/hostile/fuzz.py with --json and --docs"
    options = ["--minutes", "0.01", "--only", "txt", "--only", "records.jsonl", "--keep", str(tmp_path)]
    assert fuzz.main([*options, "--json", str(tmp_path / "fuzz.json"), "--docs", str(copy)]) == 0
    measured = json.loads((tmp_path / "fuzz.json").read_text())["targets"]
    assert [row["target"] for row in measured] == ["txt", "records.jsonl"]
    assert fuzz.report(measured, 0.01) in copy.read_text()
    assert "| target | trials | by command | refused | tracebacks | hangs | wrong exit codes |" in copy.read_text()
    assert read_around(copy, "fuzz") == read_around(page, "fuzz")


def test_the_loop_notices_faults(tmp_path: Path) -> None:
    """A process that ends with a traceback is a fault, and damage is damage."""
    rng = random.Random(0)
    assert len({fuzz.damaged(b"content", rng) for _ in range(50)}) > 20
    tally = fuzz.fuzz("no such reader", 1.0, seed=0, keep=tmp_path, most=1)
    assert tally.faults[0] == "no such reader: ended with code 1 in trial 0 of seed 0"
