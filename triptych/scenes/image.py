"""Scenes to pixels: the positions of the objects and the 64 x 64 image."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from triptych.scenes.grammar import Appearance, Scene
from triptych.scenes.sprites import SPRITE_SIZE, sprites

IMAGE_SIZE = 64
BOX_SIZE = 32  # area reserved for one object; its margin keeps two adjacent squares from looking like one object
GRID_STEP = 16  # boxes start at multiples of this, the patch size of the demo image tokenizer: docs/decisions/0011
_MARGIN = (BOX_SIZE - SPRITE_SIZE) // 2


@dataclass(frozen=True)
class PlacedObject:
    """An object and the upper left corner of its sprite in pixels."""

    appearance: Appearance
    x: int
    y: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom in pixels of the area reserved for the object."""
        left, top = self.x - _MARGIN, self.y - _MARGIN
        return left, top, left + BOX_SIZE, top + BOX_SIZE

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + SPRITE_SIZE / 2, self.y + SPRITE_SIZE / 2


def place(scene: Scene, rng: np.random.Generator) -> list[PlacedObject]:
    """Choose random positions for the objects of a scene.

    A single object is anywhere on the grid. Several objects are in different quarters of the image; two groups are
    opposite each other only if they have a relation.
    """
    appearances = [group.appearance for group in scene.groups for _ in range(group.count)]
    if len(appearances) == 1:
        corners = [GRID_STEP * rng.integers((IMAGE_SIZE - BOX_SIZE) // GRID_STEP + 1, size=2)]
    elif scene.relation:
        corners = [BOX_SIZE * np.array(cell) for cell in _opposite_cells(scene, rng)]
    else:
        corners = [BOX_SIZE * np.array(cell) for cell in _unrelated_cells(scene, rng)]
    return [
        PlacedObject(appearance, int(x) + _MARGIN, int(y) + _MARGIN) for appearance, (x, y) in zip(appearances, corners)
    ]


def _unrelated_cells(scene: Scene, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cells (column, row) for objects without a relation: two groups are never opposite each other.

    So the image shows whether the scene has a relation, and there is one right caption.
    """
    while True:
        cells = [divmod(int(cell), 2) for cell in rng.permutation(4)[: sum(group.count for group in scene.groups)]]
        first = scene.groups[0].count
        if not _are_opposite(cells[:first], cells[first:]):
            return cells


def _are_opposite(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
    """Whether two groups are on different sides along exactly one axis; along both, they are diagonal."""
    return sum(not {cell[axis] for cell in some} & {cell[axis] for cell in others} for axis in (0, 1)) == 1


def _opposite_cells(scene: Scene, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cells (column, row) for two groups on opposite sides of the image, along the axis of their relation.

    Along the other axis, single objects share a row or column and are never diagonal: "left of" must not also be
    "above".
    """
    first_side = 0 if scene.relation in ("left of", "above") else 1
    lone_place = int(rng.integers(2))
    cells = []
    for group, side in zip(scene.groups, (first_side, 1 - first_side)):
        places = (0, 1) if group.count == 2 else (lone_place,)
        cells += [(side, place) if scene.relation in ("left of", "right of") else (place, side) for place in places]
    return cells


def draw(objects: list[PlacedObject]) -> Image.Image:
    """Draw the objects on a white background."""
    pixels = np.ones((IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.float32)
    for item in objects:
        sprite = sprites()[item.appearance]
        area = pixels[item.y : item.y + SPRITE_SIZE, item.x : item.x + SPRITE_SIZE]
        area += sprite[..., 3:] * (sprite[..., :3] - area)
    return Image.fromarray(np.round(pixels * 255).astype(np.uint8))


def scene_image(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """An image of the scene, with random positions."""
    return draw(place(scene, rng))
