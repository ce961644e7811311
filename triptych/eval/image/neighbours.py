"""Precision and recall of generated samples by nearest neighbours, with density and coverage.

Every set of features is the union of balls around its samples that reach to the k-th nearest neighbour.

    precision   share of generated samples inside the set of the reference           (Kynkäänniemi et al. 2019, k = 3)
    recall      share of reference samples inside the set of the generated samples
    density     balls of the reference around a generated sample, divided by k       (Naeem et al. 2020, k = 5)
    coverage    share of the reference balls that a generated sample lies in

The radii shrink when the sets grow, so values are comparable only for equal numbers of samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from triptych.errors import UserError
from triptych.eval.frechet import check_features

PRECISION_K = 3
DENSITY_K = 5
_ROWS = 1024  # of a matrix of distances


@dataclass(frozen=True)
class Neighbours:
    """What each sample contributes; the metrics are the means."""

    precision: np.ndarray
    """Of each generated sample: 1 inside the set of the reference, else 0."""
    recall: np.ndarray
    """Of each reference sample."""
    density: np.ndarray
    """Of each generated sample."""
    coverage: np.ndarray
    """Of each reference sample."""


def compare_neighbours(
    generated: np.ndarray, reference: np.ndarray, *, k: int = PRECISION_K, density_k: int = DENSITY_K
) -> Neighbours:
    """Compare features [n, d] of generated samples with those [m, d] of a reference."""
    generated, reference = (check_features(np.asarray(each, np.float64)) for each in (generated, reference))
    if generated.shape[1] != reference.shape[1]:
        raise UserError(f"expected features of the same network, got {generated.shape} and {reference.shape}.")
    largest = max(k, density_k)
    if min(k, density_k) < 1 or min(len(generated), len(reference)) <= largest:
        raise UserError(
            f"precision and recall with {largest} neighbours need more than {largest} samples in each set, "
            f"got {len(generated)} and {len(reference)}."
        )
    own_radii = _squared_radii(generated, [k])[0]
    radii, density_radii = _squared_radii(reference, [k, density_k])
    is_precise = np.zeros(len(generated), bool)
    balls = np.zeros(len(generated))
    is_recalled, is_covered = np.zeros(len(reference), bool), np.zeros(len(reference), bool)
    for rows, distances in _blocks(reference, generated):
        is_precise |= (distances <= radii[rows, None]).any(0)
        inside = distances <= density_radii[rows, None]
        balls += inside.sum(0)
        is_recalled[rows] = (distances <= own_radii).any(1)
        is_covered[rows] = inside.any(1)
    return Neighbours(is_precise.astype(float), is_recalled.astype(float), balls / density_k, is_covered.astype(float))


def _squared_radii(features: np.ndarray, ks: list[int]) -> list[np.ndarray]:
    """Squared distance of every sample to its k-th nearest other sample, for every k."""
    radii = [np.empty(len(features)) for _ in ks]
    for rows, distances in _blocks(features, features):
        distances[np.arange(rows.stop - rows.start), np.arange(rows.start, rows.stop)] = np.inf  # not its own neighbour
        nearest = np.sort(np.partition(distances, max(ks) - 1, axis=1)[:, : max(ks)], axis=1)
        for radius, k in zip(radii, ks):
            radius[rows] = nearest[:, k - 1]
    return radii


def _blocks(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Squared distances of some rows of `one` to all rows of `other`, by rows."""
    lengths = np.square(other).sum(1)
    for start in range(0, len(one), _ROWS):
        block = one[start : start + _ROWS]
        distances = np.square(block).sum(1)[:, None] + lengths - 2 * (block @ other.T)
        yield slice(start, start + len(block)), np.maximum(distances, 0)
