"""The samples of the toy dataset: sample i of a split and task is a pure function of (seed, split, task, i)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from triptych.errors import UserError, did_you_mean
from triptych.scenes.captions import caption
from triptych.scenes.descriptions import describe
from triptych.scenes.documents import document
from triptych.scenes.image import draw
from triptych.scenes.layout import place
from triptych.scenes.picture import Picture
from triptych.scenes.questions import question
from triptych.scenes.speech import available_voices, speakable, synthesize
from triptych.scenes.spoken import TRANSCRIPT_PROMPT, VOICE_REQUEST, spoken_caption
from triptych.scenes.styles import CAPTION_PROMPT
from triptych.scenes.voice_degrade import degrade
from triptych.scenes.voices import SPEAKING_VOICES
from triptych.scenes.world import FULL, Scene, World
from triptych.utils.media import Audio
from triptych.vocab import Task

SPLITS = ("train", "validation", "test")
# Share of each category among training images. There are few images of single objects, and they are learned quickly;
# telling several objects apart takes long.
CATEGORY_SHARES = {
    "full": {
        "single object": 0.05, "colours": 0.07, "counting": 0.12, "two objects": 0.10, "three objects": 0.10,
        "position": 0.16, "colour attribution": 0.13, "size": 0.06, "comparison": 0.05, "on": 0.05, "between": 0.05,
        "background": 0.06,
    },
    "small": {
        "single object": 0.04, "colours": 0.04, "counting": 0.2, "two objects": 0.14, "position": 0.33,
        "colour attribution": 0.25,
    },
}  # fmt: skip
# Share of image texts that are a question and its answer instead of a caption. Most words of a caption can be guessed
# from the image and the other words, without knowing which word refers to which object. The answers to "what colour is
# the hat?" and "is the cat left of the hat?" cannot.
QUESTION_SHARE = 0.45
# Share of image texts that are captions with the opening of the captioning prompt, not counting those that draw it.
PROMPT_SHARE = {"full": 0.2, "small": 0.3}
DESCRIPTION_SHARE = {"full": 0.06, "small": 0.0}
# Texts of speech in the full world: a transcript of any voice after its prompt; a request for a speaking voice, or the
# bare sentence, which has one.
TRANSCRIPT_SHARE, REQUEST_SHARE = 0.4, 0.3
DEGRADED_SHARE = 0.5  # of the clips with a transcript; generated speech is to be clean


@dataclass(frozen=True)
class SceneSample:
    """A scene as text and, depending on the task, as an image or as speech."""

    scene: Scene
    text: str
    picture: Picture | None = None
    image: Image.Image | None = None
    audio: Audio | None = None
    voice: str | None = None


def scene_sample(
    task: Task, split: str, index: int, seed: int = 0, world: World = FULL, voices: Path | None = None
) -> SceneSample:
    """Sample `index` of a split. Every index from 0 exists, and samples do not depend on each other.

    `voices` is a folder of voices; without it all speech is in one voice.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}.{did_you_mean(split, list(SPLITS))}")
    if index < 0 or seed < 0:
        raise UserError(f"index and seed must not be negative, got {index} and {seed}.")
    rng = np.random.default_rng([seed, SPLITS.index(split), task, index])
    category = None
    if (task, split) == (Task.IMAGE_TEXT, "train"):
        shares = CATEGORY_SHARES[world.name]
        category = list(shares)[rng.choice(len(shares), p=list(shares.values()))]
    scene = world.sample(rng, split, category)
    if task == Task.AUDIO_TEXT:
        return _spoken(scene, split, rng, world, voices)
    picture = place(scene, rng, world)
    if task == Task.TEXT:
        return SceneSample(scene, document(scene, picture, rng, world).lower(), picture)
    # In lower case, because prompts are: `triptych.hub.inputs` folds the capitals of a model with a word list.
    return SceneSample(scene, _image_text(scene, picture, rng, world).lower(), picture, image=draw(picture, world))


def _image_text(scene: Scene, picture: Picture, rng: np.random.Generator, world: World) -> str:
    chance = rng.random()
    if chance < QUESTION_SHARE:
        return " ".join(question(scene, picture, rng, world))
    prompted = QUESTION_SHARE + PROMPT_SHARE[world.name]
    if chance < prompted:
        return caption(scene, rng, world, opening=CAPTION_PROMPT)
    if chance < prompted + DESCRIPTION_SHARE[world.name]:
        return describe(scene, picture, rng, world)
    return caption(scene, rng, world)


def _spoken(scene: Scene, split: str, rng: np.random.Generator, world: World, folder: Path | None) -> SceneSample:
    if world.plain_language:
        text = spoken_caption(scene, rng, world)
        return SceneSample(scene, text, audio=synthesize(text, rng, world))
    chance, names = rng.random(), available_voices(folder)
    if chance >= TRANSCRIPT_SHARE:
        names = tuple(name for name in SPEAKING_VOICES if name in names) or names
    scene, text, voice = speakable(scene, split, rng, names, world=world, folder=folder)
    audio = synthesize(text, rng, world, voice, folder)
    if chance < TRANSCRIPT_SHARE:
        audio = degrade(audio, rng) if rng.random() < DEGRADED_SHARE else audio
        text = f"{TRANSCRIPT_PROMPT} {text}"
    elif chance < TRANSCRIPT_SHARE + REQUEST_SHARE:
        text = VOICE_REQUEST.format(text=text, voice=voice)
    return SceneSample(scene, text.lower(), audio=audio, voice=voice)
