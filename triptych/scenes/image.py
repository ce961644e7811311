"""Scenes to pixels: where each thing stands, and the 64 x 64 picture of it."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from triptych.scenes.grammar import Scene
from triptych.scenes.sprites import SIZE, Look, sprites

PICTURE = 64
PLOT = 32  # what a thing has to itself; with the margin around it, two squares side by side do not look like one thing
STEP = 16  # plots lie on the lattice of the image tokenizer's codes: see docs/decisions/0011
_MARGIN = (PLOT - SIZE) // 2


@dataclass(frozen=True)
class Placed:
    """A thing and its upper left corner in pixels."""

    look: Look
    x: int
    y: int

    @property
    def plot(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom in pixels of what the thing has to itself."""
        left, top = self.x - _MARGIN, self.y - _MARGIN
        return left, top, left + PLOT, top + PLOT

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + SIZE / 2, self.y + SIZE / 2


def place(scene: Scene, rng: np.random.Generator) -> list[Placed]:
    """Choose a place for every thing: a lone one anywhere, several in quarters; only related groups face each other."""
    looks = [(group.kind, group.colour) for group in scene.groups for _ in range(group.count)]
    if len(looks) == 1:
        corners = [STEP * rng.integers((PICTURE - PLOT) // STEP + 1, size=2)]
    elif scene.relation:
        corners = [PLOT * np.array(cell) for cell in _facing_cells(scene, rng)]
    else:
        corners = [PLOT * np.array(cell) for cell in _scattered_cells(scene, rng)]
    return [Placed(look, int(x) + _MARGIN, int(y) + _MARGIN) for look, (x, y) in zip(looks, corners)]


def _scattered_cells(scene: Scene, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cells (column, row) for things without a relation: two groups do not face each other.

    So a picture tells whether a relation is meant, and there is one right thing to say about it.
    """
    while True:
        cells = [divmod(int(cell), 2) for cell in rng.permutation(4)[: sum(group.count for group in scene.groups)]]
        first = scene.groups[0].count
        if not _face_each_other(cells[:first], cells[first:]):
            return cells


def _face_each_other(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
    """Whether two groups stand on different sides along one direction, and not, diagonally, along both."""
    return sum(not {cell[axis] for cell in some} & {cell[axis] for cell in others} for axis in (0, 1)) == 1


def _facing_cells(scene: Scene, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cells (column, row) for two groups: across the picture along the relation, and facing each other.

    Along the other direction one thing stands opposite the other, never diagonally: "left of" must not also be "above".
    """
    first_side = 0 if scene.relation in ("left of", "above") else 1
    lone_place = int(rng.integers(2))
    cells = []
    for group, side in zip(scene.groups, (first_side, 1 - first_side)):
        places = (0, 1) if group.count == 2 else (lone_place,)
        cells += [(side, place) if scene.relation in ("left of", "right of") else (place, side) for place in places]
    return cells


def draw(things: list[Placed]) -> Image.Image:
    """Paint the things on white."""
    pixels = np.ones((PICTURE, PICTURE, 3), dtype=np.float32)
    for thing in things:
        sprite = sprites()[thing.look]
        area = pixels[thing.y : thing.y + SIZE, thing.x : thing.x + SIZE]
        area += sprite[..., 3:] * (sprite[..., :3] - area)
    return Image.fromarray(np.round(pixels * 255).astype(np.uint8))


def picture(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """A picture of the scene; which of its many is drawn by `rng`."""
    return draw(place(scene, rng))
