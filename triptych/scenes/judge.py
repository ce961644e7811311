"""The exact judge: detects the objects in an image and decides whether the image shows a scene.

Detection is matching pursuit with the dataset's own sprites. A sprite T at some position explains the image P better
than a white background does by

    gain = |1 - P|^2 - |T - P|^2 = 2 <1 - P, 1 - T> - |1 - T|^2        (over the sprite's 28 x 28 window)

which is one correlation. The sprite and position with the largest gain are subtracted, and the search repeats until
nothing left resembles an object. A residual that is too strong to be blur counts as an unknown object, so an image with
a smudge never passes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from triptych.scenes.grammar import CATEGORIES, Scene, parse
from triptych.scenes.image import IMAGE_SIZE, PlacedObject
from triptych.scenes.sprites import APPEARANCES, SPRITE_SIZE, sprites

# B images, A appearances, H x W positions

MAX_DETECTIONS = 8  # more objects than any scene has
MIN_QUALITY = 0.5  # share of a sprite's own contrast that must be explained: 1 is pixel-perfect, 0 is plain white
MAX_RESIDUAL = 0.5  # unexplained contrast above this is an unknown object; unit: contrast of the faintest sprite
MIN_SEPARATION = SPRITE_SIZE / 2  # distance in pixels between centres for "left of", "above" etc. to hold


@dataclass(frozen=True)
class Detection:
    """What the judge sees in an image."""

    objects: tuple[PlacedObject, ...]
    has_residual: bool
    """Whether the image shows something that is not a known object."""

    @property
    def appearances(self) -> Counter:
        return Counter(item.appearance for item in self.objects)


@cache
def _templates() -> tuple[torch.Tensor, torch.Tensor]:
    """Difference of every sprite from white [A, 3, 28, 28], and its energy [A]."""
    all_sprites = [sprites()[appearance] for appearance in APPEARANCES]
    contrast = np.stack([sprite[..., 3:] * (1 - sprite[..., :3]) for sprite in all_sprites])
    templates = torch.from_numpy(contrast).movedim(-1, 1).contiguous()
    return templates, templates.square().sum((1, 2, 3))


@torch.no_grad()
def detect(images: Sequence[Image.Image]) -> list[Detection]:
    """Find the objects in images; other sizes than 64 x 64 are resized."""
    templates, energy = _templates()
    pixels = np.stack([np.asarray(image.convert("RGB").resize((IMAGE_SIZE, IMAGE_SIZE))) for image in images])
    contrast_BCHW = 1 - torch.from_numpy(pixels).movedim(-1, 1).float() / 255
    objects: list[list[PlacedObject]] = [[] for _ in images]
    active = torch.arange(len(images))
    for _ in range(MAX_DETECTIONS):
        if not len(active):
            break
        overlap_BAHW = F.conv2d(contrast_BCHW[active], templates)
        gain_BAHW = 2 * overlap_BAHW - energy[:, None, None]
        gain, flat_index = gain_BAHW.flatten(1).max(1)
        side = gain_BAHW.shape[3]
        number = flat_index // (side * side)
        y, x = (flat_index // side) % side, flat_index % side
        # A sprite may explain an unknown blob a little. To be detected, it must explain most of its own contrast.
        is_good = gain / energy[number] >= MIN_QUALITY
        for image, sprite, row, column in zip(active[is_good], number[is_good], y[is_good], x[is_good]):
            objects[image].append(PlacedObject(APPEARANCES[sprite], int(column), int(row)))
            contrast_BCHW[image, :, row : row + SPRITE_SIZE, column : column + SPRITE_SIZE] -= templates[sprite]
        active = active[is_good]
    residual = F.avg_pool2d(contrast_BCHW.square().sum(1, keepdim=True), SPRITE_SIZE, stride=4, divisor_override=1)
    has_residual = (residual.flatten(1) > MAX_RESIDUAL * energy.min()).any(1)
    return [Detection(tuple(items), bool(rest)) for items, rest in zip(objects, has_residual)]


def matches(detection: Detection, scene: Scene) -> bool:
    """Whether an image shows exactly the scene: its objects, no others, in its relation."""
    expected = Counter({group.appearance: group.count for group in scene.groups})
    return not detection.has_residual and detection.appearances == expected and relation_holds(detection.objects, scene)


def relation_holds(objects: Sequence[PlacedObject], scene: Scene) -> bool:
    """Whether the relation holds between every object of the first group and every object of the second."""
    if scene.relation is None:
        return True
    first, second = ([item for item in objects if item.appearance == group.appearance] for group in scene.groups)
    axis = 0 if scene.relation in ("left of", "right of") else 1
    sign = 1 if scene.relation in ("left of", "above") else -1
    return bool(first and second) and all(
        sign * (there.centre[axis] - here.centre[axis]) >= MIN_SEPARATION for here in first for there in second
    )


def caption_is_true(text: str, objects: Sequence[PlacedObject]) -> bool:
    """Whether a caption is in the grammar, names exactly these objects, and claims no false relation."""
    scene = parse(text)
    return scene is not None and matches(Detection(tuple(objects), has_residual=False), scene)


def caption_is_right(text: str, scene: Scene, objects: Sequence[PlacedObject]) -> bool:
    """Whether a caption of the image of a scene is true and, if the scene has a relation, states one."""
    parsed = parse(text)
    return parsed is not None and caption_is_true(text, objects) and (not scene.relation or parsed.relation is not None)


def score_images(images: Sequence[Image.Image], scenes: Sequence[Scene]) -> dict[str, float]:
    """Share of images that show their scene, by category, and "overall": the mean over categories, as in GenEval."""
    right: dict[str, list[bool]] = {category: [] for category in CATEGORIES}
    for start in range(0, len(scenes), 64):
        batch = slice(start, start + 64)
        for detection, scene in zip(detect(images[batch]), scenes[batch]):
            right[scene.category].append(matches(detection, scene))
    scores = {category: float(np.mean(answers)) for category, answers in right.items() if answers}
    return scores | {"overall": float(np.mean(list(scores.values())))}
