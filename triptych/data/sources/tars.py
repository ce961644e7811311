"""WebDataset: tar files in which the members of one sample are adjacent and share their name up to the first dot.

Nothing is unpacked to disk. A sample with a link, or with a name that leads outside, is bad. Sizes are checked before
anything is read: a header may claim a name of gigabytes.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from triptych.data.sources.base import (
    MAX_MEDIA_BYTES,
    MAX_TEXT_BYTES,
    BadSample,
    Format,
    Item,
    Reading,
    ReadOptions,
    task_of_name,
    too_large,
    too_long,
)
from triptych.data.sources.files import CountedFile, decode_text, decompressed
from triptych.data.sources.tables import MEDIA_COLUMNS, sample_of
from triptych.errors import DataError
from triptych.utils.json_files import parse_json
from triptych.vocab import Task

_BLOCK = 512
_MAX_HEADER_BYTES = 1 << 16  # of one member, with the extended headers before it that hold long names


@dataclass
class _Group:
    """The members of one sample as a row: .txt as `text`, the fields of .json, media under their suffix."""

    name: str
    row: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    """Bytes of the members in the row."""
    problem: str = ""

    def refuse(self, problem: str) -> None:
        self.row.clear()
        self.problem = problem


class _Bounded:
    """The part of a tar's stream that tarfile uses, with a limit on the bytes that are read for one member."""

    def __init__(self, stream: BinaryIO):
        self._stream, self.left = stream, _MAX_HEADER_BYTES
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        self.left -= size
        if size < 0 or self.left < 0:
            raise tarfile.ReadError(f"a tar header of more than {_MAX_HEADER_BYTES >> 10} KiB")
        return self._stream.read(size)


def members(path: Path) -> Iterator[tuple[float, BinaryIO, tarfile.TarInfo]]:
    """All members but folders and hidden files, with the fraction of the tar that has been read, and its stream."""
    with CountedFile(path) as file, decompressed(file, path) as stream:
        bounded = _Bounded(stream)
        tar = tarfile.open(fileobj=cast(BinaryIO, bounded), mode="r:")  # noqa: SIM115 (has nothing to close)
        while (member := tar.next()) is not None:
            # tarfile would otherwise keep every member of a large tar, and all global headers.
            tar.members.clear()  # type: ignore[attr-defined]
            tar.pax_headers.clear()  # type: ignore[attr-defined]
            if not member.isdir() and not PurePosixPath(member.name).name.startswith("."):
                yield file.fraction, stream, member
            bounded.left = _MAX_HEADER_BYTES
        # tarfile treats a damaged header as the end of the archive; the real end is zeros or nothing.
        stream.seek(tar.offset)
        if stream.read(_BLOCK).strip(b"\0"):
            raise tarfile.ReadError(f"no tar header at byte {tar.offset}")


def read_member(stream: BinaryIO, member: tarfile.TarInfo) -> bytes:
    """The content of a member that has no problem."""
    stream.seek(member.offset_data)
    content = stream.read(member.size)
    if len(content) < member.size:
        raise tarfile.ReadError("unexpected end of data")
    return content


def _name_and_suffix(member: tarfile.TarInfo) -> tuple[str, str]:
    path = PurePosixPath(member.name)
    stem, _, suffix = path.name.partition(".")
    return str(path.with_name(stem)) if stem else str(path), suffix.lower()


def problem_of(member: tarfile.TarInfo, size: int, *, is_media: bool) -> str:
    """Why a member cannot be read; `size` is that of its sample with it."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "unsafe name in tar"
    if not member.isreg() or member.issparse():
        return f"not a plain file in tar: {path.name}"
    if member.size > MAX_MEDIA_BYTES:
        return too_large(path.name)
    if not is_media and member.size > MAX_TEXT_BYTES:
        return too_long()
    return too_large("the sample") if size > MAX_MEDIA_BYTES + MAX_TEXT_BYTES else ""


def _add(
    group: _Group, suffix: str, member: tarfile.TarInfo, stream: BinaryIO, task: Task, options: ReadOptions
) -> None:
    """Read a member into the row of its sample, if the task needs it."""
    is_media = suffix == options.media_key or task_of_name(member.name) == task != Task.TEXT
    is_text = suffix in ("txt", "json", options.text_key, options.prompt_key)
    if group.problem or not (is_media or is_text):
        return
    group.size += member.size
    problem = problem_of(member, group.size, is_media=is_media)
    if problem:
        group.refuse(problem)
        return
    content = read_member(stream, member)
    if is_media:
        group.row[suffix] = content
        return
    text = decode_text(content, group.name)
    if isinstance(text, BadSample):
        group.problem = text.reason
    elif suffix == "json":
        _add_fields(group, text, task)
    else:
        group.row["text" if suffix == "txt" else suffix] = text


def _add_fields(group: _Group, text: str, task: Task) -> None:
    try:
        fields = parse_json(text)
    except (ValueError, RecursionError) as error:
        group.problem = f"bad JSON: {error}"
        return
    if isinstance(fields, dict):
        # The image or audio is a member of the tar; a path in the JSON is its former location.
        known = {name: value for name, value in fields.items() if name not in MEDIA_COLUMNS.get(task, ())}
        group.row = known | group.row


def _read_tar(path: Path, task: Task, options: ReadOptions) -> Reading:
    group = _Group("")
    for fraction, stream, member in members(path):
        name, suffix = _name_and_suffix(member)
        if name != group.name:
            yield from ((fraction, item) for item in _sample_of_group(group, path, task, options))
            group = _Group(name)
        _add(group, suffix, member, stream, task, options)
    yield from ((1.0, item) for item in _sample_of_group(group, path, task, options))


def _sample_of_group(group: _Group, path: Path, task: Task, options: ReadOptions) -> Iterator[Item]:
    key = f"{path}:{group.name}"
    if group.problem:
        yield BadSample(key, group.problem)
    elif group.row:
        yield sample_of(group.row, key, path.parent, task, options)


def _task_of_tar(path: Path, options: ReadOptions) -> Task:
    """The task of the first image or audio file; a tar without media is text, if it has any."""
    has_text = False
    for _, _, member in members(path):
        task = task_of_name(member.name)
        if task is not None:
            return task
        has_text = has_text or member.name.lower().endswith((".txt", ".json"))
    if has_text:
        return Task.TEXT
    raise DataError(
        f"{path} holds no samples: looked for images or audio files with .txt or .json members of the same name."
    )


WEBDATASET = Format(
    name="webdataset",
    looks_for="*.tar[.gz] with members like 0001.jpg + 0001.txt, or 0001.flac + 0001.json",
    claims=lambda path: path.name.lower().endswith((".tar", ".tar.gz", ".tgz")),
    task_of=_task_of_tar,
    read=_read_tar,
)
