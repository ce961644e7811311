"""The samples of the toy dataset: sample i of a split and task is a pure function of (seed, split, task, i)."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from triptych.errors import UserError, did_you_mean
from triptych.scenes import grammar
from triptych.scenes.grammar import Scene
from triptych.scenes.image import PlacedObject, draw, place
from triptych.scenes.speech import synthesize
from triptych.utils.media import Audio
from triptych.vocab import Task

SPLITS = ("train", "validation", "test")
# Share of each category among training images. There are few images of single objects, and they are learned quickly;
# telling two objects apart takes long.
CATEGORY_SHARES = {
    "single object": 0.04, "colours": 0.04, "counting": 0.2, "two objects": 0.14, "position": 0.33,
    "colour attribution": 0.25,
}  # fmt: skip
# Share of image texts that are a question and its answer instead of a caption. Most words of a caption can be guessed
# from the image and the other words, without knowing which word refers to which object. The answers to "what colour is
# the hat?" and "is the cat left of the hat?" cannot.
QUESTION_SHARE = 0.45
# Share of image texts that are captions with the opening of the captioning prompt, not counting those that draw it.
PROMPT_SHARE = 0.3


@dataclass(frozen=True)
class SceneSample:
    """A scene as text and, depending on the task, as an image or as speech."""

    scene: Scene
    text: str
    objects: tuple[PlacedObject, ...] = ()
    image: Image.Image | None = None
    audio: Audio | None = None


def scene_sample(task: Task, split: str, index: int, seed: int = 0) -> SceneSample:
    """Sample `index` of a split. Every index from 0 exists, and samples do not depend on each other."""
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}.{did_you_mean(split, list(SPLITS))}")
    if index < 0 or seed < 0:
        raise UserError(f"index and seed must not be negative, got {index} and {seed}.")
    rng = np.random.default_rng([seed, SPLITS.index(split), task, index])
    category = None
    if (task, split) == (Task.IMAGE_TEXT, "train"):
        category = list(CATEGORY_SHARES)[rng.choice(len(CATEGORY_SHARES), p=list(CATEGORY_SHARES.values()))]
    scene = grammar.sample_scene(rng, split, category)
    match task:
        case Task.TEXT:
            return SceneSample(scene, grammar.document(scene, rng))
        case Task.AUDIO_TEXT:
            text = grammar.caption(scene, rng)
            return SceneSample(scene, text, audio=synthesize(text, rng))
    objects = place(scene, rng)
    chance = rng.random()
    if chance < QUESTION_SHARE:
        text = " ".join(grammar.question(scene, rng))
    else:
        is_prompted = chance < QUESTION_SHARE + PROMPT_SHARE
        text = grammar.caption(scene, rng, opening=f"{grammar.CAPTION_PROMPT} " if is_prompted else None)
    return SceneSample(scene, text, tuple(objects), image=draw(objects))
