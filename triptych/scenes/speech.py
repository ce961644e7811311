"""Captions to speech: the voice of `hibari-tts` (Apache-2.0), part by part, each on the lattice of the codes."""

from functools import cache
from typing import Any

import numpy as np

from triptych.errors import require
from triptych.scenes.grammar import spoken_parts
from triptych.utils.media import Audio

FRAME = 0.04  # seconds, of the embedded audio tokenizer: see docs/decisions/0013 on why parts fill whole frames
LONGEST_REST = 5  # frames of quiet at the end
_QUIET = 0.003  # loudness (root mean square over 10 ms) below which nothing is said
_MARGIN = 0.02  # seconds of quiet kept before and after: half a window of the tokenizer


@cache
def _voice() -> Any:
    return require("hibari", "data", "making speech").Hibari()


def speak(text: str, rng: np.random.Generator) -> Audio:
    """Read a sentence aloud; how long the quiet at its end is, is drawn from `rng`."""
    parts = [_say(part) for part in spoken_parts(text)]
    rate = _voice().sample_rate
    rest = np.zeros(int(rng.integers(LONGEST_REST + 1)) * _frame(rate), np.float32)
    return Audio(np.concatenate([*parts, rest]), rate)


@cache
def _say(part: str) -> np.ndarray:
    """A part of a sentence, with the tune of one that goes on, in whole frames."""
    rate = _voice().sample_rate
    samples = trim(Audio(_voice()(part.capitalize() + ",", seed=0), rate)).samples
    missing = -len(samples) % _frame(rate)
    return np.pad(samples, (missing // 2, missing - missing // 2))


def _frame(rate: int) -> int:
    return round(FRAME * rate)


def trim(sound: Audio) -> Audio:
    """Cut the quiet before and after speech, which the voice has half a second of: tokens are for what is said."""
    frame = sound.rate // 100
    frames = sound.samples[: len(sound.samples) // frame * frame].reshape(-1, frame)
    loud = np.flatnonzero(np.sqrt(np.square(frames).mean(1)) > _QUIET)
    if not len(loud):
        return sound
    margin = int(_MARGIN * sound.rate)
    return Audio(sound.samples[max(0, loud[0] * frame - margin) : (loud[-1] + 1) * frame + margin], sound.rate)
