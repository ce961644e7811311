"""Fréchet distance of Gaussians, the statistic behind FID, with its sampling error.

    d² = |μ₁ - μ₂|² + tr C₁ + tr C₂ - 2 tr (C₁ C₂)^½

With factors C = F Fᵀ the last term is the sum of the singular values of F₂ᵀ F₁. This is how it is computed here,
because it is exact for singular covariances too: an eigenvalue of C₁ C₂ that should be 0 comes out as about 1e-16 times
the largest, its square root as 1e-8, and there are up to 2048 of them. Features give their factor directly, without a
covariance: the centred features themselves if there are few, the triangle of a QR decomposition if there are many.

Everything is in float64. FID of the same features agrees with implementations that use a matrix square root
(clean-fid, pytorch-fid) or eigenvalues (torchmetrics) to the precision of those; covariances have n - 1 in the
denominator, as there.
"""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.linalg

from triptych.errors import DataError, UserError
from triptych.eval.scores import Score

_ROWS = 16_384  # of features that are converted to float64 at once
_Z = 1.96


@dataclass(frozen=True)
class Gaussian:
    """A mean and a covariance; for features, those of the Gaussian that FID fits to them."""

    mean: np.ndarray
    """[d]."""
    factor: np.ndarray
    """[d, r] with covariance = factor @ factor.T."""
    n: int | None = None
    """Number of samples, if the Gaussian was fitted to samples."""

    @property
    def dimension(self) -> int:
        return len(self.mean)

    @cached_property
    def total_variance(self) -> float:
        """Trace of the covariance."""
        return float(np.square(self.factor).sum())

    @classmethod
    def of_features(cls, features: np.ndarray) -> "Gaussian":
        """Fit a Gaussian to features [n, d] of n samples."""
        features = check_features(features)
        n, d = features.shape
        if n < 2:
            raise DataError(f"a covariance needs the features of at least 2 samples, got {n}.")
        mean = sum(features[start : start + _ROWS].sum(0, dtype=np.float64) for start in range(0, n, _ROWS)) / n
        if n <= d:
            factor = (features - mean).T
        else:
            triangle = np.zeros((0, d))
            for start in range(0, n, _ROWS):
                block = np.concatenate([triangle, features[start : start + _ROWS] - mean])
                triangle = scipy.linalg.qr(block, mode="r", overwrite_a=True, check_finite=False)[0][:d]
            factor = triangle.T
        return cls(mean, factor / np.sqrt(n - 1), n)

    @classmethod
    def of_covariance(cls, mean: np.ndarray, covariance: np.ndarray, n: int | None = None) -> "Gaussian":
        """A Gaussian from its covariance [d, d], which may be singular: eigenvalues at rounding error are 0."""
        mean = np.atleast_1d(np.asarray(mean, np.float64))
        covariance = np.atleast_2d(np.asarray(covariance, np.float64))
        d = len(mean)
        if mean.ndim != 1 or covariance.shape != (d, d):
            raise UserError(
                f"expected a mean [d] and a covariance [d, d], got shapes {mean.shape} and {covariance.shape}."
            )
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise DataError("the mean or the covariance has values that are not finite; compute the features again.")
        scale = np.abs(covariance).max(initial=0)
        if np.abs(covariance - covariance.T).max(initial=0) > 1e-6 * scale:
            raise UserError("expected a symmetric covariance; is it a matrix of something else?")
        values, vectors = scipy.linalg.eigh((covariance + covariance.T) / 2)
        if values[0] < -1e-6 * max(values[-1], 0.0):
            raise UserError(f"expected a covariance without negative eigenvalues, got {values[0]:.3g}.")
        kept = values > d * np.finfo(np.float64).eps * values[-1]
        return cls(mean, vectors[:, kept] * np.sqrt(values[kept]), n)


def frechet_distance(mu1: np.ndarray, cov1: np.ndarray, mu2: np.ndarray, cov2: np.ndarray) -> float:
    """Squared Fréchet distance of two Gaussians, given their means [d] and covariances [d, d]."""
    return gaussian_distance(Gaussian.of_covariance(mu1, cov1), Gaussian.of_covariance(mu2, cov2))


def gaussian_distance(one: Gaussian, other: Gaussian) -> float:
    """Squared Fréchet distance of two Gaussians."""
    _check_dimensions(one, other)
    overlap = scipy.linalg.svdvals(other.factor.T @ one.factor).sum() if one.factor.size and other.factor.size else 0.0
    offset = np.square(one.mean - other.mean).sum()
    return max(float(offset + one.total_variance + other.total_variance - 2 * overlap), 0.0)


def frechet_score(generated: np.ndarray, reference: Gaussian) -> tuple[Score, np.ndarray]:
    """FID of the features [n, d] of generated samples: the score, and a pseudo-value of every sample.

    The interval says how FID varies over sets of n generated samples; the reference is taken as given. It is not an
    interval for the distance of the underlying distributions: FID at finite n is too large by about a constant / n, so
    only values with equal n are comparable (`extrapolated_score` removes this bias).

    The mean of the pseudo-values is the FID, and their standard error is that of FID: they are FID plus the influence
    of each sample, its derivative with respect to the weight of the sample (infinitesimal jackknife, Efron 1982). One
    singular value decomposition is enough, where a bootstrap would need one per resample; and a bootstrap is biased
    upwards, because a resample has fewer distinct samples. The difference of two models on the same prompts has the
    standard error of the differences of their pseudo-values.
    """
    gaussian = Gaussian.of_features(generated)
    _check_dimensions(gaussian, reference)
    n = len(generated)
    left, values, _ = scipy.linalg.svd(reference.factor.T @ gaussian.factor, full_matrices=False, check_finite=False)
    kept = values > max(gaussian.dimension, n) * np.finfo(np.float64).eps * values.max(initial=0)
    # Derivative of the overlap with respect to the covariance: half of transport @ transport.T.
    transport = reference.factor @ (left[:, kept] / np.sqrt(values[kept]))
    offset = gaussian.mean - reference.mean
    value = float(np.square(offset).sum() + gaussian.total_variance + reference.total_variance - 2 * values.sum())
    spread = gaussian.total_variance - values[kept].sum()
    influence = np.empty(n)
    for start in range(0, n, _ROWS):
        centred = generated[start : start + _ROWS] - gaussian.mean
        curved = np.square(centred).sum(1) - np.square(centred @ transport).sum(1)
        influence[start : start + _ROWS] = 2 * centred @ offset + curved * n / (n - 1) - spread
    margin = _Z * float(influence.std(ddof=1)) / np.sqrt(n)
    score = Score(max(value, 0.0), max(value - margin, 0.0), max(value + margin, 0.0), n)
    return score, value + influence


def extrapolated_score(generated: np.ndarray, reference: Gaussian, num_points: int = 10, seed: int = 0) -> Score:
    """FID for infinitely many generated samples (Chong and Forsyth 2020): the intercept of FID over 1 / n.

    FID is computed for random subsets of `num_points` sizes between half of the samples and all of them. Each is
    corrected by the mean influence of its samples, so that the line shows the bias and little of the luck of the draw.
    The bias is linear in 1 / n only beyond the dimension, so at least 2 d samples are needed. The bias from the finite
    number of reference samples remains. The interval is that of FID, moved to the intercept.
    """
    n, d = generated.shape
    if n < 2 * d:
        raise DataError(f"extrapolating FID needs at least {2 * d:,} generated samples (2 d), got {n:,}.")
    _, pseudo = frechet_score(generated, reference)
    rng = np.random.default_rng(seed)
    sizes = np.linspace(n // 2, n, num_points).astype(int)
    distances = []
    for size in sizes:
        rows = np.sort(rng.permutation(n)[:size])
        luck = pseudo[rows].mean() - pseudo.mean()
        distances.append(gaussian_distance(Gaussian.of_features(generated[rows]), reference) - luck)
    value = max(float(np.polyfit(1 / sizes, distances, 1)[1]), 0.0)
    margin = _Z * float(pseudo.std(ddof=1)) / np.sqrt(n)
    return Score(value, max(value - margin, 0.0), value + margin, n)


def check_features(features: np.ndarray) -> np.ndarray:
    """The array itself, if it is [n, d] and finite."""
    if features.ndim != 2:
        raise UserError(f"expected features [n, d], got shape {features.shape}.")
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise DataError(
            f"{(~finite).sum():,} of {len(features):,} samples have features that are not finite, the first is number "
            f"{int(finite.argmin())}. Is the feature network run in a precision that overflows?"
        )
    return features


def _check_dimensions(one: Gaussian, other: Gaussian) -> None:
    if one.dimension != other.dimension:
        raise UserError(
            f"the features have {one.dimension} dimensions and the reference has {other.dimension}: both must come "
            "from the same network."
        )


# -- statistics in files ----------------------------------------------------------------------------------------------


def save_gaussian(path: Path, gaussian: Gaussian) -> None:
    """Write the statistics as .npz with `mu`, `sigma` and `n`, the file format of FID implementations."""
    np.savez(path, mu=gaussian.mean, sigma=gaussian.factor @ gaussian.factor.T, n=gaussian.n or 0)


def load_gaussian(path: Path) -> Gaussian:
    """Read published statistics: a .npz with `mu` [d] and `sigma` [d, d], of clean-fid, pytorch-fid and others."""
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays: Mapping[str, np.ndarray] = {name: content[name] for name in ("mu", "sigma", "n") if name in content}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read as .npz ({reason}).") from error
    if not {"mu", "sigma"} <= set(arrays):
        raise DataError(f"{path} has no statistics: expected arrays mu [d] and sigma [d, d].")
    mu, sigma = arrays["mu"], arrays["sigma"]
    if mu.dtype.kind not in "fiu" or sigma.dtype.kind not in "fiu" or mu.ndim != 1 or not mu.size:
        raise DataError(
            f"{path} has no statistics: expected numbers in mu [d] and sigma [d, d], got {mu.dtype} {list(mu.shape)} "
            f"and {sigma.dtype} {list(sigma.shape)}."
        )
    n = arrays.get("n", np.zeros(()))
    if n.dtype.kind not in "fiu" or n.size != 1 or not np.isfinite(n).all() or n.item() < 0 or n.item() % 1:
        raise DataError(
            f"{path}: n must be one whole number, the count of samples, got {n.ravel()[:3].tolist()}: correct it or "
            "leave it out."
        )
    try:
        return Gaussian.of_covariance(mu, sigma, int(n.item()) or None)
    except (UserError, np.linalg.LinAlgError) as error:
        raise DataError(f"{path}: {error}") from error
