"""The exact judge: reads the objects, their sizes and the background from an image, and compares them with a scene.

Detection is matching pursuit with the world's own sprites. Let B be the background and R = P - B what an image P shows
in front of it. A sprite with colours S and opacity a, at some position, changes the background by D = a (S - B), and
explains the image better than the background alone by

    gain = |R|^2 - |R - D|^2 = 2 <R, D> - |D|^2        (over the sprite's window)

Every look is compared in every size at every fourth pixel, on 32 x 32 pixels. The best sprites are then compared pixel
by pixel, without the pixels of objects that were already detected, because one may stand in front of another. The
search repeats until nothing left resembles an object. What differs from the image of the detected objects and is too
strong to be blur counts as an unknown object, so an image with a smudge never passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from triptych.scenes.image import background
from triptych.scenes.picture import Picture, PlacedObject, shows
from triptych.scenes.sprites import sprite
from triptych.scenes.world import BACKGROUNDS, FULL, Look, Scene, World, natural_look

# A looks, L positions, K values of a window

SEARCH_SIZE = 32  # pixels of the search; objects are found at any of them
CONFIRM_SIZE = 64  # pixels of the confirmation
MAX_DETECTIONS = 12  # more objects than any scene has
MIN_QUALITY = 0.5  # share of a sprite's own contrast that must be explained: 1 is pixel-perfect, 0 is background
MIN_VISIBLE = 0.4  # share of a sprite that other objects must not cover
MAX_RESIDUAL = 0.5  # unexplained contrast above this is an unknown object; unit: contrast of a typical small sprite
_NUM_LOOKS = 12  # looks that are compared pixel by pixel


@dataclass(frozen=True)
class Detection:
    """What the judge sees in an image."""

    picture: Picture
    """Its objects are in the order in which they are drawn."""
    has_residual: bool
    """Whether the image shows something that is not a known object."""


# -- what does not depend on the image --------------------------------------------------------------------------------


@cache
def _looks(world: World) -> list[Look]:
    return [natural_look(*look) for look in world.looks()]


@cache
def _sprites(world: World, width: int) -> Tensor:
    """All looks in one size, [A, 4, width, width]: opacity times colour, and opacity."""
    rgba = torch.from_numpy(np.stack([sprite(look, width, world) for look in _looks(world)])).movedim(-1, 1)
    return torch.cat([rgba[:, 3:] * rgba[:, :3], rgba[:, 3:]], dim=1)


@cache
def _background(world: World, name: str) -> Tensor:
    """[3, size, size]."""
    return torch.from_numpy(background(name, world.image_size)).movedim(-1, 0).contiguous()


def _pool(pixels: Tensor, world: World) -> Tensor:
    """To the resolution of the search."""
    return F.avg_pool2d(pixels, world.image_size // SEARCH_SIZE)


@cache
def _templates(world: World, width: int) -> Tensor:
    """What <R, D> multiplies with R and R B, at the resolution of the search, [A, K]."""
    small = _pool(_sprites(world, width), world)
    return torch.cat([small[:, :3], -small[:, 3:]], dim=1).flatten(1)


@cache
def _energy(world: World, width: int, name: str) -> Tensor:
    """|D|^2 of every look at every position of the search, [A, L]."""
    small, behind = _pool(_sprites(world, width), world), _pool(_background(world, name)[None], world)
    colours, opacity = small[:, :3], small[:, 3:]
    maps = torch.cat([behind, behind.square().sum(1, keepdim=True)], dim=1)
    weights = torch.cat([-2 * opacity * colours, opacity.square()], dim=1).flatten(1)
    return weights @ F.unfold(maps, small.shape[-1])[0] + colours.square().sum((1, 2, 3))[:, None]


@cache
def _least_energy(world: World, width: int, name: str) -> Tensor:
    """[L]."""
    return _energy(world, width, name).amin(0)


@cache
def _typical_contrast(world: World, name: str) -> float:
    """|D|^2 of a typical look in the smallest size."""
    sprites = _sprites(world, min(world.sizes.values()))
    colour = _background(world, name).mean((1, 2))[:, None, None]
    return float((sprites[:, :3] - sprites[:, 3:] * colour).square().sum((1, 2, 3)).median())


# -- detection --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def detect(images: Sequence[Image.Image], world: World = FULL) -> list[Detection]:
    """Read images; those of another size are resized."""
    size = (world.image_size, world.image_size)
    pixels = (np.asarray(image.convert("RGB").resize(size), np.float32) / 255 for image in images)
    return [_detect(torch.from_numpy(each).movedim(-1, 0).contiguous(), world) for each in pixels]


def _detect(image_CHW: Tensor, world: World) -> Detection:
    name = _find_background(image_CHW, world)
    visible = torch.ones_like(image_CHW[:1])  # 0 where an object was detected
    objects: list[PlacedObject] = []
    rest = image_CHW - _background(world, name)
    while len(objects) < MAX_DETECTIONS:
        new = _best_objects(rest, visible, name, world)
        if not new:
            break
        # An object that stands on another is drawn after it.
        objects = sorted([*objects, *new], key=lambda item: -item.box[3])
        rest = image_CHW - _render(objects, name, world)
    window = min(world.sizes.values())
    unexplained = F.avg_pool2d(rest.square().sum(0)[None, None], window, stride=window // 4, divisor_override=1)
    has_residual = bool(unexplained.max() > MAX_RESIDUAL * _typical_contrast(world, name))
    return Detection(Picture(tuple(objects), name), has_residual)


def _find_background(image_CHW: Tensor, world: World) -> str:
    """The background that most pixels agree with."""
    names = ("white",) if world.has_grid else BACKGROUNDS

    def agreement(name: str) -> float:
        difference = (image_CHW - _background(world, name))[:, ::2, ::2].abs().amax(0)
        return float(torch.exp(-difference.square() / 0.005).sum())

    return max(names, key=agreement)


def _render(objects: Sequence[PlacedObject], name: str, world: World) -> Tensor:
    pixels = _background(world, name).clone()
    for item in objects:
        premultiplied = _sprites(world, item.width)[_looks(world).index(item.look)]
        area = pixels[:, item.y : item.y + item.width, item.x : item.x + item.width]
        area += premultiplied[:3] - premultiplied[3:] * area
    return pixels


@dataclass(frozen=True)
class _Candidate:
    score: float
    looks: list[int]
    """Numbers of the best looks, the best first."""
    x: int
    y: int
    width: int


def _best_objects(rest: Tensor, visible: Tensor, name: str, world: World) -> list[PlacedObject]:
    """Sprites that explain pixels which no other explains, the best first. These pixels are no longer visible."""
    small = _pool(rest[None], world)
    candidates = [item for width in world.sizes.values() for item in _candidates(small, width, name, world)]
    objects: list[PlacedObject] = []
    for candidate in sorted(candidates, key=lambda item: -item.score):
        item = _confirm(candidate, rest, visible, name, world)
        if item is not None:
            objects.append(item)
    return objects


def _candidates(rest: Tensor, width: int, name: str, world: World) -> list[_Candidate]:
    """The best sprites of one size, at positions where none is better nearby."""
    behind = _pool(_background(world, name)[None], world)
    maps = torch.cat([rest, (rest * behind).sum(1, keepdim=True)], dim=1)
    step = world.image_size // SEARCH_SIZE
    window = width // step
    side = SEARCH_SIZE - window + 1
    # |R| |D| >= <R, D> >= (1 + MIN_QUALITY) / 2 |D|^2: with less contrast than that, no sprite is good enough.
    contrast = F.avg_pool2d(rest.square().sum(1, keepdim=True), window, stride=1, divisor_override=1).flatten()
    places = torch.nonzero(contrast >= ((1 + MIN_QUALITY) / 2) ** 2 * _least_energy(world, width, name))[:, 0]
    if not len(places):
        return []
    energy = _energy(world, width, name)[:, places]
    gain = 2 * (_templates(world, width) @ F.unfold(maps, window)[0][:, places]) - energy
    gain[gain < MIN_QUALITY * energy] = 0
    best, look = gain.max(0)
    # A large sprite that explains several objects a little must not come before the objects themselves.
    opacity = -_templates(world, width).view(-1, 4, window * window)[look, 3]
    covered = (opacity * (2 - opacity) * F.unfold(rest.square().sum(1, keepdim=True), window)[0].T[places]).sum(1)
    quality = (best / torch.maximum(energy.gather(0, look[None])[0], covered)).clamp(max=1)
    scores = torch.zeros(side * side)
    scores[places] = best * quality.square()
    is_peak = scores == F.max_pool2d(scores.view(1, 1, side, side), 3, stride=1, padding=1).flatten()
    candidates = []
    for index in torch.nonzero((scores[places] > 0) & is_peak[places])[:, 0].tolist():
        _, looks = gain[:, index].topk(_NUM_LOOKS)
        y, x = (step * place for place in divmod(int(places[index]), side))
        candidates.append(_Candidate(float(scores[places[index]]), looks.tolist(), x, y, width))
    return candidates


def _confirm(candidate: _Candidate, rest: Tensor, visible: Tensor, name: str, world: World) -> PlacedObject | None:
    """The best look of a candidate, compared pixel by pixel; None if too little of it is visible or explained.

    The object is subtracted from the rest, and covers what is behind it.
    """
    x, y, width = candidate.x, candidate.y, candidate.width
    area = (slice(None), slice(y, y + width), slice(x, x + width))
    seen = visible[area]
    opacity = _sprites(world, width)[candidate.looks[0], 3:]
    if (seen * opacity).sum() < MIN_VISIBLE * opacity.sum():
        return None
    sprites = _sprites(world, width)[candidate.looks]
    change = seen * (sprites[:, :3] - sprites[:, 3:] * _background(world, name)[area])
    scale = world.image_size // CONFIRM_SIZE
    small, small_rest = F.avg_pool2d(change, scale), F.avg_pool2d(rest[area], scale)
    energy = small.square().sum((1, 2, 3))
    gain = 2 * (small_rest * small).sum((1, 2, 3)) - energy
    best = int(gain.argmax())
    opacity = sprites[best, 3:]
    covered = (F.avg_pool2d(seen * opacity * (2 - opacity), scale) * small_rest.square()).sum()
    if gain[best] < MIN_QUALITY * max(energy[best], covered):
        return None
    rest[area] -= change[best]
    visible[area] = seen * (1 - opacity)
    return PlacedObject(_looks(world)[candidate.looks[best]], x, y, width)


# -- verdicts ---------------------------------------------------------------------------------------------------------


def matches(detection: Detection, scene: Scene, world: World = FULL) -> bool:
    """Whether an image shows exactly the scene: its objects, no others, and everything that the scene states."""
    return not detection.has_residual and shows(detection.picture, scene, world)


def score_images(images: Sequence[Image.Image], scenes: Sequence[Scene], world: World = FULL) -> dict[str, float]:
    """Share of images that show their scene, by category, and "overall": the mean over categories, as in GenEval."""
    right: dict[str, list[bool]] = {category: [] for category in world.categories}
    for detection, scene in zip(detect(images, world), scenes):
        right[scene.category].append(matches(detection, scene, world))
    scores = {category: float(np.mean(answers)) for category, answers in right.items() if answers}
    return scores | {"overall": float(np.mean(list(scores.values())))}
