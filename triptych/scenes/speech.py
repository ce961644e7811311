"""Captions to speech: the voice of `hibari-tts` (Apache-2.0), calm or brisk."""

from functools import cache
from typing import Any

import numpy as np

from triptych.errors import require
from triptych.tokenizers.base import Sound

PACES = (0.95, 1.15)  # 1 is the voice's own; see docs/decisions/0013 on why there are two and not a range
_QUIET = 0.003  # loudness (root mean square over 10 ms) below which nothing is said
_MARGIN = 0.05  # seconds of quiet kept before and after


@cache
def _voice() -> Any:
    return require("hibari", "data", "making speech").Hibari()


def speak(text: str, rng: np.random.Generator) -> Sound:
    """Read a sentence aloud, calmly or briskly: the pace is drawn from `rng`."""
    pace = PACES[rng.integers(len(PACES))]
    samples = _voice()(text[0].upper() + text[1:] + ".", speed=pace, seed=0)
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
