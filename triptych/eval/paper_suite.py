"""All that the paper's table has, in one go: its suites on the sub-folders of one folder of data.

    DATA/text/             a JSONL file for each of the ten tasks
    DATA/cc12m/            images with captions
    DATA/train-images/     images with captions from the training data, not seen in training
    DATA/librispeech-pc/   speech with transcripts
    DATA/train-audio/      speech with transcripts from the training data

GenEval needs no data. What is not there is listed as missing, with the folder that would provide it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from triptych.data.sources.manifest import MANIFEST
from triptych.data.sources.tables import TABLE
from triptych.errors import DataError, UserError, did_you_mean
from triptych.eval.metrics import Metric, Missing
from triptych.eval.report.paper import PaperRow, paper
from triptych.eval.run_suites import Job
from triptych.eval.suites import SUITES, settings_of

TEXT, IMAGES, SPEECH = "text", ("cc12m", "train-images"), ("librispeech-pc", "train-audio")
FOLDERS = (TEXT, *IMAGES, *SPEECH)
_MANIFEST_NAME = re.compile(r"\.jsonl?(\.gz|\.zst)?$")


def paper_jobs(
    data: str | Path | None, options: Mapping[str, Any] | None = None
) -> tuple[list[Job], list[tuple[str, Missing]]]:
    """The suites to run for the sub-folders that exist, and the metrics of those that do not.

    `options` has settings for the suites by name: {"text": {"limit": 100}, "image": {...}, "audio": {...}}.
    """
    given = {name: dict(values) for name, values in (options or {}).items()}
    for name in given:
        if name not in SUITES:
            raise UserError(f"the suite 'paper' has no setting {name!r}.{did_you_mean(name, list(SUITES))}")
    if data is None:
        raise UserError(f"the suite 'paper' needs data: a folder with {', '.join(FOLDERS)}.")
    folder = Path(data)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: expected one with {', '.join(FOLDERS)}.")
    there = [name for name in FOLDERS if (folder / name).is_dir() and any((folder / name).iterdir())]
    if not there:
        raise DataError(f"{folder} has none of the folders {', '.join(FOLDERS)}.")
    jobs = []
    if TEXT in there:
        jobs.append(Job("text", settings_of("text", {"data": str(folder / TEXT), **given.get("text", {})})))
    images = [name for name in IMAGES if name in there]
    for number, name in enumerate(images or [""]):
        values: dict[str, Any] = dict(given.get("image", {}))
        values |= {"data": str(folder / name)} if name else {}
        values |= {"geneval": None} if number else {}  # once is enough
        jobs.append(Job("image", settings_of("image", values)))
    for name in SPEECH:
        if name in there:
            # The name of the folder, by which the paper's rows know the data, whatever its manifests are called.
            values = {"data": speech_files(folder / name), "dataset": name, **given.get("audio", {})}
            jobs.append(Job("audio", settings_of("audio", values)))
    return jobs, list(_missing(folder, [name for name in FOLDERS if name not in there]))


def speech_files(folder: Path) -> tuple[str, ...]:
    """Manifests of a folder if it has some, as LibriSpeech-PC does, otherwise the folder."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    manifests = [path for path in files if _MANIFEST_NAME.search(path.name) and _is_read(path)]
    return tuple(map(str, manifests)) or (str(folder),)


def _is_read(path: Path) -> bool:
    return MANIFEST.claims(path) or TABLE.claims(path)


def _missing(folder: Path, names: Sequence[str]) -> Iterable[tuple[str, Missing]]:
    for row in paper().rows:
        place = TEXT if row.group == "text" else _folder_of(row) if row.data else ""
        if place in names:
            metric = Metric(row.id, paper().title_of(row), row.group, row.higher_is_better, row.bounds)
            yield row.group, Missing(metric, f"no data in {folder / place}")


def _folder_of(row: PaperRow) -> str:
    """The sub-folder of the data of a row: the one whose name is an alias of it."""
    assert row.data is not None
    group = IMAGES if row.group == "image" else SPEECH
    aliases = {re.sub(r"[^a-z0-9]", "", alias) for alias in paper().data[row.data].aliases}
    return next(name for name in group if re.sub(r"[^a-z0-9]", "", name) in aliases)
