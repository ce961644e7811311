"""The results of a model in a folder, one JSON line per metric.

    FOLDER/results.jsonl     one line per metric: value with interval, settings, judge, model, what each sample adds
    FOLDER/*.npy             features of generated samples that a line names
    FOLDER/records/          records of single samples (`triptych.eval.records`)

A folder holds the results of one model. A metric that is measured again with equal settings replaces its line.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from triptych.errors import CheckpointError, DataError, UserError, did_you_mean
from triptych.eval.metrics import Judge, Metric, Missing, Result
from triptych.eval.records import model_fingerprint
from triptych.eval.scores import Score
from triptych.hub.pipeline import Pipeline
from triptych.hub.source import BUILTIN_MODELS, HUB_PREFIX
from triptych.utils.files import write_atomically
from triptych.utils.json_files import parse_json
from triptych.utils.locks import lock_file

RESULTS = "results.jsonl"
DEFAULT_ROOT = Path("out/eval")
"""Where the results of a model go unless a folder is given, by the name of the model."""
MEASURED = frozenset(
    {
        "background",
        "bits_per_second",
        "by_codebook",
        "codec",
        "is_reliable",
        "prompts_cut_off",
        "refused",
        "requests",
        "signal",
        "tokens_per_second",
        "tokens_seen",
        "truncated_prompts",
        "vectors",
        "warning",
        "without_speech",
    }
)
"""Settings that say what was found or what the model is, not what was asked for: two models may differ in them."""
_SHORT = 8  # digits of a fingerprint that people see


@dataclass(frozen=True)
class ModelInfo:
    """Which model results belong to."""

    source: str
    """What it was loaded from: a name, a folder; "Pipeline" for one that was in memory."""
    fingerprint: str
    """SHA-256 of weights, tokenizers, limits and preset (`model_fingerprint`)."""
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the tokenizers."""
    num_parameters: int = 0

    @classmethod
    def of(cls, pipe: Pipeline, source: str | Path | None = None) -> "ModelInfo":
        return cls(
            source=str(source) if source is not None else "Pipeline",
            fingerprint=model_fingerprint(pipe),
            tokenizers=dict(pipe.bundle.fingerprints),
            num_parameters=sum(parameter.numel() for parameter in pipe.model.parameters()),
        )

    @property
    def name(self) -> str:
        """For people: without the folders that it lies in."""
        return model_name(self.source)


def model_name(source: str | Path) -> str:
    """A short name for a model, which can also be the name of a folder."""
    text = str(source)
    if text in BUILTIN_MODELS:
        return text
    if text.startswith(HUB_PREFIX):
        return text.removeprefix(HUB_PREFIX).replace("/", "--")
    name = re.sub(r"[^\w.-]+", "-", Path(text).resolve().name)
    return name or "model"


@dataclass(frozen=True)
class Entry:
    """A stored result: a `Result` with the model and the circumstances that it came from."""

    suite: str
    result: Result
    model: ModelInfo
    seed: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""
    """When it was measured: ISO 8601, UTC."""

    @property
    def metric(self) -> Metric:
        return self.result.metric

    @property
    def score(self) -> Score:
        return self.result.score

    @property
    def key(self) -> tuple[str, ...]:
        """Two results with the same key are one result, measured twice."""
        judge = self.result.judge
        asked = {key: value for key, value in self.result.settings.items() if key not in MEASURED}
        settings = json.dumps(plain(asked), sort_keys=True)
        return ("result", self.suite, self.metric.name, settings, judge.sha256 if judge else "", str(self.seed))

    @property
    def as_json(self) -> dict[str, Any]:
        result, judge = self.result, self.result.judge
        samples = result.samples
        return {
            "kind": "result",
            "suite": self.suite,
            "metric": _metric_json(result.metric),
            **plain(self.score.as_json),
            "settings": plain(result.settings),
            "judge": {"name": judge.name, "sha256": judge.sha256} if judge else None,
            "seed": self.seed,
            "model": _model_json(self.model),
            "environment": plain(self.environment),
            "date": self.date,
            "samples": [[_number(top), _number(bottom)] for top, bottom in samples] if samples is not None else None,
            "features": result.features,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Entry":
        samples = line.get("samples")
        judge = line.get("judge")
        result = Result(
            metric=_metric_from(line["metric"]),
            score=Score(float(line["value"]), _or_nan(line["low"]), _or_nan(line["high"]), int(line["n"])),
            settings=dict(line["settings"]),
            judge=Judge(str(judge["name"]), str(judge["sha256"])) if judge else None,
            samples=[(float(top), float(bottom)) for top, bottom in samples] if samples is not None else None,
            features=line.get("features"),
        )
        date = str(line.get("date", ""))
        environment = dict(line.get("environment") or {})
        return cls(str(line["suite"]), result, _model_from(line["model"]), int(line["seed"]), environment, date)


@dataclass(frozen=True)
class MissingEntry:
    """A metric that a suite could not compute, and what would provide it."""

    suite: str
    missing: Missing
    model: ModelInfo
    date: str = ""

    @property
    def metric(self) -> Metric:
        return self.missing.metric

    @property
    def key(self) -> tuple[str, ...]:
        return ("missing", self.suite, self.metric.name)

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "missing",
            "suite": self.suite,
            "metric": _metric_json(self.metric),
            "reason": self.missing.reason,
            "model": _model_json(self.model),
            "date": self.date,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "MissingEntry":
        missing = Missing(_metric_from(line["metric"]), str(line["reason"]))
        return cls(str(line["suite"]), missing, _model_from(line["model"]), str(line.get("date", "")))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _metric_json(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "title": metric.title,
        "modality": metric.modality,
        "higher_is_better": metric.higher_is_better,
        "bounds": list(metric.bounds) if metric.bounds else None,
        "headline": metric.headline,
    }


def _metric_from(content: Mapping[str, Any]) -> Metric:
    bounds = content["bounds"]
    return Metric(
        str(content["name"]),
        str(content["title"]),
        content["modality"],
        bool(content["higher_is_better"]),
        (float(bounds[0]), float(bounds[1])) if bounds else None,
        bool(content.get("headline", True)),
    )


def _model_json(model: ModelInfo) -> dict[str, Any]:
    return {
        "source": model.source,
        "fingerprint": model.fingerprint,
        "tokenizers": dict(model.tokenizers),
        "num_parameters": model.num_parameters,
    }


def _model_from(content: Mapping[str, Any]) -> ModelInfo:
    tokenizers = {str(key): str(value) for key, value in dict(content.get("tokenizers") or {}).items()}
    parameters = int(content.get("num_parameters", 0))
    return ModelInfo(str(content["source"]), str(content["fingerprint"]), tokenizers, parameters)


def plain(value: Any) -> Any:
    """The value as JSON has it: without NaN, tuples, paths and the number types of other libraries."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "item"):
        return plain(value.item())
    return str(value)


def _number(value: float) -> float:
    """Whole numbers as such: the lines are shorter."""
    value = float(value)
    return int(value) if value.is_integer() else value


def _or_nan(value: Any) -> float:
    return math.nan if value is None else float(value)


# -- the folder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredResults:
    """What a folder holds."""

    folder: Path
    entries: Sequence[Entry]
    missing: Sequence[MissingEntry]
    notes: Sequence[str] = ()
    """What a reader should know: lines that could not be read."""

    @property
    def lines(self) -> list[Entry | MissingEntry]:
        return [*self.entries, *self.missing]

    @property
    def model(self) -> ModelInfo:
        return self.lines[0].model

    @property
    def date(self) -> str:
        """Of the newest line."""
        return max(each.date for each in self.lines)


class ResultFolder:
    """Reads and writes the results of one model."""

    def __init__(self, folder: str | Path):
        self.path = Path(folder)
        self.file = self.path / RESULTS

    def exists(self) -> bool:
        return self.file.is_file()

    def read(self) -> StoredResults:
        """All results. Lines that are damaged are counted in a note; an empty or foreign folder is an error."""
        if not self.path.is_dir():
            raise DataError(f"there is no folder {self.path}: give a folder that `triptych eval` has written to.")
        if not self.exists():
            raise DataError(f"{self.path} has no {RESULTS}: it holds no results of `triptych eval`.")
        entries, missing, damaged = [], [], []
        for number, line in enumerate(self._lines(), start=1):
            parsed = _parse(line)
            if isinstance(parsed, Entry):
                entries.append(parsed)
            elif isinstance(parsed, MissingEntry):
                missing.append(parsed)
            else:
                damaged.append(number)
        if not entries and not missing:
            what = f"its {len(damaged)} lines are damaged" if damaged else "it is empty"
            raise DataError(f"{self.file} holds no results: {what}; run `triptych eval` again.")
        notes = []
        if damaged:
            which = ", ".join(map(str, damaged[:5])) + (" ..." if len(damaged) > 5 else "")
            lines = "line is" if len(damaged) == 1 else "lines are"
            notes.append(f"{self.file}: {len(damaged)} damaged {lines} ignored (line {which}); the suite can run again")
        stored = StoredResults(self.path, entries, missing, notes)
        models = {each.model.fingerprint: each.model.source for each in stored.lines}
        if len(models) > 1:
            named = " and ".join(f"{source} ({key[:_SHORT]})" for key, source in models.items())
            raise DataError(f"{self.file} holds results of several models, {named}: keep one folder for each model.")
        return stored

    def check_model(self, model: ModelInfo) -> None:
        """Refuse to add results of a model to those of another one."""
        other = self._other_model(model.fingerprint)
        if other is not None:
            raise CheckpointError(
                f"{self.path} holds results of another model: {other.source} ({other.fingerprint[:_SHORT]}), and this "
                f"one is {model.source} ({model.fingerprint[:_SHORT]}). Choose another --out, or remove that folder."
            )

    def _other_model(self, fingerprint: str) -> ModelInfo | None:
        for line in self._lines() if self.exists() else []:
            parsed = _parse(line)
            if parsed is not None and parsed.model.fingerprint != fingerprint:
                return parsed.model
        return None

    def holds_other_than(self, fingerprint: str) -> bool:
        return self._other_model(fingerprint) is not None

    def add(self, *new: Entry | MissingEntry) -> None:
        """Write results; those of equal settings are replaced. A metric that is there is not missing any more."""
        keys = {each.key for each in new}
        measured = [each for each in new if isinstance(each, Entry)]
        with self._locked():
            kept = []
            for line in self._lines():
                known = _parse(line)
                is_settled = isinstance(known, MissingEntry) and any(_settles(each, known) for each in measured)
                if known is None or not (known.key in keys or is_settled):
                    kept.append(line)
            kept += [json.dumps(each.as_json, allow_nan=False) for each in new]
            write_atomically(self.file, ("\n".join(kept) + "\n").encode())

    def _lines(self) -> list[str]:
        if not self.exists():
            return []
        return [line for line in self.file.read_text(errors="replace").splitlines() if line.strip()]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time changes the file: two suites may run side by side."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "results.lock", "a") as file:
            lock_file(file)
            yield


def _settles(entry: Entry, missing: MissingEntry) -> bool:
    """Whether a result provides what was missing: the metric, or the row of the paper's table that has that name."""
    from triptych.eval.report.paper import paper, result_of  # which imports this module

    if entry.suite != missing.suite:
        return False
    row = next((row for row in paper().rows if row.id == missing.metric.name), None)
    return entry.metric.name == missing.metric.name or (row is not None and result_of(row, [entry]) is not None)


def _parse(line: str) -> Entry | MissingEntry | None:
    """What a line holds, or None if it is damaged."""
    try:
        content = parse_json(line, allow_nan=False)
        if content["kind"] == "missing":
            return MissingEntry.from_json(content)
        entry = Entry.from_json(content)
        numbers = [entry.score.value, *(number for pair in entry.result.samples or () for number in pair)]
        return entry if all(map(math.isfinite, numbers)) else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
        return None


def folder_for(model: ModelInfo, root: Path = DEFAULT_ROOT) -> Path:
    """Where the results of a model go by default: ROOT/NAME, apart from those of other models of that name."""
    folder = root / model.name
    if ResultFolder(folder).holds_other_than(model.fingerprint):
        return root / f"{model.name}-{model.fingerprint[:_SHORT]}"
    return folder


def result_folder(out: str | Path | None, model: ModelInfo) -> ResultFolder:
    """The folder for the results of a model, by default `folder_for` it. One that holds another model is refused."""
    folder = ResultFolder(folder_for(model) if out is None else out)
    folder.check_model(model)
    return folder


def find_results(text: str | Path, root: Path = DEFAULT_ROOT) -> StoredResults:
    """The results that a word of the command line means: a folder of results, or the name or folder of a model."""
    folder = Path(text)
    if ResultFolder(folder).exists():
        return ResultFolder(folder).read()
    name = model_name(text)
    candidates = [
        each.parent for each in (*root.glob(f"{name}/{RESULTS}"), *root.glob(f"{name}-{'[0-9a-f]' * _SHORT}/{RESULTS}"))
    ]
    several = [ResultFolder(each).read() for each in sorted(candidates)]
    if _is_path(text):
        others = [f"{each.folder} is of {each.model.source}" for each in several]
        several = [each for each in several if Path(each.model.source).resolve() == folder.resolve()]
        if others and not several:
            raise DataError(
                f"there are no results of the model {text}: {'; '.join(others)}. Give the folder of results, or run "
                "`triptych eval` first."
            )
    if len(several) > 1:
        named = ", ".join(str(each.folder) for each in several)
        raise UserError(f"{str(text)!r} may mean the results in any of {named}: give one of these folders.")
    if several:
        return several[0]
    if folder.is_dir() and not any(folder.iterdir()):
        raise DataError(f"the folder {text} is empty: expected a folder with {RESULTS}, written by `triptych eval`.")
    known = sorted(each.parent.name for each in root.glob(f"*/{RESULTS}"))
    if folder.is_dir():
        here = root / name
        raise DataError(f"{text} has no {RESULTS}, nor has {here}: run `triptych eval` first.{_names(known)}")
    hint = did_you_mean(str(text), known) if known else ""
    raise UserError(f"there are no results of {str(text)!r}: no folder of that name, no {root / name}.{hint}")


def _is_path(text: str | Path) -> bool:
    """Whether a word means a place and not the name of a model."""
    if str(text) in BUILTIN_MODELS or str(text).startswith(HUB_PREFIX):
        return False
    return isinstance(text, Path) or Path(text).exists() or "/" in text


def _names(known: Sequence[str]) -> str:
    return f" There are results of {', '.join(known)}." if known else ""
