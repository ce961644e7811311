"""Tables of runs, from the records of a study or any CSV file, checked before a law is fitted to them."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triptych.errors import DataError, UserError, did_you_mean
from triptych.scaling.groups import group_close
from triptych.scaling.law import Floats
from triptych.utils.config import flatten
from triptych.utils.json_files import parse_json
from triptych.utils.json_lines import CHECKSUM, read_lines, warn_of_damage

# Accepted names of the columns, the preferred one first. Case is ignored.
NAMES = {
    "N": ("N", "params", "parameters", "num_params", "n_params", "non_embedding", "model_size"),
    "D": ("D", "tokens", "num_tokens", "n_tokens", "training_tokens", "train_tokens", "tokens_seen"),
    "S": ("S", "virtual_steps"),
    "Bv": ("Bv", "virtual_batch"),
    "steps": ("steps", "num_steps", "iterations", "S"),
    "loss": ("loss", "L", "val_loss", "validation_loss", "eval_loss", "final_loss", "test_loss"),
    "C": ("C", "flops", "compute", "training_flops"),
}
MIN_RUNS, MIN_RESAMPLED = 10, 5
"""Fewest different runs in a table, and in a resample of it: a law has five coefficients."""
_MIN_DISTINCT = 3
_MIN_COUNT = 1000  # no run has fewer parameters or tokens: smaller numbers must have another unit
_MAX_EXPLAINED = 0.98  # of the variance of log D by N: at a given N, log D then varies by a seventh of its spread
_SAME_TOKENS = np.log1p(0.03)
# Accepted range of C / 6ND. Some count only part of the FLOPs; in small models the head dominates.
_MIN_PER_6ND, _MAX_PER_6ND = 0.2, 1e4


@dataclass(frozen=True)
class Runs:
    """Final losses of runs that did not diverge."""

    names: tuple[str, str]
    columns: tuple[Floats, Floats]
    loss: Floats
    flops: Floats | None = None
    """FLOPs of each run, if the table has them."""

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, picks: NDArray[np.int64]) -> "Runs":
        first, second = (column[picks] for column in self.columns)
        return Runs(self.names, (first, second), self.loss[picks], None if self.flops is None else self.flops[picks])

    @property
    def seed_groups(self) -> NDArray[np.int64]:
        """A group number per run. Runs that differ only in their seed share it; their token counts differ slightly."""
        first, second = self.columns
        groups, count = np.zeros(len(self), np.int64), 0
        for size in np.unique(first):
            same = np.flatnonzero(first == size)
            for group in group_close(second[same], _SAME_TOKENS):
                groups[same[group]] = count
                count += 1
        return groups

    def spread_problem(self, least: int = MIN_RUNS) -> str | None:
        """Why a law of five coefficients cannot be fitted to these runs: too few, or too similar. None if it can."""
        count = int(self.seed_groups.max(initial=-1)) + 1
        if count < least:
            return f"a law of five coefficients needs at least {least} different runs, got {count}"
        for name, column in zip(self.names, self.columns):
            values = len(np.unique(column))
            if values < _MIN_DISTINCT:
                return f"a law needs runs of at least {_MIN_DISTINCT} different {name}, got {values}"
        x, y = np.log(self.columns)
        # Both: if only one is a function of the other, runs with the same value of one separate their effects.
        explained = min(_explained(x, y), _explained(y, x))
        if explained > _MAX_EXPLAINED:
            first, second = self.names
            correlation = float(np.corrcoef(x, y)[0, 1])
            cause = "as with a fixed ratio" if correlation > 0 else "as with a single budget"
            return (
                f"{first} and {second} are tied in these runs, {cause} (correlation of their logs {correlation:.3f}; "
                f"{first} explains {explained:.1%} of {second}), so their effects cannot be separated: add runs with "
                f"at least two {second}, a factor of 2 or more apart, at each {first}"
            )
        return None


def _explained(x: Floats, y: Floats) -> float:
    """Share of the variance of y that a parabola in x explains: runs of one budget are on a curve, not on a line."""
    powers = np.vander(x - x.mean(), 3)
    residuals = y - powers @ np.linalg.lstsq(powers, y, rcond=None)[0]
    return 1 - float(residuals.var() / y.var())


def runs_from_columns(
    names: tuple[str, str], first: ArrayLike, second: ArrayLike, loss: ArrayLike, flops: ArrayLike | None = None
) -> Runs:
    """A table from columns, with the same checks as one from a file."""
    columns = {names[0]: first, names[1]: second, "loss": loss} | ({} if flops is None else {"C": flops})
    arrays = {name: np.asarray(values, float) for name, values in columns.items()}
    if any(array.ndim != 1 for array in arrays.values()) or len({len(array) for array in arrays.values()}) != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise UserError(f"expected one number of each kind per run, got the shapes {shapes}.")
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
    """The runs of a CSV, TSV, JSON or JSONL file, without the `drop_worst` highest losses.

    `called` maps N, D, loss and C to columns with unusual names; `unit` is the unit of both counts. Without a column of
    tokens, D is C / 6 N.
    """
    parsed = read_columns(path, (*names, "loss"), ("C",), called=called, unit=unit, in_units=names)
    for _, values in parsed:
        if "D" in names and "D" not in values:
            values["D"] = values["C"] / (6 * values["N"]) if values["N"] else float("nan")
    losses = [np.nan_to_num(values["loss"], nan=np.inf) for _, values in parsed]
    worst = set(np.argsort(losses, kind="stable")[max(0, len(losses) - drop_worst) :].tolist())
    remaining = [row for number, row in enumerate(parsed) if number not in worst]
    return _checked(names, remaining, str(path), skip_diverged)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_columns(
    path: Path,
    required: Sequence[str],
    optional: Sequence[str] = (),
    *,
    called: Mapping[str, str] | None = None,
    unit: float = 1.0,
    in_units: Sequence[str] = (),
) -> list[tuple[str, dict[str, float]]]:
    """The position of each run, for error messages, and its numbers by our names; NaN for an empty cell.

    `in_units` are the columns that are counted in `unit`. D may be missing where C is optional and there.
    """
    where, rows = _rows(path)
    if not rows:
        raise DataError(f"{path} holds no runs.")
    header = list(dict.fromkeys(name for row in rows for name in row))
    chosen = _choose_columns(path, header, required, optional, called or {})
    parsed = []
    for place, row in zip(where, rows):
        values = {name: _number(row.get(column), f"{path}, {place}: {column}") for name, column in chosen.items()}
        parsed.append((place, values | {name: values[name] * unit for name in in_units if name in values}))
    _check_keys(path, where, rows)
    return parsed


def _rows(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The position of each row, for error messages, and the rows."""
    if not path.is_file():
        hint = " Give a file of runs, for example its records.jsonl." if path.is_dir() else ""
        raise UserError(f"there is no file {path}.{hint}")
    if path.suffix.lower() == ".jsonl" and f'"{CHECKSUM}"'.encode() in path.read_bytes():
        records, damaged = read_lines(path)  # of trials: what is damaged is left out, as their sweep does
        warn_of_damage(path, damaged)
        return [f"line {number}" for number in records], [flatten(record) for record in records.values()]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
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
        objects = [(f"run {number}", row) for number, row in enumerate(content, 1)]
    elif kind == ".jsonl":
        complete, _, rest = text.rpartition("\n")
        if complete and rest and not _is_json(rest):  # a process was stopped while it wrote the last line
            text = complete
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        objects = [(f"line {number}", _json(line, f"{path}, line {number}")) for number, line in lines]
    else:
        raise UserError(f"{path} has an unknown format: expected .csv, .tsv, .json or .jsonl, got {path.suffix!r}.")
    for place, row in objects:
        if not isinstance(row, dict):
            raise DataError(f"{path}, {place}: expected an object with N, D and loss, got {row!r:.40}.")
    return [place for place, _ in objects], [flatten(row) for _, row in objects]


def _json(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error}).") from error


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _choose_columns(
    path: Path, header: Sequence[str], required: Sequence[str], optional: Sequence[str], called: Mapping[str, str]
) -> dict[str, str]:
    for name, column in called.items():
        if name not in (*required, *optional):
            raise UserError(f"--columns accepts {', '.join((*required, *optional))}, got {name!r}.")
        if column not in header:
            raise UserError(f"{path} has no column {column!r}.{did_you_mean(column, list(header))}")
    chosen = {}
    for name in (*required, *optional):
        accepted = [word.lower() for word in NAMES[name]]
        matches = sorted((accepted.index(word.lower()), word) for word in header if word.lower() in accepted)
        if name in called or matches:
            chosen[name] = called.get(name) or matches[0][1]
    for name in required:
        if name not in chosen and not (name == "D" and "C" in chosen):
            raise UserError(
                f"{path} has no column for {name}: expected {' or '.join(NAMES[name][:3])}, it has "
                f"{', '.join(header[:8])}. Name yours with --columns {name}=YOURS."
            )
    return chosen


def _number(value: Any, where: str) -> float:
    """The value as a number; NaN for None or an empty cell, which diverged runs have."""
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
                f"{source}, {place}: the loss is {row['loss']:g}. Leave out runs that diverged, or use --skip-diverged."
            )
        for name in names:
            check_count(name, row[name], f"{source}, {place}")
        if "C" in row:
            _check_flops(row, f"{source}, {place}")
        same = (row[names[0]], row[names[1]], row["loss"])
        if seen.setdefault(same, place) != place:
            raise DataError(
                f"{source}: {seen[same]} and {place} are the same run ({names[0]} {same[0]:g}, {names[1]} {same[1]:g}, "
                f"loss {same[2]:g}). Delete one of them: with both, held-out errors would be too optimistic."
            )
        kept.append(row)
    if not kept:
        raise DataError(f"{source} holds no runs with a finite loss.")
    first, second, loss = (np.array([row[name] for row in kept]) for name in (*names, "loss"))
    runs = Runs(names, (first, second), loss, np.array([row["C"] for row in kept]) if "C" in kept[0] else None)
    problem = runs.spread_problem()
    if problem:
        raise DataError(f"{source}: {problem}.")
    return runs


def _check_flops(row: Mapping[str, float], where: str) -> None:
    expected = 6 * row["N"] * row["D"] if "N" in row else row["C"]
    if not _MIN_PER_6ND * expected <= row["C"] <= _MAX_PER_6ND * expected:
        raise DataError(
            f"{where}: C is {row['C']:g}, but 6 N D is {expected:g}. C must be the FLOPs of the whole run as a plain "
            "count."
        )


def check_count(name: str, value: float, where: str) -> None:
    if not 0 < value < float("inf"):
        raise DataError(f"{where}: {name} must be positive and finite, got {value:g}.")
    if name in ("N", "D") and value < _MIN_COUNT:
        what = "parameters" if name == "N" else "tokens"
        raise DataError(
            f"{where}: {name} is {value:g}, too few {what} for a run. N and D must be plain counts; if both are in "
            "billions, use --unit 1e9."
        )
