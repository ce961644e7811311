"""Tables of a report: the paper's beside ours, the results of a suite, differences of two models, what is missing."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from triptych.eval import html as page
from triptych.eval.compare import ComparisonResult, dataset_of, format_p, format_score, format_value, label_of
from triptych.eval.metrics import Metric
from triptych.eval.report.paper import PaperRow, paper, result_of
from triptych.eval.results import Entry, MissingEntry
from triptych.eval.scores import Score

Row = Sequence[Entry | None]
"""One metric under the same conditions, by model."""


def rows_of(suite: str, models: Sequence[Sequence[Entry]]) -> list[Row]:
    """The results of a suite, those of the same metric and data in one row."""
    rows: dict[tuple[str, str, int], list[Entry | None]] = {}
    for number, entries in enumerate(models):
        counts: dict[tuple[str, str], int] = {}
        for entry in entries:
            if entry.suite == suite:
                name = (entry.metric.name, dataset_of(entry))
                counts[name] = counts.get(name, 0) + 1
                rows.setdefault((*name, counts[name]), [None] * len(models))[number] = entry
    return list(rows.values())


def first_of(row: Row) -> Entry:
    return next(entry for entry in row if entry is not None)


def _arrow(is_higher_better: bool) -> str:
    meaning = "higher is better" if is_higher_better else "lower is better"
    return f"<span role='img' aria-label='{meaning}' title='{meaning}'>{'↑' if is_higher_better else '↓'}</span>"


def _interval(metric: Metric, score: Score) -> str:
    if math.isnan(score.low):
        return "–"
    return f"{format_score(metric, score.low)} to {format_score(metric, score.high)}"


def paper_table(names: Sequence[str], models: Sequence[Sequence[Entry]]) -> str:
    """The paper's table with a column for each model."""
    headings = [page.text_cell("metric"), page.number("paper, 3B"), *map(page.number, names)]
    rows: list[list[page.Cell]] = []
    group = None
    for row in paper().rows:
        if row.group != group:
            group = row.group
            rows.append([page.text_cell(paper().groups[group])])
        cells = [page.Cell(f"{html.escape(paper().title_of(row))} {_arrow(row.higher_is_better)}")]
        cells.append(page.number(_as_printed(row.value)))
        cells += [_paper_cell(row, entries) for entries in models]
        rows.append(cells)
    settings = page.definitions({paper().groups[key]: text for key, text in paper().settings.items()})
    notes = "".join(page.paragraph(html.escape(note)) for note in paper().notes)
    count = sum(result_of(row, entries) is not None for row in paper().rows for entries in models)
    intro = f"{html.escape(paper().paper)}, {html.escape(paper().source)}. Shares are in percent, as there."
    if not count:
        intro += " None of these metrics has been measured here: <code>triptych eval paper</code> does."
    return (
        page.paragraph(intro)
        + page.table(headings, rows, "Metrics of the paper")
        + page.details("Settings of the paper, and notes", settings + notes)
    )


def _as_printed(value: float) -> str:
    """The digits of the paper."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _paper_cell(row: PaperRow, entries: Sequence[Entry]) -> page.Cell:
    entry = result_of(row, entries)
    if entry is None:
        return page.Cell("<span class='soft' aria-label='not measured'>–</span>", "number")
    scale = 100 if row.percent else 1
    score = Score(scale * entry.score.value, scale * entry.score.low, scale * entry.score.high, entry.score.n)
    interval = "–" if math.isnan(score.low) else f"{format_value(score.low)} to {format_value(score.high)}"
    text = f"<strong>{format_value(score.value)}</strong><br><span class='soft'>{interval}</span>"
    return page.Cell(text, "number")


def suite_table(title: str, suite: str, names: Sequence[str], models: Sequence[Sequence[Entry]]) -> str:
    """All results of a suite with intervals, judges and settings."""
    rows = rows_of(suite, models)
    common = _common_settings([entry for row in rows for entry in row if entry is not None])
    headings = [page.text_cell("metric")]
    for name in names:
        headings += [page.number(name if len(names) > 1 else "value"), page.number("95 % interval")]
    headings += [page.number("samples"), page.text_cell("how")]
    body = []
    for row in rows:
        entry = first_of(row)
        cells = [page.Cell(f"{html.escape(label_of(entry))} {_arrow(entry.metric.higher_is_better)}")]
        for each in row:
            value = format_score(each.metric, each.score.value) if each else "–"
            cells += [page.number(value), page.number(_interval(each.metric, each.score) if each else "–")]
        body.append([*cells, page.number(f"{entry.score.n:,}"), page.Cell(_how(entry, common))])
    shown = page.details("Settings of all results in this table", page.definitions(common)) if common else ""
    return page.table(headings, body, f"{title}: all results") + shown


def _common_settings(entries: Sequence[Entry]) -> dict[str, Any]:
    """Settings that all results share."""
    first, *rest = [entry.result.settings for entry in entries]
    return {key: value for key, value in first.items() if all(each.get(key) == value for each in rest)}


def _how(entry: Entry, common: Mapping[str, Any]) -> str:
    """Judge and settings of a result, without those that all results of the table share."""
    facts = {key: value for key, value in entry.result.settings.items() if key not in common}
    facts["seed"] = entry.seed
    judge = entry.result.judge
    if judge is not None:
        facts = {"judge": f"{judge.name}, SHA-256 {judge.sha256[:12]}…", **facts}
    return page.details(judge.name if judge else "settings", page.definitions(facts))


def comparison_table(result: ComparisonResult) -> str:
    """Differences with intervals and verdicts, as HTML."""
    headings = [page.text_cell("metric"), page.number(result.first), page.number(result.second)]
    headings += [
        page.number("difference"),
        page.number("95 % interval"),
        page.number("p (Holm)"),
        page.text_cell("verdict"),
    ]
    rows = []
    for each in result.comparisons:
        difference = each.difference
        verdict = html.escape(result.named(each.verdict))
        verdict = f"<span class='soft'>{verdict}</span>" if each.verdict == "no difference shown" else verdict
        how = "; ".join(filter(None, ["unpaired" if difference.method == "unpaired" else "", each.note]))
        rows.append(
            [
                page.Cell(f"{html.escape(each.label)} {_arrow(each.metric.higher_is_better)}"),
                page.number(format_score(each.metric, each.first.value)),
                page.number(format_score(each.metric, each.second.value)),
                page.number(f"{difference.value:+.3g}"),
                page.number(f"{difference.low:+.3g} to {difference.high:+.3g}"),
                page.number(format_p(each.p_corrected)),
                page.Cell(verdict + (f"<br><span class='soft'>{html.escape(how)}</span>" if how else "")),
            ]
        )
    text = f"p-values are corrected for {len(rows)} comparisons (Holm); a verdict needs p of at most 0.05."
    refused = [f"{each.metric.title}: {each.reason}" for each in result.not_compared]
    refused += [*(f"note: {note}" for note in result.notes)]
    listed = "".join(f"<li>{html.escape(each)}</li>" for each in refused)
    table = page.table(headings, rows, f"{result.first} minus {result.second}") if rows else ""
    return page.paragraph(text) + table + (f"<ul>{listed}</ul>" if listed else "")


def missing_table(name: str, missing: Sequence[MissingEntry]) -> str:
    """Metrics that were not computed, and what would provide them."""
    headings = [*map(page.text_cell, ("metric", "suite", "what would provide it"))]
    rows = [
        [
            page.text_cell(each.metric.title),
            page.text_cell(each.suite),
            page.Cell(html.escape(each.missing.reason), "wide"),
        ]
        for each in missing
    ]
    return page.table(headings, rows, name) if rows else ""
