"""Fréchet distances against closed forms, other formulas, and repeated sampling."""

import numpy as np
import pytest
import scipy.linalg

from triptych.errors import DataError, UserError
from triptych.eval import frechet
from triptych.eval.frechet import (
    Gaussian,
    extrapolated_score,
    frechet_distance,
    frechet_score,
    gaussian_distance,
    load_gaussian,
    save_gaussian,
)


def random_covariance(rng, d, rank=None):
    half = rng.normal(size=(d, rank or d))
    return half @ half.T / d


def by_matrix_root(mu1, cov1, mu2, cov2):
    """The formula as clean-fid and pytorch-fid compute it."""
    root = scipy.linalg.sqrtm(cov1 @ cov2).real
    return np.square(mu1 - mu2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * np.trace(root)


def by_eigenvalues(mu1, cov1, mu2, cov2):
    """The formula as torchmetrics computes it."""
    roots = np.sqrt(np.linalg.eigvals(cov1 @ cov2).astype(complex)).real.sum()
    return np.square(mu1 - mu2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * roots


# -- the distance -----------------------------------------------------------------------------------------------------


def test_one_dimension_has_the_known_formula():
    # (m1 - m2)² + (s1 - s2)²
    assert frechet_distance(1.0, 9.0, 3.0, 4.0) == pytest.approx(2**2 + (3 - 2) ** 2, rel=1e-14)


def test_gaussians_with_the_same_axes_have_the_known_formula():
    rng = np.random.default_rng(0)
    axes, _ = np.linalg.qr(rng.normal(size=(7, 7)))
    mu1, mu2 = rng.normal(size=(2, 7))
    deviations1, deviations2 = rng.uniform(0, 3, size=(2, 7))
    expected = np.square(mu1 - mu2).sum() + np.square(deviations1 - deviations2).sum()
    cov1, cov2 = (axes @ np.diag(each**2) @ axes.T for each in (deviations1, deviations2))
    assert frechet_distance(mu1, cov1, mu2, cov2) == pytest.approx(expected, rel=1e-12)


def test_two_dimensions_have_a_closed_form():
    # tr √A of a 2 x 2 matrix is √(tr A + 2 √det A).
    rng = np.random.default_rng(1)
    for _ in range(20):
        cov1, cov2 = random_covariance(rng, 2), random_covariance(rng, 2)
        product = cov1 @ cov2
        root = np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
        expected = np.trace(cov1) + np.trace(cov2) - 2 * root
        assert frechet_distance([0, 0], cov1, [0, 0], cov2) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("formula", [by_matrix_root, by_eigenvalues])
@pytest.mark.parametrize(("n", "d"), [(40, 3), (300, 48), (200, 128)])
def test_features_give_the_distance_of_the_published_formulas(formula, n, d):
    rng = np.random.default_rng(d)
    one, other = rng.normal(size=(n, d)) ** 2, rng.normal(0.3, 1.2, size=(n + 7, d)) ** 2
    arguments = (one.mean(0), np.cov(one, rowvar=False), other.mean(0), np.cov(other, rowvar=False))
    expected = formula(*arguments)
    assert frechet_distance(*arguments) == pytest.approx(expected, rel=1e-6)
    assert gaussian_distance(Gaussian.of_features(one), Gaussian.of_features(other)) == pytest.approx(
        expected, rel=1e-6
    )
    assert frechet_score(one, Gaussian.of_features(other))[0].value == pytest.approx(expected, rel=1e-6)


def test_singular_covariances_are_exact():
    rng = np.random.default_rng(2)
    axes, _ = np.linalg.qr(rng.normal(size=(300, 300)))
    cov1, cov2 = axes[:, :5] @ axes[:, :5].T * 4, axes[:, 5:9] @ axes[:, 5:9].T * 9
    zero = np.zeros(300)
    assert frechet_distance(zero, cov1, zero, cov2) == pytest.approx(5 * 4 + 4 * 9, rel=1e-12)  # nothing in common
    assert frechet_distance(zero, cov1, zero, cov1) == pytest.approx(0, abs=1e-12)
    assert frechet_distance(zero, cov1, zero, np.zeros((300, 300))) == pytest.approx(20, rel=1e-12)
    # Square roots of eigenvalues that should be 0 add up.
    assert abs(by_eigenvalues(zero, cov1, zero, cov1)) > 1e-10


@pytest.mark.parametrize("n", [5, 30])
def test_fewer_samples_than_features_need_no_covariance(n):
    rng = np.random.default_rng(3)
    features, other = rng.normal(size=(n, 30)).astype(np.float32), rng.normal(size=(20, 30))
    direct = gaussian_distance(Gaussian.of_features(features), Gaussian.of_features(other))
    covariances = (np.cov(each.astype(float), rowvar=False) for each in (features, other))
    by_covariance = gaussian_distance(
        Gaussian.of_covariance(features.astype(float).mean(0), next(covariances)),
        Gaussian.of_covariance(other.mean(0), next(covariances)),
    )
    assert direct == pytest.approx(by_covariance, rel=1e-9)


def test_features_are_summed_in_blocks(monkeypatch):
    features = (np.random.default_rng(4).normal(50, 1, size=(103, 6)) ** 2).astype(np.float32)
    monkeypatch.setattr(frechet, "_ROWS", 10)
    gaussian = Gaussian.of_features(features)
    np.testing.assert_allclose(
        gaussian.factor @ gaussian.factor.T, np.cov(features.astype(float), rowvar=False), rtol=1e-9
    )
    np.testing.assert_allclose(gaussian.mean, features.astype(float).mean(0), rtol=1e-12)
    assert gaussian.total_variance == pytest.approx(np.trace(np.cov(features.astype(float), rowvar=False)), rel=1e-9)
    reference = Gaussian.of_covariance(np.zeros(6), np.eye(6))
    score, pseudo = frechet_score(features, reference)
    monkeypatch.undo()
    np.testing.assert_allclose(pseudo, frechet_score(features, reference)[1], rtol=1e-9)
    assert score.value == pytest.approx(pseudo.mean(), rel=1e-12)


# -- the interval -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(25, 4), (12, 20)])
def test_pseudo_values_are_the_derivative_with_respect_to_weights(n, d):
    """Of a weighted sample, by finite differences: no formula in common with the implementation."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(n, d)) @ rng.normal(size=(d, d))
    mean, cov = rng.normal(size=d), random_covariance(rng, d)

    def distance(weights):
        weights = weights / weights.sum()
        centre = weights @ features
        centred = (features - centre) * np.sqrt(weights)[:, None]
        # Not the overlap of matrix roots but the trace norm, as the covariance may be singular.
        root = scipy.linalg.sqrtm(cov).real
        overlap = np.linalg.norm(root @ centred.T * np.sqrt(n / (n - 1)), "nuc")
        spread = np.square(centred).sum() * n / (n - 1)
        return np.square(centre - mean).sum() + spread + np.trace(cov) - 2 * overlap

    score, pseudo = frechet_score(features, Gaussian.of_covariance(mean, cov))
    assert score.value == pytest.approx(distance(np.ones(n)), rel=1e-9)
    step = 1e-5
    for index in range(0, n, 5):
        change = np.zeros(n)
        change[index] = step
        slope = (distance(np.ones(n) + change) - distance(np.ones(n) - change)) / (2 * step)
        assert (pseudo[index] - score.value) / n == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("n", [15, 60, 500])
def test_the_interval_has_the_spread_of_repeated_samples(n):
    """Of sets with fewer samples than features, and with many more."""
    rng = np.random.default_rng(6)
    shape = rng.normal(size=(30, 30)) * np.linspace(1, 0.05, 30)
    reference = Gaussian.of_covariance(np.full(30, 0.2), random_covariance(rng, 30) * 30)
    scores = [frechet_score(rng.normal(size=(n, 30)) @ shape.T, reference)[0] for _ in range(150)]
    spread = np.std([score.value for score in scores])
    claimed = np.mean([(score.high - score.low) / (2 * 1.96) for score in scores])
    assert 0.85 * spread < claimed < 1.4 * spread  # rather too wide than too narrow for few samples
    centre = np.mean([score.value for score in scores])
    assert np.mean([score.low <= centre <= score.high for score in scores]) > 0.9


def test_the_difference_of_two_models_on_the_same_prompts_is_more_certain_than_each():
    rng = np.random.default_rng(7)
    reference = Gaussian.of_covariance(np.zeros(8), np.eye(8))
    base = rng.normal(size=(200, 8)) * 1.5
    one, other = (frechet_score(base + 0.05 * rng.normal(size=base.shape), reference)[1] for _ in range(2))
    alone, paired = np.std(one), np.std(one - other)
    assert paired < 0.4 * alone


def test_extrapolation_removes_the_bias_of_few_samples():
    rng = np.random.default_rng(8)
    d, n = 20, 300
    shape = np.diag(np.linspace(0.8, 1.4, d))
    reference = Gaussian.of_covariance(np.full(d, 0.1), np.eye(d))
    truth = gaussian_distance(Gaussian.of_covariance(np.zeros(d), shape @ shape), reference)
    plain, extrapolated, inside = [], [], 0
    for draw in range(40):
        features = rng.normal(size=(n, d)) @ shape
        plain.append(frechet_score(features, reference)[0].value)
        score = extrapolated_score(features, reference, seed=draw)
        extrapolated.append(score.value)
        inside += score.low <= truth <= score.high
    error = np.std(extrapolated) / len(extrapolated) ** 0.5
    assert np.mean(plain) - truth > 5 * error  # so there is a bias
    assert np.mean(extrapolated) == pytest.approx(truth, abs=3 * error)
    assert inside >= 34  # of 40, at 95 %


def test_extrapolation_needs_samples():
    with pytest.raises(DataError, match=r"at least 40 generated samples \(2 d\), got 39"):
        extrapolated_score(np.zeros((39, 20)), Gaussian(np.zeros(20), np.eye(20)))


# -- bad input --------------------------------------------------------------------------------------------------------


def test_features_that_are_not_finite_are_refused():
    features = np.zeros((5, 3))
    features[3, 1] = np.nan
    for call in (Gaussian.of_features, lambda each: frechet_score(each, Gaussian(np.zeros(3), np.eye(3)))):
        with pytest.raises(DataError, match="1 of 5 samples have features that are not finite, the first is number 3"):
            call(features)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Gaussian.of_features(np.zeros((1, 3))), "at least 2 samples, got 1"),
        (lambda: Gaussian.of_features(np.zeros(3)), "expected features"),
        (lambda: frechet_distance([0, 0], np.eye(2), [0, 0, 0], np.eye(3)), "2 dimensions and the reference has 3"),
        (lambda: frechet_distance([0, 0], np.eye(3), [0, 0], np.eye(2)), "expected a mean"),
        (lambda: frechet_distance([0, 0], -np.eye(2), [0, 0], np.eye(2)), "without negative eigenvalues"),
        (lambda: frechet_distance([0, 0], [[1, 2], [0, 1]], [0, 0], np.eye(2)), "symmetric"),
        (lambda: frechet_distance([0, np.inf], np.eye(2), [0, 0], np.eye(2)), "not finite"),
    ],
)
def test_gaussians_that_cannot_be_compared_are_refused(call, words):
    with pytest.raises(UserError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


# -- files ------------------------------------------------------------------------------------------------------------


def test_statistics_are_read_as_they_are_published(tmp_path):
    features = np.random.default_rng(9).normal(size=(50, 4))
    np.savez(tmp_path / "published.npz", mu=features.mean(0), sigma=np.cov(features, rowvar=False))
    save_gaussian(tmp_path / "ours.npz", Gaussian.of_features(features))
    reference = Gaussian.of_covariance(np.ones(4), np.eye(4))
    distances = [gaussian_distance(load_gaussian(tmp_path / name), reference) for name in ("published.npz", "ours.npz")]
    assert distances == pytest.approx([gaussian_distance(Gaussian.of_features(features), reference)] * 2, rel=1e-9)
    assert load_gaussian(tmp_path / "ours.npz").n == 50
    assert load_gaussian(tmp_path / "published.npz").n is None


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"mu": np.zeros(0), "sigma": np.zeros((0, 0))}, "expected numbers in mu"),
        ({"mu": np.array(["a"]), "sigma": np.eye(1)}, "expected numbers in mu"),
        ({"mu": np.zeros(2), "sigma": np.eye(3)}, "expected a mean"),
        ({"mu": np.zeros(2), "sigma": np.eye(2), "n": np.array([np.nan])}, "n must be one whole number"),
        ({"mu": np.zeros(2), "sigma": np.eye(2), "n": np.array([2, 3])}, "n must be one whole number"),
        (None, "cannot be read as .npz"),
    ],
)
def test_damaged_statistics_are_one_line(tmp_path, arrays, words):
    path = tmp_path / "statistics.npz"
    if arrays is None:
        with open(path, "wb") as file:
            np.save(file, np.zeros((2, 2)))
    else:
        np.savez(path, **arrays)
    with pytest.raises(DataError, match=words) as caught:
        load_gaussian(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "cannot be read"), (b"PK\x03\x04 damaged", "cannot be read"), (None, "expected arrays mu")],
)
def test_other_files_are_refused(tmp_path, content, words):
    path = tmp_path / "statistics.npz"
    if content is None:
        np.savez(path, mean=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_gaussian(path)
