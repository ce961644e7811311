import numpy as np
import pytest

from triptych.scenes.captions import caption, plain_caption
from triptych.scenes.descriptions import describe, parse_description
from triptych.scenes.layout import place
from triptych.scenes.parse import parse
from triptych.scenes.picture import shows
from triptych.scenes.spoken import spoken_caption
from triptych.scenes.world import FULL, INVERSE, SMALL, ObjectGroup, Scene

CAT, DOG, FOX = (ObjectGroup(kind) for kind in ("cat", "dog", "fox"))


def mean_the_same(one, other):
    """Whether two scenes state the same of the same looks, whichever group comes first."""

    def facts(groups, relation):
        return [(*group.look, group.count, group.size) for group in groups], relation

    if one is None or one.background != other.background or len(one.groups) != len(other.groups):
        return False
    if one.relation == "between":
        first, second, third = one.groups
        orders = [(one.groups, "between"), ((first, third, second), "between")]
    elif one.relation:
        orders = [(one.groups, one.relation), (one.groups[::-1], INVERSE[one.relation])]
    else:
        return sorted(map(str, facts(one.groups, None)[0])) == sorted(map(str, facts(other.groups, None)[0])) and (
            other.relation is None
        )
    return any(facts(*order) == facts(other.groups, other.relation) for order in orders)


@pytest.mark.parametrize("world", [FULL, SMALL])
def test_every_caption_means_its_scene(world):
    rng = np.random.default_rng(0)
    texts = set()
    for _ in range(20_000):
        scene = world.sample(rng)
        text = caption(scene, rng, world)
        assert mean_the_same(parse(text, world), scene), (text, scene)
        texts.add(text)
    assert len(texts) > 10_000


def test_plain_and_spoken_captions_mean_their_scene():
    rng = np.random.default_rng(1)
    for _ in range(3000):
        scene = FULL.sample(rng)
        assert mean_the_same(parse(plain_caption(scene)), scene)
        spoken = spoken_caption(scene, rng)
        assert spoken.endswith("?") or mean_the_same(parse(spoken), scene), spoken


def test_meaning_is_compared():
    scene = Scene((CAT, DOG), "left of")
    assert mean_the_same(Scene((DOG, CAT), "right of"), scene)
    assert not mean_the_same(Scene((DOG, CAT), "left of"), scene)
    assert not mean_the_same(Scene((CAT, DOG), "left of", "sky"), scene)
    assert not mean_the_same(Scene((CAT, DOG, FOX), "between"), Scene((DOG, CAT, FOX), "between"))


@pytest.mark.parametrize(
    ("text", "scene"),
    [
        ("cat", Scene((CAT,))),
        ("THE CAT!!!", Scene((CAT,))),
        ("  A\tcat \n and a  dog ", Scene((CAT, DOG))),
        ("cat & dog", Scene((CAT, DOG))),
        ("cat, dog, fox", Scene((CAT, DOG, FOX))),
        ("a cat and a dog and a fox", Scene((CAT, DOG, FOX))),
        ("a cat with a dog and a fox", Scene((CAT, DOG, FOX))),
        ("two cat", Scene((ObjectGroup("cat", None, 2),))),
        ("a yellow cat", Scene((CAT,))),
        ("red big cat", Scene((ObjectGroup("cat", "red", 1, "big"),))),
        ("a big, red cat", Scene((ObjectGroup("cat", "red", 1, "big"),))),
        ("a red-colored cat", Scene((ObjectGroup("cat", "red"),))),
        ("two puppies which are blue", Scene((ObjectGroup("dog", "blue", 2),))),
        ("Hi, could you please show me a picture of a dog, please? Thanks!", None),
        ("Hi, could you please show me a picture of a dog, please, thanks!", Scene((DOG,))),
        ("we would like to see a dog", Scene((DOG,))),
        ("the picture shows a dog", Scene((DOG,))),
        ("a dog sitting next to a cat", Scene((DOG, CAT), "beside")),
        ("a dog under a cat", Scene((DOG, CAT), "below")),
        ("a cat with a dog on it", Scene((DOG, CAT), "on")),
        ("a cat with a dog next to it", Scene((DOG, CAT), "beside")),
        ("a cat on the left, a dog on the right", Scene((CAT, DOG), "left of")),
        ("a cat at the bottom and a dog at the top", Scene((CAT, DOG), "below")),
        ("a cat on the left and a dog", Scene((CAT, DOG), "left of")),
        ("a cat and a dog on the left", None),  # perhaps both are there
        ("a cat on the left and a dog on the left", None),
        ("a cat on the grass next to a dog", Scene((CAT, DOG), "beside", "grass")),
        ("a cat on the left of a dog on the grass", Scene((CAT, DOG), "left of", "grass")),
        ("a cat on a dog on a white background", Scene((CAT, DOG), "on", "white")),
        ("a white background with a cat", Scene((CAT,), None, "white")),
        ("a cat in the night sky", Scene((CAT,), None, "night")),
        ("a cat at night on the grass", None),  # two backgrounds
        ("a cat left of a dog and a fox", None),
        ("a cat on a dog on a fox", None),
        ("a cat between two dogs", None),
        ("two cats on a dog", None),
        ("three big cats and a dog", None),
        ("a big cat bigger than a dog", None),
        ("three cats left of a dog", None),
        ("a red blue cat", None),
        ("a white cat", None),
        ("cats", None),
        ("a cats", None),
        ("seven cats", None),
        ("a cat and a yellow cat", None),
        ("a cat left a dog", None),
        ("a cat.. left of a dog", None),
        ("a cat and", None),
        ("and a cat", None),
        ("", None),
    ],
)  # fmt: skip
def test_what_people_type(text, scene):
    parsed = parse(text)
    assert parsed == scene or (scene and mean_the_same(parsed, scene)), parsed


@pytest.mark.parametrize(
    "text",
    ["", "cat", "a cat and", "a red fox", "a heart", "two cat", "a cats", "five cats", "a cat left a dog", "the cat",
     "a cat and a dog and a fox", "four cats and a dog", "a cat and a cat", "three cats left of a dog",
     "a cat.. left of a dog", "a kitten", "a small cat", "2 cats", "a bear", "a pink heart", "a cat at night",
     "draw a cat", "a cat beside a dog", "a cat on a dog"],
)  # fmt: skip
def test_the_small_world_reads_only_the_captions_of_the_first_edition(text):
    assert parse(text, SMALL) is None


def test_the_small_world_ignores_case_spaces_and_the_final_full_stop():
    assert parse("  A  Cat and\ta dog. ", SMALL) == Scene((CAT, DOG))


def test_descriptions_are_true_and_mean_their_picture():
    rng = np.random.default_rng(0)
    lengths = set()
    for _ in range(2000):
        scene = FULL.sample(rng)
        picture = place(scene, rng)
        text = describe(scene, picture, rng)
        described = parse_description(text)
        assert described is not None, text
        assert shows(picture, described, FULL), text
        lengths.add(text.count("."))
    assert lengths == {2, 3}


@pytest.mark.parametrize(
    ("text", "scene"),
    [
        ("There is a cat. There is a dog. The cat is left of the dog.", Scene((CAT, DOG), "left of")),
        ("Two cats. They are small. It is night.", Scene((ObjectGroup("cat", None, 2, "small"),), None, "night")),
        ("A cat. It is red. The background is gray.", Scene((ObjectGroup("cat", "red"),), None, "grey")),
        ("A cat, a dog and a fox. The cat is between the dog and the fox.", Scene((CAT, DOG, FOX), "between")),
        ("A small cat. The cat is big.", None),
        ("A cat on a dog. A fox.", None),
        ("A cat at night. The background is white.", None),
        ("A cat. The dog is red.", None),
        ("A red cat and a blue cat. The cat is big.", None),
        ("The cat is big. A cat.", None),
    ],
)  # fmt: skip
def test_sentences_are_merged_if_they_are_consistent(text, scene):
    parsed = parse_description(text)
    assert parsed == scene or (scene and mean_the_same(parsed, scene)), parsed
