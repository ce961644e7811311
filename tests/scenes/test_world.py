"""Scenes, their categories and splits, in both presets."""

import hashlib
import itertools
import json
from collections import Counter

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.samples import CATEGORY_SHARES
from triptych.scenes.world import (
    BACKGROUNDS,
    CATEGORIES,
    COLOURS,
    FULL,
    INVERSE,
    NATURAL_COLOUR,
    NUMBERS,
    PLURALS,
    SIZES,
    SMALL,
    ObjectGroup,
    Scene,
    natural_look,
)

BOTH = pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)
SPLITS = ("train", "validation", "test")


def scenes(world, count, seed=0, **options):
    rng = np.random.default_rng(seed)
    return [world.sample(rng, **options) for _ in range(count)]


def one_group_compositions(world):
    """Every look and count."""
    for (kind, colour), count in itertools.product(world.looks(), range(1, world.max_count + 1)):
        yield Scene((ObjectGroup(kind, colour, count),))


# -- size -------------------------------------------------------------------------------------------------------------


def test_the_worlds_have_their_documented_sizes():
    assert (FULL.image_size, SMALL.image_size) == (128, 64)
    assert len(FULL.kinds) == 60
    assert len(SMALL.kinds) == 40
    # Every kind in every colour, the natural one included, but not twice.
    assert len(FULL.looks()) == 60 + 60 * 8 - len(NATURAL_COLOUR)
    assert len(SMALL.looks()) == 32 + 8 * 6
    assert (FULL.max_count, SMALL.max_count) == (6, 4)


def test_looks_are_distinct_and_a_natural_colour_is_no_second_look():
    assert max(Counter(natural_look(*look) for look in FULL.looks()).values()) == 1
    assert max(Counter(natural_look(*look) for look in SMALL.looks()).values()) == 1
    assert ObjectGroup("frog", "green").look == ObjectGroup("frog").look == ("frog", None)
    assert ObjectGroup("cat", "blue").look == ("cat", "blue")
    with pytest.raises(UserError, match="different look"):
        Scene((ObjectGroup("frog", "green"), ObjectGroup("frog")))


def test_natural_colours_and_inverses_are_consistent():
    assert set(NATURAL_COLOUR) <= set(PLURALS)
    assert set(NATURAL_COLOUR.values()) <= set(COLOURS)
    assert all(INVERSE[INVERSE[relation]] == relation for relation in INVERSE)


# -- splits -----------------------------------------------------------------------------------------------------------


@BOTH
def test_one_group_compositions_are_split_exactly(world):
    """A tenth of every category, rounded up, for validation and for test."""
    by_category = {}
    for scene in one_group_compositions(world):
        by_category.setdefault(scene.category, {})[world.composition(scene)] = world.split(scene)
    for splits in by_category.values():
        tenth = -(-len(splits) // 10)
        assert Counter(splits.values()) == {"train": len(splits) - 2 * tenth, "validation": tenth, "test": tenth}


@BOTH
def test_two_and_three_groups_are_split_by_a_hash_of_their_looks(world):
    looks = world.looks()
    rng = np.random.default_rng(0)
    counts = Counter()
    for number in (2, 3) if world is FULL else (2,):
        for _ in range(2000):
            groups = [ObjectGroup(*looks[i]) for i in rng.choice(len(looks), number, replace=False)]
            if len({group.look for group in groups}) < number:
                continue
            splits = {world.split(Scene(tuple(order))) for order in itertools.permutations(groups)}
            assert len(splits) == 1, "the order of the groups decides"
            counts.update(splits)
    total = sum(counts.values())
    assert counts["validation"] / total == pytest.approx(0.1, abs=0.03)
    assert counts["test"] / total == pytest.approx(0.1, abs=0.03)


def test_counts_sizes_relations_and_backgrounds_do_not_move_a_pair_to_another_split():
    cat, dog = ObjectGroup("cat"), ObjectGroup("dog", "blue")
    others = [
        Scene((dog, cat), "left of"),
        Scene((ObjectGroup("cat", None, 3), dog), background="sky"),
        Scene((cat, ObjectGroup("dog", "blue", 1, "big"))),
        Scene((cat, dog), "on", "night"),
    ]
    assert {FULL.split(each) for each in others} == {FULL.split(Scene((cat, dog)))}
    # A natural look that is named by its colour is the same look.
    frogs = [Scene((ObjectGroup("frog", colour), cat)) for colour in (None, "green")]
    assert len({FULL.composition(each) for each in frogs}) == 1


# The first edition of the dataset had only what now is the preset `small`. Models, datasets and studies were made with
# its splits. SHA-256 of its lists of [composition, split]: of every kind (sorted), count and colour; of 2,000 pairs.
FIRST_EDITION = (
    "9dab7792ab5fcc7501f4d64323c0d2b0fcbb1ba07df7bb75d2a004cd68274c4d",
    "3221041edd9c8e366f589a2233c27075e544ff59240cfdeb5ca33ade922dee96",
)


def test_the_splits_of_the_small_preset_are_those_of_the_first_edition():
    colours = {kind: SMALL.colours if kind in SMALL.coloured_kinds else (None,) for kind in sorted(SMALL.kinds)}
    one = [
        Scene((ObjectGroup(kind, colour, count),))
        for kind in colours
        for count in (1, 2, 3, 4)
        for colour in colours[kind]
    ]
    looks = [(kind, colour) for kind in colours for colour in colours[kind]]
    rng = np.random.default_rng(0)
    pairs = [rng.choice(len(looks), 2, replace=False) for _ in range(2000)]
    two = [Scene((ObjectGroup(*looks[a]), ObjectGroup(*looks[b]))) for a, b in pairs]
    for listed, expected in zip((one, two), FIRST_EDITION):
        table = [[SMALL.composition(scene), SMALL.split(scene)] for scene in listed]
        assert hashlib.sha256(json.dumps(table).encode()).hexdigest() == expected


# -- sampling ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("split", SPLITS)
def test_every_category_can_be_sampled_in_every_split(world, split):
    for category in world.categories:
        for scene in scenes(world, 20, split=split, category=category):
            assert (scene.category, world.split(scene)) == (category, split)
            assert world.fits(scene)


@BOTH
def test_splits_share_no_composition(world):
    for category in world.categories:
        found = [
            {world.composition(scene) for scene in scenes(world, 100, split=split, category=category)}
            for split in SPLITS
        ]
        for one, other in itertools.combinations(found, 2):
            assert one
            assert not one & other


@BOTH
def test_categories_are_equally_likely(world):
    counts = Counter(scene.category for scene in scenes(world, 3000))
    assert set(counts) == set(world.categories)
    expected = 3000 / len(world.categories)
    assert all(count == pytest.approx(expected, abs=5 * expected**0.5) for count in counts.values())


def test_categories_of_the_worlds_are_known_and_have_shares():
    assert FULL.categories == CATEGORIES
    assert set(SMALL.categories) < set(CATEGORIES)
    for world in (FULL, SMALL):
        assert set(CATEGORY_SHARES[world.name]) == set(world.categories)
        assert sum(CATEGORY_SHARES[world.name].values()) == pytest.approx(1)


def test_training_scenes_have_every_look_count_size_background_and_relation():
    found = scenes(FULL, 12_000, split="train")
    groups = [group for scene in found for group in scene.groups]
    assert {group.look for group in groups} == {natural_look(*look) for look in FULL.looks()}
    assert {group.count for group in groups} == set(NUMBERS)
    assert {group.size for group in groups} == {None, *SIZES}
    assert {scene.background for scene in found} == {None, *BACKGROUNDS}
    relations = {None, *FULL.relations, "on", "between", "bigger than", "smaller than"}
    assert {scene.relation for scene in found} == relations
    assert {len(scene.groups) for scene in found} == {1, 2, 3}


def test_training_scenes_of_the_small_preset_have_every_look_count_and_relation():
    found = scenes(SMALL, 4000, split="train")
    groups = [group for scene in found for group in scene.groups]
    assert {(group.kind, group.colour) for group in groups} == set(SMALL.looks())
    assert {group.count for group in groups} == {1, 2, 3, 4}
    assert {scene.relation for scene in found} == {None, *SMALL.relations}
    assert {group.size for group in groups} == {None}
    assert {scene.background for scene in found} == {None}


CAT, DOG, FOX = (ObjectGroup(kind) for kind in ("cat", "dog", "fox"))


@pytest.mark.parametrize(
    ("scene", "category"),
    [
        (Scene((CAT,)), "single object"),
        (Scene((ObjectGroup("cat", "red"),)), "colours"),
        (Scene((ObjectGroup("cat", "red", 2),)), "counting"),
        (Scene((CAT, ObjectGroup("dog", "red"))), "two objects"),
        (Scene((ObjectGroup("cat", "blue"), ObjectGroup("dog", "red"))), "colour attribution"),
        (Scene((CAT, DOG, FOX)), "three objects"),
        (Scene((ObjectGroup("cat", None, 1, "big"), DOG)), "size"),
        (Scene((CAT, DOG), background="sky"), "background"),
        (Scene((CAT, DOG), "left of", "sky"), "position"),
        (Scene((CAT, DOG), "beside"), "position"),
        (Scene((CAT, DOG), "bigger than"), "comparison"),
        (Scene((CAT, DOG), "under"), "on"),
        (Scene((CAT, DOG, FOX), "between"), "between"),
    ],
)
def test_the_category_is_the_hardest_that_applies(scene, category):
    assert scene.category == category


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ObjectGroup("dragon"), "unknown kind of object 'dragon'"),
        (lambda: ObjectGroup("houze"), "Did you mean 'house'"),
        (lambda: ObjectGroup("cat", "brown"), "a colour is one of red, .* got 'brown'"),
        (lambda: ObjectGroup("cat", None, 7), "1 to 6 objects, got 7"),
        (lambda: ObjectGroup("cat", None, 1, "medium"), "a size is one of small, big, got 'medium'"),
        (lambda: Scene(()), "one to three groups"),
        (lambda: Scene((CAT,), "above"), "'above' is no relation between 1 groups"),
        (lambda: Scene((CAT, DOG), "between"), "'between' is no relation between 2 groups"),
        (lambda: Scene((CAT,), background="sea"), "a background is one of white, .* got 'sea'"),
        (lambda: FULL.sample(np.random.default_rng(0), category="colour"), "Did you mean .*'colours'"),
        (lambda: SMALL.sample(np.random.default_rng(0), category="between"), "unknown category 'between'"),
    ],
)
def test_impossible_scenes_are_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
