"""How much a codec changes speech: PESQ and STOI of a clip against its reconstruction."""

import warnings

import numpy as np

from triptych.errors import require
from triptych.tokenizers.audio import resample
from triptych.utils.media import Audio

_RATE = 16_000
_LEAST_SECONDS = 0.25  # PESQ needs as much


def pesq(original: Audio, rebuilt: Audio) -> float | None:
    """Wide-band PESQ (ITU-T P.862.2), about 1 to 4.64; None for a clip in which it finds no speech."""
    package = require("pesq", "pesq", "PESQ")
    one, other = aligned(original, rebuilt)
    if len(one) < _LEAST_SECONDS * _RATE or not other.any():
        return None
    try:
        value = float(package.pesq(_RATE, one, other, "wb"))
    except (package.NoUtterancesError, package.BufferTooShortError):
        return None
    return value if np.isfinite(value) else None


def stoi(original: Audio, rebuilt: Audio) -> float | None:
    """Short-time objective intelligibility, up to 1; None for a clip with less than 0.4 s of speech."""
    package = require("pystoi", "eval", "STOI")
    one, other = aligned(original, rebuilt)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # for too few frames, it would return 1e-5
        try:
            value = float(package.stoi(one, other, _RATE))
        except (RuntimeWarning, ValueError, IndexError):
            return None
    return value if np.isfinite(value) else None


def aligned(one: Audio, other: Audio) -> tuple[np.ndarray, np.ndarray]:
    """Both at 16 kHz and of equal length: a tokenizer pads to whole frames."""
    samples = [resample(clip, _RATE).samples for clip in (one, other)]
    length = min(map(len, samples))
    return samples[0][:length], samples[1][:length]
