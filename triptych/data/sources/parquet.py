"""Parquet files: a column of text, and perhaps one of pictures or sounds (as bytes, or {bytes, path})."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triptych.data.sources.base import Format, Reading, ReadOptions
from triptych.data.sources.tables import MEDIA_COLUMNS, TEXT_COLUMNS, sample_of, task_of_row
from triptych.errors import DataError, require
from triptych.vocab import Task

_ROWS_AT_ONCE = 64  # pictures are large


def _rows(path: Path, tasks: list[Task], options: ReadOptions) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """The rows, with no more columns than samples of these tasks can need."""
    wanted = {*TEXT_COLUMNS, "offset", "duration", options.text_key, options.media_key}
    wanted.update(*(MEDIA_COLUMNS.get(task, ()) for task in tasks))
    parquet = require("pyarrow.parquet", "data", "reading Parquet files")
    with parquet.ParquetFile(path) as file:
        columns = [name for name in file.schema_arrow.names if name in wanted]
        total, number = max(file.metadata.num_rows, 1), 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield number / total, f"{path}:{number}", row


def _task_of_parquet(path: Path, options: ReadOptions) -> Task:
    for _, _, row in _rows(path, list(Task), options):
        return task_of_row(row, path, options)
    raise DataError(f"{path} holds no rows.")


def _read_parquet(path: Path, task: Task, options: ReadOptions) -> Reading:
    for fraction, key, row in _rows(path, [task], options):
        yield fraction, sample_of(row, key, path.parent, task, options)


PARQUET = Format(
    name="parquet",
    looks_for="*.parquet with the same columns; pictures and sounds as bytes or {bytes, path}",
    claims=lambda path: path.name.lower().endswith(".parquet"),
    task_of=_task_of_parquet,
    read=_read_parquet,
)
