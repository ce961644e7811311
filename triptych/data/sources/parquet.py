"""Parquet files: a column of text, and optionally one of images or audio (as bytes, or {bytes, path})."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triptych.data.sources.base import Format, Reading, ReadOptions
from triptych.data.sources.tables import MEDIA_COLUMNS, RESPONSES, TEXT_COLUMNS, sample_of, task_of_rows
from triptych.errors import DataError, require
from triptych.vocab import Task

_ROWS_AT_ONCE = 64  # images are large


def _rows(path: Path, tasks: list[Task], options: ReadOptions) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """The rows, with only the columns that samples of these tasks can use."""
    wanted = {*TEXT_COLUMNS, "offset", "duration", options.text_key, options.media_key, options.prompt_key}
    wanted |= {"input", "context"} | {name for prompt, responses in RESPONSES.items() for name in (prompt, *responses)}
    wanted.update(*(MEDIA_COLUMNS.get(task, ()) for task in tasks))
    parquet = require("pyarrow.parquet", "data", "reading Parquet files")
    with parquet.ParquetFile(path) as file:
        columns = [name for name in file.schema_arrow.names if name in wanted]
        if not columns:
            names = ", ".join(map(repr, file.schema_arrow.names[:12]))
            raise DataError(f"{path} has none of the usual columns, only {names}. Choose one with --text-key.")
        total, number = max(file.metadata.num_rows, 1), 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
            for row in _records(batch):
                number += 1
                yield number / total, f"{path}:{number}", row


def _records(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch. A text that is not UTF-8 stays bytes, which makes only its own row bad."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        arrow = require("pyarrow", "data", "reading Parquet files")
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns):
            is_text = arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)
            raw = column.cast(arrow.binary()).to_pylist() if is_text else column.to_pylist()
            columns[name] = [_text_or_bytes(value) if is_text else value for value in raw]
        return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _text_or_bytes(value: bytes | None) -> str | bytes | None:
    try:
        return value if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _task_of_parquet(path: Path, options: ReadOptions) -> Task:
    return task_of_rows((row for _, _, row in _rows(path, list(Task), options)), path, options)


def _read_parquet(path: Path, task: Task, options: ReadOptions) -> Reading:
    for fraction, key, row in _rows(path, [task], options):
        yield fraction, sample_of(row, key, path.parent, task, options)


PARQUET = Format(
    name="parquet",
    looks_for="*.parquet with the same columns; images and audio as bytes or {bytes, path}",
    claims=lambda path: path.name.lower().endswith(".parquet"),
    task_of=_task_of_parquet,
    read=_read_parquet,
)
