"""Trials: independent runs, each of which yields one record. Any number of processes and machines share a folder.

    FOLDER/records.jsonl      one JSON line per finished trial, with a checksum, in the order they finished
    FOLDER/claims/KEY         the process that runs a trial; it touches the file regularly, and the claim expires if not

A diverged trial is a result and is recorded. An interrupted trial leaves no record, and is run again from the start.
"""

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

from triptych.errors import UserError
from triptych.utils.json_lines import read_lines, to_line, warn_of_damage
from triptych.utils.locks import lock_file

CLAIM_SECONDS = 60.0  # a claim expires if it was not touched for this long
_TOUCH_SECONDS = 10.0


@dataclass(frozen=True)
class Trial:
    key: str
    """Name in records and claims; names everything that determines the result."""
    settings: dict[str, Any]


class TrialRecords:
    """The records and claims in a folder."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "records.jsonl"
        _refuse_links(self.path, folder / "claims")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records; there is a warning of damaged lines, whose trials count as not run."""
        if not self.path.exists():
            return
        records, damaged = read_lines(self.path)
        damaged += [number for number, record in records.items() if not isinstance(record.get("key"), str)]
        warn_of_damage(self.path, sorted(damaged))
        yield from (record for number, record in records.items() if number not in damaged)

    @property
    def keys(self) -> set[str]:
        return {record["key"] for record in self}

    def add(self, record: dict[str, Any]) -> None:
        """Append a record under a lock. If the trial already has one, the first one counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            lock_file(file)
            if record["key"] in self.keys:
                return
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # an incomplete line of a process that was stopped
                    complete = self.path.read_bytes().rpartition(b"\n")[0]
                    file.truncate(len(complete) + bool(complete))
            file.write(to_line(record).encode())
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Claim a trial while the context is open; yields whether this process may run it."""
        path, me = self._claim_path(key), f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}"
        if not take_claim(path, me):
            yield False
            return
        finished = threading.Event()
        threading.Thread(target=_keep_alive, args=(path, me, finished), daemon=True).start()
        try:
            yield key not in self.keys  # it may have finished just before it was claimed
        finally:
            finished.set()
            if _owner(path) == me:  # else the claim expired, and another process took it
                path.unlink(missing_ok=True)

    def claimed_by(self, key: str) -> str | None:
        """The host and process with a valid claim on a trial."""
        path = self._claim_path(key)
        return None if _is_free(path) else _owner(path)

    @property
    def workers(self) -> list[str]:
        """All hosts and processes with a valid claim."""
        claims = sorted((self.folder / "claims").glob("[!.]*"))
        return sorted({_owner(path) or "" for path in claims if not _is_free(path)} - {""})

    def _claim_path(self, key: str) -> Path:
        return self.folder / "claims" / key.replace("/", "_").lstrip(".")


def _refuse_links(*paths: Path) -> None:
    """Folders of trials may come from others: nothing is written through a link."""
    for path in paths:
        if path.is_symlink():
            raise UserError(f"{path} is a link. Copy what it names here, or link the whole folder.")


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


def take_claim(path: Path, owner: str) -> bool:
    """Write a claim if it is free or has expired; returns whether it was taken."""
    lock_path = path.parent / ".lock"
    _refuse_links(path.parent, path, lock_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_path, "a") as lock:
        lock_file(lock)  # otherwise two processes could take the same expired claim
        if not _is_free(path):
            return False
        path.write_text(owner)
        return True


def _keep_alive(path: Path, me: str, finished: threading.Event) -> None:
    while not finished.wait(_TOUCH_SECONDS):
        if _owner(path) == me:
            path.touch()


def run_trials(
    folder: Path,
    trials: Sequence[Trial],
    run: Callable[[Trial], dict[str, Any] | None],
    report: Callable[[str], None] = print,
) -> dict[str, dict[str, Any]]:
    """Run the trials that have no record and no valid claim; returns the records of all given trials, by key.

    If `run` returns None, the trial is left to other processes.
    """
    records = TrialRecords(folder)
    by_key, skipped = {trial.key: trial for trial in trials}, set[str]()
    while missing := [trial for trial in by_key.values() if trial.key not in records.keys | skipped]:
        free = [trial for trial in missing if records.claimed_by(trial.key) is None]
        if not free:
            break
        for trial in free:
            with records.claim(trial.key) as is_ours:
                if not is_ours:
                    continue
                started = time.monotonic()
                result = run(trial)
                if result is None:
                    skipped.add(trial.key)
                    continue
                seconds = round(time.monotonic() - started, 1)
                assert not trial.settings.keys() & result.keys(), "a result would hide a setting of the same name"
                records.add({"key": trial.key, **trial.settings, **result, "seconds": seconds})
            num_finished = len(records.keys & by_key.keys())
            report(f"{num_finished} of {len(by_key)}: {trial.key} {_summary(result)} ({seconds:.0f} s)")
    return {record["key"]: record for record in records if record["key"] in by_key}


def _summary(result: dict[str, Any]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in result.items() if isinstance(value, float))
