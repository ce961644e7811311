"""Clips of an evaluation: a fixed choice of recordings with their transcripts, from any format that `tokenize` reads.

The choice depends on the files and the seed alone, so two models are evaluated on the same clips. Clips that cannot be
read, or are longer than the limit, are left out and replaced by others; how many is reported.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from triptych.data.sources import BadSample, ReadOptions, open_source
from triptych.data.sources.base import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from triptych.data.types import RawSample
from triptych.errors import DataError, UserError
from triptych.utils.files import files_below
from triptych.utils.media import Audio, read_audio
from triptych.utils.rng import random_bits
from triptych.vocab import Task

Progress = Callable[[str], None]

_SILENCE = 1e-4
"""Largest amplitude of a clip that counts as silent: -80 dB."""
_MANY_BYTES = 2  # clips that come as bytes (in .tar or Parquet) are kept for this many times the number wanted
_SEED = 0x5EEC


@dataclass(frozen=True)
class Clip:
    """A recording: where it is, and what is said. Small and picklable, unless it comes from a .tar or Parquet file."""

    key: str
    text: str
    media: str | bytes
    offset: float = 0.0
    duration: float | None = None
    seconds: float = 0.0
    """Length of the audio that `load` returns."""
    sha256: str = ""
    """Of its samples."""

    def load(self, max_seconds: float = 3600.0) -> Audio:
        return read_audio(self.media, self.offset, self.duration, max_seconds)


@dataclass(frozen=True)
class SpeechData:
    """The chosen clips, in the order of the source, and why others were left out."""

    clips: tuple[Clip, ...]
    left_out: dict[str, int]

    @cached_property
    def sha256(self) -> str:
        """Changes with the choice, a text or the audio of a clip; not with the place where the files lie."""
        listed = [[Path(clip.key).name, clip.text, round(clip.seconds, 4), clip.sha256] for clip in self.clips]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    @property
    def summary(self) -> str:
        hours = sum(clip.seconds for clip in self.clips) / 3600
        reasons = "; ".join(f"{count} left out, {reason}" for reason, count in self.left_out.items())
        return f"{len(self.clips)} clips, {hours:.2f} h" + (f" ({reasons})" if reasons else "")


def choose_speech(
    inputs: Sequence[str],
    num_samples: int | None,
    *,
    max_seconds: float = 30.0,
    seed: int = 0,
    text_key: str | None = None,
    needs_text: bool = True,
) -> SpeechData:
    """Choose clips at random; `num_samples` None takes all. Without `needs_text`, folders of bare audio do as well."""
    _check_inputs(inputs)
    candidates, left_out = _list(inputs, Task.AUDIO_TEXT, text_key, num_samples, seed, needs_text)
    chosen: list[tuple[int, Clip]] = []
    example = ""
    for index, clip in sorted(candidates, key=lambda pair: _priority(seed, pair[0])):
        if num_samples is not None and len(chosen) == num_samples:
            break
        try:
            chosen.append((index, _checked(clip, max_seconds, needs_text)))
        except UserError as error:  # not only DataError: a length of 0 in a table is refused as a wrong argument
            reason = error.category if isinstance(error, _Unusable) else "unreadable"
            left_out[reason] = left_out.get(reason, 0) + 1
            example = example or f" For example: {error}"
    if not chosen:
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise DataError(f"there is no usable clip in {', '.join(inputs)} ({counts or 'no audio files'}).{example}")
    return SpeechData(tuple(clip for _, clip in sorted(chosen, key=lambda pair: pair[0])), left_out)


class _Unusable(DataError):
    def __init__(self, category: str, message: str):
        super().__init__(message)
        self.category = category


def _checked(clip: Clip, max_seconds: float, needs_text: bool) -> Clip:
    """The clip with its length, if it can be used."""
    if needs_text and not clip.text.strip():
        raise _Unusable("without a text", f"{clip.key} has no text.")
    if clip.duration is not None and clip.duration > max_seconds:
        raise _Unusable(f"longer than {max_seconds:g} s", f"{clip.key} is {clip.duration:.1f} s long.")
    audio = clip.load()
    if audio.seconds > max_seconds:
        raise _Unusable(f"longer than {max_seconds:g} s", f"{clip.key} is {audio.seconds:.1f} s long.")
    if np.abs(audio.samples).max(initial=0) < _SILENCE:
        raise _Unusable("silent", f"{clip.key} is silent.")
    digest = hashlib.sha256(f"{audio.sample_rate} ".encode() + audio.samples.tobytes()).hexdigest()
    return replace(clip, seconds=audio.seconds, sha256=digest)


def _list(
    inputs: Sequence[str], task: Task, text_key: str | None, num_samples: int | None, seed: int, needs_text: bool
) -> tuple[list[tuple[int, Clip]], dict[str, int]]:
    """All clips of the inputs with their numbers; of those that come as bytes, no more than may be chosen."""
    try:
        source = open_source(inputs, task=task, options=ReadOptions(text_key=text_key))
    except DataError:
        if needs_text:
            raise
        paths = media_files(inputs, AUDIO_SUFFIXES)
        return [(index, Clip(str(path), "", str(path))) for index, path in enumerate(paths)], {}
    candidates: list[tuple[int, Clip]] = []
    left_out: dict[str, int] = {}
    for index, item in enumerate(source):
        if isinstance(item, BadSample):
            left_out[item.category] = left_out.get(item.category, 0) + 1
        elif isinstance(item, RawSample) and item.media is not None:
            candidates.append(
                (index, Clip(item.key, item.text, item.media, item.offset_seconds, item.duration_seconds))
            )
            if num_samples is not None and isinstance(item.media, bytes):
                candidates = _with_priority(candidates, _MANY_BYTES * num_samples, seed)
    return candidates, left_out


def _with_priority(candidates: list[tuple[int, Clip]], most: int, seed: int) -> list[tuple[int, Clip]]:
    if len(candidates) < 2 * most:
        return candidates
    return sorted(candidates, key=lambda pair: _priority(seed, pair[0]))[:most]


def _priority(seed: int, index: int) -> int:
    return int(random_bits(seed, _SEED, index).item())


def media_files(inputs: Sequence[str], suffixes: Sequence[str] = IMAGE_SUFFIXES) -> list[Path]:
    """All files with these suffixes: those that are named, and those in folders, sorted by name."""
    _check_inputs(inputs)
    paths_found: list[Path] = []
    for text in inputs:
        path = Path(text)
        if path.is_dir():
            below = files_below(path)
            paths_found += [each for each in below if each.suffix.lower() in suffixes and each.is_file()]
        elif path.is_file():
            if path.suffix.lower() not in suffixes:
                raise DataError(f"{path} is not one of the formats {', '.join(suffixes)}.")
            paths_found.append(path)
        else:
            raise DataError(f"no such file or folder: {text}")
    if not paths_found:
        raise DataError(f"there is no file in {', '.join(inputs)} that ends in {', '.join(suffixes)}.")
    return paths_found


def choose(number: int, num_samples: int | None, seed: int) -> list[int]:
    """Indices of a random choice, in order."""
    order = sorted(range(number), key=lambda index: _priority(seed, index))
    return sorted(order if num_samples is None else order[:num_samples])


def _check_inputs(inputs: Sequence[str]) -> None:
    if isinstance(inputs, str) or not inputs:
        raise UserError("give the data of the evaluation: one or more files or folders.")
