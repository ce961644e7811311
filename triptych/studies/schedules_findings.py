"""What the records of the study of masking schedules say: the best schedule and the best guidance scale per metric.

Seeds are the blocks of all comparisons: the seed decides the order of the data, the initial weights and the prompts.
"""

from triptych.errors import UserError
from triptych.studies.base import Claim, StudyRecords
from triptych.studies.best_option import Comparison, compare_options, complete_blocks
from triptych.studies.sample_quality import METRICS, QualityMetric, metrics_in
from triptych.studies.verdict import Verdict

_PAPER_BEST = "polynomial"
_AUDIO_FIGURE, _IMAGE_FIGURE = "Figure 24", "Figure 25"
_IMAGE_SCALES, _AUDIO_SCALES = (7.0, 9.0), (1.0, 3.0)  # best guidance scales in the paper


def trained(records: StudyRecords) -> StudyRecords:
    """The training runs that did not diverge."""
    return [record for record in records if "modality" not in record and record["loss"] is not None]


def measured(records: StudyRecords) -> list[QualityMetric]:
    return metrics_in([record["scores"] for record in records if "modality" in record])


def losses(records: StudyRecords) -> Comparison[str]:
    """Schedules by validation loss."""
    values: dict[str, dict[str, float]] = {}
    for record in trained(records):
        values.setdefault(record["schedule"], {})[str(record["seed"])] = record["loss"]
    if not (complete := complete_blocks(values)):
        raise UserError("no seed has been trained with every schedule yet: run the study to its end.")
    return compare_options(complete, higher_is_better=False)


def by_scale(records: StudyRecords, metric: QualityMetric) -> dict[str, dict[float, dict[str, float]]]:
    """By schedule and guidance scale: the value of each seed."""
    values: dict[str, dict[float, dict[str, float]]] = {}
    for record in records:
        if "modality" in record and metric.name in record["scores"]:
            of_scale = values.setdefault(record["schedule"], {}).setdefault(record["guidance_scale"], {})
            of_scale[str(record["seed"])] = record["scores"][metric.name]["value"]
    return {name: dict(sorted(scales.items())) for name, scales in values.items()}


def scales(records: StudyRecords, metric: QualityMetric) -> dict[str, Comparison[float]]:
    """By schedule, the guidance scales compared."""
    complete = {name: complete_blocks(values) for name, values in by_scale(records, metric).items()}
    return {
        name: compare_options(values, higher_is_better=metric.higher_is_better)
        for name, values in complete.items()
        if values
    }


def schedules(records: StudyRecords, metric: QualityMetric) -> Comparison[str] | None:
    """Schedules, each at its own best guidance scale; None if no seed has them all."""
    values = by_scale(records, metric)
    best = {name: values[name][comparison.best] for name, comparison in scales(records, metric).items()}
    complete = complete_blocks(best)
    return compare_options(complete, higher_is_better=metric.higher_is_better) if complete else None


# -- sentences --------------------------------------------------------------------------------------------------------


def findings(records: StudyRecords) -> list[str]:
    diverged = [record["key"] for record in records if "modality" not in record and record["loss"] is None]
    lines = [f"diverged: {', '.join(diverged)}"] if diverged else []
    lines.append(f"validation loss, nats per token: {_comparison(losses(records), '.4f')}")
    for metric in measured(records):
        of_scales = scales(records, metric)
        for name, comparison in of_scales.items():
            lines.append(
                f"{metric.title}, {name}: best guidance scale {comparison.best:g} ({_range(comparison)}), "
                f"{comparison.means[comparison.best]:.4g}"
            )
        if (compared := schedules(records, metric)) is not None:
            lines.append(f"{metric.title}, each schedule at its best scale: {_comparison(compared, '.4g')}")
            lines.append(f"{metric.title}: {_leads(records, metric)}")
    return lines


def _range(comparison: Comparison[float]) -> str:
    """The guidance scales that may be the best one."""
    low, high = min(comparison.tied), max(comparison.tied)
    if comparison.num_blocks < 2:
        return "one seed: no interval"
    return "decided" if comparison.is_decided else f"{low:g} to {high:g} cannot be told apart"


def _comparison(comparison: Comparison[str], form: str) -> str:
    values = ", ".join(f"{name} {mean:{form}}" for name, mean in comparison.means.items())
    if comparison.num_blocks < 2:
        return f"{values}; undecided: with one seed, differences have no interval"
    reach = f"a difference is known to ± {comparison.margin:.2g}"
    if comparison.is_decided:
        return f"{values}; best: {comparison.best} ({reach})"
    if len(set(comparison.means.values())) == 1:
        return f"{values}; undecided: all are equal"
    others = [name for name in comparison.tied if name != comparison.best]
    return f"{values}; undecided: {comparison.best} leads, tied with {', '.join(others)} ({reach})"


def _leads(records: StudyRecords, metric: QualityMetric) -> str:
    """How often each schedule has the best mean of all, over guidance scales."""
    means = {name: comparison.means for name, comparison in scales(records, metric).items()}
    shared = sorted(set.intersection(*(set(each) for each in means.values())))
    choose = max if metric.higher_is_better else min
    wins = dict.fromkeys(means, 0)
    for scale in shared:
        best = choose(of_scale[scale] for of_scale in means.values())
        leading = [name for name in means if means[name][scale] == best]
        if len(leading) == 1:
            wins[leading[0]] += 1
    counts = ", ".join(f"{name} at {count}" for name, count in wins.items())
    return f"best mean at {len(shared)} guidance scales: {counts}"


# -- claims -----------------------------------------------------------------------------------------------------------


def claims(records: StudyRecords) -> list[Claim]:
    names = {metric.name for metric in measured(records)}
    images = [METRICS[name] for name in ("kid",) if name in names]
    speech = [METRICS[name] for name in ("fad", "wer") if name in names]
    made = []
    if images:
        made.append(
            _schedule_claim(
                records, images, _IMAGE_FIGURE, "Of four masking schedules the polynomial one gives the best images."
            )
        )
        text = "Images are best with a guidance scale between 7 and 9."
        made.append(_scale_claim(records, images, _IMAGE_FIGURE, text, _IMAGE_SCALES))
    if speech:
        text = "The polynomial schedule also gives the best speech, by every metric."
        made.append(_schedule_claim(records, speech, _AUDIO_FIGURE, text))
        text = "Speech is best with a guidance scale between 1 and 3."
        made.append(_scale_claim(records, speech, _AUDIO_FIGURE, text, _AUDIO_SCALES))
    return [claim for claim in made if claim is not None]


def _schedule_claim(records: StudyRecords, metrics: list[QualityMetric], place: str, text: str) -> Claim | None:
    compared = {metric: schedules(records, metric) for metric in metrics}
    parts, verdicts = [], []
    for metric, comparison in compared.items():
        if comparison is None or _PAPER_BEST not in comparison.means:
            return None
        parts.append(f"{metric.title}: {_comparison(comparison, '.4g')}")
        verdicts.append(_membership(comparison, [_PAPER_BEST]))
    return Claim(place, text, "; ".join(parts), _all_of(verdicts))


def _scale_claim(
    records: StudyRecords, metrics: list[QualityMetric], place: str, text: str, within: tuple[float, float]
) -> Claim | None:
    parts, verdicts = [], []
    for metric in metrics:
        comparison = scales(records, metric).get(_PAPER_BEST)
        if comparison is None:
            return None
        parts.append(f"{metric.title}, {_PAPER_BEST}: best at {comparison.best:g} ({_range(comparison)})")
        verdicts.append(_membership(comparison, [x for x in comparison.means if within[0] <= x <= within[1]]))
    return Claim(place, text, "; ".join(parts), _all_of(verdicts))


def _membership(comparison: Comparison, options: list) -> Verdict:
    """Whether the best option is one of these, as far as it is known."""
    if comparison.num_blocks < 2 or len(comparison.means) < 2:
        return "undecided"
    inside = [option in options for option in comparison.tied]
    return "agrees" if all(inside) else "undecided" if any(inside) else "disagrees"


def _all_of(verdicts: list[Verdict]) -> Verdict:
    if "disagrees" in verdicts:
        return "disagrees"
    return "agrees" if set(verdicts) == {"agrees"} else "undecided"
