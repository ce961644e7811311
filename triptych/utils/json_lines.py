"""Files of one JSON object per line, each with a checksum: damage costs the damaged lines, not the file.

    {"key": "a", "loss": 2.5, "crc32": "d202ef8d"}     CRC-32 of the line's JSON without this last key

Lines without a checksum are accepted: earlier versions wrote none, and who edits a line by hand can remove its "crc32".
"""

import json
import warnings
import zlib
from pathlib import Path
from typing import Any

from triptych.errors import DamageWarning, DataError
from triptych.utils.json_files import parse_json, read_bounded

CHECKSUM = "crc32"
_MAX_BYTES = 16 << 30
_MOST_NAMED = 5  # numbers of damaged lines in a warning


def to_line(record: dict[str, Any]) -> str:
    """A record as a line with a checksum, line end included."""
    return json.dumps({**record, CHECKSUM: _checksum(record)}) + "\n"


def parse_line(line: str | bytes) -> dict[str, Any]:
    """The record of a line. Raises DataError, a ValueError, if it is damaged."""
    record = parse_json(line)
    if not isinstance(record, dict):
        raise DataError(f"expected an object, got {type(record).__name__}.")
    checksum = record.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum(record):
        raise DataError("it does not match its checksum.")
    return record


def read_lines(path: Path) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """The records of a file by line number, and the numbers of damaged lines.

    A last line without an end is of a process that was stopped while it wrote: if it is incomplete, it is no damage.
    """
    *lines, rest = read_bounded(path, _MAX_BYTES).split(b"\n")
    records, damaged = {}, []
    for number, line in enumerate([*lines, rest], 1):
        if not line.strip():
            continue
        try:
            records[number] = parse_line(line)
        except DataError:
            if number <= len(lines):
                damaged.append(number)
    return records, damaged


def damage_of(path: Path, numbers: list[int]) -> str:
    """What to say of damaged lines."""
    count, shown = len(numbers), ", ".join(map(str, numbers[:_MOST_NAMED]))
    lines = f"line {shown} is" if count == 1 else f"{count} lines are"
    which = "" if count == 1 else f" (lines {shown}{', ...' if count > _MOST_NAMED else ''})"
    return f"{path}: {lines} damaged and left out{which}"


def warn_of_damage(path: Path, numbers: list[int]) -> None:
    """Warn if there are damaged lines."""
    if numbers:
        warnings.warn(damage_of(path, numbers), DamageWarning, stacklevel=3)


def _checksum(record: dict[str, Any]) -> str:
    # From the parsed record, so that a file stays valid when a tool writes its lines with other spaces.
    return f"{zlib.crc32(json.dumps(record).encode()):08x}"
