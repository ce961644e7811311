"""The folder that a run fills, in states that a kill at any moment leaves readable.

.lock           held while a run works here
plan.json       what is being made, written first
journal.jsonl   one line per finished shard, written after it
bad.jsonl       samples left out, with reasons
manifest.json   written last; it holds the plan, so that plan.json and the journal go when it has come
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.data.shards import MANIFEST, Manifest, ShardInfo, write_atomically
from triptych.data.sources import BadSample
from triptych.data.tokenize.settings import RunFailed
from triptych.errors import DataError, UserError

PLAN, JOURNAL, BAD, LOCK = "plan.json", "journal.jsonl", "bad.jsonl", ".lock"
Plan = dict[str, Any]


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only run that works in the folder; make it if need be."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a data set is a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a+")  # noqa: SIM115, closed below
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise UserError(f"cannot lock {folder / LOCK}: {error.strerror}.") from error
            file.seek(0)
            raise UserError(f"another run (process {file.read(20).strip() or '?'}) is at work in {folder}.") from error
        with reporting_write_errors(folder):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            for leftover in folder.glob(".*.part"):
                leftover.unlink()
        yield


@contextmanager
def reporting_write_errors(folder: Path) -> Iterator[None]:
    """A full disk is no bug: say so in one line."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write to {folder}: {error.strerror or error}. Finished shards are kept: "
            "make room and run the same command again to go on."
        ) from error


# -- the plan ---------------------------------------------------------------------------------------------------------


def stored_plan(folder: Path) -> Plan:
    """What the folder was begun with."""
    if (folder / MANIFEST).exists():
        return Manifest.load(folder).settings
    try:
        return json.loads((folder / PLAN).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / PLAN} cannot be read ({error}). Begin anew with --overwrite.") from error


def adopt(folder: Path, plan: Plan, *, overwrite: bool) -> None:
    """Begin the folder, or make sure that it was begun with the same plan."""
    ours = (folder / PLAN).exists() or (folder / MANIFEST).exists()
    strangers = [] if ours else sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    if strangers:
        raise UserError(
            f"{folder} is not empty (it holds {strangers[0]}) and was not made by `triptych tokenize`; "
            "choose another folder."
        )
    # A plan of which nothing is finished yet, such as one with a mistake in it, binds nobody.
    bound = (folder / MANIFEST).exists() or ((folder / PLAN).exists() and bool(read_journal(folder)))
    if bound and not overwrite:
        stored = stored_plan(folder)
        if stored != plan:
            raise DataError(
                f"{folder} was begun otherwise: {difference(stored, plan)}. "
                "Choose another folder, or begin anew with --overwrite."
            )
        return
    with reporting_write_errors(folder):
        # In this order a kill leaves the old data set whole, or a new one with nothing finished: never a mixture.
        (folder / JOURNAL).unlink(missing_ok=True)
        write_atomically(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode())
        (folder / MANIFEST).unlink(missing_ok=True)


def difference(old: Plan, new: Plan) -> str:
    """What differs between two plans, in one line."""
    before, after = dict(_flatten(old)), dict(_flatten(new))
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if changed == ["input_files.sha256"]:
        return "an input file has changed since (same number and sizes, other names or times)"
    shown = [f"{name} was {_short(before.get(name))}, now {_short(after.get(name))}" for name in changed]
    return "; ".join([line for line in shown if not line.startswith("input_files.sha256")][:4])


def _flatten(plan: Plan, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plan.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- the journal ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A shard on disk and what its part of the source was like."""

    shard: ShardInfo
    file_bytes: int
    read: int
    bad: list[BadSample]


def read_journal(folder: Path) -> dict[int, Finished]:
    """Finished shards by number. A line that was cut short, or whose shard is not there in full, does not count."""
    finished = {}
    for line in (folder / JOURNAL).read_bytes().splitlines() if (folder / JOURNAL).exists() else []:
        try:
            content = json.loads(line)
            number = content.pop("number")
            shard, bad = ShardInfo(**content.pop("shard")), [BadSample(**sample) for sample in content.pop("bad")]
            entry = Finished(shard=shard, bad=bad, **content)
            if (folder / shard_name(number)).stat().st_size == entry.file_bytes:
                finished[number] = entry
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return finished


class Journal:
    """Takes down every finished shard, so that it is not made again."""

    def __init__(self, folder: Path):
        self.folder, self._path = folder, folder / JOURNAL
        self.finished = read_journal(folder)
        with reporting_write_errors(folder):
            write_atomically(self._path, b"".join(_line(*entry) for entry in self.finished.items()))
            listed = {shard_name(number) for number in self.finished}
            for path in folder.glob("shard-[0-9]*.safetensors"):
                if path.name not in listed:
                    path.unlink()

    def add(self, number: int, shard: ShardInfo, read: int, bad: list[BadSample]) -> None:
        entry = Finished(shard, (self.folder / shard.file).stat().st_size, read, bad)
        with open(self._path, "ab") as file:
            file.write(_line(number, entry))
            file.flush()
            os.fsync(file.fileno())
        self.finished[number] = entry

    @property
    def entries(self) -> list[Finished]:
        return [self.finished[number] for number in sorted(self.finished)]

    @property
    def bad(self) -> list[BadSample]:
        return [sample for entry in self.entries for sample in entry.bad]


def _line(number: int, entry: Finished) -> bytes:
    return json.dumps({"number": number, **asdict(entry)}).encode() + b"\n"


def write_bad(folder: Path, bad: Iterable[BadSample]) -> None:
    lines = [json.dumps(asdict(sample)) + "\n" for sample in bad]
    with reporting_write_errors(folder):
        if lines:
            write_atomically(folder / BAD, "".join(lines).encode())
        else:
            (folder / BAD).unlink(missing_ok=True)


def finish(folder: Path, manifest: Manifest) -> None:
    manifest.save(folder)
    tidy(folder)


def tidy(folder: Path) -> None:
    """Remove what a finished data set no longer needs; a kill may have left it."""
    for name in (PLAN, JOURNAL):
        (folder / name).unlink(missing_ok=True)
