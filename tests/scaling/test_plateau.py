"""Planted growth of the critical number of steps is recovered from sweeps over the batch size."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.errors import DataError, UserError
from triptych.scaling.plateau import PlateauLaw, PlateauLawFit, Sweeps, fit_plateau_law, read_sweeps
from triptych.scaling.plateau_figures import draw_plateau
from triptych.scaling.plateau_report import law_lines, plateau_json, sweep_lines

SIZES, TOKENS = (1e4, 8e4, 3e5), (4e4, 1.2e5, 3.5e5, 1e6)
SEQUENCE = 60


def table(nu: float = 0.0, xi: float = 0.6, noise: float = 0.02, seed: int = 0, q: float = 1.5) -> list[np.ndarray]:
    """N, D, steps and loss of sweeps over TOKENS at one size, and over SIZES at one number of tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for n, d in [*((SIZES[1], d) for d in TOKENS), (SIZES[0], TOKENS[1]), (SIZES[2], TOKENS[1])]:
        for batch in 2.0 ** np.arange(1, 9):
            steps = max(1, round(d / SEQUENCE / batch))
            s0 = 25 * (n / SIZES[1]) ** nu * (d / TOKENS[1]) ** xi
            for _ in range(2):
                plateau = 2 - 0.1 * np.log(d / 1e5) - 0.05 * np.log(n / 1e5)
                loss = plateau + np.log1p((s0 / steps) ** q) + noise * rng.standard_normal()
                rows.append((n, d * (1 + 0.005 * rng.standard_normal()), steps, loss))
    return list(np.array(rows).T)


def fitted(resamples: int = 40, **planted: float) -> PlateauLawFit:
    return fit_plateau_law(Sweeps.from_columns(*table(**planted)), resamples=resamples)


def test_without_noise_the_planted_exponents_are_exact() -> None:
    fit = fitted(nu=0.2, xi=0.6, noise=0.0, resamples=2)
    assert (fit.law.nu, fit.law.xi, fit.law.q) == pytest.approx((0.2, 0.6, 1.5), abs=5e-3)
    expected = 25 * (TOKENS[2] / TOKENS[1]) ** 0.6 * 0.1 ** (-1 / 1.5)
    assert fit.law.critical_steps(SIZES[1], TOKENS[2], 0.1) == pytest.approx(expected, rel=0.02)
    assert fit.law.critical_tokens(SIZES[1], TOKENS[2], 0.1) == pytest.approx(TOKENS[2] / expected, rel=0.02)
    assert fit.sweeps.count == 6


def test_intervals_cover_a_planted_xi_and_a_flat_or_growing_dependence_on_the_size() -> None:
    covered, flat_excluded = 0, 0
    for seed in range(4):
        flat, growing = fitted(nu=0.0, seed=seed), fitted(nu=0.3, seed=seed)
        low, high = flat.interval(lambda law: law.xi)
        covered += low <= 0.6 <= high
        low, high = flat.interval(lambda law: law.nu)
        assert -0.15 < low < high < 0.15
        covered += low <= 0.0 <= high
        flat_excluded += growing.interval(lambda law: law.nu)[0] > 0.1
    assert covered >= 7
    assert flat_excluded == 4


def test_noise_between_seeds_is_that_of_the_plateau() -> None:
    sweeps = Sweeps.from_columns(*table(noise=0.03))
    assert sweeps.seed_std == pytest.approx(0.03, rel=0.3)
    columns = table(noise=0.03)
    columns[3][15::16] += 3  # in each sweep one of the runs with the fewest steps went astray
    assert Sweeps.from_columns(*columns).seed_std == pytest.approx(0.03, rel=0.35)


def test_one_size_or_one_number_of_tokens_leaves_that_exponent_undetermined() -> None:
    columns = np.array(table())
    one_size = Sweeps.from_columns(*columns[:, columns[0] == SIZES[1]])
    fit = fit_plateau_law(one_size, resamples=4)
    assert np.isnan(fit.law.nu)
    assert fit.law.xi == pytest.approx(0.6, abs=0.1)
    assert "all runs have one of the sizes, so the exponent of N is not determined" in law_lines(fit, 0.1)
    assert plateau_json(fit, 0.1)["law"]["nu"] is None
    near = np.abs(columns[1] / TOKENS[1] - 1) < 0.1
    fit = fit_plateau_law(Sweeps.from_columns(*columns[:, near]), resamples=4)
    assert np.isnan(fit.law.xi)
    assert np.isnan(fit.interval(lambda law: law.xi)).all()


def test_a_sweep_that_does_not_reach_the_bend_is_not_bracketed() -> None:
    columns = np.array(table(noise=0.01))
    fit = fit_plateau_law(Sweeps.from_columns(*columns), resamples=2)
    assert fit.bracketed(0.1) == list(range(6))
    steps_at_bend = np.array([fit.law.critical_steps(n, d, 0.1) for n, d in columns[:2].T])
    only_plateau = (columns[1] < 8e5) | (columns[2] > 1.2 * steps_at_bend)
    fit = fit_plateau_law(Sweeps.from_columns(*columns[:, only_plateau]), resamples=2)
    assert len(fit.bracketed(0.1)) == 5
    assert sum(line.endswith("not bracketed by the sweep") for line in sweep_lines(fit, 0.1)) == 1


def test_resampling_keeps_every_sweep() -> None:
    sweeps = Sweeps.from_columns(*table())
    for seed in range(5):
        sample = sweeps.resample(np.random.default_rng(seed))
        assert np.array_equal(np.bincount(sample.of), np.bincount(sweeps.of))
        assert all(len(np.unique(sweep.steps)) >= 2 for sweep in sample)


def test_a_law_of_the_means_is_that_of_its_parameters() -> None:
    law = PlateauLaw(s=10, nu=0.5, xi=0.25, q=2, N0=100, D0=1000, c=())
    assert law.critical_steps(400, 16_000, 0.01) == pytest.approx(10 * 2 * 2 * 10)


def test_the_figure_has_four_panels(tmp_path: Path) -> None:
    draw_plateau(fitted(resamples=4), 0.1, tmp_path / "figure.png", SEQUENCE)
    assert min(Image.open(tmp_path / "figure.png").size) > 800


# -- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_is_read_with_or_without_sizes(tmp_path: Path) -> None:
    columns = table()
    rows = [",".join(map(str, row)) for row in zip(*columns)]
    (tmp_path / "runs.csv").write_text("\n".join(["N,tokens,num_steps,val_loss", *rows]) + "\n")
    assert read_sweeps(tmp_path / "runs.csv").count == 6
    rows = [",".join(map(str, row[1:])) for row in zip(*columns) if row[0] == SIZES[1]]
    (tmp_path / "one.csv").write_text("\n".join(["tokens,iterations,val_loss", *rows]) + "\n")
    assert read_sweeps(tmp_path / "one.csv").count == 4


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("N,loss,steps\n1e6,2,10\n", UserError, "has no column for D"),
        ("D,loss\n1e6,2\n", UserError, "has no column for steps"),
        ("D,steps,loss\n1e6,10,nan\n", DataError, "row 1: the loss is nan"),
        ("D,steps,loss\n1e6,0,2\n", DataError, "steps must be positive and finite"),
        ("D,steps,loss\n1e6,10,2\n1e6,20,2\n", UserError, "2 different numbers of steps, and a plateau needs 3"),
    ],
)
def test_tables_that_cannot_be_fitted_are_refused(text: str, error: type, message: str, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(error, match=message):
        read_sweeps(tmp_path / "runs.csv")
