"""Opening pictures and sounds that may be broken or hostile, and the paper's image transforms.

Randomness is the caller's `np.random.Generator`, so that what happens to a sample depends on its id alone.
"""

import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from triptych.errors import DataError, UserError
from triptych.tokenizers.base import Audio
from triptych.tokenizers.pixels import WHITE, resize_with_white_padding

Source = bytes | str | Path

# -- image transforms -------------------------------------------------------------------------------------------------


def paper_transform(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """With even odds a random crop, or the whole picture on white."""
    if rng.random() < 0.5:
        return random_resized_crop(image, size, rng)
    return resize_with_white_padding(image, size)


def random_resized_crop(
    image: Image.Image, size: int, rng: np.random.Generator, scale: tuple[float, float] = (0.8, 1.0)
) -> Image.Image:
    """A box of `scale` of the area and an aspect ratio of 3:4 to 4:3 (log-uniform), stretched to a square.

    As in torchvision: ten tries to find a box that fits, else the largest central box with an allowed aspect ratio.
    """
    image = image.convert("RGB")
    width, height = image.size
    for _ in range(10):
        area = rng.uniform(*scale) * width * height
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(rng.integers(width - box_width + 1))
            top = int(rng.integers(height - box_height + 1))
            break
    else:
        box_width, box_height = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        box_width, box_height = max(1, box_width), max(1, box_height)
        left, top = (width - box_width) // 2, (height - box_height) // 2
    box = (left, top, left + box_width, top + box_height)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


# -- opening pictures -------------------------------------------------------------------------------------------------

_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def open_image(source: Source, max_pixels: int = 2**26) -> Image.Image:
    """Read a picture (the first frame or page) as RGB: upright, on white, 8 bits.

    The size is checked before anything is decoded, and only formats that are pixels are tried at all.
    """
    with _stream(source) as (stream, name):
        try:
            with Image.open(stream, formats=_IMAGE_FORMATS) as image:
                if min(image.size) < 1 or image.width * image.height > max_pixels:
                    raise DataError(f"{name} has {image.width} x {image.height} pixels; expected 1 to {max_pixels:,}.")
                image.load()
                return _on_white(_upright(image))
        except DataError:
            raise
        except UnidentifiedImageError:
            raise DataError(f"{name} is not a picture in one of the formats {', '.join(_IMAGE_FORMATS)}.") from None
        except Image.DecompressionBombError:
            raise DataError(f"{name} has far too many pixels; expected at most {max_pixels:,}.") from None
        except Exception as error:  # Pillow's decoders let all kinds of errors out of a broken file
            raise DataError(f"{name} is a damaged picture ({_one_line(error)}).") from error


def _upright(image: Image.Image) -> Image.Image:
    """Turn the picture as its EXIF orientation says."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # broken EXIF is common in good pictures, and says nothing about the pixels
        return image
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(orientation)
    return image if turn is None else image.transpose(turn)


def _on_white(image: Image.Image) -> Image.Image:
    """Any mode -> RGB, transparent parts white."""
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):  # `convert` clips these at 255
        values = np.nan_to_num(np.asarray(image).astype(np.float32))
        full = 1.0 if image.mode == "F" and values.max() <= 1 else 255.0 if image.mode == "F" else 65535.0
        return Image.fromarray((np.clip(values / full, 0, 1) * 255).round().astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, (*WHITE, 255)), rgba).convert("RGB")
    return image.convert("RGB")


# -- opening sounds ---------------------------------------------------------------------------------------------------

_SOUND_FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
_KNOWS_LENGTH = ("WAV", "WAVEX", "RF64", "FLAC")  # the others' headers promise no number of samples
_RATES = range(1_000, 384_001)
_MAX_CHANNELS = 64
_BLOCK = 2**16


def open_sound(
    source: Source,
    offset_seconds: float = 0.0,
    duration_seconds: float | None = None,
    max_seconds: float = 30.0,
    too_long: Literal["error", "cut"] = "error",
) -> Audio:
    """Read one channel, the mean of all, from `offset_seconds` on, for `duration_seconds` or up to the end.

    Decoding stops at `max_seconds`, whatever the header says; `too_long` says whether more is an error or is left out.
    A part that reaches beyond the end is shortened; a file that ends before its own header says is an error.
    """
    import soundfile

    if not (offset_seconds >= 0 and max_seconds > 0 and (duration_seconds is None or duration_seconds > 0)):
        raise UserError(
            "a part of a sound needs offset_seconds >= 0, duration_seconds > 0 and max_seconds > 0, "
            f"got {offset_seconds}, {duration_seconds} and {max_seconds}."
        )
    if too_long not in ("error", "cut"):
        raise UserError(f"too_long must be 'error' or 'cut', got {too_long!r}.")
    with _stream(source) as (stream, name):
        _check_riff_length(stream, name)
        try:
            with soundfile.SoundFile(stream) as file:
                _check_sound_header(file, name)
                start, limit = round(offset_seconds * file.samplerate), round(max_seconds * file.samplerate)
                wanted = file.frames - start
                if duration_seconds is not None:
                    wanted = min(wanted, round(duration_seconds * file.samplerate))
                if wanted <= 0:
                    seconds = file.frames / file.samplerate
                    raise DataError(f"{name} has no samples after {offset_seconds} s; it ends at {seconds:.2f} s.")
                if wanted > limit and too_long == "error":
                    raise DataError(f"{name} is {wanted / file.samplerate:.2f} s long, the limit is {max_seconds} s.")
                samples = _read_mono(file, start, min(wanted, limit))
                if len(samples) < min(wanted, limit) and file.format in _KNOWS_LENGTH:
                    raise DataError(f"{name} is truncated: expected {wanted} frames, found {len(samples)}.")
                rate = file.samplerate
        except soundfile.SoundFileError as error:
            raise DataError(f"{name} is not a sound that can be read ({_one_line(error)}).") from error
    if not len(samples):
        raise DataError(f"{name} holds no samples.")
    if not np.isfinite(samples).all():
        raise DataError(f"{name} holds samples that are not numbers (NaN or infinite).")
    return Audio(np.clip(samples, -1, 1), rate)


def _check_sound_header(file, name: str) -> None:
    """Refuse numbers that no recording has, before they size an allocation."""
    if file.format not in _SOUND_FORMATS:
        raise DataError(f"{name} has the format {file.format}; expected one of {', '.join(_SOUND_FORMATS)}.")
    if file.samplerate not in _RATES or file.channels > _MAX_CHANNELS:
        raise DataError(
            f"{name} claims {file.samplerate} Hz and {file.channels} channels; "
            f"expected {_RATES.start} to {_RATES.stop - 1} Hz and at most {_MAX_CHANNELS} channels."
        )
    if file.frames >= 2**40:  # libsndfile's way to say that a FLAC was written to a pipe; it cannot seek in those
        raise DataError(f"{name} does not say how long it is; convert it to a complete file first.")


def _read_mono(file, start: int, count: int) -> np.ndarray:
    """Up to `count` frames from `start`. Block by block, so that memory follows what is there, not what is claimed."""
    file.seek(start)
    blocks: list[np.ndarray] = []
    while count > 0:
        block = file.read(min(count, _BLOCK), dtype="float32", always_2d=True)
        if not len(block):
            break
        blocks.append(block.mean(axis=1, dtype=np.float32))
        count -= len(block)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def _check_riff_length(stream: BinaryIO, name: str) -> None:
    """A WAV whose data chunk is cut off is an error; libsndfile would read what is left and say nothing.

    A size of 2**32 - 1 is what writers to a pipe leave behind: it promises nothing, so the data go up to the end.
    """
    end = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    order = {b"RIFF": "<", b"RF64": "<", b"RIFX": ">"}.get(stream.read(4))
    if order is not None:
        stream.seek(12)
        long_size, frame_bytes = None, 1
        while len(header := stream.read(8)) == 8:
            (chunk, size), start = struct.unpack(f"{order}4sI", header), stream.tell()
            if chunk == b"fmt " and len(fields := stream.read(16)) == 16:
                frame_bytes = max(1, struct.unpack(f"{order}H", fields[12:14])[0])
            elif chunk == b"ds64" and len(fields := stream.read(16)) == 16:
                long_size = struct.unpack(f"{order}Q", fields[8:16])[0]
            elif chunk == b"data":
                promised = long_size if size == 2**32 - 1 else size
                if promised is not None and start + promised > end:
                    raise DataError(
                        f"{name} is truncated: expected {promised // frame_bytes} frames, "
                        f"found {(end - start) // frame_bytes}."
                    )
                break
            stream.seek(start + size + size % 2)
    stream.seek(0)


# -- shared -----------------------------------------------------------------------------------------------------------


@contextmanager
def _stream(source: Source) -> Iterator[tuple[BinaryIO, str]]:
    """A file or bytes as a stream, with the name to use in errors."""
    if isinstance(source, bytes):
        yield io.BytesIO(source), "the data given"
        return
    try:
        file = open(source, "rb")  # noqa: SIM115 (closed below)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise DataError(f"{str(source)!r} cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    with file:
        yield file, str(source)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
