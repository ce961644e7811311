"""Judges of single clips, as tasks that several processes can share.

A task is small and picklable; `open` loads its model, once per process, and returns a function from a clip to a record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from triptych.eval.audio.aesthetics import Aesthetics
from triptych.eval.audio.features import AudioFeatures, AudioFeatureSpec
from triptych.eval.audio.speech import dnsmos, dnsmos_judge
from triptych.eval.audio.whisper import Whisper, load_whisper
from triptych.eval.metrics import Judge
from triptych.eval.packing import pack
from triptych.eval.records import Record
from triptych.utils.media import Audio

Measure = Callable[[Audio], Record]


class JudgeTask(Protocol):
    """What one judge does with a clip."""

    @property
    def judge(self) -> Judge:
        """Loads the model. What is missing is a `UserError`."""
        ...

    def open(self) -> Measure: ...


@dataclass(frozen=True)
class Hear:
    """{"heard": what Whisper hears}."""

    source: str | None
    language: str
    device: str

    @property
    def judge(self) -> Judge:
        return _whisper(self.source, self.language, self.device).judge

    def open(self) -> Measure:
        whisper = _whisper(self.source, self.language, self.device)
        return lambda clip: {"heard": whisper.transcribe([clip])[0]}


@dataclass(frozen=True)
class RateSpeech:
    """{"dnsmos": [signal, background, overall]}."""

    @property
    def judge(self) -> Judge:
        dnsmos([Audio(np.zeros(160, np.float32), 16_000)])
        return dnsmos_judge()

    def open(self) -> Measure:
        return lambda clip: {"dnsmos": [round(float(value), 5) for value in dnsmos([clip])[0]]}


@dataclass(frozen=True)
class RateAesthetics:
    """{"PQ": ..., "PC": ..., "CE": ..., "CU": ...}."""

    source: str
    device: str

    @property
    def judge(self) -> Judge:
        return _aesthetics(self.source, self.device).judge

    def open(self) -> Measure:
        rate = _aesthetics(self.source, self.device)
        return lambda clip: {axis: round(value, 6) for axis, value in rate(clip).items()}


@dataclass(frozen=True)
class Embed:
    """{"vectors": features of the clip}, for a Fréchet distance."""

    spec: AudioFeatureSpec
    device: str

    @property
    def judge(self) -> Judge:
        return self.features.judge

    @property
    def features(self) -> AudioFeatures:
        return _features(self.spec, self.device)

    def open(self) -> Measure:
        features = self.features
        return lambda clip: {"vectors": pack(features(clip))}


# Each process loads a model once.


@cache
def _whisper(source: str | None, language: str, device: str) -> Whisper:
    return load_whisper(source, language=language, device=device)


@cache
def _aesthetics(source: str, device: str) -> Aesthetics:
    return Aesthetics(source, device)


@cache
def _features(spec: AudioFeatureSpec, device: str) -> AudioFeatures:
    return spec.load(device)
