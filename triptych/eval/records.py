"""The results of an evaluation so far, one record per sample, kept on disk so that a stopped one can be resumed.

    FOLDER/KEY/settings.json    what the records belong to; KEY is its hash
    FOLDER/KEY/PART.jsonl       one record per sample, in the order of the samples

An evaluation with other settings, or of another model, has another KEY: records never mix. One process at a time uses a
KEY; it may compute samples in several processes.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triptych.hub.pipeline import Pipeline
from triptych.utils.json_lines import parse_line, to_line
from triptych.utils.locks import FolderLock
from triptych.utils.workers import map_in_order

Progress = Callable[[str], None]
Record = dict[str, Any]
BATCH = 10  # samples between two records of the progress
_LINE_SECONDS = 5.0  # between two lines of progress


def model_fingerprint(pipe: Pipeline) -> str:
    """SHA-256 of what the results of a model depend on: weights, tokenizers, limits, and its sampling preset."""
    settings = [pipe.bundle.fingerprints, asdict(pipe.limits), pipe.preset, *filter(None, [pipe.sampling])]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, tensor in sorted(pipe.model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class RecordStore:
    """The records of one evaluation, by part. Without a folder they are only in memory. `close` releases the folder."""

    def __init__(self, folder: Path | None = None, settings: Mapping[str, Any] | None = None):
        self.folder: Path | None = None
        self.parts: dict[str, list[Record]] = {}
        self.damaged: set[str] = set()
        """Parts with a damaged line on disk, whose records from there on are computed again."""
        self._lock: FolderLock | None = None
        if folder is not None:
            text = json.dumps(settings, sort_keys=True, indent=2) + "\n"
            self.folder = folder / hashlib.sha256(text.encode()).hexdigest()[:12]
            self._lock = FolderLock(self.folder, "written", "--work")
            self._lock.take()
            (self.folder / "settings.json").write_text(text)

    def of(self, part: str) -> list[Record]:
        """The records of a part, from disk when they are first asked for."""
        if part not in self.parts:
            self.parts[part], is_damaged = ([], False) if self.folder is None else _read(self._path(part))
            if is_damaged:
                self.damaged.add(part)
        return self.parts[part]

    def add(self, part: str, new: Sequence[Record]) -> None:
        if self.folder is not None:
            with open(self._path(part), "a") as file:
                file.write("".join(map(to_line, new)))
        self.of(part).extend(new)

    @property
    def seconds(self) -> float:
        """Time that all parts took which were asked for."""
        return sum(record["seconds"] for records in self.parts.values() for record in records)

    def remove(self) -> None:
        """Remove the parts of a finished evaluation from the disk; those that it did not use stay."""
        if self.folder is None:
            return
        for part in self.parts:
            self._path(part).unlink(missing_ok=True)
        if not any(self.folder.glob("*.jsonl")):
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _path(self, part: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{part.replace(' ', '-')}.jsonl"


def _read(path: Path) -> tuple[list[Record], bool]:
    """Records up to the first damaged line, and whether there is one.

    The rest is cut off, and so is what a killed process left of a line.
    """
    if not path.exists():
        return [], False
    records: list[Record] = []
    length, is_damaged = 0, False
    content = path.read_bytes()
    for line in content.split(b"\n")[:-1]:
        try:
            record = parse_line(line)
            is_damaged = "seconds" not in record
        except ValueError:
            is_damaged = True
        if is_damaged:
            break
        records.append(record)
        length += len(line) + 1
    if length < len(content):
        with open(path, "r+b") as file:
            file.truncate(length)
    return records, is_damaged


Compute = Callable[[range], Sequence[Record]]


def run_part(
    records: RecordStore,
    part: str,
    n: int,
    compute: Compute,
    progress: Progress,
    describe: Callable[[Sequence[Record]], str] = lambda records: "",
) -> list[Record]:
    """Compute the records that are missing, in batches; `describe` adds a result to the lines of progress."""
    return run_part_in_processes(records, part, n, lambda: compute, progress, describe)


def run_part_in_processes(
    records: RecordStore,
    part: str,
    n: int,
    build: Callable[[], Compute],
    progress: Progress,
    describe: Callable[[Sequence[Record]], str] = lambda records: "",
    *,
    nproc: int = 1,
) -> list[Record]:
    """`run_part` with `nproc` processes. Each calls `build`, which must be picklable then, and loads its own model.

    Records are stored in the order of the samples. Any number of processes gives the same records, up to the rounding
    of judges that compute with another number of threads.
    """
    known = records.of(part)
    if known:
        progress(f"  {part}: {len(known)} of {n} kept from an earlier run")
    if part in records.damaged:
        progress(f"  {part}: record {len(known) + 1} on disk is damaged; computed again from there")
        records.damaged.discard(part)
    printed = time.monotonic()
    batches = [range(start, min(start + BATCH, n)) for start in range(len(known), n, BATCH)]
    workers = 0 if nproc == 1 else min(nproc, len(batches))
    with closing(map_in_order(_Timed(build), batches, workers)) as results:
        for batch, (new, seconds) in zip(batches, results):
            assert len(new) == len(batch)
            share = round(seconds / len(batch), 4)
            records.add(part, [{**record, "seconds": share} for record in new])
            if time.monotonic() - printed > _LINE_SECONDS or len(known) == n:
                progress(f"  {part}: {len(known)} of {n}{describe(known)}")
                printed = time.monotonic()
    return known


class _Timed:
    """Builds a function that also returns its seconds. Picklable if `build` is."""

    def __init__(self, build: Callable[[], Compute]):
        self.build = build

    def __call__(self) -> Callable[[range], tuple[list[Record], float]]:
        compute = self.build()

        def timed(batch: range) -> tuple[list[Record], float]:
            started = time.monotonic()
            new = [dict(record) for record in compute(batch)]
            return new, time.monotonic() - started

        return timed
