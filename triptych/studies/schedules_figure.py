"""The figure of the study of masking schedules: likelihood, and each metric over guidance scales."""

import math
from pathlib import Path
from typing import Any

from triptych.studies.base import StudyRecords
from triptych.studies.sample_quality import QualityMetric
from triptych.studies.schedules_findings import losses, measured, scales, trained
from triptych.utils.plotting import pyplot, save


def draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    metrics = measured(records)
    num_columns = min(3, 1 + len(metrics))
    num_rows = math.ceil((1 + len(metrics)) / num_columns)
    figure, axes = plt.subplots(num_rows, num_columns, figsize=(3.5 * num_columns, 2.9 * num_rows), squeeze=False)
    names = list(losses(records).means)
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    panels = list(axes.flat)
    _draw_losses(panels[0], records, colours)
    for panel, metric in zip(panels[1:], metrics):
        _draw_metric(panel, records, metric, colours)
    for panel in panels[1 + len(metrics) :]:
        panel.axis("off")
    figure.tight_layout()
    save(figure, path)


def _draw_losses(panel: Any, records: StudyRecords, colours: dict[str, str]) -> None:
    comparison = losses(records)
    for number, (name, mean) in enumerate(comparison.means.items()):
        values = [record["loss"] for record in trained(records) if record["schedule"] == name]
        panel.plot([number] * len(values), values, "o", ms=3, alpha=0.6, color=colours[name])
        reach = 0.0 if math.isnan(comparison.spread) else comparison.spread
        panel.errorbar([number + 0.15], [mean], [reach], fmt="s", ms=4, capsize=3, color=colours[name])
    panel.set_xticks(range(len(comparison.means)), list(comparison.means), rotation=20)
    panel.set_ylabel("validation loss, nats per token")


def _draw_metric(panel: Any, records: StudyRecords, metric: QualityMetric, colours: dict[str, str]) -> None:
    for number, (name, comparison) in enumerate(scales(records, metric).items()):
        scale, mean = list(comparison.means), list(comparison.means.values())
        colour = colours.get(name, "black")
        panel.plot(scale, mean, "o-", ms=3, color=colour, label=name)
        if not math.isnan(comparison.spread):
            low, high = ([value + sign * comparison.spread for value in mean] for sign in (-1, 1))
            panel.fill_between(scale, low, high, color=colour, alpha=0.12, lw=0)
        panel.plot([comparison.best], [comparison.means[comparison.best]], "*", ms=11, color=colour, zorder=9 + number)
    panel.set_xlabel("guidance scale")
    panel.set_ylabel(metric.axis_label)
    panel.legend()
