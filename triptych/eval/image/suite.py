"""The suite of image generation: Fréchet distances, KID, precision and recall, CLIP score, GenEval.

    prompts ──> text_to_image ──> features, CLIP score ──┬──> FID, KID, precision, recall    image_distances.py
    reference images ────────────────────> features ─────┘
    GenEval prompts ──> text_to_image ──> objects ──> right or wrong                         geneval/evaluate.py

Images are judged as soon as they are generated, so what is recorded of a sample is small; `keep_images` also keeps the
images, and a later evaluation of the same samples reads them instead of generating them again.
"""

from dataclasses import asdict
from typing import Any

from triptych.errors import UserError
from triptych.eval.geneval.evaluate import GenEval
from triptych.eval.image.clip import ClipModel
from triptych.eval.image.distances import Samples, missing_outcomes
from triptych.eval.image.settings import ImageSettings
from triptych.eval.suite import Evaluation, Outcomes
from triptych.vocab import Modality

__all__ = ["ImageSettings", "image_suite"]


def image_suite(evaluation: Evaluation, settings: ImageSettings) -> Outcomes:
    """Evaluate text-to-image generation.

    Everything that can be checked is checked before the first image is generated: settings, prompts, judges.
    """
    device = evaluation.pipe.device.type
    shared = _shared_settings(evaluation, settings)
    clip, clip_problem = _load_clip(settings, device)
    samples = Samples.prepare(evaluation, settings, device)
    objects = GenEval.prepare(evaluation, settings, clip, clip_problem, device)
    if samples is None:
        yield from missing_outcomes(settings)
    else:
        yield from samples.outcomes(clip, clip_problem, shared)
    yield from objects.outcomes(shared)


def _shared_settings(evaluation: Evaluation, settings: ImageSettings) -> dict[str, Any]:
    sampling = asdict(evaluation.pipe.sampling_config(Modality.IMAGE, **dict(settings.sampling)))
    return {"sampling": sampling, "image_size": evaluation.pipe.bundle.image.resolution}


def _load_clip(settings: ImageSettings, device: str) -> tuple[ClipModel | None, str]:
    """CLIP, or why it is not there."""
    if settings.clip is None:
        return None, "needs CLIP: give clip=FOLDER or a hub name such as openai/clip-vit-large-patch14 (--clip)."
    try:
        return ClipModel(settings.clip, device), ""
    except UserError as error:
        return None, str(error)
