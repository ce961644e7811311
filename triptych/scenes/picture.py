"""What an image of the toy world shows: objects with positions and sizes, a background, and the relations that hold."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.scenes.world import INVERSE, Look, ObjectGroup, Scene, World

MIN_SEPARATION = 12  # pixels between the centres of objects for "left of" or "above" to hold, at 128 pixels
MAX_GAP = 16  # pixels between two objects that are beside each other


@dataclass(frozen=True)
class PlacedObject:
    """An object: its look, the upper left corner and the width of its sprite in pixels."""

    look: Look
    x: int
    y: int
    width: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom."""
        return self.x, self.y, self.x + self.width, self.y + self.width

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.width / 2


@dataclass(frozen=True)
class Picture:
    """The content of an image."""

    objects: tuple[PlacedObject, ...]
    background: str = "white"

    @property
    def looks(self) -> Counter[Look]:
        return Counter(item.look for item in self.objects)

    def of(self, group: ObjectGroup) -> list[PlacedObject]:
        """The objects with the look of a group."""
        return [item for item in self.objects if item.look == group.look]

    def size_of(self, world: World, look: Look) -> str | None:
        """ "small" or "big"; None if the objects of this look differ or there are none."""
        widths = {item.width for item in self.objects if item.look == look}
        names = {name for name, width in world.sizes.items() if width in widths}
        return names.pop() if len(names) == 1 else None


def holds(relation: str, first: Sequence[PlacedObject], second: Sequence[PlacedObject]) -> bool:
    """Whether a relation holds between every object of the first group and every object of the second."""
    return bool(first and second) and all(_holds(relation, here, there) for here in first for there in second)


def _holds(relation: str, here: PlacedObject, there: PlacedObject) -> bool:
    if relation in ("right of", "below", "under", "smaller than"):
        return _holds(INVERSE[relation], there, here)
    (here_x, here_y), (there_x, there_y) = here.centre, there.centre
    gap_x = max(here.x, there.x) - min(here.box[2], there.box[2])
    match relation:
        case "left of":
            return there_x - here_x >= MIN_SEPARATION
        case "above":
            return there_y - here_y >= MIN_SEPARATION
        case "beside":
            return abs(here_y - there_y) < (here.width + there.width) / 4 and gap_x <= MAX_GAP
        case "on":
            depth = here.box[3] - there.y  # a flat object leaves the upper part of its square empty
            return -4 <= depth <= there.width / 2 and abs(here_x - there_x) <= there.width / 2
        case "bigger than":
            return here.width > there.width
    raise ValueError(relation)


def is_between(middle: Sequence[PlacedObject], first: Sequence[PlacedObject], second: Sequence[PlacedObject]) -> bool:
    """Whether the middle group stands between the other two, from left to right or from right to left."""
    return (holds("left of", first, middle) and holds("left of", middle, second)) or (
        holds("left of", second, middle) and holds("left of", middle, first)
    )


def shows(picture: Picture, scene: Scene, world: World) -> bool:
    """Whether a picture shows exactly the objects of a scene, and everything that the scene states is true of it."""
    if picture.looks != Counter({group.look: group.count for group in scene.groups}):
        return False
    if scene.background not in (None, picture.background):
        return False
    if any(group.size and picture.size_of(world, group.look) != group.size for group in scene.groups):
        return False
    groups = [picture.of(group) for group in scene.groups]
    if scene.relation == "between":
        return is_between(groups[0], groups[1], groups[2])
    return scene.relation is None or holds(scene.relation, groups[0], groups[1])
