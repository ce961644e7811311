"""Sentences to speech, put together from the parts of a voice. Each part fills whole frames of the audio tokenizer.

The voices of the preset `full` are kept in a folder. One folder is built in; `triptych scenes voices` makes others.
Without a folder there is one voice, robin, which is synthesized when it is needed. A voice in a folder may lack a few
parts, because it does not say them clearly: `speakable` chooses a sentence and a voice that says all of it.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from triptych.errors import UserError
from triptych.scenes import voices
from triptych.scenes.spoken import spoken_caption, spoken_parts
from triptych.scenes.voice_parts import (
    BUILT_IN_VOICES,
    RATE,
    dropped_parts,
    is_stored,
    read_voice,
    speak_part,
    unfinished,
)
from triptych.scenes.voices import HELD_OUT_VOICES, TRAINING_VOICES, get_voice
from triptych.scenes.world import FULL, Scene, World
from triptych.utils.media import Audio

FRAME_SECONDS = 0.04  # of the demo audio tokenizer; docs/decisions/0013 explains why parts fill whole frames
MAX_TRAILING_FRAMES = 5  # of silence at the end
ALWAYS_AVAILABLE = "robin"  # needs no folder
_MAX_DRAWS = 200  # of sentences that no voice says
_SAMPLE_SCALE = 2**15  # voices are stored with 16 bits


def find_voices(folder: str | Path | None) -> Path:
    """The given folder of voices, or the built-in one."""
    if folder is None:
        return BUILT_IN_VOICES
    if not Path(folder).is_dir() or not has_voices(Path(folder)):
        raise UserError(
            f"{str(folder)!r} is no folder with voices to train on; `triptych scenes voices {folder}` makes it. "
            "Without a folder, the built-in voices are used."
        )
    return Path(folder)


def available_voices(folder: Path | None, *, held_out: bool = False) -> tuple[str, ...]:
    """Voices with parts in the folder, in a fixed order: those of training, or those that are held out."""
    names = HELD_OUT_VOICES if held_out else TRAINING_VOICES
    stored = tuple(name for name in names if _is_stored(folder, name))
    return stored or (() if held_out else (ALWAYS_AVAILABLE,))


def has_voices(folder: Path) -> bool:
    """Whether a folder has voices to train on."""
    return any(_is_stored(folder, name) for name in TRAINING_VOICES)


def says(text: str, voice: str, world: World = FULL, folder: Path | None = None) -> bool:
    """Whether a voice has all parts of a sentence."""
    if world.plain_language or not _is_stored(folder, voice):
        return True
    assert folder is not None
    return _stored(folder, voice).keys() >= set(spoken_parts(text, world))


def speakable(
    scene: Scene,
    split: str,
    rng: np.random.Generator,
    names: Sequence[str],
    first: str | None = None,
    world: World = FULL,
    folder: Path | None = None,
) -> tuple[Scene, str, str]:
    """A sentence about the scene, and a voice that says it: `first` (drawn if None), or the next one in their order.

    If none of the voices says the sentence, another scene of the split takes its place. Returns scene, text and voice.
    """
    for _ in range(_MAX_DRAWS):
        text = spoken_caption(scene, rng, world)
        start = list(names).index(first) if first is not None else int(rng.integers(len(names)))
        for voice in (*names[start:], *names[:start]):
            if says(text, voice, world, folder):
                return scene, text, voice
        scene = world.sample(rng, split)
    raise UserError(
        f"the voices {', '.join(names)} in {folder} say none of {_MAX_DRAWS} sentences: too many of their parts are "
        "missing. Make more voices with `triptych scenes voices`."
    )


def synthesize(
    text: str, rng: np.random.Generator, world: World = FULL, voice: str = ALWAYS_AVAILABLE, folder: Path | None = None
) -> Audio:
    """Speak a sentence of the spoken language; `rng` draws the length of the silence at its end."""
    num_silent = int(rng.integers(MAX_TRAILING_FRAMES + 1))
    parts = spoken_parts(text, world)
    if world.plain_language:
        return join_parts([_plain_part(part) for part in parts], num_silent, voices.SAMPLE_RATE)
    return join_parts([_part(part, get_voice(voice).name, folder) for part in parts], num_silent)


def join_parts(parts: Sequence[np.ndarray], num_silent: int = 0, rate: int = RATE) -> Audio:
    """Parts one after the other, each padded to whole frames, and silent frames at the end."""
    frame = round(FRAME_SECONDS * rate)
    pieces = []
    for samples in parts:
        missing = -len(samples) % frame
        pieces.append(np.pad(samples, (missing // 2, missing - missing // 2)))
    return Audio(np.concatenate([*pieces, np.zeros(num_silent * frame, np.float32)]), rate)


def _is_stored(folder: Path | None, voice: str) -> bool:
    return folder is not None and is_stored(folder, voice)


def _part(part: str, voice: str, folder: Path | None) -> np.ndarray:
    if not _is_stored(folder, voice):
        return _synthesized(part, voice)
    assert folder is not None
    clips = _stored(folder, voice)
    if part in clips:
        return (clips[part] / np.float32(_SAMPLE_SCALE)).astype(np.float32)
    if part in dropped_parts(folder, voice):
        raise UserError(f"the voice {voice!r} in {folder} does not say {part!r} clearly; choose another voice.")
    raise UserError(f"the voice {voice!r} in {folder} does not say {part!r}; `triptych scenes voices` adds it.")


@cache
def _synthesized(part: str, voice: str) -> np.ndarray:
    return speak_part(part, voice)


@cache
def _stored(folder: Path, voice: str) -> dict[str, np.ndarray]:
    """The parts of a voice as whole numbers, which take half of the memory: 10 MB a voice."""
    clips = read_voice(folder, voice)
    return {
        part: np.round(clip * _SAMPLE_SCALE).clip(-_SAMPLE_SCALE, _SAMPLE_SCALE - 1).astype(np.int16)
        for part, clip in clips.items()
    }


@cache
def _plain_part(part: str) -> np.ndarray:
    """The one voice of the preset `small`, in its own sample rate and tempo."""
    return voices.synthesize(unfinished(part), ALWAYS_AVAILABLE).samples
