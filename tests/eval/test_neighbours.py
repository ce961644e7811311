"""KID from all pairs, precision, recall, density and coverage, against the definitions sample by sample."""

import itertools

import numpy as np
import pytest

from triptych.errors import DataError, UserError
from triptych.eval.image import neighbours
from triptych.eval.image.inception import kernel_inception_distance, kernel_score
from triptych.eval.image.neighbours import compare_neighbours

METRICS = ("precision", "recall", "density", "coverage")


def restated(generated, reference, k, density_k):
    """The definitions in loops."""

    def radius(points, index, neighbours):
        others = sorted(np.linalg.norm(points[index] - points[j]) for j in range(len(points)) if j != index)
        return others[neighbours - 1]

    def distance(i, j):
        return np.linalg.norm(reference[i] - generated[j])

    rows, columns = range(len(reference)), range(len(generated))
    return {
        "precision": [any(distance(i, j) <= radius(reference, i, k) for i in rows) for j in columns],
        "recall": [any(distance(i, j) <= radius(generated, j, k) for j in columns) for i in rows],
        "density": [sum(distance(i, j) <= radius(reference, i, density_k) for i in rows) / density_k for j in columns],
        "coverage": [any(distance(i, j) <= radius(reference, i, density_k) for j in columns) for i in rows],
    }


@pytest.mark.parametrize(("n", "m", "k", "density_k"), [(12, 9, 3, 5), (7, 15, 1, 2), (20, 20, 4, 4)])
def test_every_sample_contributes_what_the_definitions_say(n, m, k, density_k, monkeypatch):
    rng = np.random.default_rng(n)
    generated, reference = rng.normal(0.7, 1, size=(n, 4)), rng.normal(size=(m, 4))
    monkeypatch.setattr(neighbours, "_ROWS", 5)  # several blocks
    found = compare_neighbours(generated, reference, k=k, density_k=density_k)
    expected = restated(generated, reference, k, density_k)
    for name in METRICS:
        np.testing.assert_allclose(getattr(found, name), np.array(expected[name], float), err_msg=name)
    assert 0 < found.precision.mean() < 1 or 0 < found.recall.mean() < 1


def test_a_model_that_shows_one_kind_of_image_is_precise_but_recalls_little():
    rng = np.random.default_rng(0)
    reference = np.concatenate([rng.normal(size=(60, 3)), rng.normal(20, 1, size=(60, 3))])
    found = compare_neighbours(rng.normal(size=(120, 3)), reference)
    assert found.precision.mean() > 0.8 > 0.6 > found.recall.mean()
    assert found.coverage.mean() < 0.6
    far = compare_neighbours(rng.normal(-90, 1, size=(120, 3)), reference)
    assert [getattr(far, name).sum() for name in METRICS] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("generated", "reference", "words"),
    [
        (np.zeros((5, 2)), np.zeros((9, 2)), "need more than 5 samples in each set, got 5 and 9"),
        (np.zeros((9, 2)), np.zeros((9, 3)), "same network"),
        (np.full((9, 2), np.nan), np.zeros((9, 2)), "9 of 9 samples have features that are not finite"),
    ],
)
def test_sets_that_cannot_be_compared_are_refused(generated, reference, words):
    with pytest.raises((UserError, DataError), match=words):
        compare_neighbours(generated, reference)


# -- KID --------------------------------------------------------------------------------------------------------------


def test_kid_of_all_pairs_is_that_of_one_subset_with_all_samples():
    xs, ys = np.random.default_rng(1).normal(size=(2, 30, 6))
    expected = kernel_inception_distance(xs, ys, num_subsets=1, subset_size=30)[0]
    score, pseudo = kernel_score(xs, ys)
    assert score.value == pytest.approx(expected, rel=1e-11)
    assert pseudo.mean() == pytest.approx(expected, rel=1e-11)
    assert score.low < score.value < score.high


def test_kid_of_all_pairs_is_unbiased():
    points = np.array([[0.0, 1.0], [2.0, -1.0], [-1.5, 0.5]])
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.7, 0.1, 0.2])
    gram = (points @ points.T / 2 + 1) ** 3
    mean = sum(
        p[a] * p[b] * q[c] * q[d] * q[e] * kernel_score(points[[a, b]], points[[c, d, e]])[0].value
        for a, b, c, d, e in itertools.product(range(3), repeat=5)
    )
    assert mean == pytest.approx((p - q) @ gram @ (p - q), abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_interval_of_kid_has_the_spread_of_repeated_samples(shift):
    rng = np.random.default_rng(2)
    reference = rng.normal(size=(400, 10))
    scores = [kernel_score(rng.normal(shift, 1, size=(60, 10)), reference)[0] for _ in range(200)]
    spread = np.std([score.value for score in scores])
    claimed = np.mean([(score.high - score.low) / (2 * 1.96) for score in scores])
    assert 0.85 * spread < claimed < 1.6 * spread


def test_kid_needs_two_samples_of_the_same_network():
    with pytest.raises(UserError, match="at least 2 images in each set, got 1 and 5"):
        kernel_score(np.zeros((1, 3)), np.zeros((5, 3)))
    with pytest.raises(UserError, match="same d"):
        kernel_score(np.zeros((5, 3)), np.zeros((5, 4)))
