"""The shipped model loads, is small, and does what the README says; a quick sample of `triptych eval scenes`."""

import numpy as np
import pytest

from triptych.hub.format import BUILTIN_MODELS
from triptych.hub.pipeline import Pipeline
from triptych.scenes.exam import examine
from triptych.scenes.grammar import parse
from triptych.scenes.image import draw, place
from triptych.scenes.judge import describes, read, shows
from triptych.scenes.samples import scene_sample
from triptych.vocab import Task

PICTURES, SOUNDS = 48, 12


@pytest.fixture(scope="module")
def pipe():
    return Pipeline.from_pretrained("scenes")


@pytest.fixture(scope="module")
def scores(pipe):
    return examine(pipe, PICTURES, SOUNDS, report=lambda _: None).scores


def test_the_weights_are_small_enough_to_ship():
    assert sum(path.stat().st_size for path in BUILTIN_MODELS["scenes"].iterdir()) < 25e6


# The bounds leave room for the spread of so few samples; the README has the full examination.
@pytest.mark.parametrize(
    ("measure", "least"),
    [("text to image", 0.75), ("image to text", 0.85), ("question answering", 0.9)],
)
def test_pictures_and_words(scores, measure, least):
    assert scores[measure].value >= least


@pytest.mark.parametrize(("measure", "most"), [("speech to text, WER", 0.1), ("text to speech, Whisper WER", 0.2)])
def test_speech(scores, measure, most):
    assert scores[measure].value <= most


def test_holes_in_pictures_are_filled_with_what_was_there(pipe):
    samples = [scene_sample(Task.IMAGE_TEXT, "train", i) for i in range(24)]
    described = [sample for sample in samples if parse(sample.text)]
    filled = [pipe.infill_image(s.image, s.things[-1].plot, text=s.text, seed=i) for i, s in enumerate(described)]
    right = [shows(reading, sample.scene) for reading, sample in zip(read(filled), described)]
    assert sum(right) >= 0.6 * len(right)


def test_chains_between_speech_and_pictures(pipe):
    sentences = ["a red heart", "a cat", "two stars", "a fish above a tree"]
    drawn = told = 0
    for sentence in sentences:
        heard, picture = pipe.speech_to_image(pipe.speak(sentence, seed=1), seed=1)
        assert heard == sentence
        drawn += shows(read([picture])[0], parse(sentence))
        things = place(parse(sentence), np.random.default_rng(1))
        said, _ = pipe.image_to_speech(draw(things))
        told += describes(said, things)
    assert drawn >= 3
    assert told >= 3


def test_it_describes_its_own_drawings(pipe):
    sentences = ["a red heart", "three foxes", "a cat and a star", "two dogs", "a green hat"]
    pictures = pipe.text_to_image(sentences, seed=1)
    assert sum(describes(said, seen.things) for said, seen in zip(pipe.caption(pictures), read(pictures))) >= 4


def test_its_law_of_lengths_follows_the_text(pipe):
    short, long = pipe.speak(["a cat", "this picture shows two red hats to the left of two blue umbrellas"])
    assert 0.4 < short.seconds < 1.2
    assert 2 < long.seconds < 5
