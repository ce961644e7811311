"""A planted gain in tokens is recovered, with an interval that covers it."""

import math

import numpy as np
import pytest

from triptych.studies.token_gain import TokenGain, gain_claim, recorded_gain, run_horizons, token_gain
from triptych.transfer.per_module import MULTIPLIER_TABLES
from triptych.utils.trials import TrialRecords

HORIZONS = (0.125, 0.25, 0.5, 1.0)


def losses(gain: float, noise: float, rng: np.random.Generator, seeds: int = 8) -> tuple[dict, dict]:
    """The better table follows the baseline's power law in D, with `gain` times the tokens; seeds shift both alike."""
    common = noise * rng.standard_normal(seeds)

    def loss(tokens: float, seed: int) -> float:
        return 2.0 + 0.8 * tokens**-0.3 + common[seed] + 0.3 * noise * rng.standard_normal()

    baseline = {seed: loss(1.0, seed) for seed in range(seeds)}
    return baseline, {horizon: {seed: loss(gain * horizon, seed) for seed in range(seeds)} for horizon in HORIZONS}


@pytest.mark.parametrize("gain", [1.3, 1.81, 3.0])
def test_a_planted_gain_is_recovered(gain: float) -> None:
    exact = token_gain(*losses(gain, 0.0, np.random.default_rng(0)))
    assert exact is not None
    assert exact.value == pytest.approx(gain, rel=0.05)  # the loss is not exactly linear in log D
    covered = 0
    for seed in range(10):
        estimate = token_gain(*losses(gain, 0.02, np.random.default_rng(seed)))
        assert estimate is not None
        covered += estimate.low <= gain <= estimate.high
        assert estimate.high < 2 * estimate.low
    assert covered >= 8


def test_no_gain_and_a_loss_are_not_called_a_gain() -> None:
    equal = token_gain(*losses(1.0, 0.02, np.random.default_rng(1)))
    worse = token_gain(*losses(0.5, 0.02, np.random.default_rng(1)))
    assert equal is not None
    assert worse is not None
    assert equal.value == pytest.approx(1, abs=0.1)
    assert gain_claim(equal).verdict != "agrees"
    assert worse.value == 1
    assert gain_claim(worse).verdict == "disagrees"
    better = token_gain(*losses(2.0, 0.02, np.random.default_rng(1)))
    assert better is not None
    assert gain_claim(better).verdict == "agrees"


def test_a_gain_beyond_the_smallest_horizon_is_a_bound() -> None:
    estimate = token_gain(*losses(20.0, 0.01, np.random.default_rng(0)))
    assert estimate is not None
    assert estimate.is_bound
    assert str(estimate) == "at least 8.00 times fewer tokens (the fewest that were tried), over 8 seeds"
    inside = TokenGain(2.0, 1.5, 9.0, 0.125, 4)
    assert str(inside) == "2.00 (1.50 to more) times fewer tokens, over 4 seeds"


def test_too_few_seeds_or_a_diverged_run_give_no_gain() -> None:
    baseline, better = losses(2.0, 0.01, np.random.default_rng(0))
    assert token_gain({0: baseline[0]}, better) is None
    assert token_gain(baseline, {1.0: better[1.0]}) is None
    assert token_gain(baseline, {**better, 0.5: {**better[0.5], 3: math.inf}}) is None


def test_runs_on_fewer_tokens_are_recorded_once_and_read_back(tmp_path) -> None:
    table = MULTIPLIER_TABLES["paper"]
    baseline, better = losses(2.0, 0.01, np.random.default_rng(3))
    calls = []

    def evaluate(horizon: float, seed: int) -> float:
        calls.append((horizon, seed))
        if len(calls) == 5:
            raise KeyboardInterrupt  # the process is stopped
        return better[horizon][seed]

    for _ in range(3):
        try:
            run_horizons(table, evaluate, tmp_path, HORIZONS[:-1], list(baseline), report=lambda line: None)
        except KeyboardInterrupt:
            continue
    assert len(calls) == 3 * 8 + 1
    records = list(TrialRecords(tmp_path))
    assert len(records) == 24
    assert recorded_gain(records, table, baseline, better[1.0]) == token_gain(baseline, better)
    assert recorded_gain(records, MULTIPLIER_TABLES["none"], baseline, better[1.0]) is None
