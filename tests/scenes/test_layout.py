"""From scenes to pictures: everything has room, nothing overlaps, and what the scene states is true."""

import itertools
from collections import Counter

import numpy as np
import pytest

from triptych.scenes.grid import GRID_STEP
from triptych.scenes.layout import STEP, place
from triptych.scenes.picture import MIN_SEPARATION, Picture, PlacedObject, holds, is_between, shows
from triptych.scenes.sprites import sprite
from triptych.scenes.world import BACKGROUNDS, FULL, SMALL, ObjectGroup, Scene

BOTH = pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)


def boxes_overlap(one, other):
    (left, top, right, bottom), (left2, top2, right2, bottom2) = one.box, other.box
    return left < right2 and left2 < right and top < bottom2 and top2 < bottom


def covered(below, above):
    """Share of an object's opaque pixels that another one covers."""
    canvas = np.zeros((2, FULL.image_size, FULL.image_size), bool)
    for layer, item in zip(canvas, (below, above)):
        layer[item.y : item.y + item.width, item.x : item.x + item.width] = sprite(item.look, item.width)[..., 3] > 0.5
    return (canvas[0] & canvas[1]).sum() / canvas[0].sum()


@BOTH
def test_every_scene_has_room(world):
    """5,000 scenes of the full preset, all categories in turn; `shows` is also checked by hand below."""
    rng = np.random.default_rng(0)
    for number in range(5000 if world is FULL else 1000):
        scene = world.sample(rng, category=world.categories[number % len(world.categories)])
        picture = place(scene, rng, world)
        assert picture.looks == Counter({group.look: group.count for group in scene.groups})
        assert shows(picture, scene, world)
        for item in picture.objects:
            left, top, right, bottom = item.box
            assert min(left, top) >= 0
            assert max(right, bottom) <= world.image_size
            assert item.width in world.sizes.values()
            step, offset = (STEP, 0) if world is FULL else (GRID_STEP, 2)
            assert (item.x - offset) % step == (item.y - offset) % step == 0
        for one, other in itertools.combinations(picture.objects, 2):
            if scene.relation in ("on", "under"):
                assert covered(one, other) < 0.5
            else:
                assert not boxes_overlap(one, other)


def test_sizes_backgrounds_and_positions_vary():
    rng = np.random.default_rng(0)
    pictures = [place(Scene((ObjectGroup("cat"),)), rng) for _ in range(600)]
    assert {picture.background for picture in pictures} == set(BACKGROUNDS)
    assert np.mean([picture.background == "white" for picture in pictures]) == pytest.approx(0.5, abs=0.1)
    assert {picture.objects[0].width for picture in pictures} == set(FULL.sizes.values())
    places = {(item.x, item.y, item.width) for picture in pictures for item in picture.objects}
    possible = sum(((FULL.image_size - width) // STEP + 1) ** 2 for width in FULL.sizes.values())
    assert len(places) > 0.9 * possible


def test_what_a_scene_states_is_drawn():
    rng = np.random.default_rng(0)
    scene = Scene((ObjectGroup("cat", None, 2, "small"), ObjectGroup("dog", "red", 1, "big")), background="night")
    for _ in range(50):
        picture = place(scene, rng)
        assert picture.background == "night"
        widths = {item.look[0]: item.width for item in picture.objects}
        assert widths == {"cat": FULL.sizes["small"], "dog": FULL.sizes["big"]}


@pytest.mark.parametrize("relation", [*FULL.relations, "on", "bigger than", "smaller than"])
def test_relations_are_true_by_coordinates(relation):
    rng = np.random.default_rng(0)
    scene = Scene((ObjectGroup("cat"), ObjectGroup("dog")), relation)
    for _ in range(100):
        items = {item.look[0]: item for item in place(scene, rng).objects}
        cat, dog = items["cat"], items["dog"]
        (x, y), (other_x, other_y) = cat.centre, dog.centre
        distance = {"left of": other_x - x, "right of": x - other_x, "above": other_y - y, "below": y - other_y}
        if relation in distance:
            distance_along = distance[relation]
            assert distance_along >= MIN_SEPARATION
            # A person would not rather name the other axis.
            across = abs(y - other_y) if relation in ("left of", "right of") else abs(x - other_x)
            assert across <= distance_along
        elif relation == "beside":
            gap = max(cat.x, dog.x) - min(cat.box[2], dog.box[2])
            assert 0 <= gap <= 16
            assert abs(y - other_y) < (cat.width + dog.width) / 4
        elif relation == "on":
            assert y < other_y
            assert abs(x - other_x) <= dog.width / 2
        else:
            assert cat.width != dog.width
            assert (cat.width > dog.width) == (relation == "bigger than")


def test_the_middle_is_between():
    rng = np.random.default_rng(0)
    scene = Scene((ObjectGroup("cat"), ObjectGroup("dog"), ObjectGroup("fox")), "between")
    sides = Counter()
    for _ in range(100):
        x = {item.look[0]: item.centre[0] for item in place(scene, rng).objects}
        assert min(x["dog"], x["fox"]) < x["cat"] < max(x["dog"], x["fox"])
        sides[x["dog"] < x["fox"]] += 1
    assert min(sides.values()) > 20


def test_a_picture_shows_exactly_its_scene():
    cat, dog = PlacedObject(("cat", None), 8, 40, 32), PlacedObject(("dog", "red"), 72, 40, 32)
    picture = Picture((cat, dog), "sky")
    groups = (ObjectGroup("cat"), ObjectGroup("dog", "red"))
    true = [Scene(groups), Scene(groups, "left of"), Scene(groups[::-1], "right of"), Scene(groups, None, "sky")]
    false = [
        Scene(groups[:1]),
        Scene(groups, "right of"),
        Scene(groups, "above"),
        Scene(groups, None, "white"),
        Scene((groups[0], ObjectGroup("dog"))),
        Scene((ObjectGroup("cat", None, 2), groups[1])),
        Scene((ObjectGroup("cat", None, 1, "big"), groups[1])),
        Scene(groups, "bigger than"),
    ]
    assert [shows(picture, scene, FULL) for scene in true] == [True] * len(true)
    assert [shows(picture, scene, FULL) for scene in false] == [False] * len(false)


def test_a_relation_holds_between_all_objects_of_two_groups():
    left, right = PlacedObject(("cat", None), 0, 0, 32), PlacedObject(("cat", None), 96, 0, 32)
    dog = PlacedObject(("dog", None), 48, 0, 32)
    assert holds("left of", [left], [dog])
    assert not holds("left of", [left, right], [dog])
    assert not holds("left of", [], [dog])
    assert is_between([dog], [left], [right])
    assert not is_between([left], [dog], [right])


# -- the grid of the preset `small` -----------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", SMALL.relations)
def test_on_the_grid_a_relation_holds_and_no_other_does(relation):
    rng = np.random.default_rng(0)
    for counts in itertools.product((1, 2), repeat=2):
        groups = (ObjectGroup("cat", None, counts[0]), ObjectGroup("dog", None, counts[1]))
        for _ in range(50):
            picture = place(Scene(groups, relation), rng, SMALL)
            first, second = (picture.of(group) for group in groups)
            assert [other for other in SMALL.relations if holds(other, first, second)] == [relation]


def test_on_the_grid_an_image_shows_whether_the_scene_has_a_relation():
    """No arrangement of two groups without a relation is also one of two groups with a relation."""
    rng = np.random.default_rng(0)

    def places(relation, counts):
        scene = Scene((ObjectGroup("cat", None, counts[0]), ObjectGroup("dog", None, counts[1])), relation)
        pictures = [place(scene, rng, SMALL) for _ in range(200)]
        return {tuple(sorted((item.look[0], item.x, item.y) for item in each.objects)) for each in pictures}

    for counts in itertools.product((1, 2), repeat=2):
        related = set.union(*(places(relation, counts) for relation in SMALL.relations))
        scattered = places(None, counts)
        assert not related & scattered
        assert len(scattered) == {2: 4, 3: 4, 4: 2}[sum(counts)]
    assert len(places(None, (3, 1))) == 4  # they cannot be opposite each other
