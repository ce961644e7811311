"""Kokoro-82M (int8 ONNX): phonemes to samples, and when each phoneme is spoken.

The graph takes ids of phonemes between two zeros, a style vector [256] of the voice for this number of phonemes, and a
speed. Its one output is the samples. The durations of phonemes are computed inside; naming that tensor as a second
output makes the runtime return them.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from triptych.errors import require
from triptych.scenes.voice_files import KOKORO, folder
from triptych.utils.json_files import read_json

SAMPLE_RATE = 24_000
SAMPLES_PER_FRAME = 600  # durations are whole frames of 25 ms
MAX_PHONEMES = 509  # style vectors of a voice, but one
_LONGEST_PHONEME = 3 * SAMPLE_RATE // 10
_DURATIONS = "/encoder/Clip_output_0"


@dataclass(frozen=True, eq=False)
class Spoken:
    """Samples [n], and where each phoneme ends in them."""

    samples: np.ndarray
    phonemes: str
    ends: np.ndarray
    """[number of phonemes] in samples. A phoneme starts where the one before it ends."""
    start: int
    """Where the first phoneme starts."""

    @property
    def speech(self) -> np.ndarray:
        """The samples up to the end of speech. The last phoneme lasts into the silence, where some voices hiss."""
        last = max(i for i, phoneme in enumerate(self.phonemes) if phoneme.isalpha())
        start = self.ends[last - 1] if last else self.start
        samples = self.samples[: start + _LONGEST_PHONEME].copy()
        fade = np.linspace(1, 0, SAMPLE_RATE // 50, dtype=np.float32)[: len(samples)]
        samples[len(samples) - len(fade) :] *= fade
        return samples


def speak_phonemes(phonemes: str, style: str, speed: float) -> Spoken:
    """Kokoro's speech, with silence before and after it. The same arguments give the same samples."""
    vocabulary, session = _kokoro()
    inputs = {
        "input_ids": np.array([[0, *(vocabulary[phoneme] for phoneme in phonemes), 0]], np.int64),
        "style": styles(style)[len(phonemes)][None],
        "speed": np.array([speed], np.float32),
    }
    waveform, durations = session.run(["waveform", _DURATIONS], inputs)
    ends = np.cumsum(durations[0]).astype(np.int64) * SAMPLES_PER_FRAME
    samples = (waveform[0] / max(1.0, np.abs(waveform[0]).max())).astype(np.float32)  # some voices exceed 1
    assert ends[-1] == len(samples), "durations do not add up to the samples"
    return Spoken(samples, phonemes, ends[1:-1], int(ends[0]))


def speak_after(carrier: str, phonemes: str, style: str, speed: float) -> np.ndarray:
    """The samples of `phonemes`, spoken as a sentence after a carrier sentence and cut out in the pause between them.

    Kokoro slurs the end of texts of one or two words; after another sentence it speaks them clearly.
    """
    spoken = speak_phonemes(f"{carrier} {phonemes}", style, speed)
    reach = SAMPLES_PER_FRAME
    pause = slice(spoken.ends[len(carrier) - 1] - reach, spoken.ends[len(carrier)] + reach // 2)  # end and space
    window = SAMPLE_RATE // 100
    energies = np.convolve(np.square(spoken.samples[pause]), np.ones(window), mode="same")
    samples = spoken.speech[pause.start + int(energies.argmin()) :]
    fade = np.linspace(0, 1, window // 2, dtype=np.float32)
    samples[: len(fade)] *= fade
    return samples


@cache
def _kokoro() -> tuple[dict[str, int], Any]:
    """Ids of phonemes, and the network."""
    path = folder(KOKORO)
    onnx = require("onnxruntime", "eval", "speech synthesis")
    options = onnx.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # it warns about its own graph
    model = with_output((path / "kokoro-quantized.onnx").read_bytes(), _DURATIONS)
    session = onnx.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return read_json(path / "tokenizer.json")["model"]["vocab"], session


@cache
def styles(name: str) -> np.ndarray:
    """Style vectors of a voice [510, 256], by number of phonemes."""
    return np.fromfile(folder(KOKORO) / "voices" / f"{name}.bin", "<f4").reshape(-1, 256)


def with_output(model: bytes, tensor: str) -> bytes:
    """An ONNX file that also returns an inner tensor.

    Protocol buffers that follow each other are merged: a second graph (field 7 of the model) that only holds an output
    (field 12) with a name (field 1) adds this output to the first graph.
    """
    return model + _field(7, _field(12, _field(1, tensor.encode())))


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in a protocol buffer."""
    assert len(content) < 128, "longer lengths take more than one byte"
    return bytes([number << 3 | 2, len(content)]) + content
