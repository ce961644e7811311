"""The paper's table of its 3B model, and which results of ours stand in the same row.

The numbers are in assets/evaluation/paper.json with their source. A result belongs to a row if its metric is that of
the row and, where the row names data, the folder of the data has one of the names of that data ("cc12m").
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from triptych.eval.compare import dataset_of, format_value
from triptych.eval.metrics import Kind
from triptych.eval.report.radar import Axis, radar_position, references
from triptych.eval.results import Entry
from triptych.utils.json_files import read_json

_PAPER = Path(__file__).parents[2] / "assets" / "evaluation" / "paper.json"


@dataclass(frozen=True)
class PaperRow:
    """A number of the paper."""

    id: str
    group: Kind
    title: str
    data: str | None
    """Key of `Paper.data`; None where the metric comes with its data, as a benchmark does."""
    metrics: Sequence[str]
    """Names of the metrics of ours that measure the same."""
    value: float
    percent: bool
    """The paper prints percent where our metric is a share."""
    higher_is_better: bool
    bounds: tuple[float, float] | None
    reference: str | None
    """Key of the published values that an unbounded metric is placed by."""
    radar: bool
    """Whether it has an axis of the radar. Of two datasets, the public one has."""

    def of(self, entry: Entry) -> float:
        """A result in the unit of the row."""
        return entry.score.value * (100 if self.percent else 1)

    def position(self, value: float) -> float | None:
        published = [each.value for each in references()[self.reference]] if self.reference else []
        return radar_position(value, higher_is_better=self.higher_is_better, bounds=self.bounds, published=published)


@dataclass(frozen=True)
class PaperData:
    title: str
    aliases: Sequence[str]
    """Names of folders that mean this data."""


@dataclass(frozen=True)
class Paper:
    paper: str
    model: str
    source: str
    groups: Mapping[str, str]
    data: Mapping[str, PaperData]
    settings: Mapping[str, str]
    notes: Sequence[str]
    rows: Sequence[PaperRow]

    def title_of(self, row: PaperRow) -> str:
        return f"{row.title}, {self.data[row.data].title}" if row.data else row.title


@cache
def paper() -> Paper:
    content: dict[str, Any] = read_json(_PAPER)
    rows = [PaperRow(**{**row, "bounds": tuple(row["bounds"]) if row["bounds"] else None}) for row in content["rows"]]
    data = {key: PaperData(**each) for key, each in content["data"].items()}
    return Paper(**{**content, "rows": rows, "data": data})


def result_of(row: PaperRow, entries: Sequence[Entry]) -> Entry | None:
    """The newest result that stands in a row of the paper's table."""
    fitting = [
        entry
        for entry in entries
        if entry.metric.name in row.metrics
        and entry.metric.modality == row.group
        and (row.data is None or _same_name(dataset_of(entry), paper().data[row.data].aliases))
    ]
    return max(fitting, key=lambda entry: entry.date, default=None)


def _same_name(name: str, aliases: Sequence[str]) -> bool:
    return re.sub(r"[^a-z0-9]", "", name.lower()) in {re.sub(r"[^a-z0-9]", "", each) for each in aliases}


def paper_axes(models: Sequence[Sequence[Entry]]) -> list[Axis]:
    """The paper's radar with one series for the paper and one per model."""
    axes = []
    for row in paper().rows:
        if row.radar:
            values = [row.value]
            values += [row.of(entry) if (entry := result_of(row, each)) else float("nan") for each in models]
            axes.append(Axis(row.title, [row.position(v) for v in values], [_short(v) for v in values]))
    return axes


def _short(value: float) -> str:
    return "" if value != value else format_value(value)
