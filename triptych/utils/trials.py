"""Trials: independent pieces of work, each one record. Any number of processes on any machines share a folder of them.

    FOLDER/records.jsonl      one JSON line per finished trial, in the order they finished
    FOLDER/claims/KEY         who is at a trial; touched while they are, free again when it has not been for long

A trial that fails with numbers that are not finite is a result. One that was interrupted is none, and begins anew.
"""

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import DataError

CLAIM_SECONDS = 60.0  # without a sign of life after which a trial is free again
_TOUCH_SECONDS = 10.0


@dataclass(frozen=True)
class Trial:
    key: str
    """Its name in records and claims: says what decides the result."""
    settings: dict[str, Any]


class TrialRecords:
    """What has been found so far."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "records.jsonl"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        lines = self.path.read_text().split("\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                if number == len(lines):  # a last line without its end: whoever wrote it was stopped
                    return
                raise DataError(f"{self.path}, line {number} is not JSON ({error}). Mend or delete it.") from error
            if not isinstance(record, dict) or "key" not in record:
                raise DataError(f"{self.path}, line {number} is not a record with a key. Mend or delete it.")
            yield record

    @property
    def keys(self) -> set[str]:
        return {record["key"] for record in self}

    def add(self, record: dict[str, Any]) -> None:
        """Append a line, whole and alone, whoever else appends; of two results of one trial the first counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if record["key"] in self.keys:
                return
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # half a line of someone who was stopped
                    whole = self.path.read_bytes().rpartition(b"\n")[0]
                    file.truncate(len(whole) + bool(whole))
            file.write((json.dumps(record) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Whether this process may work at a trial; nobody else may meanwhile."""
        path, me = self._claim_path(key), f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}"
        if not _take(path, me):
            yield False
            return
        done = threading.Event()
        threading.Thread(target=_keep_alive, args=(path, me, done), daemon=True).start()
        try:
            yield key not in self.keys  # it may have been finished just before it was claimed
        finally:
            done.set()
            if _owner(path) == me:  # if this process was silent for long, it is someone else's now
                path.unlink(missing_ok=True)

    def who_is_at(self, key: str) -> str | None:
        """The host and process that has claimed a trial, if it has shown life of late."""
        path = self._claim_path(key)
        return None if _is_free(path) else _owner(path)

    @property
    def workers(self) -> list[str]:
        """Everyone who is at a trial."""
        claims = sorted((self.folder / "claims").glob("[!.]*"))
        return sorted({_owner(path) or "" for path in claims if not _is_free(path)} - {""})

    def _claim_path(self, key: str) -> Path:
        return self.folder / "claims" / key.replace("/", "_")


def _is_free(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > CLAIM_SECONDS
    except FileNotFoundError:
        return True


def _owner(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _take(path: Path, me: str) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # else two could find the same claim abandoned
        if not _is_free(path):
            return False
        path.write_text(me)
        return True


def _keep_alive(path: Path, me: str, done: threading.Event) -> None:
    while not done.wait(_TOUCH_SECONDS):
        if _owner(path) == me:
            path.touch()


def run_trials(
    folder: Path,
    trials: Sequence[Trial],
    run: Callable[[Trial], dict[str, Any] | None],
    report: Callable[[str], None] = print,
) -> dict[str, dict[str, Any]]:
    """Do what is not done yet, and nobody else is at; returns the records of these trials, by key.

    A trial that `run` gives no result of is left to others.
    """
    records = TrialRecords(folder)
    wanted, left = {trial.key: trial for trial in trials}, set[str]()
    while missing := [trial for trial in wanted.values() if trial.key not in records.keys | left]:
        free = [trial for trial in missing if records.who_is_at(trial.key) is None]
        if not free:
            break
        for trial in free:
            with records.claim(trial.key) as is_ours:
                if not is_ours:
                    continue
                began = time.monotonic()
                result = run(trial)
                if result is None:
                    left.add(trial.key)
                    continue
                seconds = round(time.monotonic() - began, 1)
                assert not trial.settings.keys() & result.keys(), "a result would hide a setting of the same name"
                records.add({"key": trial.key, **trial.settings, **result, "seconds": seconds})
            done = len(records.keys & wanted.keys())
            report(f"{done} of {len(wanted)}: {trial.key} {_short(result)} ({seconds:.0f} s)")
    return {record["key"]: record for record in records if record["key"] in wanted}


def _short(result: dict[str, Any]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in result.items() if isinstance(value, float))
