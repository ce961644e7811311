"""The figure of the study of sampling settings: a row per metric, a column per field, a star at the best value."""

import math
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.studies.base import StudyRecords
from triptych.studies.best_option import Comparison
from triptych.studies.inference_findings import FIELDS, default_of, metrics_of, modalities, shown, sweep
from triptych.studies.sample_quality import QualityMetric
from triptych.utils.plotting import pyplot, save

_TITLES = {"num_steps": "steps", "guidance_scale": "guidance scale", "temperature": "temperature", "top_p": "top-p"}
_COLOURS = {"text": "C2", "image": "C0", "audio": "C1"}


def draw(records: StudyRecords, path: Path) -> None:
    rows = [metric for modality in modalities(records) for metric in metrics_of(records, modality)]
    if not rows:
        raise UserError("no metric has been measured yet.")
    plt = pyplot()
    figure, axes = plt.subplots(
        len(rows), len(FIELDS), figsize=(10.5, 2.1 * len(rows) + 0.4), sharey="row", squeeze=False
    )
    for row, metric in zip(axes, rows):
        for panel, field in zip(row, FIELDS):
            if (comparison := sweep(records, field, metric)) is None:
                panel.axis("off")
                continue
            _draw_sweep(panel, field, metric, comparison, default_of(records, metric.modality.name.lower(), field))
            panel.set_xlabel(_TITLES[field])
        row[0].set_ylabel(f"{metric.modality.name.lower()}\n{metric.axis_label}")
        row[0].axis("on")
    figure.tight_layout()
    save(figure, path)


def _draw_sweep(panel: Any, field: str, metric: QualityMetric, comparison: Comparison[float], default: float) -> None:
    """Values are evenly spaced, because they often span orders of magnitude and may include "one per token"."""
    values, means = list(comparison.means), list(comparison.means.values())
    places, colour = list(range(len(values))), _COLOURS[metric.modality.name.lower()]
    panel.plot(places, means, "o-", ms=3, color=colour)
    if not math.isnan(comparison.spread):
        low, high = ([mean + sign * comparison.spread for mean in means] for sign in (-1, 1))
        panel.fill_between(places, low, high, color=colour, alpha=0.15, lw=0)
    if default in values:
        panel.axvline(values.index(default), color="0.5", lw=0.8, ls=":")
    panel.plot([values.index(comparison.best)], [comparison.means[comparison.best]], "*", ms=12, color=colour, zorder=9)
    panel.set_xticks(places, [shown(field, value).replace("one per token", "all") for value in values])
