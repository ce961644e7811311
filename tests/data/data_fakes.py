"""Small tokenizers whose ids can be computed by hand, small media files, and functions for worker processes.

Worker processes import this module; they cannot import test modules.
"""

import errno
import hashlib
import io
import os
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from triptych.errors import UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio
from triptych.vocab import Modality, Vocabulary


class Bytes:
    """UTF-8 bytes as ids."""

    modality, vocab_size, fingerprint = Modality.TEXT, 256, hashlib.sha256(b"bytes").hexdigest()

    def encode(self, items: Sequence[str]) -> list[np.ndarray]:
        try:
            return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in items]
        except UnicodeEncodeError as error:
            raise UserError("a lone surrogate") from error

    def decode(self, ids: Sequence[np.ndarray]) -> list[str]:
        return [np.asarray(row).astype(np.uint8).tobytes().decode(errors="replace") for row in ids]

    def save(self, folder: Path) -> None:
        raise NotImplementedError


class Gray:
    """A 4 x 4 image of gray levels."""

    modality, vocab_size, fingerprint, resolution = Modality.IMAGE, 256, hashlib.sha256(b"gray").hexdigest(), 4

    def encode(self, items: Sequence[Image.Image]) -> list[np.ndarray]:
        assert all(image.size == (4, 4) and image.mode == "RGB" for image in items)
        return [np.asarray(image.convert("L")).reshape(-1).astype(np.int32) for image in items]

    def decode(self, ids: Sequence[np.ndarray]) -> list[Image.Image]:
        return [Image.fromarray(np.asarray(row).reshape(4, 4).astype(np.uint8)).convert("RGB") for row in ids]

    def save(self, folder: Path) -> None:
        raise NotImplementedError


class Loudness:
    """One id per tenth of a second: its loudness."""

    modality, vocab_size, fingerprint = Modality.AUDIO, 101, hashlib.sha256(b"loudness").hexdigest()

    def encode(self, items: Sequence[Audio]) -> list[np.ndarray]:
        return [self._encode(audio) for audio in items]

    def _encode(self, audio: Audio) -> np.ndarray:
        step = audio.sample_rate // 10
        frames = [audio.samples[start : start + step] for start in range(0, len(audio.samples), step)]
        return np.array([round(float(np.abs(frame).max()) * 100) for frame in frames], dtype=np.int32)

    def decode(self, ids: Sequence[np.ndarray]) -> list[Audio]:
        return [Audio(np.repeat(np.asarray(row) / 100, 800).astype(np.float32), 8000) for row in ids]

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def load(name: str) -> TokenizerBundle:
    """Stands in for TokenizerBundle.load. The name "other" has another text fingerprint."""
    text = Bytes()
    if name == "other":
        text.fingerprint = "0" * 64
    return TokenizerBundle(Vocabulary(text=256, image=256, audio=101), text=text, image=Gray(), audio=Loudness())


class LoadOnlyIn:
    """Loads the tokenizers in one process, and fails in any other."""

    def __init__(self, process: int):
        self.process = process

    def __call__(self, name: str) -> TokenizerBundle:
        if os.getpid() != self.process:
            raise UserError("cannot be loaded in a worker")
        return load(name)


def slow_square() -> Callable[[int], int]:
    """A function that squares numbers, and takes longer for every fifth."""

    def square(number: int) -> int:
        time.sleep(0.02 if number % 5 == 0 else 0)
        return number * number

    return square


def png(gray: int, size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", size, gray).save(buffer, "PNG")
    return buffer.getvalue()


def wav(loudness: float, seconds: float = 0.3, rate: int = 8000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.full(round(seconds * rate), round(loudness * 32767), "<i2").tobytes())
    return buffer.getvalue()


def no_space(number: int) -> None:
    """What a worker does when /dev/shm is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"/dev/shm/{number}")
