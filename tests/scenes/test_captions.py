import itertools
import re
from collections import Counter

import numpy as np
import pytest

from triptych.scenes.captions import caption, plain_caption
from triptych.scenes.nouns import SYNONYMS, noun_tables
from triptych.scenes.styles import CAPTION_PROMPT, PLAIN_SHARE
from triptych.scenes.world import FULL, SMALL, ObjectGroup, Scene

CAT, DOG, FOX = (ObjectGroup(kind) for kind in ("cat", "dog", "fox"))


def captions(scene, world=FULL, number=4000):
    rng = np.random.default_rng(0)
    return Counter(caption(scene, rng, world) for _ in range(number))


def test_half_of_all_captions_are_plain():
    scene = Scene((ObjectGroup("cat", "red"), DOG), "left of")
    counts = captions(scene)
    plain = counts["a red cat left of a dog"] + counts["a dog right of a red cat"]
    assert plain / counts.total() == pytest.approx(PLAIN_SHARE, abs=0.04)
    assert counts.most_common(1)[0][0] in ("a red cat left of a dog", "a dog right of a red cat")
    assert len(counts) > 800


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        (Scene((CAT,)), ["cat", "Cat.", "a photo of a cat", "please draw a cat", "1 cat", "a kitty", "A CAT"]),
        (Scene((CAT,)), ["can you draw a cat", "Can you draw a cat?", "I want a cat", "i want a cat", "a cat, please"]),
        (Scene((ObjectGroup("car", None, 3),)), ["3 cars", "three automobiles", "There are three cars."]),
        (Scene((ObjectGroup("cat", "blue"),)), ["a cat that is blue", "a blue colored cat", "a blue coloured cat"]),
        (Scene((ObjectGroup("cat", "blue"),)), ["a cat, color blue", "a cat, colour blue", "blue cat"]),
        (Scene((ObjectGroup("owl", None, 1, "big"),)), ["a big owl", "a large owl", "a huge owl", "a giant owl"]),
        (Scene((CAT, DOG, FOX)), ["a cat, a dog and a fox", "a fox, a cat, and a dog", "cat, dog and fox"]),
        (Scene((CAT, DOG), "left of"), ["a cat on the left and a dog on the right", "a cat is left of a dog"]),
        (Scene((CAT, DOG), "beside"), ["a cat next to a dog", "a dog by a cat", "a cat that is beside a dog"]),
        (Scene((CAT, DOG), "on"), ["a cat sitting on a dog", "a dog with a cat on it", "a cat on top of a dog"]),
        (Scene((CAT, DOG, FOX), "between"), ["a cat between a fox and a dog", "a cat in between a dog and a fox"]),
        (Scene((CAT, DOG), "bigger than"), ["a cat larger than a dog", "a dog smaller than a cat"]),
        (Scene((CAT,), None, "grey"), ["a cat on a gray background", "a cat on grey", "a cat, gray background"]),
        (Scene((CAT,), None, "night"), ["at night, a cat", "a cat in the night"]),
        (Scene((CAT,), None, "grass"), ["a cat on the grass", "a cat in the grass", "I see a cat on grass"]),
    ],
)  # fmt: skip
def test_a_scene_is_said_in_many_ways(scene, expected):
    rng = np.random.default_rng(0)
    missing = set(expected)
    for _ in range(60_000):
        missing.discard(caption(scene, rng))
        if not missing:
            return
    raise AssertionError(missing)


def test_an_object_on_another_is_never_said_as_below():
    """ "under" means below: only "on" says that one object touches the other."""
    for scene in (Scene((CAT, DOG), "on"), Scene((DOG, CAT), "under")):
        texts = " ".join(captions(scene))
        assert not re.search(r"\b(?:under|underneath|below|over|above)\b", texts, re.IGNORECASE)
        assert "a cat on a dog" in texts


@pytest.mark.parametrize("world", [FULL, SMALL])
def test_articles_agree_with_the_next_word(world):
    rng = np.random.default_rng(0)
    for _ in range(3000):
        for article, letter in re.findall(r"\b(an?) (\w)", caption(world.sample(rng), rng, world).lower()):
            assert (article == "an") == (letter in "aeiou")


@pytest.mark.parametrize("world", [FULL, SMALL])
def test_an_opening_can_be_given(world):
    rng = np.random.default_rng(0)
    scene = Scene((ObjectGroup("heart", "red", 2),))
    assert {caption(scene, rng, world, CAPTION_PROMPT) for _ in range(200)} == {"a picture of two red hearts"}
    assert {caption(scene, rng, world, "") for _ in range(200)} == {"two red hearts"}


def test_the_small_world_has_exactly_the_captions_of_the_first_edition():
    scene = Scene((ObjectGroup("cat", None, 2), ObjectGroup("heart", "blue")), "left of")
    openings = ("", "there {} ", "here {} ", "a picture of ", "we see ", "this picture shows ")
    clauses = [
        *((f"two cats {phrase} a blue heart", "are") for phrase in ("left of", "to the left of", "on the left of")),
        *((f"a blue heart {phrase} two cats", "is") for phrase in ("right of", "to the right of", "on the right of")),
    ]
    expected = {opening.format(is_are) + text for opening, (text, is_are) in itertools.product(openings, clauses)}
    counts = captions(scene, SMALL)
    assert set(counts) == expected
    bare = sum(count for text, count in counts.items() if text.startswith(("two", "a blue")))
    assert bare / counts.total() == pytest.approx(0.5, abs=0.04)


def test_synonyms_mean_one_kind_and_no_two_nouns_are_the_same():
    words = noun_tables(FULL).nouns
    forms = [(one, many) for synonyms in SYNONYMS.values() for one, many in synonyms]
    assert all(one not in FULL.kinds and words[one][0] == words[many][0] for one, many in forms)
    # every kind has a singular and a plural, but for "fish"
    assert len(words) == 2 * (len(FULL.kinds) + len(forms)) - 1


def test_the_plain_caption_states_everything():
    scene = Scene((ObjectGroup("heart", "red", 1, "big"), ObjectGroup("owl", None, 2)), "above", "night")
    assert plain_caption(scene) == "a big red heart above two owls at night"
