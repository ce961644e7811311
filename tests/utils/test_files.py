"""Writes that a failure cannot cut in half, reads that are tried again."""

import os
import time
from pathlib import Path

import pytest

from triptych.utils.files import with_retries, write_atomically


def test_a_write_replaces_the_file(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        write_atomically(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


class Flaky:
    """Fails a few times, then reads."""

    def __init__(self, failures: int, error: type[Exception] = OSError):
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error("input/output error")
        return "content"


def test_a_read_is_tried_three_more_times(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    flaky = Flaky(3)
    assert with_retries(flaky, OSError) == "content"
    assert (flaky.calls, pauses) == (4, [0.1, 0.5, 2.0])
    with pytest.raises(OSError, match="input/output error"):
        with_retries(Flaky(4), OSError)


def test_other_errors_are_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", pytest.fail)
    damaged = Flaky(1, ValueError)
    with pytest.raises(ValueError, match="input/output error"):
        with_retries(damaged, OSError)
    assert damaged.calls == 1
