"""Captions to speech: the voice of `hibari-tts` (Apache-2.0), at slightly varying pace."""

from functools import cache
from typing import Any

import numpy as np

from triptych.errors import require
from triptych.tokenizers.base import Sound

PACES = (0.9, 1.2)  # slow and fast ends of the pace; 1 is the voice's own
_QUIET = 0.003  # loudness (root mean square over 10 ms) below which nothing is said
_MARGIN = 0.05  # seconds of quiet kept before and after


@cache
def _voice() -> Any:
    return require("hibari", "data", "making speech").Hibari()


def speak(text: str, rng: np.random.Generator) -> Sound:
    """Read a sentence aloud; pace and breath noise are drawn from `rng`."""
    pace = float(rng.uniform(*PACES))
    samples = _voice()(text[0].upper() + text[1:] + ".", speed=pace, seed=int(rng.integers(2**31)))
    return trim(Sound(samples, _voice().sample_rate))


def trim(sound: Sound) -> Sound:
    """Cut the quiet before and after speech, which the voice has half a second of: tokens are for what is said."""
    frame = sound.rate // 100
    frames = sound.samples[: len(sound.samples) // frame * frame].reshape(-1, frame)
    loud = np.flatnonzero(np.sqrt(np.square(frames).mean(1)) > _QUIET)
    if not len(loud):
        return sound
    margin = int(_MARGIN * sound.rate)
    return Sound(sound.samples[max(0, loud[0] * frame - margin) : (loud[-1] + 1) * frame + margin], sound.rate)
