"""A public table of runs: our fit of it agrees with the published one.

The 245 runs of Chinchilla that Besiroglu et al. (2024, arXiv 2404.10102) read from a figure are on GitHub, in
epoch-research/analyzing-chinchilla as data/svg_extracted_data.csv, without a licence to pass them on. With a copy:

    TRIPTYCH_CHINCHILLA=svg_extracted_data.csv python -m pytest tests/scaling/test_public.py
"""

import os
from pathlib import Path

import numpy as np
import pytest

from triptych.scaling.fit import compare, fit
from triptych.scaling.law import ADDITIVE, JOINT
from triptych.scaling.published import CHINCHILLA
from triptych.scaling.runs import Runs, read_runs

TABLE = os.environ.get("TRIPTYCH_CHINCHILLA")


@pytest.fixture(scope="module")
def runs() -> Runs:
    if TABLE is None:
        pytest.skip("the table has no licence to be passed on; this file says where it is and how to give it")
    # The authors leave the five highest losses out, which are far off any law.
    return read_runs(Path(TABLE), called={"N": "Model Size", "C": "Training FLOP"}, drop_worst=5)


def test_the_published_exponents_lie_in_our_intervals_and_ours_in_theirs(runs: Runs) -> None:
    found = fit(ADDITIVE, runs)
    assert len(runs) == 240
    for name in ("E", "A", "B", "a", "b"):
        low, high = found.intervals[name]
        assert low < CHINCHILLA.coefficients[name] < high
    assert found.law.a == pytest.approx(0.3478, abs=0.0154)  # their standard errors
    assert found.law.b == pytest.approx(0.3658, abs=0.0206)
    assert pytest.approx(1.8172, abs=0.0257) == found.law.E
    # A better minimum of the same objective than the published point.
    size = np.abs(np.log(found.predicted / runs.loss))
    theirs = np.abs(np.log(CHINCHILLA.loss(*runs.columns) / runs.loss))
    huber = [np.where(each < 1e-3, each**2 / 2, 1e-3 * (each - 5e-4)).sum() for each in (size, theirs)]
    assert huber[0] < huber[1] < 1.01 * huber[0]


def test_of_autoregressive_text_the_additive_law_is_the_better_one(runs: Runs) -> None:
    chosen = compare(fit(ADDITIVE, runs), fit(JOINT, runs))
    assert chosen.better.law.form is ADDITIVE
    assert chosen.is_clear
