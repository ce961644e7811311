"""The paper's image transforms: crops as torchvision makes them, decided by the generator alone."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from triptych.data.transforms import paper_transform, random_resized_crop
from triptych.tokenizers.pixels import resize_with_white_padding


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def coordinates() -> Image.Image:
    """Red counts columns, green counts rows: a crop can be read off its corners."""
    y, x = np.mgrid[:200, :240]
    return Image.fromarray(np.stack([x, y, 0 * x], axis=-1).astype(np.uint8))


def test_crops_follow_the_rules_of_torchvision(coordinates):
    areas, ratios, lefts = [], [], []
    generator = rng()
    for _ in range(400):
        pixels = np.asarray(random_resized_crop(coordinates, 64, generator)).astype(float)
        assert pixels.shape == (64, 64, 3)
        # From the centre of the first pixel to that of the last there are 63/64 of the box.
        width = np.ptp(pixels[32, :, 0]) * 64 / 63
        height = np.ptp(pixels[:, 32, 1]) * 64 / 63
        areas.append(width * height / (240 * 200))
        ratios.append(width / height)
        lefts.append(pixels[32, 0, 0])
    assert 0.78 < min(areas) < 0.82
    assert 0.96 < max(areas) < 1.02
    assert 0.85 < np.mean(areas) < 0.93
    # The image's own ratio is 1.2, and 80 % of its area do not fit in below 0.96 or above 1.5.
    assert 0.90 < min(ratios) < 1.05
    assert 1.25 < max(ratios) < 1.37
    assert max(lefts) > 15


def test_small_crops_reach_all_ratios_and_places(coordinates):
    generator = rng(1)
    ratios, centres = [], []
    for _ in range(400):
        pixels = np.asarray(random_resized_crop(coordinates, 64, generator, scale=(0.1, 0.1))).astype(float)
        ratios.append(np.ptp(pixels[32, :, 0]) / np.ptp(pixels[:, 32, 1]))
        centres.append(pixels[32, 32, :2])
    assert abs(np.mean(np.log(ratios))) < 0.03
    assert 0.72 < min(ratios) < 0.79
    assert 1.27 < max(ratios) < 1.38
    assert np.ptp(centres, axis=0).min() > 100


def test_a_narrow_image_falls_back_to_its_centre():
    sliver = Image.new("RGB", (400, 10), (9, 9, 9))
    ImageDraw.Draw(sliver).rectangle((190, 0, 210, 9), fill=(250, 0, 0))
    pixels = np.asarray(random_resized_crop(sliver, 32, rng()))
    assert (pixels[:, 4:-4, 0] > 200).all()
    assert random_resized_crop(Image.new("RGB", (1, 1000)), 8, rng()).size == (8, 8)


def test_half_of_the_transforms_keep_the_whole_image(coordinates):
    whole = np.asarray(resize_with_white_padding(coordinates, 32))
    picked = [np.array_equal(np.asarray(paper_transform(coordinates, 32, rng(seed))), whole) for seed in range(400)]
    assert 160 < sum(picked) < 240


def test_the_generator_alone_decides(coordinates):
    once, again, other = (np.asarray(random_resized_crop(coordinates, 32, rng(seed))) for seed in (3, 3, 4))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)
