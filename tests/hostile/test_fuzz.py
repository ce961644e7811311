"""A quick sample of the fuzz loops; `make faults` runs the long form."""

import random
from pathlib import Path

import fuzz
import pytest


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    tally = fuzz.fuzz(name, 20.0, seed=0, keep=tmp_path, most=40)
    assert tally.faults == []
    assert tally.tried == 40
    assert tally.peak < 1_500_000_000


def test_the_loop_notices_faults(tmp_path: Path) -> None:
    """A process that ends with a traceback is a fault, and damage is damage."""
    rng = random.Random(0)
    assert len({fuzz.damaged(b"content", rng) for _ in range(50)}) > 20
    tally = fuzz.fuzz("no such reader", 1.0, seed=0, keep=tmp_path, most=1)
    assert tally.faults[0] == "no such reader: ended with code 1 in trial 0 of seed 0"
