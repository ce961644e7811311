"""The layout of the preset `small`: one object anywhere on a coarse grid, or several in the quarters of the image."""

import numpy as np

from triptych.scenes.picture import Picture, PlacedObject
from triptych.scenes.world import Scene, World

BOX_SIZE = 32  # area reserved for one object; its margin keeps two adjacent squares from looking like one object
GRID_STEP = 16  # boxes start at multiples of this, the patch size of the image tokenizer: docs/decisions/0011


def place_on_grid(scene: Scene, rng: np.random.Generator, world: World) -> Picture:
    """A random picture of a scene. Two groups are opposite each other only if they have a relation."""
    looks = [group.look for group in scene.groups for _ in range(group.count)]
    if len(looks) == 1:
        corners = [GRID_STEP * rng.integers((world.image_size - BOX_SIZE) // GRID_STEP + 1, size=2)]
    elif scene.relation:
        corners = [BOX_SIZE * np.array(cell) for cell in _opposite_cells(scene, rng)]
    else:
        corners = [BOX_SIZE * np.array(cell) for cell in _unrelated_cells(scene, rng)]
    width = world.sizes["medium"]
    margin = (BOX_SIZE - width) // 2
    return Picture(
        tuple(PlacedObject(look, int(x) + margin, int(y) + margin, width) for look, (x, y) in zip(looks, corners))
    )


def _unrelated_cells(scene: Scene, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Cells (column, row) for objects without a relation: two groups are never opposite each other.

    So the image shows whether the scene has a relation, and there is one right caption.
    """
    while True:
        cells = [divmod(int(cell), 2) for cell in rng.permutation(4)[: scene.num_objects]]
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
