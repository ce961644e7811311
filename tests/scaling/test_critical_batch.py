"""The critical batch size is recovered from synthetic sweeps, and not claimed outside the sweep."""

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scaling.critical_batch import PlateauFit, bootstrap, critical_batch, fit_plateau

STEPS = np.repeat(2.0 ** np.arange(5, 13), 2)  # 32 to 4096, two seeds each
SEQUENCES = 100_000.0


def final_losses(c: float = 2.5, s0: float = 60, q: float = 1.2, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    return c + np.log1p((s0 / STEPS) ** q) + noise * np.random.default_rng(seed).standard_normal(len(STEPS))


@pytest.mark.parametrize(("s0", "q"), [(60, 1.2), (30, 1.0), (200, 2.0), (300, 4.0), (2000, 0.7)])
def test_known_coefficients_are_recovered(s0: float, q: float) -> None:
    fit = fit_plateau(STEPS, final_losses(s0=s0, q=q))
    assert (fit.c, fit.S0, fit.q) == pytest.approx((2.5, s0, q), rel=1e-6)
    assert fit.steps_within(0.05) == pytest.approx(s0 * 0.05 ** (-1 / q), rel=1e-6)
    assert fit.loss(STEPS) == pytest.approx(final_losses(s0=s0, q=q))


def test_the_critical_number_of_steps_is_where_exp_loss_is_one_percent_up() -> None:
    fit = PlateauFit(c=2.0, S0=50, q=1.5, scatter=0, fewest_steps=10, most_steps=1e5)
    assert np.exp(fit.loss(fit.steps_within(0.01)) - fit.c) == pytest.approx(1.01)
    assert critical_batch(SEQUENCES, fit, 0.01) * fit.steps_within(0.01) == pytest.approx(SEQUENCES)


def test_noise_and_an_outlier_have_little_influence() -> None:
    found = []
    for seed in range(4):
        losses = final_losses(noise=0.003, seed=seed)
        losses[-1] += 0.5  # one of the two longest runs went astray
        found.append(fit_plateau(STEPS, losses).steps_within() / (60 * 0.01 ** (-1 / 1.2)))
    assert found == pytest.approx(np.ones(4), rel=0.15)
    least_squares = fit_plateau(STEPS, losses, huber=1e6).steps_within() / (60 * 0.01 ** (-1 / 1.2))  # least squares
    assert abs(least_squares - 1) > 0.3


def test_the_interval_covers_the_truth_and_is_deterministic() -> None:
    truth = SEQUENCES / (60 * 0.01 ** (-1 / 1.2))
    found = [bootstrap(SEQUENCES, STEPS, final_losses(noise=0.005, seed=k), resamples=50) for k in range(4)]
    assert sum(each.low <= truth <= each.high for each in found) >= 3
    assert all(each.is_bracketed and each.high < 1.5 * each.low for each in found)
    assert found[0] == bootstrap(SEQUENCES, STEPS, final_losses(noise=0.005), resamples=50)
    assert found[0] != bootstrap(SEQUENCES, STEPS, final_losses(noise=0.005), resamples=50, seed=1)


def test_resamples_of_too_few_numbers_of_steps_are_left_out_and_counted() -> None:
    steps, losses = STEPS[:8:2], final_losses(s0=20, q=2)[:8:2]
    found = bootstrap(SEQUENCES, steps, losses, resamples=30)
    assert 0 < found.left_out < 30
    assert found.resamples + found.left_out == 30
    with pytest.raises(UserError, match="none of 1 resamples of 4 points"):
        bootstrap(SEQUENCES, steps, losses, resamples=1, seed=3)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("sweep", "is_beyond"),
    [
        ({"s0": 0.1, "q": 1.0}, True),  # the bend comes at 10 steps: all runs are on the plateau
        ({"s0": 1e-9}, True),  # flat
        ({"s0": 1e6, "q": 0.5}, False),  # no run has reached the plateau
    ],
)
def test_a_bend_outside_the_sweep_is_not_claimed(sweep: dict, is_beyond: bool, seed: int) -> None:
    losses = final_losses(**sweep, noise=0.002, seed=seed)
    assert not fit_plateau(STEPS, losses).is_bracketed()
    found = bootstrap(SEQUENCES, STEPS, losses, resamples=10)
    assert not found.is_bracketed
    assert "not bracketed" in str(found)
    if is_beyond:
        assert found.low <= SEQUENCES / STEPS.min()
        assert found.high == float("inf")
    else:
        assert found.low == 0
        assert found.high >= SEQUENCES / STEPS.max()


def test_without_noise_a_flat_sweep_is_not_bracketed_and_a_bent_one_is() -> None:
    assert not fit_plateau(STEPS, np.full(len(STEPS), 3.0)).is_bracketed()
    assert fit_plateau(STEPS, final_losses()).is_bracketed()
    assert not fit_plateau(STEPS, final_losses()).is_bracketed(delta=1e-4)  # 0.01 % needs more steps than were tried


def test_noise_is_not_taken_for_a_bend() -> None:
    fits = [fit_plateau(STEPS, final_losses(s0=1e-9, noise=0.03, seed=seed)) for seed in range(6)]
    inside = [fit.fewest_steps <= fit.steps_within() <= fit.most_steps for fit in fits]
    assert any(inside)  # the curve may follow the noise
    assert not any(fit.is_bracketed() for fit in fits)


@pytest.mark.parametrize(
    ("steps", "losses", "message"),
    [
        ([10, 20, 40, -80], [3, 2, 2, 2], "steps must be positive and finite, got -80.0 in run 3"),
        ([10, 20, 40, 80], [3, np.nan, 2, 2], "losses must be positive and finite, got nan in run 1"),
        ([10, 20, 40, 80], [np.inf, 2, 2, 2], "Leave out runs that diverged"),
        ([10, 20, 40, 80], [3, 2, 2, -2], "losses must be positive"),
        ([10, 10, 40, 40], [3, 3, 2, 2], "at least 3 numbers of steps, got 2"),
        ([], [], "at least 3 numbers of steps, got 0"),
        ([10, 20, 40], [3, 2], r"steps \(3,\), losses \(2,\)"),
    ],
)
def test_wrong_sweeps_are_refused(steps: list, losses: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit_plateau(steps, losses)


def test_wrong_options_are_refused() -> None:
    fit = fit_plateau(STEPS, final_losses())
    with pytest.raises(UserError, match="delta must be a fraction between 0 and 1, got 0"):
        fit.steps_within(0)
    with pytest.raises(UserError, match="tokens_in_sequences must be positive"):
        critical_batch(-1, fit)
    with pytest.raises(UserError, match="huber must be positive"):
        fit_plateau(STEPS, final_losses(), huber=0)
    with pytest.raises(UserError, match="resamples must be at least 1, got 0"):
        bootstrap(SEQUENCES, STEPS, final_losses(), resamples=0)
