"""Text files: documents, captions beside an image or audio file, and LibriSpeech transcripts."""

from collections.abc import Iterator
from pathlib import Path

from triptych.data.sources.base import BadSample, Format, Reading, ReadOptions, task_of_name
from triptych.data.sources.files import plain_name, read_document, read_lines
from triptych.data.types import RawSample
from triptych.errors import DataError
from triptych.vocab import Task


def _read_documents(path: Path, task: Task, options: ReadOptions) -> Reading:
    if not options.per_line:
        text = read_document(path)
        yield 1.0, text if isinstance(text, BadSample) else RawSample(str(path), text)
        return
    for fraction, key, line in read_lines(path):
        yield fraction, line if isinstance(line, BadSample) else RawSample(key, line)


TXT = Format(
    name="txt",
    looks_for="*.txt[.gz|.zst]: one document per file, or one per line with --per-line",
    claims=lambda path: plain_name(path).endswith(".txt"),
    task_of=lambda path, options: Task.TEXT,
    read=_read_documents,
)


def _caption_of(media: Path) -> Path:
    return media.with_suffix(".txt")


def _read_pair(path: Path, task: Task, options: ReadOptions) -> Reading:
    if task_of_name(path) != task:
        return  # in a folder of images and audio, --task selects one kind
    caption = _caption_of(path)
    text = (
        read_document(caption)
        if caption.is_file()
        else BadSample(str(path), f"no caption: no {caption.name} beside it")
    )
    yield 1.0, text if isinstance(text, BadSample) else RawSample(str(path), text.strip(), str(path))


def _task_of_pair(path: Path, options: ReadOptions) -> Task:
    task = task_of_name(path)
    if task is None:
        raise DataError(f"{path} is neither an image nor an audio file.")
    return task


def _with_captions(media: list[Path]) -> list[Path]:
    """All files if any has a caption; those without one become bad samples."""
    return media if any(_caption_of(path).is_file() for path in media) else []


PAIRS = Format(
    name="pairs",
    looks_for="images or audio files with a caption beside them: cat.png + cat.txt, hello.flac + hello.txt",
    claims=lambda path: task_of_name(path) is not None,
    task_of=_task_of_pair,
    read=_read_pair,
    pick=_with_captions,
    watched=lambda path: (path, _caption_of(path)),
)


def _read_transcript(path: Path, task: Task, options: ReadOptions) -> Reading:
    for fraction, key, line in read_lines(path):
        if isinstance(line, BadSample):
            yield fraction, line
            continue
        name, _, text = line.partition(" ")
        audio = next(_audio_files(path.parent, name), None)
        if audio is None:
            yield fraction, BadSample(key, f"missing file: {name}.flac is not beside the transcript")
        else:
            yield fraction, RawSample(key, text.strip(), str(audio))


def _audio_files(folder: Path, name: str) -> Iterator[Path]:
    if Path(name).name == name:  # a transcript must not refer to files outside its folder
        candidates = (folder / f"{name}{suffix}" for suffix in (".flac", ".wav"))
        yield from (path for path in candidates if path.is_file())


LIBRISPEECH = Format(
    name="librispeech",
    looks_for="SPEAKER/CHAPTER/*.trans.txt with lines `ID WORDS`, beside ID.flac",
    claims=lambda path: path.name.endswith(".trans.txt"),
    task_of=lambda path, options: Task.AUDIO_TEXT,
    read=_read_transcript,
)
