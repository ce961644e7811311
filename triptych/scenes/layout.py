"""From a scene to a picture: sizes, a background and positions for everything that the scene leaves open.

Positions are multiples of 16 pixels, the patch of the image tokenizer (docs/decisions/0025). Objects do not overlap,
except one that stands on another.
"""

from collections.abc import Sequence

import numpy as np

from triptych.scenes.grid import place_on_grid
from triptych.scenes.picture import Picture, PlacedObject, holds, is_between, shows
from triptych.scenes.sprites import sprite
from triptych.scenes.world import BACKGROUNDS, FULL, Look, Scene, World

STEP = 16  # pixels
_MARGIN = 2  # pixels between two objects, at least
_WHITE_SHARE = 0.5  # of backgrounds that the scene leaves open
# Chance that an object of which a scene says nothing is big, by the number of objects.
_BIG_CHANCE = {1: 0.5, 2: 0.4, 3: 0.2}
_ATTEMPTS = 3000  # eight objects take about a hundred


def place(scene: Scene, rng: np.random.Generator, world: World = FULL) -> Picture:
    """A random picture of a scene."""
    if world.has_grid:
        return place_on_grid(scene, rng, world)
    background = scene.background
    if background is None:
        background = "white" if rng.random() < _WHITE_SHARE else BACKGROUNDS[rng.integers(1, len(BACKGROUNDS))]
    for attempt in range(_ATTEMPTS):
        widths = _draw_widths(scene, rng, world, is_crowded=attempt > 4)
        objects = _draw_positions(scene, widths, rng, world)
        if objects and shows(picture := Picture(tuple(objects), background), scene, world):
            return picture
    raise AssertionError(f"no room for {scene}, which {world.name} promises to show")


def _draw_widths(scene: Scene, rng: np.random.Generator, world: World, is_crowded: bool) -> list[int]:
    """The width of the objects of each group. What is not stated is small if big objects left no room."""
    chance = _BIG_CHANCE.get(scene.num_objects, 0.0)
    if scene.relation in ("bigger than", "smaller than"):
        chance = 0.5
    elif is_crowded:
        chance = 0.0
    while True:
        sizes = [group.size or ("big" if rng.random() < chance else "small") for group in scene.groups]
        widths = [world.sizes[size] for size in sizes]
        if scene.relation == "bigger than" and not widths[0] > widths[1]:
            continue
        if scene.relation == "smaller than" and not widths[0] < widths[1]:
            continue
        return widths


def _draw_positions(
    scene: Scene, widths: Sequence[int], rng: np.random.Generator, world: World
) -> list[PlacedObject] | None:
    """Place one object after the other where there is room and its relations hold; None if there is no such place."""
    placed: list[tuple[int, PlacedObject]] = []
    if scene.relation == "between":
        return _in_a_row(scene, widths, rng, world)
    is_on = scene.relation == "on"  # the lower object is placed and drawn first
    order = [1, 0] if is_on else range(len(scene.groups))
    for number in order:
        for _ in range(scene.groups[number].count):
            item = _draw_position(scene, number, widths[number], placed, rng, world)
            if item is None:
                return None
            placed.append((number, item))
    if scene.relation in world.relations:
        first, second = ([item for number, item in placed if number == wanted] for wanted in (0, 1))
        if not _is_clear(scene.relation, first, second):
            return None
    return [item for _, item in placed]


def _draw_position(
    scene: Scene,
    number: int,
    width: int,
    placed: Sequence[tuple[int, PlacedObject]],
    rng: np.random.Generator,
    world: World,
) -> PlacedObject | None:
    look = scene.groups[number].look
    if scene.relation == "on" and number == 0:
        return _on_top(look, width, placed[0][1], rng)
    corners = [(x, y) for x in range(0, world.image_size - width + 1, STEP)
               for y in range(0, world.image_size - width + 1, STEP)]  # fmt: skip
    for index in rng.permutation(len(corners)):
        x, y = corners[index]
        item = PlacedObject(look, x, y, width)
        if scene.relation == "on" and number == 1 and item.y < world.sizes["small"]:
            continue  # room above it
        if any(_overlap(item, other) for _, other in placed):
            continue
        others = [other for group, other in placed if group != number]
        if scene.relation in world.relations and others:
            first, second = ([item], others) if number == 0 else (others, [item])
            if not holds(scene.relation, first, second):
                continue
        return item
    return None


def _is_clear(relation: str, first: Sequence[PlacedObject], second: Sequence[PlacedObject]) -> bool:
    """A person would say "left of" rather than "above": the groups are further apart along the axis of the relation."""
    if relation == "beside":
        return True
    (x, y), (other_x, other_y) = (np.mean([item.centre for item in group], axis=0) for group in (first, second))
    is_wide = abs(x - other_x) > abs(y - other_y)
    return is_wide == (relation in ("left of", "right of"))


def _overlap(one: PlacedObject, other: PlacedObject) -> bool:
    (left, top, right, bottom), (left2, top2, right2, bottom2) = one.box, other.box
    return left < right2 + _MARGIN and left2 < right + _MARGIN and top < bottom2 + _MARGIN and top2 < bottom + _MARGIN


def _on_top(look: Look, width: int, below: PlacedObject, rng: np.random.Generator) -> PlacedObject | None:
    """A position that stands on the outline of the object below, near its middle."""
    outline = sprite(below.look, below.width)[..., 3].max(axis=1) > 0.5
    y = below.y + int(outline.argmax()) // STEP * STEP - width
    x = below.x + (below.width - width) // 2 // STEP * STEP + STEP * int(rng.integers(-1, 2))
    item = PlacedObject(look, x, y, width)
    return item if x >= 0 and y >= 0 and x + width <= FULL.image_size and holds("on", [item], [below]) else None


def _in_a_row(scene: Scene, widths: Sequence[int], rng: np.random.Generator, world: World) -> list[PlacedObject] | None:
    """The second, first and third group from left to right, or mirrored, at nearly the same height."""
    order = [1, 0, 2] if rng.random() < 0.5 else [2, 0, 1]
    room = (world.image_size - sum(widths)) // STEP
    if room < 0:
        return None
    cuts = np.sort(rng.integers(0, room + 1, size=3))
    middle = int(rng.integers(max(widths) // 2, world.image_size - max(widths) // 2 + 1))
    x, placed = 0, {}
    for gap, number in zip(np.diff(cuts, prepend=0), order):
        x += int(gap) * STEP
        y = (middle - widths[number] // 2) // STEP * STEP
        y = min(max(y, 0), world.image_size - widths[number])
        placed[number] = PlacedObject(scene.groups[number].look, x, y, widths[number])
        x += widths[number]
    row = [placed[number] for number in range(3)]
    return row if is_between(row[:1], row[1:2], row[2:]) else None
