"""The report of one or several models: an HTML page and JSON, from results that `triptych eval` has stored.

The page is one file that loads nothing. It shows the paper's table beside the results, radar charts, samples of the
models, every result with interval, settings and judge, the comparison of two models, and what is missing.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from triptych.errors import DataError
from triptych.eval import html as page
from triptych.eval.compare import compare, format_score
from triptych.eval.report.paper import paper, paper_axes, result_of
from triptych.eval.report.radar import Axis, Reference, radar_chart, radar_position, references
from triptych.eval.report.samples import Sample, Samples
from triptych.eval.report.tables import (
    comparison_table,
    first_of,
    missing_table,
    paper_table,
    rows_of,
    suite_table,
)
from triptych.eval.results import Entry, MissingEntry, ModelInfo, StoredResults
from triptych.utils.media import Audio
from triptych.utils.units import human_number

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Lines of a training curve by name: (step, loss)."""
_MIN_AXES, _MAX_AXES = 3, 24  # of a radar chart
_SUITES = {
    "scenes": "Toy dataset",
    "text": "Text",
    "image": "Images",
    "audio": "Audio",
    "elbo": "Likelihood (ELBO)",
    "tokenizers": "Tokenizers",
}


@dataclass(frozen=True)
class ReportedModel:
    """All that a report says of one model."""

    name: str
    stored: Sequence[StoredResults]
    """One or more folders of the same model."""
    samples: Samples = field(default_factory=Samples)
    curves: Curves = field(default_factory=dict)
    curve_label: str = "nats per masked token"

    @property
    def info(self) -> ModelInfo:
        return self.stored[0].model

    @property
    def entries(self) -> list[Entry]:
        """Results of all folders; of a result that is in several, the newest."""
        newest: dict[tuple[str, ...], Entry] = {}
        for entry in (each for stored in self.stored for each in stored.entries):
            if entry.key not in newest or entry.date >= newest[entry.key].date:
                newest[entry.key] = entry
        return list(newest.values())

    @property
    def missing(self) -> list[MissingEntry]:
        measured = {(each.suite, each.metric.name) for each in self.entries}
        lacking = {each.key: each for stored in self.stored for each in stored.missing}
        return [each for each in lacking.values() if (each.suite, each.metric.name) not in measured]

    @property
    def notes(self) -> list[str]:
        return [note for stored in self.stored for note in stored.notes]


def group_by_model(stored: Sequence[StoredResults]) -> list[list[StoredResults]]:
    """Folders of the same model together, in the order in which they were given."""
    groups: dict[str, list[StoredResults]] = {}
    for each in stored:
        known = groups.setdefault(each.model.fingerprint, [])
        if all(each.folder.resolve() != other.folder.resolve() for other in known):
            known.append(each)
    return list(groups.values())


def unique_names(models: Sequence[Sequence[StoredResults]]) -> list[str]:
    """A name for each model; two models of one name get the names of their folders, or numbers."""
    names = [group[0].model.name for group in models]
    if len(set(names)) < len(names):
        names = [group[0].folder.resolve().name for group in models]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return names


# -- JSON -------------------------------------------------------------------------------------------------------------


def report_json(model: ReportedModel) -> dict[str, Any]:
    """The report of one model as JSON: results without samples, the paper's table, radar positions."""
    rows = []
    for row in paper().rows:
        entry = result_of(row, model.entries)
        value = None if entry is None else row.of(entry)
        rows.append(
            {
                "row": row.id,
                "title": paper().title_of(row),
                "paper": row.value,
                "value": value,
                "position": None if value is None else row.position(value),
                "paper_position": row.position(row.value),
            }
        )
    return {
        "model": {
            "name": model.name,
            "source": model.info.source,
            "fingerprint": model.info.fingerprint,
            "num_parameters": model.info.num_parameters,
        },
        "results": [{key: value for key, value in e.as_json.items() if key != "samples"} for e in model.entries],
        "missing": [each.as_json for each in model.missing],
        "paper": {"source": f"{paper().paper}, {paper().source}", "rows": rows},
        "notes": model.notes + list(model.samples.notes),
    }


# -- the page ---------------------------------------------------------------------------------------------------------


def report_page(models: Sequence[ReportedModel], title: str = "") -> str:
    """The HTML page of one or several models."""
    if not any(model.entries for model in models):
        raise DataError("there is nothing to report: no metric has been computed yet.")
    title = title or f"Evaluation of {' and '.join(model.name for model in models)}"
    names, entries = [model.name for model in models], [model.entries for model in models]
    parts: list[tuple[str, str, str]] = [("models", "Model" if len(models) == 1 else "Models", _models(models))]
    parts += _profiles(models)
    if any(model.samples.samples or model.samples.notes for model in models):
        parts.append(("samples", "Samples", "".join(map(_samples, models))))
    beside = ("paper", "Beside the paper", paper_table(names, entries))
    has_rows = any(result_of(row, each) for row in paper().rows for each in entries)
    parts += [beside] if has_rows else []
    for suite in _suites(models):
        heading = _SUITES.get(suite, suite)
        parts.append((f"suite-{html.escape(suite)}", heading, suite_table(heading, suite, names, entries)))
    parts += [] if has_rows else [beside]
    if len(models) == 2:
        parts.append(("comparison", "Differences", _comparison(models)))
    if any(model.curves for model in models):
        parts.append(("training", "Training", "".join(map(_curves, models))))
    if any(model.missing for model in models):
        tables = "".join(missing_table(each.name, each.missing) for each in models)
        parts.append(("missing", "Not measured", tables))
    parts.append(("sources", "How to read this page", _sources()))
    links = page.contents([(anchor, heading) for anchor, heading, _ in parts])
    sections = "".join(page.section(heading, content, anchor=anchor) for anchor, heading, content in parts)
    return page.page(title, f"<h1>{html.escape(title)}</h1>{links}<main>{sections}</main>")


def _models(models: Sequence[ReportedModel]) -> str:
    blocks = []
    for model in models:
        info, entries = model.info, model.entries
        environment = max(entries, key=lambda e: e.date).environment if entries else {}
        dates = sorted(each.date[:10] for each in entries if each.date)
        facts: dict[str, Any] = {"source": info.source, "fingerprint": info.fingerprint[:16]}
        if info.num_parameters:
            facts["parameters"] = human_number(info.num_parameters)
        facts["metrics"] = f"{len(entries)} measured, {len(model.missing)} not"
        if dates:
            facts["measured"] = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        facts |= {key: environment[key] for key in ("triptych", "commit", "torch", "machine") if environment.get(key)}
        heading = f"<h3>{html.escape(model.name)}</h3>" if len(models) > 1 else ""
        notes = "".join(f"<p class='wrong'>{html.escape(note)}</p>" for note in model.notes)
        blocks.append(f"<div>{heading}{page.definitions(facts)}{notes}</div>")
    return page.row(*blocks)


def _suites(models: Sequence[ReportedModel]) -> list[str]:
    present = {entry.suite for model in models for entry in model.entries}
    return [*(name for name in _SUITES if name in present), *sorted(present - set(_SUITES))]


# -- radar charts -----------------------------------------------------------------------------------------------------


def _profiles(models: Sequence[ReportedModel]) -> list[tuple[str, str, str]]:
    """Radar charts: the paper's axes if at least three are measured, and those of the toy dataset."""
    charts = []
    entries = [model.entries for model in models]
    names = [model.name for model in models]
    axes = paper_axes(entries)
    if max(sum(axis.positions[1 + i] is not None for axis in axes) for i in range(len(models))) >= _MIN_AXES:
        charts.append(radar_chart([f"{paper().model} (paper)", *names], axes, "the paper's metrics"))
    own = _own_axes(entries)
    if len(own) >= _MIN_AXES:
        charts.append("<h3>Toy dataset</h3>" * bool(charts) + radar_chart(names, own, "the toy dataset"))
    text = "Further out is better; the values are beside the names. How they are placed is explained at the end."
    return [("profile", "Profile", page.paragraph(text) + "".join(charts))] if charts else []


def _own_axes(models: Sequence[Sequence[Entry]]) -> list[Axis]:
    """Bounded headline metrics of the toy dataset, and the categories of images, as in the paper's radar."""
    axes = []
    for group in rows_of("scenes", models):
        metric = first_of(group).metric
        if metric.bounds is None or not (metric.headline or metric.modality == "image"):
            continue
        positions = [
            None
            if entry is None
            else radar_position(entry.score.value, higher_is_better=metric.higher_is_better, bounds=metric.bounds)
            for entry in group
        ]
        axes.append(Axis(metric.title, positions, [format_score(metric, e.score.value) if e else "" for e in group]))
    return axes[:_MAX_AXES]


# -- samples, curves, what is missing ---------------------------------------------------------------------------------


def _samples(model: ReportedModel) -> str:
    images = [each for each in model.samples.samples if each.kind == "image"]
    clips = [each for each in model.samples.samples if each.kind == "audio"]
    texts = [each for each in model.samples.samples if each.kind == "text"]
    parts = [f"<h3>{html.escape(model.name)}</h3>"]
    if model.samples.samples:
        parts.append(page.paragraph("Not selected: the first ones, with fixed seeds."))
    parts.append(page.row(*map(_figure, images)))
    parts.append(page.row(*map(_figure, clips)))
    for each in texts:
        line = f"<span class='soft'>{html.escape(each.direction)}, {html.escape(each.prompt)}:</span> "
        parts.append(page.paragraph(line + page.quote(str(each.content))))
    parts += [page.paragraph(f"<span class='soft'>{html.escape(note)}</span>") for note in model.samples.notes]
    return "".join(parts)


def _figure(sample: Sample) -> str:
    if isinstance(sample.content, Image.Image):
        return page.figure(page.image(sample.content, alt=f"drawn for: {sample.prompt}"), page.quote(sample.prompt))
    assert isinstance(sample.content, Audio)
    return page.figure(page.audio(sample.content), f"{page.quote(sample.prompt)}, {sample.content.seconds:.1f} s")


def _curves(model: ReportedModel) -> str:
    if not model.curves:
        return ""
    chart = page.line_chart(model.curves, "step", model.curve_label)
    return f"<h3>{html.escape(model.name)}</h3>" + page.scrolling(chart, f"training curve of {model.name}")


def _comparison(models: Sequence[ReportedModel]) -> str:
    first, second = (
        StoredResults(model.stored[0].folder, model.entries, model.missing, model.notes) for model in models
    )
    try:
        return comparison_table(compare(first, second, names=(models[0].name, models[1].name)))
    except DataError as error:
        return page.paragraph(html.escape(str(error)))


def _sources() -> str:
    text = (
        "Intervals are 95 % intervals over samples. In radar charts, a bounded metric is placed between its bounds: "
        "shares and percentages, WER to 1, Audiobox to 10. A Fréchet distance has no upper bound: it is placed at the "
        "share of published values that are worse. The paper does not list its references, so positions of Fréchet "
        "distances differ from those of its figure. Values of different data or judges are not comparable, whatever "
        "their place in a chart."
    )
    rows = []
    titles = {"fid": "FID, Inception-v3", "fid_dinov2": "FID, DINOv2-L", "fad": "FAD"}
    for name, published in references().items():
        rows.append([page.text_cell(titles.get(name, name))])
        rows += [_reference_row(each) for each in sorted(published, key=lambda each: each.value)]
    headings = [page.text_cell("model"), page.number("value"), page.text_cell("data"), page.text_cell("source")]
    table = page.table(headings, rows, "Published values that Fréchet distances are placed by")
    return page.paragraph(html.escape(text)) + page.details("Published values", table)


def _reference_row(each: Reference) -> list[page.Cell]:
    return [
        page.text_cell(each.model),
        page.number(f"{each.value:g}"),
        page.text_cell(each.data),
        page.text_cell(each.source),
    ]
