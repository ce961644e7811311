"""Fits on the simplex recover planted losses, optima and effects of the ratio of the other parts."""

import numpy as np
import pytest
from scipy.stats import norm, t

from triptych.errors import UserError
from triptych.scaling.intervals import mean_interval, ratio_interval
from triptych.scaling.simplex import FORMS, best_mixture, fit_simplex, simplex_lattice, without_seed_offsets
from triptych.scaling.synergy import ratio_effect

LATTICE = simplex_lattice(4, 0.2)
SHARES, SEEDS = np.concatenate([LATTICE, LATTICE]), [0] * 15 + [1] * 15


def noisy(losses: np.ndarray, number: int, noise: float = 0.005) -> np.ndarray:
    """With a common offset of each seed that is larger than the noise."""
    return losses + 0.03 * np.array(SEEDS) + noise * np.random.default_rng(number).normal(size=len(losses))


# -- mixtures ---------------------------------------------------------------------------------------------------------


def test_the_lattice_has_the_mixtures_of_the_paper() -> None:
    assert len(LATTICE) == 15
    assert LATTICE.sum(axis=1) == pytest.approx(np.ones(15))
    assert sorted({round(share, 9) for share in LATTICE.ravel()}) == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])
    assert len(np.unique(np.round(LATTICE, 9), axis=0)) == 15
    with pytest.raises(UserError, match=r"smallest share of at least 0 and below 1/3, got 4 and 0\.34"):
        simplex_lattice(4, 0.34)


def test_offsets_of_seeds_are_removed_and_noise_is_estimated() -> None:
    of_mixture = np.linspace(1, 2, 15)[np.tile(np.arange(15), 2)]
    exact = without_seed_offsets(SHARES, of_mixture + 0.3 * np.array(SEEDS), SEEDS)
    assert exact.losses == pytest.approx(of_mixture + 0.15)
    assert exact.noise == pytest.approx(0, abs=1e-9)
    assert exact.freedom == 14
    noises = [without_seed_offsets(SHARES, noisy(of_mixture, number), SEEDS).noise for number in range(50)]
    assert np.mean(np.square(noises)) == pytest.approx(0.005**2, rel=0.15)
    # Without a second seed there is no estimate; an incomplete second seed shifts no mixture.
    assert np.isnan(without_seed_offsets(LATTICE, of_mixture[:15], [0] * 15).noise)
    some = without_seed_offsets(SHARES[:20], (of_mixture + 0.3 * np.array(SEEDS))[:20], SEEDS[:20])
    assert np.ptp(some.losses[:15] - of_mixture[:15]) < 1e-9


@pytest.mark.parametrize("form", list(FORMS))
def test_every_polynomial_is_recovered_and_chosen(form: str) -> None:
    columns = FORMS[form](SHARES)
    coefficients = 1.0 + np.arange(columns.shape[1]) * np.where(np.arange(columns.shape[1]) % 2, -0.6, 0.4)
    fit = fit_simplex(SHARES, columns @ coefficients)
    elsewhere = np.array([[0.27, 0.4, 0.33], [0.45, 0.22, 0.33]])
    assert fit.loss(elsewhere) == pytest.approx(FORMS[form](elsewhere) @ coefficients, rel=1e-6)
    assert fit.error < 1e-9
    if "quadratic" in form:
        assert fit.form == form


def test_leave_one_out_prefers_few_coefficients_for_noise() -> None:
    straight = SHARES @ [1.0, 1.5, 2.0]
    forms = [fit_simplex(SHARES, noisy(straight, number, 0.05)).form for number in range(20)]
    assert sum("linear" in form for form in forms) > 12


def test_too_few_mixtures_are_refused() -> None:
    with pytest.raises(UserError, match="at least 7 mixtures, got 6"):
        fit_simplex(LATTICE[:6], np.ones(6))


# -- the best mixture -------------------------------------------------------------------------------------------------


def planted_losses(sensitivities: tuple[float, float, float]) -> np.ndarray:
    """[30, 3]: the loss of a part is 2 - sensitivity log(own share / equal share)."""
    return 2 - np.array(sensitivities) * np.log(3 * SHARES)


@pytest.mark.parametrize(("weights", "expected"), [((1, 1, 1), (0.25, 0.35, 0.4)), ((2, 1, 1), (0.4, 0.28, 0.32))])
def test_the_best_mixture_is_recovered(weights: tuple[float, ...], expected: tuple[float, ...]) -> None:
    """The weighted sum of s_m log(w_m) is largest at shares in proportion to weight times sensitivity."""
    sensitivities = (0.25, 0.35, 0.4)
    losses = np.column_stack([noisy(column, number) for number, column in enumerate(planted_losses(sensitivities).T)])
    found = best_mixture(SHARES, losses, weights, resamples=200)
    assert found.shares == pytest.approx(expected, abs=0.03)
    assert all(low - 0.015 <= share <= high + 0.015 for low, share, high in zip(found.low, expected, found.high))
    assert not found.is_on_edge
    assert found.change.value < 0


def test_a_best_mixture_beyond_those_that_were_run_is_on_the_edge() -> None:
    found = best_mixture(SHARES, planted_losses((0.9, 0.1, 0.1)), (1, 1, 1), resamples=20)
    assert found.shares == pytest.approx((0.6, 0.2, 0.2))
    assert found.is_on_edge
    flat = best_mixture(SHARES, np.full((30, 3), 2.0), (1, 1, 1), resamples=20)
    assert flat.change.value == pytest.approx(0, abs=1e-9)


# -- synergy ----------------------------------------------------------------------------------------------------------


def losses_with(swap: float, imbalance: float, part: int) -> np.ndarray:
    """With a kinked curve over the own share, which no polynomial fits."""
    first, second = (SHARES[:, other] for other in range(3) if other != part)
    ratio = np.log2(first / second)
    return 1.5 + np.abs(SHARES[:, part] - 0.4) - SHARES[:, part] + swap / 2 * ratio + imbalance * ratio**2


@pytest.mark.parametrize("part", [0, 1, 2])
def test_planted_synergy_is_recovered(part: int) -> None:
    exact = ratio_effect(SHARES, losses_with(0.02, -0.007, part), SEEDS, part, resamples=20)
    assert exact.swap.value == pytest.approx(0.02)
    assert exact.imbalance.value == pytest.approx(-0.007)
    effect = ratio_effect(SHARES, noisy(losses_with(0.02, 0.0, part), part), SEEDS, part)
    assert 0 < effect.swap.low < 0.02 < effect.swap.high
    assert effect.p < 0.01


def test_without_synergy_the_intervals_cover_zero_and_the_test_rarely_rejects() -> None:
    covered, rejected = [], []
    for number in range(60):
        effect = ratio_effect(SHARES, noisy(losses_with(0, 0, 0), number), SEEDS, 0, resamples=200)
        covered += [each.low <= 0 <= each.high for each in effect.effects]
        rejected.append(effect.p < 0.05)
    assert np.mean(covered) > 0.88
    assert np.mean(rejected) < 0.15


def test_the_effect_of_the_own_share_is_that_of_its_ends() -> None:
    effect = ratio_effect(SHARES, noisy(2 - 0.2 * np.log(SHARES[:, 2]), 0), SEEDS, 2)
    assert effect.own.low < 0.2 * np.log(3) < effect.own.high
    assert effect.own.low > 0.15


def test_synergy_needs_several_ratios_at_a_share_and_several_seeds_for_the_test() -> None:
    corners = simplex_lattice(1, 0.2)
    with pytest.raises(UserError, match="several ratios of the other two parts"):
        ratio_effect(corners, np.arange(3.0), [0, 0, 0], 0)
    once = ratio_effect(LATTICE, losses_with(0.02, 0.0, 0)[:15], [0] * 15, 0, resamples=20)
    assert np.isnan(once.p)
    assert once.swap.value == pytest.approx(0.02)


# -- intervals --------------------------------------------------------------------------------------------------------


def test_student_intervals() -> None:
    interval = mean_interval(np.array([1.0, 2.0, 3.0]))
    assert interval.value == 2
    assert interval.high - 2 == pytest.approx(t.ppf(0.975, 2) / np.sqrt(3))
    assert 2 - interval.low == pytest.approx(interval.high - 2)
    many = mean_interval(np.random.default_rng(0).normal(size=4000), level=0.9)
    assert many.high - many.low == pytest.approx(2 * norm.ppf(0.95) / np.sqrt(4000), rel=0.05)
    alone = mean_interval(np.array([1.5]))
    assert alone.value == 1.5
    assert np.isnan(alone.low)
    assert ratio_interval(np.array([0.5, 2.0, 1.0])).value == pytest.approx(1)
    assert interval.shown("+.1f") == "+2.0 (-0.5 to +4.5)"
