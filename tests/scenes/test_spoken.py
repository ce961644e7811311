from collections import Counter

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.question_forms import read_question
from triptych.scenes.reading import classify
from triptych.scenes.spoken import all_spoken_parts, spoken_caption, spoken_parts, spoken_text
from triptych.scenes.world import FULL, SMALL


@pytest.mark.parametrize(("world", "most"), [(FULL, 400), (SMALL, 157)])
def test_every_spoken_sentence_consists_of_known_parts(world, most):
    rng = np.random.default_rng(0)
    inventory = all_spoken_parts(world)
    assert len(inventory) == len(set(inventory)) <= most
    counts = Counter()
    for _ in range(20_000):
        text = spoken_caption(world.sample(rng), rng, world)
        parts = spoken_parts(text, world)
        assert " ".join(parts).lower() == spoken_text(text), text
        counts.update(parts)
    assert set(counts) <= set(inventory)
    assert set(inventory) - set(counts) <= {"yes", "no", "one", "two"}  # answers


def test_parts_of_test_captions_occur_in_training():
    rng = np.random.default_rng(1)
    parts = {
        split: {part for _ in range(number) for part in spoken_parts(spoken_caption(FULL.sample(rng, split), rng))}
        for split, number in (("train", 10_000), ("test", 1000))
    }
    assert parts["test"] <= parts["train"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("there are three red hats left of an owl", ["there are", "three red", "hats", "left of", "an owl"]),
        ("a hat to the left of an owl", ["a hat", "to the left of", "an owl"]),
        ("two cats, a big red dog and a fox", ["two cats", "a big", "red", "dog", "and", "a fox"]),
        ("How many blue mice are there?", ["how many", "blue", "mice", "are there"]),
        ("Is the cat left of the dog?", ["is the", "cat", "left of the", "dog"]),
        ("I see 2 foxes at night.", ["I see", "two foxes", "at night"]),
    ],
)  # fmt: skip
def test_sentences_are_cut_where_a_reader_may_pause(text, parts):
    assert spoken_parts(text) == parts


def test_spoken_texts_are_understood():
    rng = np.random.default_rng(2)
    texts = [spoken_caption(FULL.sample(rng), rng) for _ in range(3000)]
    assert {classify(text).verdict for text in texts} == {"understood"}
    asked = [text for text in texts if text.endswith("?")]
    assert 0.15 < len(asked) / len(texts) < 0.25
    assert all(read_question(text, FULL) for text in asked)
    assert not any(character.isdigit() for text in texts for character in text)


def test_digits_are_spoken_as_words():
    assert spoken_text("Draw 3 cats & a dog!") == "draw three cats and a dog"


@pytest.mark.parametrize(
    ("text", "message"),
    [("a kitty", "no voice says 'a kitty'"), ("", "it has no words"), ("two cats harp", "no voice says 'harp'")],
)
def test_other_texts_are_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message):
        spoken_parts(text)
