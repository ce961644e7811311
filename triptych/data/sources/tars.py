"""WebDataset: tar files in which the members of one sample are adjacent and share their name up to the first dot.

Nothing is unpacked to disk. A sample with a link, or with a name that leads outside, is bad.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from triptych.data.sources.base import MAX_MEDIA_BYTES, BadSample, Format, Item, Reading, ReadOptions, task_of_name
from triptych.data.sources.files import CountedFile, decode_text, decompressed
from triptych.data.sources.tables import MEDIA_COLUMNS, sample_of
from triptych.errors import DataError
from triptych.vocab import Task

_BLOCK = 512


@dataclass
class _Group:
    """The members of one sample as a row: .txt as `text`, the fields of .json, media under their suffix."""

    name: str
    row: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def _members(path: Path) -> Iterator[tuple[float, tarfile.TarFile, tarfile.TarInfo]]:
    """All members but folders and hidden files, with the fraction of the tar that has been read."""
    with CountedFile(path) as file, decompressed(file, path) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        while (member := tar.next()) is not None:
            # tarfile would otherwise keep every member of a large tar.
            tar.members.clear()  # type: ignore[attr-defined]
            if not member.isdir() and not PurePosixPath(member.name).name.startswith("."):
                yield file.fraction, tar, member
        # tarfile treats a damaged header as the end of the archive; the real end is zeros or nothing.
        stream.seek(tar.offset)
        if stream.read(_BLOCK).strip(b"\0"):
            raise tarfile.ReadError(f"no tar header at byte {tar.offset}")


def _name_and_suffix(member: tarfile.TarInfo) -> tuple[str, str]:
    path = PurePosixPath(member.name)
    stem, _, suffix = path.name.partition(".")
    return str(path.with_name(stem)) if stem else str(path), suffix.lower()


def _problem_of(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "unsafe name in tar"
    if not member.isreg() or member.issparse():
        return f"not a plain file in tar: {path.name}"
    if member.size > MAX_MEDIA_BYTES:
        return f"file too large: {path.name} has more than {MAX_MEDIA_BYTES >> 20} MiB"
    return ""


def _add(
    group: _Group, suffix: str, member: tarfile.TarInfo, tar: tarfile.TarFile, task: Task, options: ReadOptions
) -> None:
    """Read a member into the row of its sample, if the task needs it."""
    is_media = suffix == options.media_key or task_of_name(member.name) == task != Task.TEXT
    is_text = suffix in ("txt", "json", options.text_key, options.prompt_key)
    if group.problem or not (is_media or is_text):
        return
    group.problem = _problem_of(member)
    if group.problem:
        return
    file = tar.extractfile(member)
    assert file is not None  # it is a plain file
    content = file.read()
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
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        group.problem = f"bad JSON: {error}"
        return
    if isinstance(fields, dict):
        # The image or audio is a member of the tar; a path in the JSON is its former location.
        known = {name: value for name, value in fields.items() if name not in MEDIA_COLUMNS.get(task, ())}
        group.row = known | group.row


def _read_tar(path: Path, task: Task, options: ReadOptions) -> Reading:
    group = _Group("")
    for fraction, tar, member in _members(path):
        name, suffix = _name_and_suffix(member)
        if name != group.name:
            yield from ((fraction, item) for item in _sample_of_group(group, path, task, options))
            group = _Group(name)
        _add(group, suffix, member, tar, task, options)
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
    for _, _, member in _members(path):
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
