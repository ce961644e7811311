"""Images and audio in requests and answers: data URIs and files, within the limits of the server."""

import base64
import binascii
import io
import re
from typing import Literal

import numpy as np
from PIL import Image

from triptych.errors import UserError
from triptych.serve.limits import ServeLimits
from triptych.tokenizers.audio import resample
from triptych.utils.media import Audio, read_audio, read_image, read_transparency

_DATA_URI = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<parameters>(?:;[\w.+-]+=[\w.+-]+)*);base64,", re.ASCII)

ImageFormat = Literal["png", "jpeg", "webp"]
AudioFormat = Literal["wav", "flac", "mp3", "ogg", "opus", "pcm", "pcm16"]
CONTENT_TYPES = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "pcm": "audio/pcm",
    "pcm16": "audio/pcm",
}
# libsndfile's names of format and coding. OpenAI's "pcm" is 16 bits at 24 kHz without a header.
_CODINGS = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "pcm": ("RAW", "PCM_16"),
    "pcm16": ("RAW", "PCM_16"),
}
_PCM_RATE = 24_000
_RATES = {
    "mp3": (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    "opus": (8_000, 12_000, 16_000, 24_000, 48_000),
    "pcm": (_PCM_RATE,),
    "pcm16": (_PCM_RATE,),
}
"""Sample rates of formats that do not have every one."""


def bytes_of_data_uri(uri: str, kind: Literal["image", "audio"]) -> bytes:
    """The file in a data URI, which must say that it is of this kind."""
    head = _DATA_URI.match(uri)
    if head is None:
        raise UserError(f"expected {kind} as a data URI, `data:{kind}/TYPE;base64,...`, got {uri[:40]!r}.")
    if not (head["type"] or "").lower().startswith(f"{kind}/"):
        raise UserError(f"expected a data URI of the type {kind}/..., got {head['type']!r}.")
    return bytes_of_base64(uri[head.end() :])


def bytes_of_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("expected base64, got something else.") from None


def decode_image(data: bytes, limits: ServeLimits) -> Image.Image:
    if not data:
        raise UserError("expected an image, got an empty file.")
    return read_image(data, max_pixels=limits.pixels)


def decode_mask(data: bytes, limits: ServeLimits) -> np.ndarray:
    """[H, W] bool: the transparent pixels of an image."""
    if not data:
        raise UserError("expected a mask, got an empty file.")
    return read_transparency(data, max_pixels=limits.pixels)


def decode_audio(data: bytes, limits: ServeLimits) -> Audio:
    if not data:
        raise UserError("expected audio, got an empty file.")
    return read_audio(data, max_seconds=limits.audio_seconds)


def encode_image(image: Image.Image, format: ImageFormat = "png", quality: int | None = None) -> bytes:
    """The file of an image; `quality` from 0 to 100 is for lossy formats."""
    buffer = io.BytesIO()
    image.save(buffer, format.upper(), **({} if quality is None or format == "png" else {"quality": quality}))
    return buffer.getvalue()


def encode_audio(audio: Audio, format: AudioFormat = "wav") -> bytes:
    """The file of a recording, at its own sample rate if the format has it."""
    import soundfile

    rates = _RATES.get(format, ())
    if rates and audio.sample_rate not in rates:
        audio = resample(audio, min((rate for rate in rates if rate >= audio.sample_rate), default=rates[-1]))
    buffer, (container, coding) = io.BytesIO(), _CODINGS[format]
    endian = {"endian": "LITTLE"} if container == "RAW" else {}
    soundfile.write(buffer, audio.samples, audio.sample_rate, format=container, subtype=coding, **endian)
    return buffer.getvalue()


def data_uri(data: bytes, content_type: str) -> str:
    return f"data:{content_type};base64,{base64.b64encode(data).decode()}"


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()
