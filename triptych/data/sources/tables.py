"""Tables: JSONL, CSV and TSV. A row holds a text, or a text and the path of an image or audio file.

A prompt and a response in place of the text are for training on responses alone.

The same rules find the columns of Parquet files and the fields of .json members of a WebDataset. They cover Hugging
Face's ImageFolder and AudioFolder (file_name, text) and NeMo's manifests (audio_filepath, text, offset, duration).
Relative paths start at the folder of the table.
"""

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from triptych.data.sources.base import (
    AUDIO_SUFFIXES,
    IMAGE_SUFFIXES,
    MAX_MEDIA_BYTES,
    MAX_TEXT_BYTES,
    BadSample,
    Format,
    Item,
    Reading,
    ReadOptions,
    media_name,
    task_of_name,
    too_large,
    too_long,
)
from triptych.data.sources.files import CountedFile, decompressed, plain_name, read_lines
from triptych.data.types import RawSample
from triptych.errors import DataError, UserError
from triptych.utils.json_files import parse_json
from triptych.vocab import Task

TEXT_COLUMNS = ("text", "caption", "transcript", "transcription", "sentence")
RESPONSES = {"prompt": ("response", "completion"), "question": ("answer",), "instruction": ("output", "response")}
"""Usual names of a prompt, and of the responses that may be beside it."""
_MORE_OF_PROMPT = ("input", "context")
"""Columns that belong to a prompt, after it."""
_PATH_COLUMNS = ("file_name", "filename", "file", "path", "filepath")
MEDIA_COLUMNS = {
    Task.IMAGE_TEXT: ("image", "image_path", "img", *(suffix[1:] for suffix in IMAGE_SUFFIXES), *_PATH_COLUMNS),
    Task.AUDIO_TEXT: (
        "audio_filepath",
        "audio",
        "audio_path",
        *(suffix[1:] for suffix in AUDIO_SUFFIXES),
        *_PATH_COLUMNS,
    ),
}
_MEDIA_ONLY = ("image", "image_path", "img", "audio_filepath", "audio", "audio_path")
_MOST_SECONDS = 1e9
_ROWS_INSPECTED = 1000  # to detect the task of a table
_MAX_VALUES = 1 << 20  # in a line of JSON: a list of empty lists takes 30 times as much memory as its text
_MAX_FIELD_BYTES = 16 << 20  # in CSV, where an unclosed quote would swallow the rest of the file
_JSON_LINES = (".jsonl", ".ndjson")
Row = Mapping[str, Any]


# -- columns ----------------------------------------------------------------------------------------------------------


def find_text(row: Row, options: ReadOptions) -> tuple[str, str] | None:
    """The prompt, often empty, and the text of a row; None if no text column holds a string.

    A prompt counts if its column is named, or if the row has a response and no text.
    """
    candidates = TEXT_COLUMNS if options.text_key is None else (options.text_key,)
    text = next((row[name] for name in candidates if isinstance(row.get(name), str)), None)
    names = RESPONSES if options.prompt_key is None else (options.prompt_key,)
    if options.prompt_key is None and text is not None:
        return "", text
    for name in names:
        prompt = row.get(name)
        if not isinstance(prompt, str):
            continue
        responses = (options.text_key,) if options.text_key else (*RESPONSES.get(name, ("response",)), *TEXT_COLUMNS)
        response = next((row[each] for each in responses if each != name and isinstance(row.get(each), str)), None)
        if response is not None:
            more = [row[each] for each in _MORE_OF_PROMPT if isinstance(row.get(each), str) and row[each].strip()]
            return "\n".join([prompt, *more]), response
    return None


def find_media(row: Row, task: Task, options: ReadOptions) -> bytes | str | None:
    """The encoded image or audio of a row, or its path: from the first column that has one."""
    for name in MEDIA_COLUMNS[task] if options.media_key is None else (options.media_key,):
        value = row.get(name)
        if isinstance(value, Mapping):  # as Hugging Face stores them
            value = value.get("bytes") or value.get("path")
        if not value or not isinstance(value, bytes | str):
            continue
        cell_task = _task_of_cell(name, value)
        if cell_task == task or (cell_task is None and options.media_key is not None):
            return value
    return None


def _task_of_cell(column: str, value: bytes | str) -> Task | None:
    """The task of a path follows from its suffix, that of bytes from their column. URLs are not supported."""
    if isinstance(value, str):
        return None if "://" in value else task_of_name(value)
    return next((t for t in MEDIA_COLUMNS if column in MEDIA_COLUMNS[t] and column not in _PATH_COLUMNS), None)


def sample_of(row: Any, key: str, folder: Path, task: Task, options: ReadOptions) -> Item:
    """The sample of a row. Relative paths start at `folder`."""
    if not isinstance(row, Mapping):
        return BadSample(key, f"not a record: expected a JSON object, got {type(row).__name__}")
    prompt_and_text = find_text(row, options)
    if prompt_and_text is None:
        return BadSample(key, f"no text: looked for {_wanted(options)}")
    prompt, text = prompt_and_text
    if len(prompt) + len(text) > MAX_TEXT_BYTES:
        return BadSample(key, too_long())
    if task == Task.TEXT:
        return RawSample(key, text, prompt=prompt)
    media = find_media(row, task, options)
    if media is None:
        return BadSample(key, f"no {media_name(task)}: the row has {_columns(row)}")
    if len(media) > MAX_MEDIA_BYTES:
        return BadSample(key, too_large())
    try:
        offset, duration = _seconds(row.get("offset")), _seconds(row.get("duration"))
    except (TypeError, ValueError, OverflowError):
        return BadSample(key, f"bad offset or duration: {row.get('offset')!r}, {row.get('duration')!r}")
    source = str(folder / media) if isinstance(media, str) else media
    return RawSample(key, text.strip(), source, offset or 0.0, duration, prompt.strip())


def _wanted(options: ReadOptions) -> str:
    """Where a text is looked for."""
    if options.prompt_key is not None:
        return f"strings under {options.prompt_key!r} and {options.text_key or 'response'!r}"
    if options.text_key is not None:
        return f"a string under {options.text_key!r}"
    pairs = ", ".join(f"{prompt} and {responses[0]}" for prompt, responses in RESPONSES.items())
    return f"one of {', '.join(TEXT_COLUMNS)}, or {pairs}"


def _columns(row: Row) -> str:
    names = [repr(name)[:40] for name in row]
    return ", ".join(names[:12] + ["..."] * (len(names) > 12)) or "no columns"


def _seconds(value: Any) -> float | None:
    if value is None or value == "":
        return None
    seconds = float(value)
    if not 0 <= seconds < _MOST_SECONDS:
        raise ValueError(value)
    return seconds


def task_of_rows(rows: Iterable[Row], path: Path, options: ReadOptions) -> Task:
    """The task of a table, from its first row; more rows are read while a media column is empty."""
    column = None
    for row in itertools.islice(rows, _ROWS_INSPECTED):
        task = _task_of_row(row, path, options)
        column = next((name for name in row if name in _MEDIA_ONLY), None)
        if task != Task.TEXT or column is None:
            return task
    if column is None:
        raise DataError(f"{path} holds no readable rows.")
    raise DataError(
        f"{path} has a column {column!r}, but no image or audio in it: expected bytes, or paths of files ending in "
        f"{', '.join(IMAGE_SUFFIXES + AUDIO_SUFFIXES)}. To use the texts alone, give --task text."
    )


def _task_of_row(row: Row, path: Path, options: ReadOptions) -> Task:
    if find_text(row, options) is None:
        raise DataError(
            f"{path} has no text: looked for {_wanted(options)}, found {_columns(row)}. Choose with --text-key, and "
            "--prompt-key if there is a prompt."
        )
    tasks = [task for task in MEDIA_COLUMNS if find_media(row, task, options) is not None]
    if len(tasks) > 1:
        raise UserError(f"{path} has both images and audio. Choose with --task image-text or --task audio-text.")
    if options.media_key is not None and not tasks:
        raise DataError(f"{path} has nothing under {options.media_key!r}; found {_columns(row)}.")
    return tasks[0] if tasks else Task.TEXT


# -- files ------------------------------------------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[tuple[float, str, Any]]:
    """The rows of a table: fraction read, key, and the row or a BadSample."""
    return json_rows(path) if plain_name(path).endswith(_JSON_LINES) else _csv_rows(path)


def json_rows(path: Path) -> Iterator[tuple[float, str, Any]]:
    """The lines of a JSONL file: fraction read, key, and the value or a BadSample."""
    for fraction, key, line in read_lines(path):
        if isinstance(line, BadSample):
            yield fraction, key, line
            continue
        if line.count(",") > _MAX_VALUES:
            yield fraction, key, BadSample(key, f"bad JSON: more than {_MAX_VALUES:,} values")
            continue
        try:
            yield fraction, key, parse_json(line)
        except (ValueError, RecursionError) as error:
            yield fraction, key, BadSample(key, f"bad JSON: {error}")


class _CsvLines:
    """The lines of a CSV file. A row with quotes may have many; too long a row is an error, and the next row follows.

    Bytes that are not UTF-8 become lone surrogates, which make only their own sample bad.
    """

    def __init__(self, stream: BinaryIO):
        self._stream, self.row_bytes = stream, 0

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        line = self._stream.readline(_MAX_FIELD_BYTES)
        if not line:
            raise StopIteration
        self.row_bytes += len(line)
        if self.row_bytes > MAX_TEXT_BYTES:
            raise csv.Error(f"a row of more than {MAX_TEXT_BYTES >> 20} MiB")
        return line.decode("utf-8", "surrogateescape")


def _csv_rows(path: Path) -> Iterator[tuple[float, str, Any]]:
    csv.field_size_limit(_MAX_FIELD_BYTES)
    with CountedFile(path) as file, decompressed(file, path) as stream:
        lines = _CsvLines(stream)
        reader = csv.reader(lines, delimiter="\t" if plain_name(path).endswith(".tsv") else ",")
        header = [name.strip() for name in next(reader, [])]
        if header:
            header[0] = header[0].removeprefix("\ufeff")
        while True:
            key, lines.row_bytes = f"{path}:{reader.line_num + 1}", 0
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield file.fraction, key, BadSample(key, f"bad CSV: {error}")
                continue
            if len(fields) == len(header):
                yield file.fraction, key, dict(zip(header, fields))
            elif fields:
                yield file.fraction, key, BadSample(key, f"bad CSV: {len(fields)} fields under {len(header)} columns")


def _task_of_table(path: Path, options: ReadOptions) -> Task:
    return task_of_rows((row for _, _, row in _rows(path) if isinstance(row, Mapping)), path, options)


def _read_table(path: Path, task: Task, options: ReadOptions) -> Reading:
    for fraction, key, row in _rows(path):
        yield fraction, row if isinstance(row, BadSample) else sample_of(row, key, path.parent, task, options)


def _captions_first(tables: list[Path]) -> list[Path]:
    """Tables named metadata or captions, if there are any: they describe the folder, the others do not."""
    named = [path for path in tables if plain_name(path).partition(".")[0] in ("metadata", "captions")]
    return named or tables


TABLE = Format(
    name="table",
    looks_for="*.jsonl, *.csv, *.tsv [.gz|.zst]: rows with a text (or prompt and response), and file_name or "
    "audio_filepath for media",
    claims=lambda path: plain_name(path).endswith((*_JSON_LINES, ".csv", ".tsv")),
    task_of=_task_of_table,
    read=_read_table,
    pick=_captions_first,
)
