"""The output folder of a run. It stays readable if the run is killed at any moment.

.lock           held while a run uses the folder
plan.json       the configuration, the input files and the tokenizers; written first
journal.jsonl   one line per finished shard, written after the shard
bad.jsonl       samples left out, with reasons
manifest.json   written last. It contains the plan; plan.json and the journal are then deleted
"""

import errno
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.data.shards import MANIFEST, Manifest, ShardInfo
from triptych.data.sources import BadSample
from triptych.data.tokenize.config import TokenizeFailed
from triptych.errors import DataError, UserError
from triptych.utils.config import changed_keys
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.json_lines import read_lines, to_line, warn_of_damage
from triptych.utils.locks import AlreadyLocked, hold_lock
from triptych.vocab import Task

PLAN, JOURNAL, BAD, LOCK = "plan.json", "journal.jsonl", "bad.jsonl", ".lock"
Plan = dict[str, Any]


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder if it is missing, and hold its lock: a second run on it is an error."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a dataset is a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = hold_lock(folder / LOCK, str(os.getpid()))
    except AlreadyLocked as error:
        raise UserError(f"another run (process {error.owner[:20] or '?'}) is using {folder}.") from None
    except OSError as error:
        failure = TokenizeFailed if error.errno == errno.ENOSPC else UserError
        raise failure(f"cannot write to {folder}: {error.strerror}.") from error
    with file:
        with reporting_write_errors(folder):
            for leftover in folder.glob(".*.part"):
                leftover.unlink()
        yield


@contextmanager
def reporting_write_errors(folder: Path) -> Iterator[None]:
    """Report a full disk or a lost file system in one line, without a traceback."""
    try:
        yield
    except OSError as error:
        raise TokenizeFailed(
            f"cannot write to {folder}: {error.strerror or error}. Finished shards are kept: "
            "free disk space and run the same command again to resume."
        ) from error


# -- the plan ---------------------------------------------------------------------------------------------------------


def stored_plan(folder: Path) -> Plan:
    """The plan that the folder was started with."""
    if (folder / MANIFEST).exists():
        return Manifest.load(folder).settings
    try:
        return read_json(folder / PLAN)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / PLAN} cannot be read ({error}). Start over with --overwrite.") from error


def adopt(folder: Path, plan: Plan, *, overwrite: bool) -> None:
    """Write the plan into a new folder, or check that the folder was started with the same plan."""
    is_ours = (folder / PLAN).exists() or (folder / MANIFEST).exists()
    other_files = [] if is_ours else sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    if other_files:
        raise UserError(
            f"{folder} is not empty (it holds {other_files[0]}) and was not made by `triptych tokenize`; "
            "choose another folder."
        )
    # A plan without finished shards, such as one with a mistake in it, may be replaced.
    is_bound = (folder / MANIFEST).exists() or ((folder / PLAN).exists() and bool(read_journal(folder)))
    if is_bound and not overwrite:
        stored = stored_plan(folder)
        if _relevant(stored) != _relevant(plan):
            raise DataError(
                f"{folder} was started with another configuration: {difference(_relevant(stored), _relevant(plan))}. "
                "Choose another folder, or start over with --overwrite."
            )
        return
    with reporting_write_errors(folder):
        # In this order a kill leaves the old dataset complete, or a new one without shards: never a mixture.
        (folder / JOURNAL).unlink(missing_ok=True)
        write_atomically(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode())
        (folder / MANIFEST).unlink(missing_ok=True)


def _relevant(plan: Plan) -> Plan:
    """The plan without the settings of audio if it has none: their defaults may change between versions."""
    if plan.get("task") == Task.AUDIO_TEXT.name:
        return plan
    return {name: value for name, value in plan.items() if name not in ("max_seconds", "too_long")}


def difference(old: Plan, new: Plan) -> str:
    """What differs between two plans, in one line."""
    changed = changed_keys(old, new)
    if list(changed) == ["input_files.sha256"]:
        return "an input file has changed since (same number and sizes, other names or times)"
    changed.pop("input_files.sha256", None)
    clauses = [f"{name} was {_short(before)}, now {_short(now)}" for name, (before, now) in changed.items()]
    return "; ".join(clauses[:4])


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- the journal ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A shard on disk, and the samples of its part of the source."""

    shard: ShardInfo
    file_bytes: int
    read: int
    """Number of samples read from the source."""
    bad: list[BadSample]
    """Samples left out."""


def read_journal(folder: Path) -> dict[int, Finished]:
    """Finished shards by number. A shard that is missing or incomplete does not count; damaged lines give a warning."""
    finished: dict[int, Finished] = {}
    lines, damaged = read_lines(folder / JOURNAL) if (folder / JOURNAL).exists() else ({}, [])
    for line, content in lines.items():
        try:
            number = content.pop("number")
            shard, bad = ShardInfo(**content.pop("shard")), [BadSample(**sample) for sample in content.pop("bad")]
            entry = Finished(shard=shard, bad=bad, **content)
            if (folder / shard_name(number)).stat().st_size == entry.file_bytes:
                finished[number] = entry
        except OSError:  # no such shard
            continue
        except (ValueError, KeyError, TypeError):
            damaged.append(line)
    warn_of_damage(folder / JOURNAL, sorted(damaged))
    return finished


class Journal:
    """Records every finished shard, so that a resumed run does not repeat it."""

    def __init__(self, folder: Path):
        self.folder, self._path = folder, folder / JOURNAL
        self.finished = read_journal(folder)
        with reporting_write_errors(folder):
            write_atomically(self._path, b"".join(_line(*entry) for entry in self.finished.items()))
            finished_names = {shard_name(number) for number in self.finished}
            for path in folder.glob("shard-[0-9]*.safetensors"):
                if path.name not in finished_names:
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
    return to_line({"number": number, **asdict(entry)}).encode()


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
    """Delete the files that a finished dataset does not need; a kill may have left them."""
    for name in (PLAN, JOURNAL):
        (folder / name).unlink(missing_ok=True)
