"""Manifests of speech corpora: a .json file of JSON lines with audio_filepath, duration and text.

This is how NeMo stores corpora, and LibriSpeech-PC (OpenSLR 145), which has LibriSpeech's transcripts with capitals and
punctuation. LibriSpeech-PC comes without audio: its paths, such as test-clean/1089/134686/1089-134686-0000.flac, start
at the folder LibriSpeech of OpenSLR 12, which may lie beside the manifest or one folder above it. `text` is normalised
for recognition; `text_raw`, if it is wanted, is chosen as the text's key.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from triptych.data.sources.base import BadSample, Format, Reading, ReadOptions
from triptych.data.sources.files import CountedFile, decompressed, plain_name
from triptych.data.sources.tables import json_rows, sample_of, task_of_rows
from triptych.data.types import RawSample
from triptych.utils.json_files import parse_json
from triptych.vocab import Task

_LONGEST_FIRST_LINE = 1 << 16
_CORPUS = "LibriSpeech"


def _claims(path: Path) -> bool:
    """Whether the first line of a .json file is an object with audio_filepath; most .json files are something else."""
    if not plain_name(path).endswith(".json"):
        return False
    try:
        with CountedFile(path) as file, decompressed(file, path) as stream:
            row = parse_json(stream.readline(_LONGEST_FIRST_LINE))
    except (OSError, EOFError, ValueError, RecursionError):
        return False
    return isinstance(row, dict) and isinstance(row.get("audio_filepath"), str)


def _read(path: Path, task: Task, options: ReadOptions) -> Reading:
    roots = _roots(path)
    for fraction, key, row in json_rows(path):
        if isinstance(row, BadSample):
            yield fraction, row
            continue
        sample = sample_of(row, key, path.parent, task, options)
        if isinstance(sample, RawSample) and isinstance(sample.media, str):
            given = row.get("audio_filepath")
            if isinstance(given, str) and given:
                sample = replace(sample, media=_find(given, roots) or sample.media)
        if isinstance(sample, RawSample) and sample.duration_seconds == 0:
            sample = BadSample(key, "no length: the duration is 0")
        yield fraction, sample


def _roots(path: Path) -> list[Path]:
    """Folders that the paths of a manifest may start at."""
    above = [path.parent, path.parent.parent]
    return [*above, *(folder / _CORPUS for folder in above)]


def _find(name: str, roots: list[Path]) -> str | None:
    """The audio file that a manifest names, perhaps converted to another format; None if there is none."""
    plain = name.lstrip("/").removeprefix(_CORPUS + "/")
    names = [roots[0] / name, *(root / plain for root in roots)]  # an absolute name stays as it is
    try:
        for path in (each.with_suffix(suffix) for each in names for suffix in (each.suffix, ".flac", ".wav")):
            if path.is_file():
                return str(path)
    except (OSError, ValueError):  # a name that no file can have: too long, or "."
        return None
    return None


def _task_of(path: Path, options: ReadOptions) -> Task:
    return task_of_rows((row for _, _, row in json_rows(path) if isinstance(row, Mapping)), path, options)


MANIFEST = Format(
    name="manifest",
    looks_for="*.json[.gz|.zst]: NeMo and LibriSpeech-PC manifests, lines with audio_filepath, duration and a text",
    claims=_claims,
    task_of=_task_of,
    read=_read,
)
