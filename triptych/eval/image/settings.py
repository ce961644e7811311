"""Settings and metrics of the suite of image generation."""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.eval.geneval.detection import ObjectDetector
from triptych.eval.geneval.prompts import GenEvalPrompt
from triptych.eval.image.features import FeatureSpec
from triptych.eval.image.reference import Framing, FramingMode
from triptych.eval.metrics import Metric

OFFICIAL = "official"


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """What an evaluation of images needs. Metrics whose part is missing are reported as missing."""

    data: str | Path | None = None
    """Reference images, with captions as prompts: a folder, tars, Parquet or a table. A .npz with `mu` and `sigma` are
    published statistics of Inception-v3; they give FID alone, and need `prompts`."""
    prompts: str | Path | None = None
    """File of prompts, one per line, instead of captions."""
    num_samples: int | None = None
    """Images to generate. Default: one for each prompt, at most 10,000."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Pipeline.text_to_image`: preset, num_steps, guidance_scale, ..."""
    features: Sequence[str] = ("inception",)
    """Networks: `inception`, `dinov2=FOLDER`, `clip=OWNER/NAME`."""
    framing: FramingMode = "pad"
    """How reference images become square: pad, crop or original (see `triptych.eval.image.reference.Framing`)."""
    extrapolate: bool = False
    """Whether to extrapolate FID to infinitely many samples; needs twice as many samples as features."""
    clip: str | None = None
    """CLIP for the CLIP score and for colours in GenEval: a folder or hub name."""
    geneval: str | Path | Sequence[GenEvalPrompt] | None = OFFICIAL
    """Prompts of GenEval: "official", a file like its evaluation_metadata.jsonl, or a list; None leaves GenEval out."""
    images_per_prompt: int = 4
    """In GenEval."""
    detector: str | ObjectDetector | None = None
    """Finds the objects in GenEval: a folder or hub name of transformers, or a detector."""
    keep_images: str | Path | None = None
    """Folder for the generated images."""
    cache: str | Path | None = None
    """Folder for features of reference images. Default: $TRIPTYCH_CACHE/features or ~/.cache/triptych/features."""

    def __post_init__(self) -> None:
        for name, least in (("num_samples", 2), ("images_per_prompt", 1)):
            value = getattr(self, name)
            if value is None and name == "num_samples":
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise UserError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        for name in ("data", "prompts", "keep_images", "cache", "clip"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str if name == "clip" else str | Path):
                raise UserError(f"{name} must be a path or a name, got {value!r}.")
        if not isinstance(self.sampling, Mapping):
            raise UserError(
                f"sampling must be a mapping of arguments, such as {{'num_steps': 64}}; got {self.sampling!r}."
            )
        if (
            isinstance(self.features, str)
            or not isinstance(self.features, Sequence)
            or not all(isinstance(text, str) for text in self.features)
        ):
            raise UserError(f"features must be a list of networks, such as ['inception'], got {self.features!r}.")
        if not isinstance(self.extrapolate, bool):
            raise UserError(f"extrapolate must be True or False, got {self.extrapolate!r}.")
        if "seed" in self.sampling or "callback" in self.sampling:
            raise UserError("sampling of an evaluation has no seed and no callback; the evaluation has a seed itself.")
        kinds = [FeatureSpec.parse(text).kind for text in self.features]
        if len(set(kinds)) != len(kinds):
            raise UserError(f"features of each kind can be given once, got {', '.join(self.features)}.")
        Framing(self.framing)


CLIP_SCORE = Metric("clip_score", "CLIP score", "image", True, (0.0, 100.0))


def feature_metrics(spec: FeatureSpec, *, extrapolated: bool = False) -> dict[str, Metric]:
    """The metrics of one network. Those of Inception-v3 have the plain names, others the network's as a suffix."""
    suffix = "" if spec.kind == "inception" else f"_{spec.kind}"
    metrics = [
        ("fid", "FID", False, None),
        *([("fid_infinity", "FID extrapolated to infinite samples", False, None)] if extrapolated else []),
        ("kid", "KID", False, None),
        ("precision", "precision", True, (0.0, 1.0)),
        ("recall", "recall", True, (0.0, 1.0)),
        ("density", "density", True, None),
        ("coverage", "coverage", True, (0.0, 1.0)),
    ]
    return {
        name: Metric(f"{name}{suffix}", f"{title} ({spec.title})", "image", is_higher, bounds)
        for name, title, is_higher, bounds in metrics
    }


def geneval_metric(category: str = "overall") -> Metric:
    """The metric of a category, or of all together."""
    if category == "overall":
        return Metric("geneval", "GenEval", "image", True, (0.0, 1.0))
    return Metric(f"geneval/{category}", f"GenEval, {category.replace('_', ' ')}", "image", True, (0.0, 1.0))
