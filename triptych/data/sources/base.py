"""What all sources share: the items they yield, and the description of a format."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from triptych.data.types import RawSample
from triptych.vocab import Task

MAX_MEDIA_BYTES = 256 << 20
"""Of one encoded picture or sound."""

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
AUDIO_SUFFIXES = (".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")


@dataclass(frozen=True)
class BadSample:
    """What stands in the place of a sample that cannot be used, so that every other sample keeps its number.

    `reason` is a short category, then perhaps ": " and details; summaries count by category.
    """

    key: str
    reason: str

    @property
    def category(self) -> str:
        return self.reason.partition(": ")[0]


Item = RawSample | BadSample
Reading = Iterator[tuple[float, Item]]
"""Items, each with how much of its file has been read, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files are to be understood, where they leave a choice."""

    text_key: str | None = None
    """Column or field that holds the text; the usual names are tried if None."""
    media_key: str | None = None
    """Column or field that holds the picture or sound, or its path; the usual names are tried if None."""
    per_line: bool = False
    """Whether every line of a plain text file is a document of its own."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way in which samples are stored. Every file of it is read on its own, from start to end."""

    name: str
    looks_for: str
    """By what it is recognised, for the help and for the error when nothing is."""
    claims: Callable[[Path], bool]
    """Whether a file is of this format, judged by its name and its neighbours."""
    task_of: Callable[[Path, ReadOptions], Task]
    """What its samples are, judged by the first of them. Raises DataError if that cannot be said."""
    read: Callable[[Path, Task, ReadOptions], Reading]
    pick: Callable[[list[Path]], list[Path]] = list
    """Of all claimed files of a folder, those to read."""
    watched: Callable[[Path], tuple[Path, ...]] = lambda path: (path,)
    """The files whose change means that the input has changed."""


def task_of_name(name: str | Path) -> Task | None:
    """What a file is, by its suffix; None for anything but a picture or a sound."""
    suffix = PurePath(name).suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return Task.IMAGE_TEXT
    return Task.AUDIO_TEXT if suffix in AUDIO_SUFFIXES else None


def media_name(task: Task) -> str:
    """The word for what stands beside the text."""
    return "image" if task == Task.IMAGE_TEXT else "audio"
