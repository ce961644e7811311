"""Parquet files: a column of text, and optionally one of images or audio (as bytes, or {bytes, path}).

Only columns of texts, bytes and numbers are read. The pages of a row group are measured before they are read: see
`parquet_layout`.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from triptych.data.sources.base import (
    MAX_MEDIA_BYTES,
    MAX_TEXT_BYTES,
    BadSample,
    Format,
    Reading,
    ReadOptions,
    too_large,
    too_long,
)
from triptych.data.sources.parquet_layout import ChunkPlace, chunk_places, chunk_sizes
from triptych.data.sources.tables import MEDIA_COLUMNS, RESPONSES, TEXT_COLUMNS, sample_of, task_of_rows
from triptych.errors import DataError, require
from triptych.utils.files import open_regular
from triptych.vocab import Task

_ROWS_AT_ONCE = 64
_BATCH_BYTES = 64 << 20  # that these rows may take
_MAX_BYTES = 256 << 20  # that a row group may take while it is read: dictionaries and a page of every column
_MAX_STORED_BYTES = 1 << 30  # the same, if the file itself is as large: images do not compress
_STORED = 4  # compressed to no less than a quarter
_PARTS = ("bytes", "path")  # of a column {bytes, path}

_Row = dict[str, Any] | BadSample


def _rows(path: Path, tasks: list[Task], options: ReadOptions) -> Iterator[tuple[float, str, _Row]]:
    """The rows, with only the columns that samples of these tasks can use."""
    wanted = {*TEXT_COLUMNS, "offset", "duration", options.text_key, options.media_key, options.prompt_key}
    wanted |= {"input", "context"} | {name for prompt, responses in RESPONSES.items() for name in (prompt, *responses)}
    wanted.update(*(MEDIA_COLUMNS.get(task, ()) for task in tasks))
    parquet, arrow = require("pyarrow.parquet", "data", "reading Parquet files"), _arrow()
    try:
        with open(open_regular(path), "rb") as raw, parquet.ParquetFile(raw, buffer_size=1 << 16) as file:
            leaves = [leaf for each in file.schema_arrow if each.name in wanted for leaf in _usable(each)]
            if not leaves:
                names = ", ".join(f"{each.name!r} ({str(each.type)[:40]})" for each in list(file.schema_arrow)[:12])
                raise DataError(f"{path} has none of the usual columns, only {names}. Choose one with --text-key.")
            total, number = max(file.metadata.num_rows, 1), 0
            for group, places in enumerate(_places_of_leaves(raw, file, leaves)):
                count = _rows_at_once(raw, places)
                for batch in file.iter_batches(count, row_groups=[group], columns=leaves):
                    for row in _records(batch, f"{path}:", number):
                        number += 1
                        yield number / total, f"{path}:{number}", row
    except arrow.ArrowException as error:  # not all kinds are OSError or ValueError
        raise OSError(" ".join(str(error).split())[:200]) from error


@cache
def _arrow() -> Any:
    return require("pyarrow", "data", "reading Parquet files")


def _usable(field: Any) -> list[str]:
    """The paths of the leaves of a column that a sample can use: of the types that samples have, never lists."""
    if _is_simple(field.type):
        return [field.name]
    types = _arrow().types
    if not types.is_struct(field.type):
        return []
    return [f"{field.name}.{part.name}" for part in field.type if part.name in _PARTS and _is_simple(part.type)]


def _is_simple(kind: Any) -> bool:
    types = _arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return _is_bytes(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)


def _is_bytes(kind: Any) -> bool:
    types = _arrow().types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


# -- sizes ------------------------------------------------------------------------------------------------------------


def _places_of_leaves(raw: BinaryIO, file: Any, leaves: list[str]) -> list[list[ChunkPlace]]:
    """Of every row group, where the columns are that will be read."""
    before = raw.tell()
    groups = chunk_places(raw)
    raw.seek(before)
    paths = [file.schema.column(n).path for n in range(len(file.schema))]
    if len(groups) != file.num_row_groups or any(len(places) != len(paths) for places in groups):
        raise ValueError("the footer contradicts the schema")
    return [[place for place, path in zip(places, paths) if _is_read(path, leaves)] for places in groups]


def _is_read(path: str, leaves: list[str]) -> bool:
    return any(path == leaf or path.startswith(f"{leaf}.") for leaf in leaves)


def _rows_at_once(raw: BinaryIO, places: list[ChunkPlace]) -> int:
    """How many rows of a group are read together, so that they fit; an error if not even one does."""
    before = raw.tell()
    sizes = [chunk_sizes(raw, place) for place in places]
    raw.seek(before)
    memory, stored = sum(each.memory for each in sizes), sum(each.compressed for each in sizes)
    limit = _MAX_STORED_BYTES if memory <= _STORED * stored else _MAX_BYTES
    if memory > limit:
        raise ValueError(
            f"a row group takes {memory >> 20} MiB of memory, the limit is {limit >> 20} MiB; write smaller pages"
        )
    return max(1, min(_ROWS_AT_ONCE, _BATCH_BYTES // max(1, sum(each.value for each in sizes))))


# -- rows -------------------------------------------------------------------------------------------------------------


def _records(batch: Any, where: str, first: int) -> Iterator[_Row]:
    """The rows of a batch, one at a time. A value that is too large makes only its own row bad."""
    for index in range(batch.num_rows):
        row: dict[str, Any] = {}
        problem = ""
        for name, column in zip(batch.schema.names, batch.columns):
            row[name], reason = _value(column[index])
            problem = problem or reason
        yield BadSample(f"{where}{first + index + 1}", problem) if problem else row


def _value(scalar: Any) -> tuple[Any, str]:
    """The value of a cell, or None and the reason why it is bad. A text that is not UTF-8 stays bytes."""
    arrow = _arrow()
    if arrow.types.is_struct(scalar.type):
        if not scalar.is_valid:
            return None, ""
        parts = {name: _value(scalar[name]) for name in scalar}
        return {name: value for name, (value, _) in parts.items()}, next((why for _, why in parts.values() if why), "")
    if isinstance(scalar, arrow.DictionaryScalar):
        scalar = scalar.value
    if not scalar.is_valid or not _is_bytes(scalar.type):
        return scalar.as_py(), ""
    content = scalar.as_buffer()
    is_text = arrow.types.is_string(scalar.type) or arrow.types.is_large_string(scalar.type)
    if len(content) > (MAX_TEXT_BYTES if is_text else MAX_MEDIA_BYTES):
        return None, too_long() if is_text else too_large()
    value = content.to_pybytes()
    return (_text_or_bytes(value) if is_text else value), ""


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _task_of_parquet(path: Path, options: ReadOptions) -> Task:
    rows = (row for _, _, row in _rows(path, list(Task), options) if not isinstance(row, BadSample))
    return task_of_rows(rows, path, options)


def _read_parquet(path: Path, task: Task, options: ReadOptions) -> Reading:
    for fraction, key, row in _rows(path, [task], options):
        yield fraction, row if isinstance(row, BadSample) else sample_of(row, key, path.parent, task, options)


PARQUET = Format(
    name="parquet",
    looks_for="*.parquet with the same columns; images and audio as bytes or {bytes, path}",
    claims=lambda path: path.name.lower().endswith(".parquet"),
    task_of=_task_of_parquet,
    read=_read_parquet,
)
