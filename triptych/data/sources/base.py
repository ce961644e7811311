"""Shared by all formats: the items they yield, and the description of a format."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from triptych.data.types import RawSample
from triptych.errors import UserError
from triptych.utils.arguments import check_fields
from triptych.vocab import Task

MAX_MEDIA_BYTES = 256 << 20
"""Limit for one encoded image or audio file, and for all members of one sample of a tar."""
MAX_TEXT_BYTES = 32 << 20
"""Limit for one document; a larger one is a decompression bomb or a file without line ends."""

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
AUDIO_SUFFIXES = (".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")
_LONGEST_NAME = 500  # characters of a key or reason


def too_long() -> str:
    """The reason why a text beyond the limit is bad."""
    return f"text too long: more than {MAX_TEXT_BYTES >> 20} MiB"


def too_large(name: str = "") -> str:
    """The reason why a file beyond the limit is bad."""
    return f"file too large: {f'{name} has ' if name else ''}more than {MAX_MEDIA_BYTES >> 20} MiB"


@dataclass(frozen=True)
class BadSample:
    """Replaces a sample that cannot be used, so that all other samples keep their numbers.

    `reason` is a short category, optionally followed by ": " and details; summaries count by category. Both are cut
    after some hundred characters: files choose the names in them, and all bad samples are kept in memory.
    """

    key: str
    reason: str

    def __post_init__(self) -> None:
        for name in ("key", "reason"):
            text = getattr(self, name)
            if isinstance(text, str) and len(text) > _LONGEST_NAME:
                object.__setattr__(self, name, f"{text[: _LONGEST_NAME - 3]}...")

    @property
    def category(self) -> str:
        return self.reason.partition(": ")[0]


Item = RawSample | BadSample
Reading = Iterator[tuple[float, Item]]
"""Items, each with the fraction of its file that has been read, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read files that allow several interpretations."""

    text_key: str | None = None
    """Column or field of the text; None tries the usual names."""
    prompt_key: str | None = None
    """Column or field of a prompt, which is given before the text; None tries the usual pairs of names."""
    media_key: str | None = None
    """Column or field of the image or audio, or of its path; None tries the usual names."""
    per_line: bool = False
    """Whether every line of a plain text file is a document."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prompt_key is not None and self.prompt_key == self.text_key:
            raise UserError(f"--prompt-key and --text-key are both {self.text_key!r}; they name two columns.")


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way of storing samples. Every file of a format is read independently, from start to end."""

    name: str
    looks_for: str
    """How it is recognised; shown in the help and in the error when no format matches."""
    claims: Callable[[Path], bool]
    """Whether a file has this format, by its name and its neighbours."""
    task_of: Callable[[Path, ReadOptions], Task]
    """The task of a file's samples, detected from the first of them. Raises DataError if it cannot be detected."""
    read: Callable[[Path, Task, ReadOptions], Reading]
    pick: Callable[[list[Path]], list[Path]] = list
    """Selects the files to read among all claimed files of a folder."""
    watched: Callable[[Path], tuple[Path, ...]] = lambda path: (path,)
    """The files whose size and time are part of the input's fingerprint."""


def task_of_name(name: str | Path) -> Task | None:
    """The task that a media file belongs to, by its suffix; None for other files."""
    suffix = PurePath(name).suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return Task.IMAGE_TEXT
    return Task.AUDIO_TEXT if suffix in AUDIO_SUFFIXES else None


def media_name(task: Task) -> str:
    """The name of the media that a task pairs with text."""
    return "image" if task == Task.IMAGE_TEXT else "audio"
