"""Reading raw samples from files, in an order that depends on the file names alone.

    inputs (paths, folders, patterns) -> Source (parts: one file of one format each) -> RawSample or BadSample

To add a format: write a module with one `Format` (see `plain.py` for the smallest), add it to `FORMATS` below, and
add its files and expected samples to `tests/data/test_sources.py`. The help of `triptych tokenize` lists it by itself.
"""

import csv
import glob
import hashlib
import itertools
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych.data.sources.base import BadSample, Format, Item, ReadOptions
from triptych.data.sources.manifest import MANIFEST
from triptych.data.sources.parquet import PARQUET
from triptych.data.sources.plain import LIBRISPEECH, PAIRS, TXT
from triptych.data.sources.tables import TABLE
from triptych.data.sources.tars import WEBDATASET
from triptych.errors import DataError, UserError, did_you_mean
from triptych.vocab import Task

__all__ = ["FORMATS", "BadSample", "Item", "Part", "ReadOptions", "Source", "open_source"]

# In a folder, the first format that claims a file wins: a folder of captioned images also holds .txt files.
FORMATS = (MANIFEST, LIBRISPEECH, TABLE, PAIRS, WEBDATASET, PARQUET, TXT)

# The other formats may occur beside these: captions are .txt files, transcripts are stored beside audio files.
_NEVER_TOGETHER = (MANIFEST.name, TABLE.name, PAIRS.name, WEBDATASET.name, PARQUET.name)

# What readers raise on a damaged file.
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError, csv.Error)


@dataclass(frozen=True, slots=True)
class Part:
    """One file, read from start to end."""

    path: Path
    format: Format
    size: int


class Source:
    """All samples of some files, in order. A new iteration starts from the beginning."""

    def __init__(self, parts: Sequence[Part], task: Task, options: ReadOptions):
        self.parts, self.task, self.options = parts, task, options
        self.fraction = 0.0
        """Fraction of all bytes that the latest iteration has read, from 0 to 1."""

    def __iter__(self) -> Iterator[Item]:
        total = max(sum(part.size for part in self.parts), 1)
        before = 0
        for part in self.parts:
            for fraction, item in _guarded(part, self.task, self.options):
                self.fraction = (before + fraction * part.size) / total
                yield item
            before += part.size
        self.fraction = 1.0

    def fingerprint(self) -> dict[str, int | str]:
        """Changes when any input file appears, disappears or changes its size or time. Contents are not read.

        Media files that a table or transcript refers to are not included: there may be millions, anywhere.
        """
        digest, files, size = hashlib.sha256(), 0, 0
        for path in itertools.chain.from_iterable(part.format.watched(part.path) for part in self.parts):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            digest.update(json.dumps([str(path), status.st_size, status.st_mtime_ns]).encode())
            files, size = files + 1, size + status.st_size
        return {"files": files, "bytes": size, "sha256": digest.hexdigest()}


def _guarded(part: Part, task: Task, options: ReadOptions) -> Iterator[tuple[float, Item]]:
    """Read a part. If it is damaged, the rest of it counts as one bad sample and the next part follows."""
    try:
        yield from part.format.read(part.path, task, options)
    except UserError:
        raise
    except _UNREADABLE as error:
        yield 1.0, BadSample(str(part.path), f"rest of the file unreadable: {_describe(error)}")


def _describe(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()


# -- detecting formats ------------------------------------------------------------------------------------------------


def open_source(
    inputs: Sequence[str], *, format: str | None = None, task: Task | None = None, options: ReadOptions | None = None
) -> Source:
    """Detect the format and the task of the inputs: files, folders, or patterns like `shards/{00000..00099}.tar`.

    `format` and `task` are for ambiguous inputs; None detects them.
    """
    options = options or ReadOptions()
    formats = FORMATS if format is None else (_format_named(format),)
    all_parts = [part for text in inputs for path in _expand(text) for part in _parts_of(path, formats)]
    parts = list({part.path.resolve(): part for part in all_parts}.values())  # a file named twice is read once
    if task not in (None, Task.TEXT) and any(part.format is TXT for part in parts):
        raise UserError(f"plain text files hold no {task.label} samples; leave out --task or choose other inputs.")
    task = task if task is not None else _common_task(parts, options)
    return Source(parts, task, options)


def _format_named(name: str) -> Format:
    known = {format.name: format for format in FORMATS}
    if name not in known:
        raise UserError(f"unknown format {name!r}.{did_you_mean(name, list(known))}")
    return known[name]


def _expand(text: str) -> list[Path]:
    """A path, or all paths that match a pattern, sorted. {00..12}, {a,b}, * ? and [] work as in a shell."""
    if not text:
        raise UserError("an input is an empty string; is a shell variable not set?")
    if Path(text).exists():
        return [Path(text)]
    names: list[str] = []
    for name in _expand_braces(text):
        matches = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
        if not matches:
            raise DataError(f"no such file or folder: {name}")
        names += matches
    return [Path(name) for name in names]


def _expand_braces(text: str) -> list[str]:
    brace = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", text)
    if brace is None:
        return [text]
    first, last, listed = brace.groups()
    if first and int(first) > int(last):
        raise UserError(f"the range {{{first}..{last}}} in {text!r} is empty; write the lower number first.")
    words = listed.split(",") if listed else [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    head, tail = text[: brace.start()], text[brace.end() :]
    return [head + word + rest for word in words for rest in _expand_braces(tail)]


def _parts_of(path: Path, formats: Sequence[Format]) -> list[Part]:
    files = _walk(path) if path.is_dir() else [path]
    parts: dict[str, list[Part]] = {}  # by format
    for format in formats:
        claimed = [file for file in files if format.claims(file)]
        picked = format.pick(claimed) if path.is_dir() else claimed
        if picked:
            parts[format.name] = [Part(file, format, file.stat().st_size) for file in picked]
    conflicting = [name for name in parts if name in _NEVER_TOGETHER]
    if len(conflicting) > 1:
        examples = ", ".join(f"{name} ({parts[name][0].path})" for name in conflicting)
        raise UserError(f"{path} holds samples of several formats: {examples}. Choose with --format.")
    if parts:
        return next(iter(parts.values()))
    kinds = "\n".join(f"  {format.name:12} {format.looks_for}" for format in formats)
    where = f"among the {len(files)} files in {path}" if path.is_dir() else f"in {path}"
    raise DataError(f"found no samples {where}. Looked for:\n{kinds}")


def _walk(folder: Path) -> list[Path]:
    """All files below a folder, sorted, without hidden ones."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if file.exists())  # a link may be broken


def _common_task(parts: Sequence[Part], options: ReadOptions) -> Task:
    """The task of the parts, detected from the first file of every format and suffix in every folder."""
    samples = {(part.format.name, part.path.parent, part.path.suffix): part for part in reversed(parts)}
    tasks: dict[Task, Path] = {}
    for part in samples.values():
        try:
            tasks.setdefault(part.format.task_of(part.path, options), part.path)
        except UserError:
            raise
        except _UNREADABLE as error:
            raise DataError(f"{part.path} cannot be read as {part.format.name}: {_describe(error)}.") from error
    if len(tasks) > 1:
        tasks_found = ", ".join(f"{task.label} in {path}" for task, path in sorted(tasks.items()))
        raise DataError(
            f"a dataset holds samples of one task, but there is {tasks_found}. "
            "Tokenize them separately, or give --task."
        )
    return next(iter(tasks))
