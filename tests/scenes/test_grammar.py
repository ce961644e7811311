import itertools
from collections import Counter

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.grammar import (
    CATEGORIES,
    COLOURED_KINDS,
    COLOURS,
    INVERSE,
    KINDS,
    NUMBERS,
    RELATIONS,
    ObjectGroup,
    Scene,
    caption,
    document,
    parse,
    question,
    questions,
    sample_scene,
    spoken_parts,
)


def scenes(count, **kwargs):
    rng = np.random.default_rng(0)
    return [sample_scene(rng, **kwargs) for _ in range(count)]


def test_the_dataset_has_its_documented_size():
    assert len(KINDS) >= 32
    assert len(COLOURS) == 6
    assert set(NUMBERS) == {1, 2, 3, 4}
    assert RELATIONS == ("left of", "right of", "above", "below")


def test_all_nouns_are_distinct():
    words = Counter(word for kind, plural in KINDS.items() for word in {kind, plural})
    assert max(words.values()) == 1


def test_every_caption_parses_to_its_scene(same_scene):
    rng = np.random.default_rng(1)
    phrasings = set()
    for scene in scenes(5000):
        text = caption(scene, rng)
        assert same_scene(parse(text), scene), text
        phrasings.add(text)
    assert len(phrasings) > 3000  # many wordings, not a few templates


def test_a_scene_has_several_captions():
    rng = np.random.default_rng(0)
    scene = Scene((ObjectGroup("cat"), ObjectGroup("heart", "red")), "left of")
    captions = {caption(scene, rng) for _ in range(500)}
    assert {
        "a cat left of a red heart",
        "a red heart to the right of a cat",
        "there is a cat on the left of a red heart",
    } <= captions
    assert len(captions) >= 24


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cat",
        "a cat and",
        "a red fox",
        "a heart",
        "two cat",
        "a cats",
        "five cats",
        "a cat left a dog",
        "a cat and a dog and a fox",
        "four cats and a dog",
        "a cat and a cat",
        "three cats left of a dog",
        "a cat.. left of a dog",
        "the cat",
    ],
)
def test_sentences_outside_the_grammar_are_not_parsed(text):
    assert parse(text) is None


def test_parsing_ignores_case_spaces_and_the_final_full_stop():
    assert parse("  A  Cat and\ta dog. ") == Scene((ObjectGroup("cat"), ObjectGroup("dog")))


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_category_can_be_chosen(category):
    assert {scene.category for scene in scenes(200, category=category)} == {category}


@pytest.mark.parametrize("split", [None, "train", "test"])
def test_categories_are_equally_likely(split):
    counts = Counter(scene.category for scene in scenes(3000, split=split))
    assert min(counts.values()) > 420
    assert max(counts.values()) < 580


@pytest.mark.parametrize("category", CATEGORIES)
def test_splits_share_no_composition(category):
    compositions = {
        split: {scene.composition for scene in scenes(300, split=split, category=category)}
        for split in ("train", "validation", "test")
    }
    assert all(compositions.values())
    for one, other in itertools.combinations(compositions.values(), 2):
        assert not one & other


def test_the_training_split_has_every_kind_colour_count_and_relation():
    train_scenes = scenes(4000, split="train")
    groups = [group for scene in train_scenes for group in scene.groups]
    assert {group.kind for group in groups} == set(KINDS)
    assert {(group.kind, group.colour) for group in groups if group.colour} == set(
        itertools.product(COLOURED_KINDS, COLOURS)
    )
    assert {group.count for group in groups} == set(NUMBERS)
    assert {scene.relation for scene in train_scenes} == {*RELATIONS, None}


def test_splits_have_their_documented_sizes():
    counts = Counter(scene.split for scene in scenes(6000))
    assert counts["validation"] / 6000 == pytest.approx(0.1, abs=0.03)
    assert counts["test"] / 6000 == pytest.approx(0.1, abs=0.03)


def test_questions_have_true_answers():
    scene = Scene((ObjectGroup("cat", None, 2), ObjectGroup("heart", "red")), "left of")
    assert dict(questions(scene)) == {
        "how many cats are there?": "two",
        "how many red hearts are there?": "one",
        "what colour is the heart?": "red",
        "what is left of the red heart?": "two cats",
        "what is right of the cats?": "a red heart",
        "what is on the left?": "two cats",
        "what is on the right?": "a red heart",
        "are the cats left of the red heart?": "yes",
        "are the cats right of the red heart?": "no",
        "is the red heart right of the cats?": "yes",
        "is the red heart left of the cats?": "no",
    }


def test_the_colour_is_asked_only_if_the_answer_is_unique():
    scene = Scene((ObjectGroup("heart", "red"), ObjectGroup("heart", "blue")))
    assert not any(asked.startswith("what colour") for asked, _ in questions(scene))


def test_yes_and_no_are_equally_likely_and_true():
    rng = np.random.default_rng(0)
    scene = Scene((ObjectGroup("cat"), ObjectGroup("dog")))
    answers = [pair for pair in (question(scene, rng) for _ in range(2000)) if pair[1] in ("yes", "no")]
    for asked, answer in answers:
        assert (answer == "yes") == (asked.removesuffix("?").split()[-1] in ("cat", "dog"))
    share = sum(answer == "yes" for _, answer in answers) / len(answers)
    assert share == pytest.approx(0.5, abs=0.08)


def test_spoken_parts_of_test_captions_occur_in_training():
    assert spoken_parts("there are three red hats to the left of an owl") == [
        "there are", "three red", "hats", "to the left of", "an owl",
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    parts = {}
    for split in ("train", "test"):
        captions = [caption(sample_scene(rng, split), rng) for _ in range(4000)]
        parts[split] = {part for text in captions for part in spoken_parts(text)}
        assert all(" ".join(spoken_parts(text)) == text for text in captions)
    assert parts["test"] <= parts["train"]
    assert len(parts["train"]) < 200


def test_documents_start_with_a_caption(same_scene):
    rng = np.random.default_rng(0)
    for scene in scenes(200):
        first = document(scene, rng).split(".")[0]
        assert same_scene(parse(first), scene)


def test_the_inverse_of_an_inverse_relation_is_the_relation():
    assert all(INVERSE[INVERSE[relation]] == relation for relation in RELATIONS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ObjectGroup("dragon"), "unknown kind of object 'dragon'"),
        (lambda: ObjectGroup("houze"), "Did you mean 'house'"),
        (lambda: ObjectGroup("cat", "red"), "takes no colour"),
        (lambda: ObjectGroup("heart"), "takes one of red"),
        (lambda: ObjectGroup("cat", None, 5), "1 to 4 objects"),
        (lambda: Scene(()), "one group, or two"),
        (lambda: Scene((ObjectGroup("cat", None, 4), ObjectGroup("dog"))), "at most 4"),
        (lambda: Scene((ObjectGroup("cat"),), "above"), "between two groups"),
        (lambda: sample_scene(np.random.default_rng(0), category="colour"), "Did you mean .*'colours'"),
    ],
)
def test_impossible_scenes_are_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
