"""What models are asked in an exam: scenes of a split, and sentences spoken in several voices."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from triptych.errors import UnusualInputWarning, UserError
from triptych.eval.records import Progress, RecordStore
from triptych.eval.scores import Score, ratio_score
from triptych.hub.pipeline import Pipeline
from triptych.scenes.samples import SPLITS, scene_sample
from triptych.scenes.speech import (
    ALWAYS_AVAILABLE,
    BUILT_IN_VOICES,
    available_voices,
    find_voices,
    has_voices,
    speakable,
    synthesize,
)
from triptych.scenes.voice_degrade import degrade
from triptych.scenes.world import FULL, WORLDS, Scene, World
from triptych.utils.media import Audio
from triptych.vocab import Task

TRAINING, HELD_OUT, DEGRADED = "", "voices never heard", "degraded copies"
VOICE_GROUPS = (TRAINING, HELD_OUT, DEGRADED)


def world_of(pipe: Pipeline) -> World:
    """The preset of the toy dataset that a model was made for, by the size of its images."""
    return world_with_images_of(pipe.bundle.image.resolution)


def world_with_images_of(size: int) -> World:
    """The preset whose images have so many pixels a side."""
    for world in WORLDS.values():
        if world.image_size == size:
            return world
    known = " or ".join(f"{world.image_size} (preset {name})" for name, world in WORLDS.items())
    raise UserError(f"images of the toy dataset are {known} pixels wide, but those of this model are {size}.")


def exam_scenes(n: int, split: str, stream: int, world: World = FULL) -> list[tuple[Scene, np.random.Generator]]:
    """Scenes of a split, the categories in turn, each with a generator for its words and positions.

    Every use has its own `stream` of scenes. Scene i does not depend on n.
    """
    rngs = [np.random.default_rng([stream, SPLITS.index(split), i]) for i in range(n)]
    categories = world.categories
    return [(world.sample(rng, split, categories[i % len(categories)]), rng) for i, rng in enumerate(rngs)]


# -- speech -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Voices:
    """Voices that an exam uses, and the folder of their parts; without a folder there is one voice."""

    training: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    folder: Path | None = None

    @classmethod
    def find(cls, folder: str | Path | None) -> "Voices":
        """The voices of a folder (`find_voices`)."""
        chosen = find_voices(folder)
        return cls(available_voices(chosen), available_voices(chosen, held_out=True), chosen)

    @property
    def label(self) -> str | None:
        """Where the voices come from, for people and records: no path of an installation."""
        return "built-in" if self.folder == BUILT_IN_VOICES else None if self.folder is None else str(self.folder)

    def groups(self, world: World) -> tuple[str, ...]:
        """Groups of voices that transcripts are scored by."""
        if world.plain_language:
            return (TRAINING,)
        return VOICE_GROUPS if self.held_out else (TRAINING, DEGRADED)

    def describe(self, world: World) -> str:
        if world.plain_language:
            return f"speech: one voice, {ALWAYS_AVAILABLE}"
        if self.folder is None or not has_voices(self.folder):
            return f"speech: only the voice {ALWAYS_AVAILABLE}"
        held_out = f"{len(self.held_out)} never heard in training" if self.held_out else "none that was held out"
        return f"speech: {len(self.training)} training voices, {held_out} ({self.label})"


@dataclass(frozen=True)
class SpokenSentence:
    text: str
    audio: Audio
    voice: str


def spoken_sentence(index: int, split: str, world: World, voices: Voices, group: str = TRAINING) -> SpokenSentence:
    """Sentence `index` of a split and a group of voices, which take turns. Degraded copies are of training voices."""
    if world.plain_language:
        sample = scene_sample(Task.AUDIO_TEXT, split, index, world=world)
        assert sample.audio is not None
        return SpokenSentence(sample.text, sample.audio, ALWAYS_AVAILABLE)
    rng = np.random.default_rng([5 + VOICE_GROUPS.index(group), SPLITS.index(split), index])
    names = voices.held_out if group == HELD_OUT else voices.training
    first = names[index % len(names)]
    _, text, voice = speakable(world.sample(rng, split), split, rng, names, first, world, voices.folder)
    audio = synthesize(text, rng, world, voice, voices.folder)
    return SpokenSentence(text, degrade(audio, rng) if group == DEGRADED else audio, voice)


@contextmanager
def without_input_checks(pipe: Pipeline) -> Iterator[None]:
    """No warnings about unusual inputs, and no time spent on them. Results are the same."""
    before = getattr(pipe, "check_inputs", False)
    try:
        if before:
            pipe.check_inputs = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnusualInputWarning)
            yield
    finally:
        if before:
            pipe.check_inputs = True


@dataclass
class Exam:
    """What all measures of an exam need."""

    pipe: Pipeline
    world: World
    voices: Voices
    num_images: int
    num_speech: int
    split: str
    seed: int
    records: RecordStore
    progress: Progress


@dataclass
class Scored:
    """Scores by name, and what each sample adds to the sums whose quotient a score is."""

    scores: dict[str, Score] = field(default_factory=dict)
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, hits: Sequence[float], counts: Sequence[float] | None = None) -> None:
        """Score sum(hits) / sum(counts), by default the mean of hits."""
        self.scores[name] = ratio_score(hits, counts)
        self.samples[name] = [(float(a), float(b)) for a, b in zip(hits, counts or [1.0] * len(hits))]

    def update(self, other: "Scored") -> None:
        self.scores |= other.scores
        self.samples |= other.samples
