import re
from collections import Counter

import numpy as np
import pytest

from triptych.scenes.answer_check import answer_is_right
from triptych.scenes.documents import document
from triptych.scenes.layout import place
from triptych.scenes.parse import parse
from triptych.scenes.picture import Picture, PlacedObject
from triptych.scenes.question_forms import SENTENCE_REQUEST, TEMPLATES, read_question
from triptych.scenes.questions import question, questions
from triptych.scenes.world import FULL, NATURAL_COLOUR, PLURALS, SMALL, ObjectGroup, Scene

SMALL_WIDTH, BIG = FULL.sizes["small"], FULL.sizes["big"]
# A big red cat on the left, two small dogs one above the other on the right, at night.
SCENE = Scene((ObjectGroup("cat", "red"), ObjectGroup("dog", None, 2)))
PICTURE = Picture(
    (
        PlacedObject(("cat", "red"), 16, 32, BIG),
        PlacedObject(("dog", None), 96, 16, SMALL_WIDTH),
        PlacedObject(("dog", None), 96, 64, SMALL_WIDTH),
    ),
    "night",
)
# From left to right: a fox, a blue owl and a heart, with a ball on the heart.
ROW = Picture(
    (
        PlacedObject(("fox", None), 0, 64, SMALL_WIDTH),
        PlacedObject(("owl", "blue"), 32, 64, BIG),
        PlacedObject(("heart", None), 96, 64, SMALL_WIDTH),
        PlacedObject(("ball", None), 96, 32, SMALL_WIDTH),
    ),
)


def pictures(number, world=FULL, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        scene = world.sample(rng)
        yield scene, place(scene, rng, world), rng


def answers(scene, picture, world=FULL):
    return {asked.text: asked.answer for asked in questions(scene, picture, world)}


def test_every_form_has_its_answer():
    expected = {
        "how many cats are there?": "one",
        "how many red cats are there?": "one",
        "how many dogs are there?": "two",
        "how many whales are there?": "none",
        "how many things are there?": "three",
        "what colour is the cat?": "red",
        "is the cat red?": "yes",
        "is the cat blue?": "no",
        "are the dogs black?": "no",
        "what is left of the dogs?": "a red cat",
        "what is right of the cat?": "two dogs",
        "what is left of the red cat?": "nothing",
        "what is on the cat?": "nothing",
        "is the cat left of the dogs?": "yes",
        "are the dogs left of the cat?": "no",
        "is the cat bigger than the dogs?": "yes",
        "is there a cat?": "yes",
        "is there a blue cat?": "no",
        "is there a bee?": "no",
        "are there any dogs?": "yes",
        "are there any bees?": "no",
        "what is in the picture?": "a red cat and two dogs",
        "what is the background?": "night",
        "is it night?": "yes",
        "is the background white?": "no",
        "which is bigger, the cat or the dogs?": "the cat",
        "which are smaller, the dogs or the cat?": "the dogs",
        "is the cat big or small?": "big",
        "are the dogs big or small?": "small",
        "are there more dogs than cats?": "yes",
        "are there more red cats than dogs?": "no",
        "where is the cat?": "left of the dogs",
        "what is on the left?": "a red cat",
    }
    given = answers(SCENE, PICTURE)
    for text in ("which are smaller, the dogs or the cat?",):
        assert answer_is_right(text, expected.pop(text), PICTURE)
    assert expected.items() <= given.items()
    assert "is the cat above the dogs?" not in given  # one dog is above it, one is below
    assert "what colour are the dogs?" not in given  # of several colours
    row = answers(Scene((ObjectGroup("fox"),)), ROW)
    assert row["what is between the fox and the heart?"] == "a blue owl"
    assert row["what is on the heart?"] == "a ball"
    assert row["is the ball on the heart?"] == "yes"
    assert row["is the heart on the ball?"] == "no"
    assert row["what is on the left?"] == "a fox"
    assert len({asked.form for asked in questions(SCENE, PICTURE)} | {"between"}) == len(TEMPLATES) >= 14


def test_sentences_answer_in_full():
    sentences = {asked.text: asked.sentence for asked in questions(SCENE, PICTURE)}
    assert sentences["how many dogs are there?"] == "There are two dogs."
    assert sentences["how many whales are there?"] == "There are no whales."
    assert sentences["what colour is the cat?"] == "The cat is red."
    assert sentences["are the dogs left of the cat?"] == "No, the dogs are not left of the cat."
    assert sentences["what is right of the cat?"] == "Two dogs are right of the cat."
    assert sentences["is it night?"] == "Yes, it is night."
    assert sentences["what is the background?"] == "It is night."


def seen(picture, phrase):
    """Objects that a phrase such as "red cats" names."""
    *colour, noun = phrase.split()
    kind = next(kind for kind, plural in PLURALS.items() if noun in (kind, plural))
    items = [item for item in picture.objects if item.look[0] == kind]
    return [item for item in items if not colour or (item.look[1] or NATURAL_COLOUR.get(kind)) == colour[0]]


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


def test_answers_are_true_by_coordinates():
    checked = Counter()
    for scene, picture, _ in pictures(60):
        for asked in questions(scene, picture):
            text, answer = asked.text, asked.answer
            if match := re.fullmatch(r"how many (?!things)(.+) are there\?", text):
                assert answer == NUMBERS[len(seen(picture, match[1]))], text
            elif match := re.fullmatch(r"(?:is there an?|are there any) (.+)\?", text):
                assert answer == ("yes" if seen(picture, match[1]) else "no"), text
            elif match := re.fullmatch(r"(?:is|are) the (.+) (left|right) of the (.+)\?", text):
                here, there = ([item.x + item.width / 2 for item in seen(picture, match[i])] for i in (1, 3))
                is_left = max(here) < min(there)
                assert is_left != (max(there) < min(here))
                assert answer == ("yes" if is_left == (match[2] == "left") else "no"), text
            elif match := re.fullmatch(r"(?:is|are) the (.+) (above|below) the (.+)\?", text):
                here, there = ([item.y + item.width / 2 for item in seen(picture, match[i])] for i in (1, 3))
                is_above = max(here) < min(there)
                assert answer == ("yes" if is_above == (match[2] == "above") else "no"), text
            elif match := re.fullmatch(r"(?:is|are) the (.+) big or small\?", text):
                assert {item.width for item in seen(picture, match[1])} == {FULL.sizes[answer]}
            elif match := re.fullmatch(r"which (?:is|are) (bigger|smaller), the (.+) or the (.+)\?", text):
                sizes = {f"the {match[i]}": seen(picture, match[i])[0].width for i in (2, 3)}
                assert answer == (max if match[1] == "bigger" else min)(sizes, key=sizes.get)
            elif text == "how many things are there?":
                assert answer == NUMBERS[len(picture.objects)]
            else:
                continue
            checked[asked.form] += 1
    assert set(checked) == {"count", "total", "exists", "any", "relation", "size", "which"}


@pytest.mark.parametrize("world", [FULL, SMALL])
def test_questions_are_read_and_their_answers_accepted(world):
    for scene, picture, rng in pictures(80, world):
        for _ in range(3):
            text, answer = question(scene, picture, rng, world)
            assert text.rstrip().endswith(("?", SENTENCE_REQUEST))
            assert answer_is_right(text, answer, picture, world), (text, answer)
        for asked in questions(scene, picture, world):
            assert read_question(asked.text, world).form == asked.form
            assert answer_is_right(asked.text, asked.sentence, picture, world), asked


def test_forms_and_answers_are_balanced():
    drawn = []
    for scene, picture, rng in pictures(3000):
        text, answer = question(scene, picture, rng)
        drawn.append((read_question(text, FULL).form, answer.split()[0].strip(",").lower(), text))
    forms = Counter(form for form, _, _ in drawn)
    assert set(forms) == set(TEMPLATES)
    assert max(forms.values()) < 0.12 * len(drawn)
    yes, no = (sum(answer == each for _, answer, _ in drawn) for each in ("yes", "no"))
    assert yes / (yes + no) == pytest.approx(0.5, abs=0.05)
    texts = [text for _, _, text in drawn]
    assert {"color", "colour"} <= {word for text in texts for word in text.lower().split()}
    assert 0.3 < sum(text[0].isupper() for text in texts) / len(texts) < 0.5
    assert 0.15 < sum(text.endswith(SENTENCE_REQUEST) for text in texts) / len(texts) < 0.25


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        ("How many dogs are there?", ["two", "2", "Two.", "There are 2 dogs."], ["one", "two cats", "", "one two"]),
        ("How many owls are there?", ["none", "0", "zero", "no owls"], ["one"]),
        ("what color is the cat?", ["red", "Red.", "it is red"], ["blue", "red and blue", "cat"]),
        (
            "what is left of the dogs?",
            ["a red cat", "red cat", "the cat", "one cat"],
            ["a blue cat", "two cats", "dog"],
        ),
        ("what is right of the cat?", ["two dogs", "the dogs", "2 dogs"], ["a dog", "three dogs", "a cat"]),
        (
            "what is in the picture?",
            ["two dogs and a red cat", "There is a red cat, and 2 dogs."],
            ["a cat and two dogs"],
        ),
        ("is it night?", ["yes", "Yes, it is.", "Yes, it is night."], ["no", "night", "yes, it is not night"]),
        ("is the background white?", ["no", "No, it is not."], ["yes"]),
        ("which is bigger, the cat or the dogs?", ["the cat", "cat", "the red cat"], ["dogs", "the blue cat"]),
        ("which is bigger, the cat or the dogs?", ["the cat is bigger than the dogs"], ["the dogs are bigger"]),
        ("is the cat big or small?", ["big", "it is large"], ["small", "medium"]),
        (
            "where is the cat?",
            ["to the left of the two dogs", "left of the dogs", "at night"],
            ["right of the dogs", ""],
        ),
        ("what is the background?", ["night", "at night"], ["white", "the sky"]),
        ("what colour are the whales?", [], ["blue", "none"]),  # there are none
        ("who are you?", [], ["yes"]),
    ],
)
def test_equivalent_answers_are_right(asked, right, wrong):
    for answer in right:
        assert answer_is_right(asked, answer, PICTURE), answer
    for answer in wrong:
        assert not answer_is_right(asked, answer, PICTURE), answer


def test_the_small_world_asks_what_the_first_edition_asked():
    scene = Scene((ObjectGroup("cat", None, 2), ObjectGroup("heart", "red")), "left of")
    picture = place(scene, np.random.default_rng(0), SMALL)
    asked = {asked.text: asked.answer for asked in questions(scene, picture, SMALL) if asked.form != "exists"}
    assert asked == {
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
    exists = {asked.text: asked.answer for asked in questions(scene, picture, SMALL) if asked.form == "exists"}
    assert (exists["is there a cat?"], exists["is there an owl?"], len(exists)) == ("yes", "no", 40)


def test_documents_of_the_small_world_start_with_a_caption():
    for scene, picture, rng in pictures(300, SMALL):
        assert parse(document(scene, picture, rng, SMALL).split(".")[0], SMALL) is not None


def test_questions_of_a_document_are_answered_by_its_caption():
    """The answer holds in another picture of the same scene, which nobody has seen."""
    dialogues = 0
    for scene, picture, rng in pictures(1500):
        match = re.match(r"(.*?[.?]) ([^.]*\?)(?: Answer in a sentence\.)? (.*)", document(scene, picture, rng))
        if match and read_question(match[2], FULL) and parse(match[1]):
            dialogues += 1
            answer = match[3].split("?")[0].split(". ")[0]
            other = place(scene, rng)
            assert answer_is_right(match[2], answer, other), match[0]
    assert dialogues > 400


def test_the_same_generator_gives_the_same_texts():
    texts = [
        [(question(scene, picture, rng), document(scene, picture, rng)) for scene, picture, rng in pictures(50, seed=3)]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
