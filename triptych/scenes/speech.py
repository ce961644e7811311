"""Sentences to speech, put together from the parts of a voice. Each part fills whole frames of the audio tokenizer.

The voices of the preset `full` are kept in a folder (`triptych scenes voices` makes it). Without it there is one voice,
robin, which is synthesized when it is needed.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from triptych.errors import UserError
from triptych.scenes import voices
from triptych.scenes.spoken import spoken_parts
from triptych.scenes.voice_parts import RATE, read_voice, speak_part, unfinished
from triptych.scenes.voices import HELD_OUT_VOICES, TRAINING_VOICES, get_voice
from triptych.scenes.world import FULL, World
from triptych.utils.media import Audio

FRAME_SECONDS = 0.04  # of the demo audio tokenizer; docs/decisions/0013 explains why parts fill whole frames
MAX_TRAILING_FRAMES = 5  # of silence at the end
ALWAYS_AVAILABLE = "robin"  # needs no download


def available_voices(folder: Path | None, *, held_out: bool = False) -> tuple[str, ...]:
    """Voices with parts in the folder, in a fixed order: those of training, or those that are held out."""
    names = HELD_OUT_VOICES if held_out else TRAINING_VOICES
    stored = tuple(name for name in names if folder and (folder / f"{name}.json").exists())
    return stored or (() if held_out else (ALWAYS_AVAILABLE,))


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


@cache
def _part(part: str, voice: str, folder: Path | None) -> np.ndarray:
    if folder is not None and (folder / f"{voice}.json").exists():
        clips = _stored(folder, voice)
        if part not in clips:
            raise UserError(f"the voice {voice!r} in {folder} does not say {part!r}; `triptych scenes voices` adds it.")
        return clips[part]
    return speak_part(part, voice)


@cache
def _stored(folder: Path, voice: str) -> dict[str, np.ndarray]:
    return read_voice(folder, voice)


@cache
def _plain_part(part: str) -> np.ndarray:
    """The one voice of the preset `small`, in its own sample rate and tempo."""
    return voices.synthesize(unfinished(part), ALWAYS_AVAILABLE).samples
