"""Captions to speech with `hibari-tts` (Apache-2.0). Each part of a caption fills whole frames of the tokenizer."""

from functools import cache
from typing import Any

import numpy as np

from triptych.errors import require
from triptych.scenes.grammar import spoken_parts
from triptych.utils.media import Audio

FRAME_SECONDS = 0.04  # of the demo audio tokenizer; docs/decisions/0013 explains why parts fill whole frames
MAX_TRAILING_FRAMES = 5  # of silence at the end
_SILENCE_RMS = 0.003  # root mean square over 10 ms below which audio is silence
_MARGIN = 0.02  # seconds of silence kept before and after speech: half a window of the tokenizer


@cache
def _tts() -> Any:
    return require("hibari", "data", "speech synthesis").Hibari()


def synthesize(text: str, rng: np.random.Generator) -> Audio:
    """Speak a sentence; `rng` draws the length of the silence at its end."""
    parts = [_speak_part(part) for part in spoken_parts(text)]
    rate = _tts().sample_rate
    silence = np.zeros(int(rng.integers(MAX_TRAILING_FRAMES + 1)) * _samples_per_frame(rate), np.float32)
    return Audio(np.concatenate([*parts, silence]), rate)


@cache
def _speak_part(part: str) -> np.ndarray:
    """One part of a sentence, padded to whole frames. The comma gives it the intonation of an unfinished sentence."""
    rate = _tts().sample_rate
    samples = trim_silence(Audio(_tts()(part.capitalize() + ",", seed=0), rate)).samples
    missing = -len(samples) % _samples_per_frame(rate)
    return np.pad(samples, (missing // 2, missing - missing // 2))


def _samples_per_frame(rate: int) -> int:
    return round(FRAME_SECONDS * rate)


def trim_silence(audio: Audio) -> Audio:
    """Cut the silence before and after speech; the synthesizer adds about half a second of it."""
    frame = audio.sample_rate // 100
    frames = audio.samples[: len(audio.samples) // frame * frame].reshape(-1, frame)
    loud = np.flatnonzero(np.sqrt(np.square(frames).mean(1)) > _SILENCE_RMS)
    if not len(loud):
        return audio
    margin = int(_MARGIN * audio.sample_rate)
    return Audio(audio.samples[max(0, loud[0] * frame - margin) : (loud[-1] + 1) * frame + margin], audio.sample_rate)
