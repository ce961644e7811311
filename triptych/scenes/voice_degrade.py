"""Copies of clean speech as it arrives in practice: by telephone, quiet, with noise, a little faster or slower.

They are made when a training sample is drawn, and are a pure function of the audio and the random generator.
"""

import numpy as np

from triptych.tokenizers.audio import resample
from triptych.utils.media import Audio

KINDS = ("tempo", "noise", "telephone", "quiet")
"""In the order in which they are applied: noise of the room goes through the telephone, too."""

TEMPOS = (23, 24, 26, 27)  # 25ths
NOISE_DB = (15.0, 30.0)  # speech above noise
QUIET_DB = (-22.0, -6.0)
TELEPHONE_RATE = 8_000


def degrade(audio: Audio, rng: np.random.Generator) -> Audio:
    """A copy with one or two random degradations, at the same sample rate."""
    chosen = rng.choice(KINDS, size=1 + int(rng.random() < 0.4), replace=False)
    for kind in KINDS:
        if kind in chosen:
            audio = _APPLY[kind](audio, rng)
    return audio


def change_tempo(audio: Audio, rng: np.random.Generator) -> Audio:
    """Up to 8 % faster or slower, by resampling: the pitch moves along, as if a larger or smaller person spoke."""
    tempo = int(rng.choice(TEMPOS))
    return Audio(resample(Audio(audio.samples, tempo), 25).samples, audio.sample_rate)


def add_noise(audio: Audio, rng: np.random.Generator) -> Audio:
    """White noise (hiss) or pink noise (rooms, wind), 15 to 30 dB below the speech."""
    noise = rng.standard_normal(len(audio.samples))
    if rng.random() < 0.5:
        spectrum = np.fft.rfft(noise)
        frequencies = np.fft.rfftfreq(len(noise), 1 / audio.sample_rate)
        noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(frequencies, 50.0)), len(noise))
    decibels = rng.uniform(*NOISE_DB)
    noise *= _rms(audio.samples) / max(_rms(noise), 1e-12) * 10 ** (-decibels / 20)
    samples = audio.samples + noise
    return Audio((samples / max(1.0, np.abs(samples).max(initial=0.0))).astype(np.float32), audio.sample_rate)


def through_telephone(audio: Audio, rng: np.random.Generator) -> Audio:
    """Without frequencies above 4 kHz: to 8 kHz and back."""
    there_and_back = resample(resample(audio, TELEPHONE_RATE), audio.sample_rate).samples
    return Audio(there_and_back[: len(audio.samples)], audio.sample_rate)


def make_quiet(audio: Audio, rng: np.random.Generator) -> Audio:
    """6 to 22 dB lower."""
    return Audio((audio.samples * 10 ** (rng.uniform(*QUIET_DB) / 20)).astype(np.float32), audio.sample_rate)


_APPLY = {"tempo": change_tempo, "noise": add_noise, "telephone": through_telephone, "quiet": make_quiet}


def _rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
