"""What the records of the study of sampling settings say: the best value of each field per metric, with intervals.

The parts of the samples of each seed are the blocks of all comparisons: all settings have the same prompts.
"""

import math
from collections.abc import Mapping
from typing import Any

from triptych.scaling.intervals import Interval
from triptych.studies.base import Claim, StudyRecords
from triptych.studies.best_option import Comparison, compare_options, complete_blocks
from triptych.studies.sample_quality import METRICS, QualityMetric, metrics_in
from triptych.studies.verdict import Verdict

SWEEP_SEEDS, CONFIRMATION_SEED = (0, 1), 2
FIELDS = ("num_steps", "guidance_scale", "temperature", "top_p")
ONE_PER_TOKEN = 0.0
"""The number of steps, as a value, of one step per token."""


def value_of(record: Mapping[str, Any], field: str) -> float | None:
    """The value of a field in a trial of the sweep; None if the trial changes another field."""
    if record["seed"] not in SWEEP_SEEDS or record["field"] not in (None, field):
        return None
    value = record["value"] if record["field"] == field else record["default"][field]
    return ONE_PER_TOKEN if value is None else float(value)


def shown(field: str, value: float) -> str:
    return "one per token" if field == "num_steps" and value == ONE_PER_TOKEN else f"{value:g}"


def metrics_of(records: StudyRecords, modality: str) -> list[QualityMetric]:
    return metrics_in([record["scores"] for record in records if record["modality"] == modality])


def modalities(records: StudyRecords) -> list[str]:
    return [name for name in ("text", "image", "audio") if any(record["modality"] == name for record in records)]


def sweep(records: StudyRecords, field: str, metric: QualityMetric) -> Comparison[float] | None:
    """The values of a field compared, in increasing order; one step per token is the largest number of steps."""
    by_value: dict[float, dict[str, float]] = {}
    for record in records:
        value = value_of(record, field)
        is_measured = record["modality"] == metric.modality.name.lower() and metric.name in record["scores"]
        if value is not None and is_measured:
            numbered = enumerate(record["scores"][metric.name]["parts"])
            by_value.setdefault(value, {}).update({f"{record['seed']} {number}": part for number, part in numbered})
    parts = complete_blocks(by_value)
    if len(parts) < 2:
        return None
    ordered = sorted(parts, key=lambda value: float("inf") if field == "num_steps" and not value else value)
    return compare_options({value: parts[value] for value in ordered}, higher_is_better=metric.higher_is_better)


def default_of(records: StudyRecords, modality: str, field: str) -> float:
    record = next(each for each in records if each["modality"] == modality)
    value = record["default"][field]
    return ONE_PER_TOKEN if value is None else float(value)


def better_settings(records: StudyRecords, modality: str) -> dict[str, float]:
    """The best values that beat the default beyond the interval, by the first metric of the modality."""
    metrics, better = metrics_of(records, modality), {}
    for field in FIELDS if metrics else ():
        comparison = sweep(records, field, metrics[0])
        if comparison is not None and default_of(records, modality, field) not in comparison.tied:
            better[field] = comparison.best
    return better


def gain(records: StudyRecords, metric: QualityMetric) -> Interval | None:
    """How much better the combined settings are than the default on other prompts; None before that is measured."""
    name = metric.modality.name.lower()
    confirmed = [each for each in records if each["modality"] == name and each["seed"] == CONFIRMATION_SEED]
    combined = [each for each in confirmed if each.get("combined") == better_settings(records, name)]
    default = [each for each in confirmed if "combined" not in each]
    if not combined or not default or metric.name not in combined[0]["scores"]:
        return None
    parts = {"combined": combined[0]["scores"][metric.name]["parts"], "own": default[0]["scores"][metric.name]["parts"]}
    comparison = compare_options(parts, higher_is_better=metric.higher_is_better)
    lead = comparison.lead("own" if comparison.best == "combined" else "combined")
    return lead if comparison.best == "combined" else Interval(-lead.value, -lead.high, -lead.low)


def is_worse(records: StudyRecords, modality: str) -> bool:
    """Whether the combined settings turned out worse than the default, by the first metric of the modality."""
    measured = gain(records, metrics_of(records, modality)[0])
    return measured is not None and measured.high < 0


# -- sentences --------------------------------------------------------------------------------------------------------


def findings(records: StudyRecords) -> list[str]:
    lines = []
    for modality in modalities(records):
        for metric in metrics_of(records, modality):
            for field in FIELDS:
                if (comparison := sweep(records, field, metric)) is not None:
                    lines.append(_sentence(records, field, metric, comparison))
        lines.append(_combination(records, modality))
    return lines


def _sentence(records: StudyRecords, field: str, metric: QualityMetric, comparison: Comparison[float]) -> str:
    modality = metric.modality.name.lower()
    default, best = default_of(records, modality, field), comparison.best
    start = f"{modality}, {metric.title}, {field}: best {shown(field, best)}, {comparison.means[best]:.4g}"
    if default != best and math.isclose(comparison.means[default], comparison.means[best], abs_tol=1e-12):
        start += f", equal to the default {shown(field, default)}"
    elif default != best:
        lead = comparison.lead(default).shown(".2g")
        start += f"; {lead} better than the default {shown(field, default)}"
    else:
        start += ", the default"
    if comparison.is_decided:
        return f"{start}; decided"
    tied = ", ".join(shown(field, value) for value in comparison.tied)
    return f"{start}; undecided: {tied} cannot be told apart"


def _combination(records: StudyRecords, modality: str) -> str:
    settings = better_settings(records, modality)
    if not settings:
        return f"{modality}: no value is better than the model's own settings beyond the intervals"
    combined = ", ".join(f"{field} {shown(field, value)}" for field, value in settings.items())
    parts = []
    for metric in metrics_of(records, modality):
        if (measured := gain(records, metric)) is not None:
            parts.append(f"{metric.title} better by {measured.shown('.2g')}")
    result = "; ".join(parts) or "not measured yet"
    return f"{modality}, together {combined}, against the model's own settings on other prompts: {result}"


# -- claims -----------------------------------------------------------------------------------------------------------

_IMAGE_FIGURE, _AUDIO_FIGURE = "Figure 17", "Figure 18"


def claims(records: StudyRecords) -> list[Claim]:
    made = [
        _more_steps(records, "kid", _IMAGE_FIGURE, "More steps give better images, with diminishing returns."),
        _inside(records, "kid", "guidance_scale", "Images are best at an intermediate guidance scale."),
        _inside(records, "kid", "temperature", "Images are best at an intermediate temperature."),
        _high_top_p(records),
        _more_steps(records, "fad", _AUDIO_FIGURE, "More steps give better speech, with diminishing returns."),
        _trade_off(records),
    ]
    return [claim for claim in made if claim is not None]


def _of(records: StudyRecords, name: str, field: str) -> Comparison[float] | None:
    return sweep(records, field, METRICS[name])


def _text(name: str, field: str, comparison: Comparison[float]) -> str:
    tied = ", ".join(shown(field, value) for value in comparison.tied)
    values = ", ".join(f"{shown(field, value)}: {mean:.3g}" for value, mean in comparison.means.items())
    known = "decided" if comparison.is_decided else f"{tied} cannot be told apart"
    return f"{METRICS[name].title} by {field} {values} (differences ± {comparison.margin:.2g}; {known})"


def _more_steps(records: StudyRecords, name: str, place: str, text: str) -> Claim | None:
    """Whether the fewest steps are worse than the best number, and that is not the fewest."""
    if (comparison := _of(records, name, "num_steps")) is None:
        return None
    values = list(comparison.means)
    fewest_is_worse = values[0] not in comparison.tied
    most_is_good = values[-1] in comparison.tied
    verdict: Verdict = "agrees" if fewest_is_worse and most_is_good else "undecided"
    if not most_is_good:
        verdict = "disagrees"
    return Claim(place, text, _text(name, "num_steps", comparison), verdict)


def _inside(records: StudyRecords, name: str, field: str, text: str) -> Claim | None:
    if (comparison := _of(records, name, field)) is None:
        return None
    values = list(comparison.means)
    at_edge = [value in (values[0], values[-1]) for value in comparison.tied]
    verdict: Verdict = "undecided" if any(at_edge) else "agrees"
    return Claim(_IMAGE_FIGURE, text, _text(name, field, comparison), "disagrees" if all(at_edge) else verdict)


def _high_top_p(records: StudyRecords) -> Claim | None:
    if (comparison := _of(records, "kid", "top_p")) is None:
        return None
    high = [value >= 0.9 for value in comparison.tied]
    verdict: Verdict = "agrees" if all(high) else "undecided" if any(high) else "disagrees"
    return Claim(_IMAGE_FIGURE, "Images are best with a high top-p.", _text("kid", "top_p", comparison), verdict)


def _trade_off(records: StudyRecords) -> Claim | None:
    """Whether every scale that may be best for WER is above every one that may be best for FAD."""
    wer, fad = _of(records, "wer", "guidance_scale"), _of(records, "fad", "guidance_scale")
    if wer is None or fad is None:
        return None
    verdict: Verdict = "undecided"
    if min(wer.tied) > max(fad.tied):
        verdict = "agrees"
    elif max(wer.tied) < min(fad.tied) or (wer.is_decided and fad.is_decided):
        verdict = "disagrees"
    text = "A larger guidance scale improves the word error rate of speech and worsens its FAD."
    ours = "; ".join(_text(name, "guidance_scale", each) for name, each in (("wer", wer), ("fad", fad)))
    return Claim(_AUDIO_FIGURE, text, ours, verdict)
