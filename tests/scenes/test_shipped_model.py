"""The demo model loads, is small, and reaches the scores of the README: a small run of `triptych eval scenes`."""

import numpy as np
import pytest
from PIL import Image

from triptych.hub.pipeline import Pipeline
from triptych.hub.source import BUILTIN_MODELS
from triptych.scenes.caption_check import caption_is_true
from triptych.scenes.exam import evaluate
from triptych.scenes.exam_samples import world_of
from triptych.scenes.image import draw
from triptych.scenes.judge import detect, matches
from triptych.scenes.layout import place
from triptych.scenes.parse import parse
from triptych.scenes.samples import scene_sample
from triptych.utils.media import Audio
from triptych.vocab import Task

NUM_IMAGES, NUM_SPEECH = 48, 12


@pytest.fixture(scope="module")
def pipe():
    return Pipeline.from_pretrained("scenes")


@pytest.fixture(scope="module")
def world(pipe):
    return world_of(pipe)


@pytest.fixture(scope="module")
def scores(pipe):
    return evaluate(pipe, num_images=NUM_IMAGES, num_speech=NUM_SPEECH).scores


def test_the_weights_are_small_enough_to_ship():
    assert sum(path.stat().st_size for path in BUILTIN_MODELS["scenes"].iterdir()) < 25e6


# The bounds allow for the spread of few samples; the README has the full evaluation.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "least"),
    [("text to image", 0.75), ("caption", 0.85), ("answer", 0.9)],
)
def test_images_and_text(scores, measure, least):
    assert scores[measure].value >= least


@pytest.mark.slow
@pytest.mark.parametrize(("measure", "most"), [("transcribe, WER", 0.1), ("text to speech, Whisper WER", 0.2)])
def test_speech(scores, measure, most):
    assert scores[measure].value <= most


def test_holes_in_images_are_filled(pipe, world):
    samples = [scene_sample(Task.IMAGE_TEXT, "train", i, world=world) for i in range(24)]
    described = [sample for sample in samples if parse(sample.text, world)]
    filled = [
        pipe.infill_image(each.image, each.picture.objects[-1].box, text=each.text, seed=i)
        for i, each in enumerate(described)
    ]
    right = [matches(detection, sample.scene, world) for detection, sample in zip(detect(filled, world), described)]
    assert sum(right) >= 0.6 * len(right)


def test_speech_to_image_and_image_to_speech(pipe, world):
    sentences = ["a red heart", "a cat", "two stars", "a fish above a tree"]
    num_right_images = num_right_captions = 0
    for sentence in sentences:
        transcript, image = pipe.speech_to_image(pipe.text_to_speech(sentence, seed=1), seed=1)
        assert transcript == sentence
        scene = parse(sentence, world)
        num_right_images += matches(detect([image], world)[0], scene, world)
        picture = place(scene, np.random.default_rng(1), world)
        text, _ = pipe.image_to_speech(draw(picture, world))
        num_right_captions += caption_is_true(text, picture, world)
    assert num_right_images >= 3
    assert num_right_captions >= 3


def test_it_captions_its_own_images(pipe, world):
    sentences = ["a red heart", "three foxes", "a cat and a star", "two dogs", "a green hat"]
    images = pipe.text_to_image(sentences, seed=1)
    pairs = zip(pipe.caption(images), detect(images, world))
    assert sum(caption_is_true(text, detection.picture, world) for text, detection in pairs) >= 4


def test_what_it_makes_itself_is_usual_and_what_it_never_saw_is_not(pipe):
    images = [pipe.text_to_image(text, seed=1) for text in ("two cats", "a fox", "three red hearts")]
    assert not any(pipe.check_image(image).is_unusual for image in images)
    assert not pipe.check_audio(pipe.text_to_speech("two cats", seed=1)).is_unusual
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    for unlike in (Image.new("RGB", (64, 64), "grey"), Image.fromarray(noise)):
        assert pipe.check_image(unlike).is_unusual
    assert pipe.check_audio(Audio(np.zeros(16_000, np.float32), 16_000)).is_unusual


def test_the_duration_of_speech_follows_the_text(pipe):
    short, long = pipe.text_to_speech(["a cat", "this picture shows two red hats to the left of two blue umbrellas"])
    assert 0.4 < short.seconds < 1.2
    assert 2 < long.seconds < 5
