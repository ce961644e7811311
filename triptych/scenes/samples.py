"""The samples of the embedded world: sample i of a split and task is a pure function of (seed, split, task, i)."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from triptych.errors import UserError, did_you_mean
from triptych.scenes import grammar
from triptych.scenes.grammar import Scene
from triptych.scenes.image import Placed, draw, place
from triptych.scenes.speech import speak
from triptych.utils.media import Audio
from triptych.vocab import Task

SPLITS = ("train", "validation", "test")
# Of the pictures to train on. Those of one thing are few and soon known; to tell two things apart takes long.
PICTURE_SHARES = {
    "single object": 0.04, "colours": 0.04, "counting": 0.2, "two objects": 0.14, "position": 0.33,
    "colour attribution": 0.25,
}  # fmt: skip
# Of the texts beside pictures: a question and its answer instead of a caption. A caption's words can mostly be guessed
# from a picture and each other without knowing which word is about which thing; "what colour is the hat?" cannot, nor
# can "is the cat left of the hat?".
QUESTION_SHARE = 0.45
PROMPT_SHARE = 0.3  # of the same: a caption that opens as captioning does, besides those that happen to


@dataclass(frozen=True)
class SceneSample:
    """A scene in words and, as the task has it, in pixels or as speech."""

    scene: Scene
    text: str
    things: tuple[Placed, ...] = ()
    image: Image.Image | None = None
    sound: Audio | None = None


def scene_sample(task: Task, split: str, index: int, seed: int = 0) -> SceneSample:
    """Sample `index` of a split; any index is there, and none depends on another."""
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}.{did_you_mean(split, list(SPLITS))}")
    if index < 0 or seed < 0:
        raise UserError(f"index and seed must not be negative, got {index} and {seed}.")
    rng = np.random.default_rng([seed, SPLITS.index(split), task, index])
    category = None
    if (task, split) == (Task.IMAGE_TEXT, "train"):
        category = list(PICTURE_SHARES)[rng.choice(len(PICTURE_SHARES), p=list(PICTURE_SHARES.values()))]
    scene = grammar.sample_scene(rng, split, category)
    match task:
        case Task.TEXT:
            return SceneSample(scene, grammar.document(scene, rng))
        case Task.AUDIO_TEXT:
            text = grammar.caption(scene, rng)
            return SceneSample(scene, text, sound=speak(text, rng))
    things = place(scene, rng)
    chance = rng.random()
    if chance < QUESTION_SHARE:
        text = " ".join(grammar.question(scene, rng))
    else:
        is_prompted = chance < QUESTION_SHARE + PROMPT_SHARE
        text = grammar.caption(scene, rng, opening=f"{grammar.CAPTION_PROMPT} " if is_prompted else None)
    return SceneSample(scene, text, tuple(things), image=draw(things))
