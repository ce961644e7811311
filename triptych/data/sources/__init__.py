"""Reading raw samples from files, in an order that depends on the file names alone.

    inputs (paths, folders, patterns) -> Source (parts: one file of one format each) -> RawSample or BadSample

To add a format: write a module with one `Format` (see `plain.py` for the smallest), add it to `FORMATS` below, and
add its files and expected samples to `tests/data/test_sources.py`. The help of `triptych tokenize` lists it by itself.
"""

import csv
import errno
import glob
import hashlib
import itertools
import json
import math
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.data.sources.base import BadSample, Format, Item, ReadOptions
from triptych.data.sources.manifest import MANIFEST
from triptych.data.sources.parquet import PARQUET
from triptych.data.sources.plain import LIBRISPEECH, PAIRS, TXT
from triptych.data.sources.tables import TABLE
from triptych.data.sources.tars import WEBDATASET
from triptych.errors import DataError, UserError, did_you_mean
from triptych.utils.files import files_below
from triptych.vocab import Task

__all__ = ["FORMATS", "BadSample", "Item", "Part", "ReadOptions", "Source", "open_source"]

# In a folder, the first format that claims a file wins: a folder of captioned images also holds .txt files.
FORMATS = (MANIFEST, LIBRISPEECH, TABLE, PAIRS, WEBDATASET, PARQUET, TXT)

# The other formats may occur beside these: captions are .txt files, transcripts are stored beside audio files.
_NEVER_TOGETHER = (MANIFEST.name, TABLE.name, PAIRS.name, WEBDATASET.name, PARQUET.name)

# What readers raise on a damaged file. The last three are of tarfile, from headers that contradict each other.
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError, csv.Error)
_UNREADABLE += (RecursionError, LookupError, OverflowError)  # type: ignore[assignment]

_MOST_NAMES = 1_000_000  # that a pattern with braces may stand for
_LONGEST_SHOWN = 1000  # characters of a name in an error
_LONGEST_NUMBER = 18  # digits in {00..99}


@dataclass(frozen=True, slots=True)
class Part:
    """One file, read from start to end."""

    path: Path
    format: Format
    size: int


class Source:
    """All samples of some files, in order. A new iteration starts from the beginning.

    `skipped` are folders and files that cannot be read; they come first, as bad samples.
    """

    def __init__(self, parts: Sequence[Part], task: Task, options: ReadOptions, skipped: Sequence[BadSample] = ()):
        self.parts, self.task, self.options, self.skipped = parts, task, options, skipped
        self.fraction = 0.0
        """Fraction of all bytes that the latest iteration has read, from 0 to 1."""

    def __iter__(self) -> Iterator[Item]:
        total = max(sum(part.size for part in self.parts), 1)
        before = 0
        yield from self.skipped
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
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:200]


# -- detecting formats ------------------------------------------------------------------------------------------------


def open_source(
    inputs: Sequence[str], *, format: str | None = None, task: Task | None = None, options: ReadOptions | None = None
) -> Source:
    """Detect the format and the task of the inputs: files, folders, or patterns like `shards/{00000..00099}.tar`.

    `format` and `task` are for ambiguous inputs; None detects them.
    """
    options = options or ReadOptions()
    formats = FORMATS if format is None else (_format_named(format),)
    skipped: dict[str, BadSample] = {}
    all_parts = [part for text in inputs for path in _expand(text) for part in _parts_of(path, formats, skipped)]
    parts = list({part.path.resolve(): part for part in all_parts}.values())  # a file named twice is read once
    if task not in (None, Task.TEXT) and any(part.format is TXT for part in parts):
        raise UserError(f"plain text files hold no {task.label} samples; leave out --task or choose other inputs.")
    task = task if task is not None else _common_task(parts, options)
    return Source(parts, task, options, list(skipped.values()))


def _format_named(name: str) -> Format:
    known = {format.name: format for format in FORMATS}
    if name not in known:
        raise UserError(f"unknown format {name!r}.{did_you_mean(name, list(known))}")
    return known[name]


def _expand(text: str) -> list[Path]:
    """A path, or all paths that match a pattern, sorted. {00..12}, {a,b}, * ? and [] work as in a shell."""
    if not text:
        raise UserError("an input is an empty string; is a shell variable not set?")
    if _exists(text):
        return [Path(text)]
    names: list[str] = []
    for name in _expand_braces(text):
        matches = [name] if _exists(name) else sorted(glob.glob(name, recursive=True))
        if not matches:
            raise DataError(f"no such file or folder: {name[:_LONGEST_SHOWN]}")
        names += matches
    return [Path(name) for name in names]


def _exists(name: str) -> bool:
    """Whether there is such a file or folder. A pattern may be longer than any name, which is an OSError."""
    try:
        return Path(name).exists()
    except PermissionError as error:
        raise DataError(f"{name} cannot be read: {_describe(error)}.") from error
    except (OSError, ValueError):
        return False


def _expand_braces(text: str) -> Iterator[str]:
    """The names that {00..12} and {a,b} stand for, one by one; too many are refused first."""
    parts = re.split(r"(\{(?:\d+\.\.\d+|[^{}]*,[^{}]*)\})", text)  # text and braces in turns
    choices = [_choices(brace, text) for brace in parts[1::2]]
    if math.prod(map(len, choices)) > _MOST_NAMES:
        raise UserError(f"{text[:100]!r} stands for more than {_MOST_NAMES:,} names; give the folder, or use *.")
    for words in itertools.product(*choices):
        yield parts[0] + "".join(map("".join, zip(words, parts[2::2])))


def _choices(brace: str, text: str) -> Sequence[str]:
    """The words that a brace stands for."""
    if "," in brace:
        return brace[1:-1].split(",")
    first, last = brace[1:-1].split("..")
    if max(len(first), len(last)) > _LONGEST_NUMBER:
        raise UserError(f"a number in {text[:100]!r} has more than {_LONGEST_NUMBER} digits.")
    numbers = range(int(first), int(last) + 1)
    if not numbers:
        raise UserError(f"the range {brace} in {text!r} is empty; write the lower number first.")
    return _Padded(numbers, len(first))


class _Padded(Sequence[str]):
    """Numbers as words of at least a width, made when they are needed: there may be billions."""

    def __init__(self, numbers: range, width: int):
        self._numbers, self._width = numbers, width

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return str(self._numbers[index]).zfill(self._width)


def _parts_of(path: Path, formats: Sequence[Format], skipped: dict[str, BadSample]) -> list[Part]:
    """The parts of a file or a folder; what cannot be read is added to `skipped`."""
    files = _walk(path, skipped) if path.is_dir() else [path]
    if files == [path] and not path.is_file():
        raise DataError(f"{path} is neither a regular file nor a folder, but a pipe, a socket or a device.")
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


def _walk(folder: Path, skipped: dict[str, BadSample]) -> list[Path]:
    """All regular files below a folder, sorted, without hidden ones. Folders and files without access are skipped."""

    def skip(error: OSError) -> None:
        name = str(error.filename)
        skipped.setdefault(name, BadSample(name, f"no access: {_describe(error)}"))

    files: list[Path] = []
    for file in files_below(folder, skip):
        try:
            if stat.S_ISREG(file.stat().st_mode):
                files.append(file)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):  # of a broken link, and of a link to itself
                skip(error)
    return files


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
