"""The reader of JSON refuses what is too deep, too large, no file or no JSON, in one line."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from triptych.errors import DataError
from triptych.utils.json_files import MAX_DEPTH, parse_json, read_json


def nested(depth: int, kind: str = "[") -> str:
    """JSON of `depth` levels."""
    return "[" * depth + "]" * depth if kind == "[" else '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)


@pytest.mark.parametrize("content", [None, 1.5, "é", [1, [2]], {"a": {"b": [None, True]}}, float("inf"), 10**400])
def test_what_json_writes_is_read(content: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    assert read_json(tmp_path / "a.json") == content
    assert parse_json(json.dumps(content)) == content
    assert parse_json(json.dumps(content).encode()) == content


@pytest.mark.parametrize("kind", ["[", "{"])
def test_depth_is_bounded(kind: str) -> None:
    assert parse_json(nested(MAX_DEPTH, kind)) == json.loads(nested(MAX_DEPTH, kind))
    for depth in (MAX_DEPTH + 1, 900, 100_000):  # the last one raises RecursionError in Python's parser
        with pytest.raises(DataError, match="at most 64 levels"):
            parse_json(nested(depth, kind))
    assert parse_json(json.dumps("[" * 1000)) == "[" * 1000  # brackets in a text are no levels
    assert len(parse_json(json.dumps([[["a", "b"]] * 1000] * 3))) == 3  # many, but not deep


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"[1, 2]]", "not JSON"),
        (b"\xff\xfe[\x00", "not UTF-8 text"),
        (b'{"a": "\x80"}', "not UTF-8 text"),
        (b"9" * 5000, "not JSON"),
        (b"\x00" * 10, "not JSON"),
    ],
)
def test_other_bytes_are_one_line(text: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(DataError, match=problem) as raised:
        read_json(tmp_path / "a.json")
    assert str(raised.value).startswith(f"{tmp_path / 'a.json'}: ")
    assert "\n" not in str(raised.value)


def test_size_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" + " " * 200 + "]")
    assert read_json(tmp_path / "a.json", max_bytes=202) == []
    with pytest.raises(DataError, match="expected at most 201 bytes, got 202"):
        read_json(tmp_path / "a.json", max_bytes=201)
    with pytest.raises(DataError, match="at most 10 bytes"):
        parse_json(" " * 11, max_bytes=10)


def test_what_is_no_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    started = time.monotonic()
    with pytest.raises(DataError, match="not a regular file"):
        read_json(tmp_path / "fifo")
    with pytest.raises(DataError, match="not a regular file"):
        read_json(Path("/dev/zero"))
    assert time.monotonic() - started < 5
    for missing in (tmp_path / "none.json", tmp_path):
        with pytest.raises(OSError):  # noqa: PT011 (of any kind: callers say what is missing)
            read_json(missing)
