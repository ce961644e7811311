"""Colours of detected objects by CLIP, as in the official evaluation.

An object is cut out of the image, its surroundings turned grey if the detector gave a mask. CLIP chooses among texts
that name each colour: "a photo of a red vase", "a photo of a red-colored vase", "a photo of a red object".
"""

from collections.abc import Sequence
from dataclasses import replace

from PIL import Image

from triptych.eval.geneval.detection import Detection
from triptych.eval.geneval.prompts import COLORS, GenEvalPrompt
from triptych.eval.geneval.scoring import Objects
from triptych.eval.image.clip import ClipModel, ZeroShotClassifier

_GREY = "#999999"
_TEXTS = ("a photo of a {color} {name}", "a photo of a {color}-colored {name}", "a photo of a {color} object")


class ColorClassifier:
    """Names the colours of objects of one image and one class."""

    def __init__(self, clip: ClipModel, colors: Sequence[str] = COLORS):
        self.clip, self.colors = clip, tuple(colors)
        self._classifiers: dict[str, ZeroShotClassifier] = {}

    def __call__(self, image: Image.Image, detections: Sequence[Detection]) -> list[str]:
        if not detections:
            return []
        name = detections[0].name
        if name not in self._classifiers:
            texts = [[text.format(color=color, name=name) for text in _TEXTS] for color in self.colors]
            self._classifiers[name] = ZeroShotClassifier(self.clip, self.colors, texts)
        return self._classifiers[name]([cut_out(image, detection) for detection in detections])


def cut_out(image: Image.Image, detection: Detection) -> Image.Image:
    """The object's box, with grey around its mask."""
    image = image.convert("RGB")
    if detection.mask is not None:
        image = Image.composite(image, Image.new("RGB", image.size, _GREY), Image.fromarray(detection.mask))
    left, top, right, bottom = (round(edge) for edge in detection.box)
    left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
    return image.crop((left, top, max(min(right, image.width), left + 1), max(min(bottom, image.height), top + 1)))


def with_colors(
    objects: Objects, prompt: GenEvalPrompt, image: Image.Image, classifier: ColorClassifier | None
) -> dict[str, list[Detection]]:
    """The objects, with colours where the prompt asks for some and the detector named none.

    Only the objects that are judged are looked at: the most confident ones, if there are enough.
    """
    colored = {name: list(detections) for name, detections in objects.items()}
    for clause in prompt.include:
        detections = colored.get(clause.name, [])[: clause.count]
        if clause.color is None or len(detections) < clause.count or all(each.color is not None for each in detections):
            continue
        assert classifier is not None, "checked before the first image"
        named = [replace(each, color=color) for each, color in zip(detections, classifier(image, detections))]
        colored[clause.name] = named + colored[clause.name][clause.count :]
    return colored
