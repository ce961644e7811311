"""Fits recover known coefficients within their intervals, and held-out errors choose the right law."""

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scaling.fit import Problem, compare, fit
from triptych.scaling.law import ADDITIVE, JOINT, Law
from triptych.scaling.published import CHINCHILLA
from triptych.scaling.runs import Runs, runs_from_columns

# The paper's exponents, and B so that D* = 200 N^(a/b) in billions, as it says.
PAPER = Law(JOINT, E=1.5, A=2.0, B=200.1 * 2.0 * 0.14 / 0.17, a=0.14, b=0.17)


def paper_s_grid() -> tuple[np.ndarray, np.ndarray]:
    """262 of the runs at 24 budgets, width 128 x layers, 1 to 2,000 tokens per parameter."""
    sizes, tokens = [], []
    for budget in np.geomspace(5e18, 1e22, 24):
        for layers in range(3, 40):
            size = 9.5 * 128**2 * layers**3
            if 1 <= budget / (8.4 * size) / size <= 2000:
                sizes.append(size)
                tokens.append(budget / (8.4 * size))
    picks = np.random.default_rng(0).permutation(len(sizes))[:262]
    return np.array(sizes)[picks], np.array(tokens)[picks]


SIZES, TOKENS = paper_s_grid()


def drawn(law: Law, seed: int, noise: float = 0.003, count: int = 262) -> Runs:
    rng = np.random.default_rng(1000 + seed)
    sizes, tokens = SIZES[:count], TOKENS[:count]
    return runs_from_columns(
        ("N", "D"), sizes, tokens, law.loss(sizes, tokens) * np.exp(noise * rng.standard_normal(count))
    )


@pytest.mark.parametrize("law", [PAPER, CHINCHILLA], ids=["joint", "additive"])
def test_without_noise_coefficients_are_recovered_exactly(law: Law) -> None:
    found = fit(law.form, drawn(law, 0, noise=0.0), rounds=0).law
    assert found.coefficients == pytest.approx(law.coefficients, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "other"), [(PAPER, ADDITIVE), (CHINCHILLA, JOINT)], ids=["joint", "additive"])
def test_twenty_draws_are_recovered_within_their_intervals_and_the_right_law_is_chosen(law: Law, other) -> None:
    """Each coefficient lies in its 90 % interval in at least 17 of 20 draws, and the intervals are not too wide."""
    hits = dict.fromkeys(law.coefficients, 0)
    widths = dict.fromkeys(law.coefficients, 0.0)
    estimates: dict[str, list[float]] = {name: [] for name in law.coefficients}
    for seed in range(20):
        runs = drawn(law, seed)
        found = fit(law.form, runs, hops=5, seed=seed)
        for name, (low, high) in found.intervals.items():
            hits[name] += low <= law.coefficients[name] <= high
            widths[name] += np.log(high / low) / 20
            estimates[name].append(np.log(found.law.coefficients[name]))
        if seed < 4:
            chosen = compare(found, fit(other, runs, hops=5, seed=seed))
            assert chosen.better is found
            assert chosen.is_clear
            assert chosen.worse.held_out_mre > 2 * found.held_out_mre
            assert found.held_out_r2 > 0.99
            assert 0.002 < found.held_out_mre < 0.004  # the noise: 0.3 %, of which the mean size is 0.24 %
    assert min(hits.values()) >= 17, hits
    for name, values in estimates.items():
        assert widths[name] < 2 * 1.645 * 2 * np.std(values), name  # at most twice what 90 % takes


def test_a_fit_to_262_runs_needs_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 10,000 of the objective, with 30 hops and 20 rounds."""
    evaluate, count = Problem.__call__, 0

    def counted(problem: Problem, theta: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal count
        count += 1
        return evaluate(problem, theta)

    monkeypatch.setattr(Problem, "__call__", counted)
    fit(JOINT, drawn(PAPER, 0), rounds=20)
    assert count < 20_000


def test_an_outlier_has_little_influence() -> None:
    runs = drawn(PAPER, 3)
    bad = runs.loss.copy()
    bad[7] *= 1.5
    with_outlier = Runs(runs.names, runs.columns, bad)
    straight, robust = fit(JOINT, runs, rounds=0).law, fit(JOINT, with_outlier, rounds=0).law
    squares = fit(JOINT, with_outlier, rounds=0, huber=1.0).law
    assert robust.a == pytest.approx(straight.a, rel=0.01)
    assert abs(squares.a / straight.a - 1) > 5 * abs(robust.a / straight.a - 1)


def test_fits_are_deterministic_and_seeds_draw_other_rounds() -> None:
    runs = drawn(PAPER, 0, count=60)
    one, again, other = (fit(JOINT, runs, rounds=3, seed=seed) for seed in (0, 0, 1))
    assert one.intervals == again.intervals
    assert one.law.coefficients == pytest.approx(other.law.coefficients, rel=1e-3)
    assert one.intervals != other.intervals


@pytest.mark.parametrize(("law", "count"), [(PAPER, 20), (CHINCHILLA, 20), (CHINCHILLA, 12)])
def test_intervals_cover_the_truth_with_few_runs(law: Law, count: int) -> None:
    hits = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        picks = rng.permutation(len(SIZES))[:count]
        sizes, tokens = SIZES[picks], TOKENS[picks]
        losses = law.loss(sizes, tokens) * np.exp(0.003 * rng.standard_normal(count))
        low, high = fit(law.form, runs_from_columns(("N", "D"), sizes, tokens, losses), hops=3).interval(
            lambda each: each.a
        )
        hits += low <= law.a <= high
    assert hits >= 7


def test_held_out_runs_are_not_fitted() -> None:
    """Each round holds out a tenth of the runs. Runs that differ only in their seed are held out together, although
    their token counts differ slightly."""
    runs = drawn(PAPER, 0, count=40)
    sizes, tokens = np.tile(runs.columns[0], 2), np.concatenate([runs.columns[1], runs.columns[1] * 1.008])
    loss = np.concatenate([runs.loss, runs.loss * 1.001])
    twice = runs_from_columns(("N", "D"), sizes, tokens, loss)
    found = fit(JOINT, twice, rounds=6)
    for each in found.rounds:
        assert len(each.picks) == 8
        assert {int(pick) % 40 for pick in each.picks if pick < 40} == {int(p) % 40 for p in each.picks if p >= 40}
        assert each.predicted == pytest.approx(each.law.loss(sizes[each.picks], tokens[each.picks]))


def test_laws_with_equal_predictions_do_not_differ_significantly() -> None:
    flat = Law(ADDITIVE, E=2.0, A=1e-7, B=1e-7, a=0.3, b=0.3)
    runs = drawn(flat, 0, noise=0.02, count=50)
    assert not compare(fit(JOINT, runs, rounds=8), fit(ADDITIVE, runs, rounds=8)).is_clear


def test_undetermined_coefficients_are_listed() -> None:
    below_the_floor = Law(ADDITIVE, E=1.0, A=2.0, B=3.0, a=0.3, b=0.3).excess(SIZES, TOKENS) - 0.2
    assert "E" in fit(ADDITIVE, runs_from_columns(("N", "D"), SIZES, TOKENS, below_the_floor), rounds=0).at_bound
    assert fit(ADDITIVE, drawn(CHINCHILLA, 0), rounds=0).at_bound == ()
    rising = SIZES**0.1 * TOKENS**0.1
    found = fit(ADDITIVE, runs_from_columns(("N", "D"), SIZES, TOKENS, rising), rounds=4, hops=2)
    assert found.undecided
    assert all(np.isnan(found.intervals[name][0]) for name in found.undecided)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UserError, match="huber is a relative error"):
        fit(JOINT, drawn(PAPER, 0), huber=0)
    few = Runs(("N", "D"), (SIZES[:5], TOKENS[:5]), np.ones(5))
    with pytest.raises(UserError, match="at least 10 different runs, got 5"):
        fit(JOINT, few)
