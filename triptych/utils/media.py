"""Image and audio files: the `Audio` class, reading, writing.

load_image, load_audio    arguments of the API: a path, the bytes of a file, a PIL image, an array; raise UserError
read_image, read_audio    files of a dataset, which may be damaged or hostile; raise DataError
Audio.load, Audio.save    audio files
"""

import io
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from triptych.errors import DataError, UserError
from triptych.utils.arguments import check_fields, checked
from triptych.utils.files import open_regular

T = TypeVar("T")

WHITE = (255, 255, 255)
MAX_INPUT_BYTES = 256 << 20
"""Limit for the bytes of a file that are passed instead of its path."""
Source = bytes | str | Path
"""A file: its path, or its bytes."""


@dataclass(frozen=True, eq=False)
class Audio:
    """One channel of audio."""

    samples: np.ndarray
    """[n] float32 in [-1, 1]."""
    sample_rate: int
    """Samples per second."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sample_rate < 1:
            raise UserError(f"sample_rate must be at least 1, got {self.sample_rate}.")

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    @classmethod
    @checked
    def load(cls, source: Source, max_seconds: float = 3600.0) -> "Audio":
        """Read a WAV, FLAC, OGG or MP3 file. Channels are averaged; a longer file is an error."""
        return read_audio(source, max_seconds=max_seconds)

    @checked
    def save(self, path: str | Path) -> Path:
        """Write a WAV, FLAC (both 16 bits) or OGG file; missing folders are created."""
        import soundfile

        path = Path(path)
        if path.suffix.lower() not in _WRITABLE:
            raise UserError(f"audio is written as {', '.join(_WRITABLE)}, got {str(path)!r}.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, self.samples, self.sample_rate)
        except (OSError, soundfile.SoundFileError) as error:
            raise UserError(f"{str(path)!r} cannot be written ({_reason(error)}).") from error
        return path


_WRITABLE = (".wav", ".flac", ".ogg")


# -- reading images ---------------------------------------------------------------------------------------------------

_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def read_image(source: Source, max_pixels: int = 2**26) -> Image.Image:
    """Read an image (its first frame or page) as 8-bit RGB, turned upright, transparent parts white.

    The size is checked before pixels are decoded. Only raster formats are tried.
    """
    return _read_image(source, max_pixels, _on_white)


def read_transparency(source: Source, max_pixels: int = 2**26) -> np.ndarray:
    """[H, W] bool: the pixels of an image that are more transparent than opaque."""
    return _read_image(source, max_pixels, lambda image: np.asarray(image.convert("RGBA"))[..., 3] < 128)


def _read_image(source: Source, max_pixels: int, convert: Callable[[Image.Image], T]) -> T:
    with _stream(source, MAX_INPUT_BYTES) as (stream, name):  # some decoders read the whole file into memory
        try:
            with Image.open(stream, formats=_IMAGE_FORMATS) as image:
                if min(image.size) < 1 or image.width * image.height > max_pixels:
                    raise DataError(f"{name} has {image.width} x {image.height} pixels; expected 1 to {max_pixels:,}.")
                image.load()
                return convert(_upright(image))
        except DataError:
            raise
        except UnidentifiedImageError:
            raise DataError(f"{name} is not an image in one of the formats {', '.join(_IMAGE_FORMATS)}.") from None
        except Image.DecompressionBombError:
            raise DataError(f"{name} has far too many pixels; expected at most {max_pixels:,}.") from None
        except Exception as error:  # Pillow's decoders let all kinds of errors out of a broken file
            raise DataError(f"{name} is a damaged image ({_reason(error)}).") from error


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # broken EXIF is common in intact images
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
    """Convert any mode to RGB, with transparent parts white."""
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):  # `convert` clips these at 255
        values = np.nan_to_num(np.asarray(image).astype(np.float32))
        full = 1.0 if image.mode == "F" and values.max() <= 1 else 255.0 if image.mode == "F" else 65535.0
        return Image.fromarray((np.clip(values / full, 0, 1) * 255).round().astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, (*WHITE, 255)), rgba).convert("RGB")
    return image.convert("RGB")


# -- reading audio ---------------------------------------------------------------------------------------------------

_AUDIO_FORMATS = ("WAV", "FLAC", "OGG", "MP3")
_LIBSNDFILE_FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
_STORES_LENGTH = ("WAV", "WAVEX", "RF64", "FLAC")  # the headers of the others do not state the number of samples
_SAMPLE_RATES = range(1_000, 384_001)
_MAX_CHANNELS = 64
_BLOCK = 2**16
_UNKNOWN_FORMAT = 1  # libsndfile's error code


def read_audio(
    source: Source,
    offset_seconds: float = 0.0,
    duration_seconds: float | None = None,
    max_seconds: float = 30.0,
    too_long: Literal["error", "cut"] = "error",
) -> Audio:
    """Read the mean of all channels, from `offset_seconds` for `duration_seconds` or up to the end.

    Decoding stops at `max_seconds`, whatever the header says. Longer audio is an error or is cut, by `too_long`.
    A part that reaches beyond the end is shortened; a file shorter than its own header says is an error.
    """
    import soundfile

    if not (offset_seconds >= 0 and max_seconds > 0 and (duration_seconds is None or duration_seconds > 0)):
        raise UserError(
            "reading audio needs offset_seconds >= 0, duration_seconds > 0 and max_seconds > 0, "
            f"got {offset_seconds}, {duration_seconds} and {max_seconds}."
        )
    if too_long not in ("error", "cut"):
        raise UserError(f"too_long must be 'error' or 'cut', got {too_long!r}.")
    with _stream(source) as (stream, name):
        _check_riff_length(stream, name)
        try:
            with soundfile.SoundFile(stream) as file:
                _check_audio_header(file, name)
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
                if len(samples) < min(wanted, limit) and file.format in _STORES_LENGTH:
                    raise DataError(f"{name} is truncated: expected {wanted} frames, found {len(samples)}.")
                sample_rate = file.samplerate
        except soundfile.SoundFileError as error:
            if getattr(error, "code", None) == _UNKNOWN_FORMAT:
                raise DataError(
                    f"{name} is not an audio file in one of the formats {', '.join(_AUDIO_FORMATS)}."
                ) from None
            raise DataError(f"{name} is a damaged audio file ({_reason(error)}).") from error
    if not len(samples):
        raise DataError(f"{name} holds no samples.")
    if not np.isfinite(samples).all():
        raise DataError(f"{name} holds samples that are not numbers (NaN or infinite).")
    return Audio(np.clip(samples, -1, 1), sample_rate)


def _check_audio_header(file, name: str) -> None:
    """Refuse implausible numbers before they size an allocation."""
    if file.format not in _LIBSNDFILE_FORMATS:
        raise DataError(f"{name} has the format {file.format}; expected one of {', '.join(_AUDIO_FORMATS)}.")
    if file.samplerate not in _SAMPLE_RATES or file.channels > _MAX_CHANNELS:
        raise DataError(
            f"{name} claims {file.samplerate} Hz and {file.channels} channels; "
            f"expected {_SAMPLE_RATES.start} to {_SAMPLE_RATES.stop - 1} Hz and at most {_MAX_CHANNELS} channels."
        )
    if file.frames >= 2**40:  # libsndfile's value for a FLAC that was written to a pipe; it cannot seek in those
        raise DataError(f"{name} does not state its length; convert it to a complete file first.")


def _read_mono(file, start: int, count: int) -> np.ndarray:
    """Read up to `count` frames from `start`, in blocks: memory grows with the data, not with the header's claim."""
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
    """Refuse a WAV whose data chunk is cut off; libsndfile reads the rest without an error.

    Writers to a pipe leave a size of 2**32 - 1, which means nothing: the data then end with the file.
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
                stated_size = long_size if size == 2**32 - 1 else size
                if stated_size is not None and start + stated_size > end:
                    raise DataError(
                        f"{name} is truncated: expected {stated_size // frame_bytes} frames, "
                        f"found {(end - start) // frame_bytes}."
                    )
                break
            stream.seek(start + size + size % 2)
    stream.seek(0)


# -- shared -----------------------------------------------------------------------------------------------------------


@contextmanager
def _stream(source: Source, max_bytes: int | None = None) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file of at most `max_bytes`, or bytes, as a stream; the second value is its name in errors."""
    if isinstance(source, bytes):
        if len(source) > MAX_INPUT_BYTES:
            raise DataError(f"expected at most {MAX_INPUT_BYTES >> 20} MiB, got {len(source) >> 20} MiB.")
        yield io.BytesIO(source), "the given file"
        return
    if not isinstance(source, str | Path):  # a number would be an open file, such as standard output
        raise UserError(f"expected a file as its path or its bytes, got {type(source).__name__}.")
    try:
        file = open(open_regular(source), "rb")  # noqa: SIM115 (closed below)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise DataError(f"{str(source)!r} cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise DataError(f"{source} has {size >> 20} MiB; expected at most {max_bytes >> 20} MiB.")
        yield file, str(source)


def _reason(error: Exception) -> str:
    """One line about an error; libsndfile's own text, without the representation of our stream."""
    reason = getattr(error, "error_string", None) or getattr(error, "strerror", None) or str(error)
    return " ".join(str(reason).split()).rstrip(".")[:200] or type(error).__name__


# -- arguments of the API and the command line ------------------------------------------------------------------------

ImageLike = Image.Image | np.ndarray | Source
AudioLike = Audio | tuple[np.ndarray, int] | Source


def load_image(image: ImageLike) -> Image.Image:
    """An RGB image from a path, the bytes of a file, a PIL image, or an array [H, W], [H, W, 1], [H, W, 3], [H, W, 4].

    Arrays are uint8, or floats in [0, 1]. EXIF orientation applies to files only.
    """
    if isinstance(image, Image.Image):
        return _on_white(image)
    if isinstance(image, np.ndarray):
        return _on_white(_array_to_image(image))
    if isinstance(image, str | Path | bytes):
        return _with_user_errors(read_image, image)
    raise UserError(f"expected an image (path, bytes, PIL image or array), got {type(image).__name__}.")


def _array_to_image(array: np.ndarray) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or 0 in array.shape:
        raise UserError(
            "expected an image array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], "
            f"got shape {list(array.shape)}; move channels to the end."
        )
    if array.dtype != np.uint8:
        is_unit = np.issubdtype(array.dtype, np.floating) and bool(((array >= 0) & (array <= 1)).all())
        if not is_unit:
            raise UserError(f"expected an image array of uint8, or of floats in [0, 1], got {_value_range(array)}.")
        array = (array * 255).round().astype(np.uint8)
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def _value_range(array: np.ndarray) -> str:
    is_number = np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array)
    return f"{array.dtype} from {array.min():g} to {array.max():g}" if is_number else str(array.dtype)


def load_audio(audio: AudioLike) -> Audio:
    """Audio from a path, the bytes of a file, an `Audio`, or a pair (samples [n] or [n, channels], sample rate)."""
    if isinstance(audio, Audio):
        return audio
    if isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[0], np.ndarray):
        return _array_to_audio(*audio)
    if isinstance(audio, str | Path | bytes):
        return _with_user_errors(read_audio, audio)
    raise UserError(f"expected audio (path, bytes, Audio or (samples, sample_rate)), got {type(audio).__name__}.")


def _array_to_audio(samples: np.ndarray, sample_rate: Any) -> Audio:
    if samples.ndim not in (1, 2) or 0 in samples.shape or (samples.ndim == 2 and samples.shape[1] > _MAX_CHANNELS):
        raise UserError(f"expected samples [n] or [n, channels], got shape {list(samples.shape)}.")
    if not np.issubdtype(samples.dtype, np.floating):
        raise UserError(f"expected samples as floats in [-1, 1], got {_value_range(samples)}.")
    if not np.isfinite(samples).all():
        raise UserError("expected finite samples, got NaN or infinity.")
    if not isinstance(sample_rate, int | np.integer) or sample_rate not in _SAMPLE_RATES:
        expected = f"{_SAMPLE_RATES.start} to {_SAMPLE_RATES.stop - 1} Hz"
        raise UserError(f"expected a sample rate of {expected}, got {sample_rate!r}.")
    mono = samples if samples.ndim == 1 else samples.mean(axis=1)
    return Audio(np.clip(mono.astype(np.float32), -1, 1), int(sample_rate))


def _with_user_errors(read: Any, source: Source) -> Any:
    """Read a file that is an argument: a damaged one is the caller's mistake, not damaged data."""
    if not isinstance(source, bytes) and not Path(source).is_file():
        if Path(source).is_dir():
            raise UserError(f"{str(source)!r} is a folder: expected the file of an image or audio.")
        raise UserError(f"there is no file {str(source)!r}.")
    try:
        return read(source)
    except DataError as error:
        raise UserError(str(error)) from error
