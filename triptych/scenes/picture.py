"""Scenes to pixels: where each thing stands, and the 64 x 64 picture of it."""

import itertools
from dataclasses import dataclass

import numpy as np
from PIL import Image

from triptych.scenes.grammar import Scene
from triptych.scenes.sprites import SIZE, Look, sprites

PICTURE = 64
STEP = 8  # things stand on the lattice of the image tokenizer's codes: see docs/decisions/0011
_GAP = 4  # pixels between things: two touching squares would look like one thing
_CELL = PICTURE // 2  # several things stand in the quarters of the picture, one in each


@dataclass(frozen=True)
class Placed:
    """A thing and its upper left corner in pixels."""

    look: Look
    x: int
    y: int

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + SIZE / 2, self.y + SIZE / 2


def place(scene: Scene, rng: np.random.Generator) -> list[Placed]:
    """Choose a place for every thing: a lone thing anywhere, several in quarters, related groups on facing sides."""
    looks = [(group.kind, group.colour) for group in scene.groups for _ in range(group.count)]
    if len(looks) == 1:
        x, y = STEP * rng.integers((PICTURE - SIZE) // STEP + 1, size=2)
        return [Placed(looks[0], int(x), int(y))]
    if scene.relation:
        cells = _facing_cells(scene, rng)
    else:
        cells = [divmod(int(cell), 2) for cell in rng.permutation(4)[: len(looks)]]
    while True:
        things = [Placed(look, *_jitter(column, row, rng)) for look, (column, row) in zip(looks, cells)]
        if all(_apart(a, b) for a, b in itertools.combinations(things, 2)):
            return things


def _apart(a: Placed, b: Placed) -> bool:
    return max(abs(a.x - b.x), abs(a.y - b.y)) >= SIZE + _GAP


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


def _jitter(column: int, row: int, rng: np.random.Generator) -> tuple[int, int]:
    free = (_CELL - SIZE) // STEP + 1
    dx, dy = STEP * rng.integers(free, size=2)
    return column * _CELL + int(dx), row * _CELL + int(dy)


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
