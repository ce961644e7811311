"""A table of runs, from a study's records or anyone's CSV, checked before anything is fitted to it."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triptych.errors import DataError, UserError, did_you_mean
from triptych.scaling.groups import alike
from triptych.scaling.law import Floats

# What others call the columns; the first is ours. Compared without regard to case.
NAMES = {
    "N": ("N", "params", "parameters", "num_params", "n_params", "non_embedding", "model_size"),
    "D": ("D", "tokens", "num_tokens", "n_tokens", "training_tokens", "train_tokens", "tokens_seen"),
    "S": ("S", "virtual_steps"),
    "Bv": ("Bv", "virtual_batch"),
    "loss": ("loss", "L", "val_loss", "validation_loss", "eval_loss", "final_loss", "test_loss"),
    "C": ("C", "flops", "compute", "training_flops"),
}
LEAST_RUNS, LEAST_RESAMPLED = 10, 5
"""Different ones, of a table, and of a resample of it: as many as the coefficients of a law."""
_LEAST_DIFFERENT = 3
_LEAST_COUNT = 1000  # nobody trains fewer parameters, or on fewer tokens: smaller numbers are of another unit
_ONE_LINE = 0.999
_SAME_TOKENS = np.log1p(0.03)
# FLOPs: some count less than all of it, and a small model's head is most of it.
_LEAST_PER_6ND, _MOST_PER_6ND = 0.2, 1e4


@dataclass(frozen=True)
class Runs:
    """Final losses of runs that did not diverge."""

    names: tuple[str, str]
    columns: tuple[Floats, Floats]
    loss: Floats
    flops: Floats | None = None
    """Of the whole run, where they were counted."""

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, picks: NDArray[np.int64]) -> "Runs":
        first, second = (column[picks] for column in self.columns)
        return Runs(self.names, (first, second), self.loss[picks], None if self.flops is None else self.flops[picks])

    @property
    def cells(self) -> NDArray[np.int64]:
        """The same number for runs that differ in their seed alone: other sequences have a few tokens more or less."""
        first, second = self.columns
        found, count = np.zeros(len(self), np.int64), 0
        for size in np.unique(first):
            same = np.flatnonzero(first == size)
            for group in alike(second[same], _SAME_TOKENS):
                found[same[group]] = count
                count += 1
        return found

    def spread_problem(self, least: int = LEAST_RUNS) -> str | None:
        """Why the runs are too few or too much alike for a law of five coefficients, if they are."""
        count = int(self.cells.max(initial=-1)) + 1
        if count < least:
            return f"a law of five coefficients needs at least {least} different runs, got {count}"
        for name, column in zip(self.names, self.columns):
            values = len(np.unique(column))
            if values < _LEAST_DIFFERENT:
                return f"a law needs runs of at least {_LEAST_DIFFERENT} different {name}, got {values}"
        logs = np.log(self.columns)
        if abs(np.corrcoef(logs)[0, 1]) > _ONE_LINE:
            first, second = self.names
            return (
                f"{first} and {second} grow together in these runs (as with a fixed ratio or one budget), so that "
                f"their influences cannot be told apart: add runs with other {second} at the same {first}"
            )
        return None


def runs_of(
    names: tuple[str, str], first: ArrayLike, second: ArrayLike, loss: ArrayLike, flops: ArrayLike | None = None
) -> Runs:
    """A table from columns, checked as one from a file."""
    columns = {names[0]: first, names[1]: second, "loss": loss} | ({} if flops is None else {"C": flops})
    arrays = {name: np.asarray(values, float) for name, values in columns.items()}
    if any(array.ndim != 1 for array in arrays.values()) or len({len(array) for array in arrays.values()}) != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise UserError(f"Expected one number of each kind per run, got the shapes {shapes}.")
    rows = [(f"run {number}", dict(zip(arrays, values))) for number, values in enumerate(zip(*arrays.values()), 1)]
    return _checked(names, rows, "the table", skip_diverged=False)


def read_runs(
    path: Path,
    names: tuple[str, str] = ("N", "D"),
    *,
    called: Mapping[str, str] | None = None,
    unit: float = 1.0,
    skip_diverged: bool = False,
    drop_worst: int = 0,
) -> Runs:
    """The runs of a CSV, TSV, JSON or JSONL file, but for so many with the highest losses.

    `called` names columns that are not called as is usual; `unit` is that of both counts. Without tokens they are
    FLOPs / 6 N.
    """
    where, rows = _rows(path)
    if not rows:
        raise DataError(f"{path} holds no runs.")
    header = list(dict.fromkeys(name for row in rows for name in row))
    chosen = _choose_columns(path, header, names, called or {})
    taken = []
    for place, row in zip(where, rows):
        values = {ours: _number(row.get(theirs), f"{path}, {place}: {theirs}") for ours, theirs in chosen.items()}
        values |= {name: values[name] * unit for name in names if name in values}
        if "D" in names and "D" not in values:
            values["D"] = values["C"] / (6 * values["N"]) if values["N"] else float("nan")
        taken.append((place, values))
    _check_keys(path, where, rows)
    losses = [np.nan_to_num(values["loss"], nan=np.inf) for _, values in taken]
    worst = set(np.argsort(losses, kind="stable")[max(0, len(losses) - drop_worst) :].tolist())
    kept = [row for number, row in enumerate(taken) if number not in worst]
    return _checked(names, kept, str(path), skip_diverged)


# -- reading ----------------------------------------------------------------------------------------------------------


def _rows(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Where each row stands, for complaints, and the rows."""
    if not path.is_file():
        hint = " Give a file of runs, for example its records.jsonl." if path.is_dir() else ""
        raise UserError(f"there is no file {path}.{hint}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}).") from error
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        head = text.partition("\n")[0]
        delimiter = "\t" if kind == ".tsv" else ";" if ";" in head and "," not in head else ","
        try:
            rows = list(csv.DictReader(io.StringIO(text), delimiter=delimiter))
        except csv.Error as error:
            raise DataError(f"{path} is not a table ({error}).") from error
        for number, row in enumerate(rows, 1):
            if None in row:
                raise DataError(f"{path}, row {number} has more cells than the header has names.")
        return (
            [f"row {number}" for number in range(1, len(rows) + 1)],
            [{name.strip(): value for name, value in row.items()} for row in rows],
        )
    if kind == ".json":
        content = _json(text, f"{path}")
        if not isinstance(content, list):
            raise DataError(f"{path} must hold a list of runs, got {type(content).__name__}.")
        found = [(f"run {number}", row) for number, row in enumerate(content, 1)]
    elif kind == ".jsonl":
        whole, _, rest = text.rpartition("\n")
        if whole and rest and not _is_json(rest):  # half a line of someone who was stopped
            text = whole
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        found = [(f"line {number}", _json(line, f"{path}, line {number}")) for number, line in lines]
    else:
        raise UserError(f"{path} is of an unknown kind: expected .csv, .tsv, .json or .jsonl, got {path.suffix!r}.")
    for place, row in found:
        if not isinstance(row, dict):
            raise DataError(f"{path}, {place}: expected an object with N, D and loss, got {row!r:.40}.")
    return [place for place, _ in found], [_flat(row) for _, row in found]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """What is inside of a field, by names with a dot: held_out.audio."""
    inner = {name: value for name, value in row.items() if isinstance(value, dict)}
    return row | {f"{name}.{key}": each for name, value in inner.items() for key, each in value.items()}


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error}).") from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _choose_columns(
    path: Path, header: Sequence[str], names: tuple[str, str], called: Mapping[str, str]
) -> dict[str, str]:
    for name, theirs in called.items():
        if name not in (*names, "loss", "C"):
            raise UserError(f"--columns knows {', '.join((*names, 'loss', 'C'))}, got {name!r}.")
        if theirs not in header:
            raise UserError(f"{path} has no column {theirs!r}.{did_you_mean(theirs, list(header))}")
    chosen = {}
    for name in (*names, "loss", "C"):
        usual = [word.lower() for word in NAMES[name]]
        found = sorted((usual.index(word.lower()), word) for word in header if word.lower() in usual)
        if name in called or found:
            chosen[name] = called.get(name) or found[0][1]
    for name in (*names, "loss"):
        if name not in chosen and not (name == "D" and "C" in chosen):
            raise UserError(
                f"{path} has no column for {name}: expected {' or '.join(NAMES[name][:3])}, it has "
                f"{', '.join(header[:8])}. Name yours with --columns {name}=YOURS."
            )
    return chosen


def _number(value: Any, where: str) -> float:
    """None, as in records of runs that diverged, is no number either, but no mistake."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{where} must be a number, got {value!r:.40}.") from None


# -- checking ---------------------------------------------------------------------------------------------------------


def _check_keys(path: Path, where: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    seen: dict[str, str] = {}
    for place, row in zip(where, rows):
        key = row.get("key")
        if isinstance(key, str) and seen.setdefault(key, place) != place:
            raise DataError(f"{path}: {seen[key]} and {place} are the same run, {key!r}. Delete one of them.")


def _checked(
    names: tuple[str, str], rows: Sequence[tuple[str, dict[str, float]]], source: str, skip_diverged: bool
) -> Runs:
    seen: dict[tuple[float, ...], str] = {}
    kept: list[dict[str, float]] = []
    for place, row in rows:
        if not 0 < row["loss"] < float("inf"):
            if skip_diverged:
                continue
            raise DataError(
                f"{source}, {place}: the loss is {row['loss']:g}. Leave runs that diverged out, or give "
                "--skip-diverged."
            )
        for name in names:
            _check_count(name, row[name], f"{source}, {place}")
        if "C" in row:
            _check_flops(row, f"{source}, {place}")
        same = (row[names[0]], row[names[1]], row["loss"])
        if seen.setdefault(same, place) != place:
            raise DataError(
                f"{source}: {seen[same]} and {place} are the same run ({names[0]} {same[0]:g}, {names[1]} {same[1]:g}, "
                f"loss {same[2]:g}). Delete one of them: held-out errors would be too good with both."
            )
        kept.append(row)
    if not kept:
        raise DataError(f"{source} holds no runs that did not diverge.")
    first, second, loss = (np.array([row[name] for row in kept]) for name in (*names, "loss"))
    runs = Runs(names, (first, second), loss, np.array([row["C"] for row in kept]) if "C" in kept[0] else None)
    problem = runs.spread_problem()
    if problem:
        raise DataError(f"{source}: {problem}.")
    return runs


def _check_flops(row: Mapping[str, float], where: str) -> None:
    plain = 6 * row["N"] * row["D"] if "N" in row else row["C"]
    if not _LEAST_PER_6ND * plain <= row["C"] <= _MOST_PER_6ND * plain:
        raise DataError(
            f"{where}: C is {row['C']:g}, and 6 N D is {plain:g}: it must be the FLOPs of the whole run, one by one."
        )


def _check_count(name: str, value: float, where: str) -> None:
    if not 0 < value < float("inf"):
        raise DataError(f"{where}: {name} must be positive and finite, got {value:g}.")
    if name in ("N", "D") and value < _LEAST_COUNT:
        what = "parameters" if name == "N" else "tokens"
        raise DataError(
            f"{where}: {name} is {value:g}, and no run has so few {what}. They are counted one by one; if both N and D "
            "are in billions, give --unit 1e9."
        )
