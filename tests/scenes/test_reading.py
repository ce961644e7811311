import numpy as np
import pytest

from triptych.scenes.captions import caption
from triptych.scenes.descriptions import describe
from triptych.scenes.documents import document
from triptych.scenes.layout import place
from triptych.scenes.question_forms import SENTENCE_REQUEST
from triptych.scenes.questions import question
from triptych.scenes.reading import classify
from triptych.scenes.vocabulary import words, words_in
from triptych.scenes.world import FULL, PLURALS, SMALL

UNDERSTOOD = {
    "cat": "a cat",
    "Cat.": "a cat",
    "cat!!": "a cat",
    "CAT": "a cat",
    "a cat": "a cat",
    "the sun": "a sun",
    "two cats": "two cats",
    "2 cats": "two cats",
    "6 small pigs": "six small pigs",
    "a cat, a dog and a fox": "a cat, a dog and a fox",
    "cat and dog": "a cat and a dog",
    "a cat & a dog": "a cat and a dog",
    "please draw a kitty": "a cat",
    "Can you draw me a puppy?": "a dog",
    "hello, can you draw a bunny please": "a rabbit",
    "show me an airplane": "a plane",
    "I want a red automobile.": "a red car",
    "a purple cat": "a purple cat",
    "a blue star": "a blue star",
    "black cat": "a black cat",
    "a big green elephant": "a big green elephant",
    "a tiny mouse": "a small mouse",
    "a photo of a dog at night": "a dog at night",
    "an image of a horse": "a horse",
    "a bird in the sky": "a bird in the sky",
    "a cow on the grass": "a cow on the grass",
    "a ball on a white background": "a ball on a white background",
    "a cat sitting on a car": "a cat on a car",
    "a dog under a tree": "a dog below a tree",
    "a cat next to a dog": "a cat beside a dog",
    "a bee above a flower": "a bee above a flower",
    "a mouse bigger than an elephant": "a mouse bigger than an elephant",
    "a fox between a house and a tree": "a fox between a house and a tree",
    "a red apple and a green apple": "a red apple and a green apple",
    "a yellow colored duck": "a yellow duck",
    "a cat with a hat": "a cat and a hat",
    "There are two cats. They are small.": "two small cats",
    "a cat. thank you!": "a cat",
}
QUESTIONS = {
    "how many cats are there?": "count",
    "How many things are in the picture": "total",
    "what color is the dog?": "colour",
    "is there a red whale?": "exists",
    "what is this a picture of?": "contents",
    "is the cat to the left of the dog?": "relation",
    f"where is the bee? {SENTENCE_REQUEST}": "where",
    "which is larger, the cat or the dog?": "which",
}
REFUSED = {
    "zebra": {"zebra"},
    "a unicorn in space": {"unicorn", "space"},
    "a cat eating a fish": {"eating"},
    "asdf": {"asdf"},
    "a catt": {"catt"},
    "9 cats": {"9"},
    "ten cats": {"ten"},
    "0 cats": {"0"},
    "a brown dog": {"brown"},
    "a boat on the sea": {"sea"},
    "a man": {"man"},
    "a realistic photo of a dog": {"realistic"},
    "I'd like a cat": {"i'd"},
    "eine Katze": {"eine", "katze"},
    "кошка": {"кошка"},
    "🐱": {"🐱"},
    "who are you?": {"who"},
}
FLAGGED = (
    "", "?!", "red", "three", "big", "at night", "hello", "thank you", "draw", "draw a picture", "cats",
    "the cats", "two of the cats", "seven cats", "five big cats", "six cats and six dogs", "a cat on a cat",
    "two cats on a ball", "cat dog", "cat left dog", "a cat or a dog", "no cats", "3 colored balloons", "a white cat",
    "a grey mouse", "a red and blue ball", "a cat in front of a house", "a cat in a car", "a cat on the left",
    "a cat, a dog, a fox and a bear", "a cat left of a dog above a fox", "a cat at night in the sky",
    "a small cat bigger than a dog", "what is this?", "a house between two trees", "a black background", "is it a cat?",
)  # fmt: skip


def test_there_are_enough_strangers():
    assert len(UNDERSTOOD) + len(QUESTIONS) + len(REFUSED) + len(FLAGGED) > 90


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_understood(text):
    reading = classify(text)
    assert (reading.verdict, reading.message) == ("understood", f"read as: {UNDERSTOOD[text]}")
    assert reading.scene is not None
    assert not reading.unknown


@pytest.mark.parametrize("text", QUESTIONS)
def test_questions_are_understood(text):
    reading = classify(text)
    assert (reading.verdict, reading.question, reading.scene) == ("understood", QUESTIONS[text], None)


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    reading = classify(text)
    assert (reading.verdict, set(reading.unknown), reading.scene) == ("refused", REFUSED[text], None)
    assert all(set(near) <= set(words(FULL)) for near in reading.unknown.values())
    assert "\n" not in reading.message
    assert all(repr(word) in reading.message for word in REFUSED[text])


@pytest.mark.parametrize("text", FLAGGED)
def test_flagged(text):
    reading = classify(text)
    assert (reading.verdict, reading.scene, reading.question) == ("flagged", None, None)
    assert len(reading.message.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a catt", "did you mean 'cat'"), ("zebra", "did you mean 'horse'"), ("9 cats", "numbers go from 1 to 6"),
        ("cats", "say how many cats: two cats"), ("seven cats", "at most 6 cats"), ("a white cat", "only a background"),
        ("five big cats", "no room for so many big things"), ("a brown dog", "'red'"),
    ],
)  # fmt: skip
def test_messages_help(text, hint):
    assert hint in classify(text).message


@pytest.mark.parametrize("world", [FULL, SMALL])
def test_every_text_is_understood_and_of_known_words(world):
    rng = np.random.default_rng(0)
    known, said = set(words(world)), set()
    for _ in range(20_000):
        said.update(words_in(caption(world.sample(rng), rng, world)))
    for _ in range(1500):
        scene = world.sample(rng)
        picture = place(scene, rng, world)
        first, asked = caption(scene, rng, world), question(scene, picture, rng, world)
        description = describe(scene, picture, rng, world)
        for text in (first, asked[0], description):
            assert classify(text, world).verdict == "understood", text
        for text in (first, *asked, description, document(scene, picture, rng, world)):
            said.update(words_in(text))
    assert said <= known
    assert known - said <= {"one", "seven", "eight"}  # no other word is never said; these are numbers of things


def test_the_words_of_the_small_world_are_those_of_the_first_edition():
    literal = (
        "a an above and are below colour four green here how is left many no of on one orange over picture purple red "
        "right see shows the there this three to two under we what with yellow yes blue"
    )
    assert set(words(SMALL)) == {*literal.split(), *SMALL.kinds, *(PLURALS[kind] for kind in SMALL.kinds)}


def test_the_vocabulary_is_small():
    assert len(words(FULL)) < 400
