"""Captions to speech: the voice of `hibari-tts` (Apache-2.0), at slightly varying pace."""

from functools import cache

import numpy as np

from triptych.errors import require
from triptych.tokenizers.base import Sound

PACES = (0.9, 1.2)  # slow and fast ends of the pace; 1 is the voice's own


@cache
def _voice():
    return require("hibari", "data", "making speech").Hibari()


def speak(text: str, rng: np.random.Generator) -> Sound:
    """Read a sentence aloud; pace and breath noise are drawn from `rng`."""
    pace = float(rng.uniform(*PACES))
    samples = _voice()(text[0].upper() + text[1:] + ".", speed=pace, seed=int(rng.integers(2**31)))
    return Sound(samples, _voice().sample_rate)
