"""The drift-horizon law and gamma are recovered from synthetic sweeps; unidentified ones are flagged."""

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scaling.drift_horizon import direct_gamma, direct_interval, fit_drift_horizon

# Four numbers of tokens, at each every virtual batch that leaves at least 8 steps.
GRID = [(tokens / batch, batch) for tokens in 4.0 ** np.arange(6, 10) for batch in 2.0 ** np.arange(1, 12)]
STEPS, BATCH = np.array([(steps, batch) for steps, batch in GRID if steps >= 8]).T
LAW = {"E": 1.5, "A": 3.0, "B": 2.0, "alpha": 0.18, "beta": 0.23}  # exponents of the paper
GAMMA = 0.18 / 0.41


def final_losses(noise: float = 0.0, seed: int = 0, **changes: float) -> np.ndarray:
    law = LAW | changes
    exact = law["E"] + law["A"] * STEPS ** -law["alpha"] + law["B"] * BATCH ** -law["beta"]
    return exact * np.exp(noise * np.random.default_rng(seed).standard_normal(len(STEPS)))


@pytest.mark.parametrize(
    "changes", [{}, {"alpha": 0.5, "beta": 0.3}, {"alpha": 1.2, "beta": 0.4, "A": 9.0}, {"alpha": 0.05, "E": 0.2}]
)
def test_known_coefficients_are_recovered(changes: dict) -> None:
    law = LAW | changes
    found = fit_drift_horizon(STEPS, BATCH, final_losses(**changes), rounds=0)
    assert list(found.fit.law.coefficients.values()) == pytest.approx(list(law.values()), rel=1e-4)
    assert found.gamma == pytest.approx(law["alpha"] / (law["alpha"] + law["beta"]), rel=1e-4)
    assert found.is_identified
    assert found.fit.law.loss(STEPS, BATCH) == pytest.approx(final_losses(**changes))


@pytest.mark.parametrize("sequences", [3e3, 1e6])
def test_the_best_batch_minimises_the_law(sequences: float) -> None:
    fit = fit_drift_horizon(STEPS, BATCH, final_losses(), rounds=0)
    batches = np.geomspace(1, sequences, 200_001)
    searched = batches[fit.fit.law.loss(sequences / batches, batches).argmin()]
    assert fit.best_batch(sequences) == pytest.approx(searched, rel=1e-3)
    assert fit.best_batch(sequences) == pytest.approx(sequences**fit.gamma / fit.G)
    assert sequences / fit.best_batch(sequences) == pytest.approx(fit.G * sequences ** (1 - fit.gamma))


def test_noise_has_little_influence_on_gamma() -> None:
    fits = [fit_drift_horizon(STEPS, BATCH, final_losses(noise=0.002, seed=seed), rounds=0) for seed in range(3)]
    assert [fit.gamma for fit in fits] == pytest.approx([GAMMA] * 3, abs=0.03)
    assert all(fit.is_identified for fit in fits)


def test_an_outlier_has_little_influence() -> None:
    losses = final_losses()
    losses[5] *= 1.5
    assert fit_drift_horizon(STEPS, BATCH, losses, rounds=0).gamma == pytest.approx(GAMMA, abs=0.01)
    assert abs(fit_drift_horizon(STEPS, BATCH, losses, rounds=0, huber=1.0).gamma - GAMMA) > 0.01  # least squares


def test_the_interval_covers_the_truth_and_is_deterministic() -> None:
    losses = final_losses(noise=0.003, seed=1)
    found = fit_drift_horizon(STEPS, BATCH, losses)
    low, high = found.interval
    assert low <= GAMMA <= high
    assert 0.01 < high - low < 0.2
    assert low <= found.gamma <= high
    assert fit_drift_horizon(STEPS, BATCH, losses).interval == (low, high)


@pytest.mark.parametrize("noise", [0.0, 0.003])
@pytest.mark.parametrize("changes", [{"A": 1e-9}, {"B": 1e-9}, {"A": 1e-9, "B": 1e-9}])
def test_a_term_without_influence_is_flagged(changes: dict, noise: float) -> None:
    assert not fit_drift_horizon(STEPS, BATCH, final_losses(noise=noise, **changes), rounds=0).is_identified


def test_unidentified_laws_say_so() -> None:
    found = fit_drift_horizon(STEPS, BATCH, final_losses(noise=0.003, B=1e-9), rounds=2)
    assert "not identified" in str(found)


def test_gamma_without_a_law() -> None:
    found = direct_gamma(STEPS, BATCH, final_losses())
    assert found.gamma == pytest.approx(GAMMA, abs=0.005)
    assert found.num_on_edge == 0
    fit = fit_drift_horizon(STEPS, BATCH, final_losses(), rounds=0)
    for optimum, tokens in zip(found.optima, 4.0 ** np.arange(6, 10), strict=True):
        assert optimum.tokens_in_sequences == pytest.approx(tokens)
        best = fit.best_batch(tokens)
        assert optimum.virtual_batch == pytest.approx(best, rel=0.05)  # the curve is not quite a parabola
        assert optimum.loss == pytest.approx(float(fit.fit.law.loss(tokens / best, best)), rel=1e-3)


def test_gamma_without_a_law_averages_seeds_and_tolerates_rounded_steps() -> None:
    steps, batch = np.round(np.tile(STEPS, 4)) + np.repeat([0, 0.1, 0, 0.1], len(STEPS)), np.tile(BATCH, 4)
    losses = np.concatenate([final_losses(noise=0.002, seed=seed) for seed in range(4)])
    found = direct_gamma(steps, batch, losses)
    assert len(found.optima) == 4
    assert found.gamma == pytest.approx(GAMMA, abs=0.05)


def test_the_interval_of_gamma_without_a_law_covers_it() -> None:
    steps, batch = np.tile(STEPS, 2), np.tile(BATCH, 2)
    hits, widths = 0, []
    for seed in range(12):
        losses = np.concatenate([final_losses(noise=0.004, seed=2 * seed + each) for each in range(2)])
        low, high = direct_interval(steps, batch, losses, resamples=100)
        hits += low - 0.005 <= GAMMA <= high + 0.005  # a parabola is off by as much without any noise
        widths.append(high - low)
    assert hits >= 10
    assert 0.01 < np.mean(widths) < 0.3
    with pytest.raises(UserError, match="runs that differ only in their seed"):
        direct_interval(STEPS, BATCH, final_losses())


def test_an_optimum_on_the_edge_of_the_sweep_is_flagged_and_left_out() -> None:
    tokens = STEPS * BATCH
    keep = (tokens < 200_000) | (BATCH < 40)  # the largest number of tokens would like batches of 164
    found = direct_gamma(STEPS[keep], BATCH[keep], final_losses()[keep])
    assert [each.is_on_edge for each in found.optima] == [False, False, False, True]
    assert found.optima[-1].virtual_batch == pytest.approx(32)
    assert found.num_on_edge == 1
    assert found.gamma == pytest.approx(GAMMA, abs=0.01)


def test_with_fewer_than_two_optima_inside_there_is_no_gamma() -> None:
    keep = BATCH < 20
    found = direct_gamma(STEPS[keep], BATCH[keep], final_losses()[keep])
    assert found.num_on_edge == 4
    assert np.isnan(found.gamma)


def test_a_parabola_bent_by_noise_falls_back_to_the_nearest_three() -> None:
    batch = np.tile(2.0 ** np.arange(5), 2)
    steps = np.repeat([100.0, 1000.0], 5) / batch
    losses = np.tile([2.0, 2.9, 2.5, 3.0, 2.2], 2)
    losses[[0, 5]] = 2.6  # the lowest is the last: on the edge
    assert direct_gamma(steps, batch, losses).num_on_edge == 2
    losses[[4, 9]] = 2.6  # now it is the middle one, but a parabola through all five opens downwards
    assert np.polyfit(range(5), losses[:5], 2)[0] < 0
    found = direct_gamma(steps, batch, losses)
    assert found.num_on_edge == 0
    assert all(2 < each.virtual_batch < 8 for each in found.optima)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, -5.0, "S must be positive and finite, got -5"),
        (1, 0.0, "Bv must be positive and finite, got 0"),
        (2, np.nan, "run 8: the loss is nan"),
        (2, np.inf, "Leave out runs that diverged"),
    ],
)
def test_wrong_numbers_are_refused(column: int, value: float, message: str) -> None:
    table = np.stack([STEPS, BATCH, final_losses()])
    table[column, 7] = value
    with pytest.raises(UserError, match=message):
        fit_drift_horizon(*table)
    with pytest.raises(UserError, match="must be positive and finite"):
        direct_gamma(*table)


def test_sweeps_that_do_not_determine_gamma_are_refused() -> None:
    losses = final_losses()
    with pytest.raises(UserError, match="at least 10 different runs, got 4"):
        fit_drift_horizon(STEPS[:4], BATCH[:4], losses[:4])
    with pytest.raises(UserError, match="holds no runs"):
        fit_drift_horizon([], [], [])
    with pytest.raises(UserError, match="at least 3 different Bv, got 1"):
        fit_drift_horizon(np.arange(8.0, 28.0), np.full(20, 4.0), losses[:20])
    one = np.isclose(STEPS * BATCH, 4096)
    longer = np.isclose(STEPS * BATCH, 65536)
    with pytest.raises(UserError, match="S and Bv are tied in these runs"):
        fit_drift_horizon(STEPS[longer], BATCH[longer], losses[longer])
    with pytest.raises(UserError, match="at least 2 numbers of tokens, got 1"):
        direct_gamma(STEPS[one], BATCH[one], losses[one])
    few = ~one | (BATCH < 8)
    with pytest.raises(UserError, match="at least 3 virtual batches, got 2 at 4096 sequences"):
        direct_gamma(STEPS[few], BATCH[few], losses[few])


def test_wrong_options_are_refused() -> None:
    losses = final_losses()
    with pytest.raises(UserError, match="neighbours must be at least 1, got 0"):
        direct_gamma(STEPS, BATCH, losses, neighbours=0)
    with pytest.raises(UserError, match="huber is a relative error"):
        fit_drift_horizon(STEPS, BATCH, losses, rounds=0, huber=-1)
    with pytest.raises(UserError, match="tokens_in_sequences must be positive"):
        fit_drift_horizon(STEPS, BATCH, losses, rounds=0).best_batch(-3)
