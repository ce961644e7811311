"""Whether an input is unlike the data a model was trained on: measurements against their validation distribution.

A kind of input ("image", "text with image", ...) has one or two measurements, its parts. The distance of a part from
its median is divided by that of the 1 % or 99 % quantile on the same side, and the distance of an input is the largest
of its parts. Its score is the share of validation inputs that are closer. An input is unusual if the score exceeds 1
minus the false-alarm rate, so that share of inputs like the validation data is reported wrongly.

Too small is as unusual as too large for media: silence is reconstructed too well and predicted too easily. Texts have
no lower end, because a short beginning of a usual text is usual.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triptych.errors import UserError

FALSE_ALARM_RATE = 0.005
_LEVELS = (*np.linspace(0, 0.95, 20).round(2).tolist(), 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)
_TAIL = 0.01  # on either side; the unit of distances


def kind_of_text(beside: str | None) -> str:
    """The kind of a text: alone, or with an image or audio, which other texts may come with."""
    return f"text with {beside}" if beside else "text"


KINDS = ("text", "text with image", "text with audio", "image", "audio")


@dataclass(frozen=True)
class InputCheck:
    """How unusual one input is."""

    kind: str
    score: float
    """Share of validation inputs that are less unusual, from 0 to 1."""
    threshold: float
    """Highest score of a usual input."""
    distance: float = 0.0
    """How far the input is from the median; 1 is the 1 % or 99 % quantile of a measurement. Has no upper end."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What was measured: nats per token, dB or distance of log-mels."""
    excerpt: str | None = None
    """The beginning of a text."""
    reason: str = ""
    """What the model's reader of prompts found. Nothing was measured then: `score` is 1 and `distance` infinite."""

    @property
    def is_unusual(self) -> bool:
        return self.score > self.threshold

    @property
    def message(self) -> str:
        """One line for people."""
        name = self.kind.partition(" ")[0]
        quoted = f" {self.excerpt!r}" if self.excerpt else ""
        if self.reason:
            return f"this {name}{quoted} may give a wrong result: {self.reason}"
        if not self.is_unusual:
            return f"this {name}{quoted} is like the training data (score {self.score:.4f})"
        return (
            f"this {name}{quoted} is unlike the training data (score {self.score:.4f}, threshold {self.threshold:g}): "
            "the result may be wrong"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "score": self.score,
            "threshold": self.threshold,
            "distance": min(self.distance, sys.float_info.max),  # JSON has no infinity
            "is_unusual": self.is_unusual,
            "parts": dict(self.parts),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Distribution:
    """The measurements of one kind of input on validation data."""

    n: int
    parts: Mapping[str, tuple[float | None, float, float]]
    """The 1 % quantile (None if small values are usual), median and 99 % quantile of every part."""
    distances: Mapping[float, float]
    """Quantiles of the inputs' distances by level."""

    @classmethod
    def fit(cls, values: Mapping[str, Sequence[float]], *, two_sided: bool, level: float) -> "Distribution":
        """From the values of every part, input by input. `level` is one that quantiles are stored for exactly."""
        tables = {name: np.asarray(column, float) for name, column in values.items()}
        parts = {}
        for name, column in tables.items():
            low, median, high = (float(f"{q:.6g}") for q in np.quantile(column, (_TAIL, 0.5, 1 - _TAIL)))
            parts[name] = (low if two_sided else None, median, high)
        n = len(next(iter(tables.values())))
        distances = [_distance(parts, {name: column[i] for name, column in tables.items()}) for i in range(n)]
        levels = sorted({*_LEVELS, level})
        quantiles = np.quantile(distances, levels, method="higher")
        return cls(n, parts, {one: float(f"{value:.6g}") for one, value in zip(levels, quantiles)})

    def score(self, values: Mapping[str, float]) -> float:
        """Between the stored quantiles, the level is interpolated."""
        levels, quantiles = zip(*sorted(self.distances.items()))
        return float(np.interp(self.distance(values), quantiles, levels))

    def distance(self, values: Mapping[str, float]) -> float:
        return _distance(self.parts, values)


def _distance(parts: Mapping[str, tuple[float | None, float, float]], values: Mapping[str, float]) -> float:
    """The largest distance of a part that was measured; infinite for a value that is not a number."""
    distances = []
    for name, (low, median, high) in parts.items():
        if name not in values:
            continue
        # A distribution without width would make every other value infinitely far.
        least = 1e-3 * max(1.0, abs(median))
        distances.append((values[name] - median) / max(high - median, least))
        if low is not None:
            distances.append((median - values[name]) / max(median - low, least))
    return float(max(distances)) if np.isfinite(distances).all() else np.inf


@dataclass(frozen=True)
class InputChecks:
    """The checks that are stored with a model: validation distributions by kind of input."""

    distributions: Mapping[str, Distribution]
    false_alarm_rate: float = FALSE_ALARM_RATE

    @property
    def threshold(self) -> float:
        return round(1 - self.false_alarm_rate, 9)

    def check(self, kind: str, values: Mapping[str, float], excerpt: str | None = None) -> InputCheck:
        distribution = self.distributions[kind]
        score, distance = distribution.score(values), distribution.distance(values)
        return InputCheck(kind, score, self.threshold, distance, dict(values), excerpt)

    @classmethod
    def fit(
        cls, values: Mapping[str, Mapping[str, Sequence[float]]], false_alarm_rate: float = FALSE_ALARM_RATE
    ) -> "InputChecks":
        """From the values of every part of every kind on validation data."""
        if not 0 < false_alarm_rate < 0.5:
            raise UserError(f"the false-alarm rate must lie between 0 and 0.5, got {false_alarm_rate!r}.")
        checks = cls({}, false_alarm_rate)
        needed = round(1 / false_alarm_rate)
        for kind, columns in values.items():
            n = len(next(iter(columns.values())))
            if n < needed:
                raise UserError(
                    f"a false-alarm rate of {false_alarm_rate:g} needs at least {needed} validation inputs of each "
                    f"kind, got {n} of the kind {kind!r}. Give more, or a higher rate."
                )
        two_sided = {kind: not kind.startswith("text") for kind in values}
        fitted = {
            kind: Distribution.fit(columns, two_sided=two_sided[kind], level=checks.threshold)
            for kind, columns in values.items()
        }
        return cls(fitted, false_alarm_rate)

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "false_alarm_rate": self.false_alarm_rate,
            "distributions": {
                kind: {
                    "n": each.n,
                    "parts": {name: list(quantiles) for name, quantiles in each.parts.items()},
                    "distances": {str(level): value for level, value in each.distances.items()},
                }
                for kind, each in self.distributions.items()
            },
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "InputChecks":
        distributions = {
            kind: Distribution(
                each["n"],
                {name: (low, median, high) for name, (low, median, high) in each["parts"].items()},
                {float(level): value for level, value in each["distances"].items()},
            )
            for kind, each in saved["distributions"].items()
        }
        return cls(distributions, saved["false_alarm_rate"])
