"""Two models, metric by metric: the difference, its interval, and whether it is more than chance.

Results are compared if data, settings, seed and judge are equal. Where both have what each sample contributed, the
comparison is in pairs, which removes how hard the samples are; otherwise it uses the two intervals. The p-values of all
comparisons are corrected for their number (Holm), so that one verdict in twenty is not a false one by design.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from triptych.errors import DataError, UserError, did_you_mean
from triptych.eval.difference import Difference, holm, paired_difference, unpaired_difference
from triptych.eval.metrics import Metric
from triptych.eval.results import MEASURED, Entry, StoredResults
from triptych.eval.scores import Score

LEVEL = 0.05
"""The chance that any of the verdicts names a better model although both are equal."""
TOKENIZERS = "tokenizers"
"""Name of the setting of metrics per token; models with other tokenizers count other tokens."""
Verdict = Literal["first better", "second better", "no difference shown"]


@dataclass(frozen=True)
class Comparison:
    """A metric that both models have."""

    metric: Metric
    label: str
    """The metric's title, with the data if the same metric was measured on several."""
    first: Score
    second: Score
    difference: Difference
    p_corrected: float
    verdict: Verdict
    note: str = ""
    """Settings that differ and were allowed to."""

    @property
    def as_json(self) -> dict[str, Any]:
        difference = self.difference
        return {
            "metric": self.metric.name,
            "label": self.label,
            "higher_is_better": self.metric.higher_is_better,
            "first": _score_json(self.first),
            "second": _score_json(self.second),
            "difference": difference.value,
            "low": _finite(difference.low),
            "high": _finite(difference.high),
            "method": difference.method,
            "p": difference.p,
            "p_corrected": self.p_corrected,
            "verdict": self.verdict,
            "note": self.note,
        }


@dataclass(frozen=True)
class NotCompared:
    """A metric that both models have, under conditions that differ."""

    metric: Metric
    reason: str


@dataclass(frozen=True)
class ComparisonResult:
    first: str
    """Name of the first model."""
    second: str
    comparisons: Sequence[Comparison]
    not_compared: Sequence[NotCompared]
    only_first: Sequence[str] = ()
    """Names of metrics that the other model does not have."""
    only_second: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "level": LEVEL,
            "correction": f"Holm, over {len(self.comparisons)} metrics",
            "comparisons": [each.as_json for each in self.comparisons],
            "not_compared": [{"metric": each.metric.name, "reason": each.reason} for each in self.not_compared],
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "notes": list(self.notes),
        }

    @property
    def table(self) -> str:
        """A Markdown table, and what could not be compared."""
        lines = [
            f"| metric | {self.first} | {self.second} | difference | 95 % interval | p (Holm) | verdict |",
            "|---|---|---|---|---|---|---|",
        ]
        for each in self.comparisons:
            difference, arrow = each.difference, "↑" if each.metric.higher_is_better else "↓"
            lines.append(
                f"| {each.label} {arrow} | {format_score(each.metric, each.first.value)} "
                f"| {format_score(each.metric, each.second.value)} "
                f"| {difference.value:+.4g} | {_interval(difference)} "
                f"| {format_p(each.p_corrected)} | {self.named(each.verdict)}{_how(each)} |"
            )
        lines += [f"not compared: {each.metric.title}: {each.reason}" for each in self.not_compared]
        for name, metrics in ((self.first, self.only_first), (self.second, self.only_second)):
            if metrics:
                lines.append(f"only {name} has: {', '.join(metrics)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def named(self, verdict: Verdict) -> str:
        return verdict.replace("first", self.first).replace("second", self.second)

    def __str__(self) -> str:
        return self.table


def _how(comparison: Comparison) -> str:
    parts = ["unpaired"] if comparison.difference.method == "unpaired" else []
    parts += [comparison.note] if comparison.note else []
    return f" ({'; '.join(parts)})" if parts else ""


def format_value(value: float) -> str:
    """Four digits, without an exponent where that is readable."""
    return "–" if not np.isfinite(value) else f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_score(metric: Metric, value: float) -> str:
    """A value of a metric: shares with three decimals."""
    return f"{value:.3f}" if metric.bounds == (0.0, 1.0) and np.isfinite(value) else format_value(value)


def format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _score_json(score: Score) -> dict[str, Any]:
    return {key: _finite(value) for key, value in score.as_json.items()}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def compare(
    first: StoredResults,
    second: StoredResults,
    *,
    metrics: Sequence[str] = (),
    allow: Collection[str] = (),
    parts: bool = False,
    names: tuple[str, str] | None = None,
) -> ComparisonResult:
    """Compare the results of two models.

    `metrics` are names, or patterns such as "arc_*", of those to compare; the correction is for these. By default they
    are the headline metrics, with `parts` also their categories and baselines. `allow` names settings that may differ:
    "sampling" to compare two samplers with the same model.
    """
    chosen = [_chosen(stored.entries, metrics, parts) for stored in (first, second)]
    if metrics and not any(chosen):
        known = sorted({entry.metric.name for entry in (*first.entries, *second.entries)})
        raise UserError(f"neither model has a metric {metrics[0]!r}.{did_you_mean(metrics[0], known)}")
    _check_allowed(allow, (*first.entries, *second.entries))
    groups = [_by_metric(entries) for entries in chosen]
    common = [key for key in groups[0] if key in groups[1]]
    if not common:
        raise DataError(
            f"{first.folder} and {second.folder} have no metric in common: run the same suite of `triptych eval` "
            "for both models."
        )
    pairs: list[tuple[Entry, Entry]] = []
    not_compared = []
    for key in common:
        matched, reason = _matched(groups[0][key], groups[1][key], frozenset(allow))
        pairs += matched
        if not matched:
            not_compared.append(NotCompared(groups[0][key][0].metric, reason))
    differences = [_difference(one, other) for one, other in pairs]
    corrected = holm([each.p for each in differences])
    several = {one.metric.name for number, (one, _) in enumerate(pairs) if _is_repeated(number, pairs)}
    comparisons = [
        Comparison(
            one.metric,
            label_of(one) if one.metric.name in several else one.metric.title,
            one.score,
            other.score,
            difference,
            p,
            _verdict(one.metric, difference, p),
            _note(one, other),
        )
        for (one, other), difference, p in zip(pairs, differences, corrected)
    ]
    only = [[key[1] for key in mine if key not in theirs] for mine, theirs in (groups, groups[::-1])]
    notes = [*first.notes, *second.notes]
    if first.model.fingerprint == second.model.fingerprint:
        notes.append("both folders hold results of the same model")
    elif first.model.tokenizers != second.model.tokenizers:
        notes.append("the models have different tokenizers: losses in nats per token do not compare, other metrics do")
    if any(each.method == "unpaired" for each in differences):
        notes.append(
            "unpaired: from the two intervals, for results that do not say what each sample contributed; "
            "such a comparison misses small differences"
        )
    return ComparisonResult(*(names or _names(first, second)), comparisons, not_compared, only[0], only[1], notes)


def _chosen(entries: Sequence[Entry], patterns: Sequence[str], parts: bool) -> list[Entry]:
    if not patterns:
        return [each for each in entries if each.metric.headline or parts]
    return [each for each in entries if any(fnmatchcase(each.metric.name, pattern) for pattern in patterns)]


def _check_allowed(allow: Collection[str], entries: Sequence[Entry]) -> None:
    """An error if a condition that may differ is none of any result."""
    known = sorted({key for entry in entries for key in conditions(entry)} | {"number of samples"})
    for name in allow:
        if name not in known:
            raise UserError(f"no result has a setting {name!r} that may differ.{did_you_mean(name, known)}")


def _by_metric(entries: Sequence[Entry]) -> dict[tuple[str, str], list[Entry]]:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.suite, entry.metric.name), []).append(entry)
    return groups


def _is_repeated(number: int, pairs: Sequence[tuple[Entry, Entry]]) -> bool:
    name = pairs[number][0].metric.name
    return sum(one.metric.name == name for one, _ in pairs) > 1


def _names(first: StoredResults, second: StoredResults) -> tuple[str, str]:
    names = first.model.name, second.model.name
    if names[0] == names[1]:
        names = first.folder.resolve().name, second.folder.resolve().name
    return (f"{names[0]} (1)", f"{names[1]} (2)") if names[0] == names[1] else names


# -- which results belong together ------------------------------------------------------------------------------------


def _matched(
    ones: Sequence[Entry], others: Sequence[Entry], allow: frozenset[str]
) -> tuple[list[tuple[Entry, Entry]], str]:
    """Pairs of results under equal conditions; without any, the reason: what differs in the nearest pair."""
    pairs: list[tuple[Entry, Entry]] = []
    nearest: list[str] | None = None
    for one in ones:
        ranked = sorted(others, key=lambda other: len(_differing(one, other)))
        differing = [key for key in _differing(one, ranked[0]) if key not in allow]
        if not differing:
            pairs.append((one, ranked[0]))
        elif nearest is None or len(differing) < len(nearest):
            nearest, reason = differing, _reason(one, ranked[0], differing)
    return pairs, "" if pairs else reason


def conditions(entry: Entry) -> dict[str, Any]:
    """All that must be equal for two results to be comparable."""
    judge = entry.result.judge
    asked = {key: value for key, value in entry.result.settings.items() if key not in MEASURED}
    given = {**asked, "seed": entry.seed, "judge": judge.sha256 if judge else None}
    if entry.metric.bounds is None:  # a Fréchet distance is larger with fewer samples
        given["number of samples"] = entry.score.n
    return given


def _differing(one: Entry, other: Entry) -> list[str]:
    mine, theirs = conditions(one), conditions(other)
    return sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))


def _reason(one: Entry, other: Entry, differing: Sequence[str]) -> str:
    if TOKENIZERS in differing:
        return "the models have different tokenizers, so they count different tokens; bits per byte compare"
    mine, theirs = conditions(one), conditions(other)
    shown = [f"{key} is {_shown(mine, key, one)} and {_shown(theirs, key, other)}" for key in differing[:3]]
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return f"measured under different conditions: {'; '.join(shown)}{more}"


def _shown(values: Mapping[str, Any], key: str, entry: Entry) -> str:
    judge = entry.result.judge
    if key == "judge" and judge is not None:
        return f"{judge.name} [{judge.sha256[:8]}]"
    if key not in values:
        return "not given"
    text = str(values[key])
    return text if len(text) <= 60 else f"{text[:57]}..."


def _interval(difference: Difference) -> str:
    if not np.isfinite([difference.low, difference.high]).all():
        return "–"
    return f"{difference.low:+.4g} to {difference.high:+.4g}"


def label_of(entry: Entry) -> str:
    """A metric's title with the data that it was measured on."""
    data = dataset_of(entry)
    return f"{entry.metric.title}, {data}" if data else entry.metric.title


def dataset_of(entry: Entry) -> str:
    """Name of the data of a result, for people: the last part of a path; "" if the settings do not say."""
    settings = entry.result.settings
    for key in ("dataset", "source", "reference", "data"):
        value = settings.get(key)
        names = list(value) if isinstance(value, list | tuple) else [value]
        texts = [name for name in names if isinstance(name, str) and name]
        if texts and len(texts) == len(names):
            return ", ".join(text.rstrip("/").rpartition("/")[2] for text in texts)
    return ""


def _note(one: Entry, other: Entry) -> str:
    differing = _differing(one, other)
    return f"different {', '.join(differing)}" if differing else ""


def _difference(one: Entry, other: Entry) -> Difference:
    mine, theirs = one.result.samples, other.result.samples
    # Where inputs were refused, or clips have no value because no speech is in them, sample i of both need not be
    # the same.
    dropped = ("refused", "without_speech")
    is_aligned = not any(each.result.settings.get(key) for each in (one, other) for key in dropped)
    if mine and theirs and len(mine) == len(theirs) and is_aligned:
        return paired_difference(mine, theirs)
    return unpaired_difference(one.score, other.score)


def _verdict(metric: Metric, difference: Difference, p: float) -> Verdict:
    if not p <= LEVEL or difference.value == 0:
        return "no difference shown"
    return "first better" if (difference.value > 0) == metric.higher_is_better else "second better"
