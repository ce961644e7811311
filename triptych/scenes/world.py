"""The toy world: kinds of object, looks, sizes, backgrounds and relations, and scenes made of them.

One generator serves two presets. `full` is the built-in dataset: 128 x 128 images, objects at free positions in three
sizes, every kind in every colour. `small` is cheap enough for studies: 64 x 64 images with a 2 x 2 grid of objects.

A scene says what a sentence can say. What it leaves open (a size, a background, the exact positions) is drawn by
`triptych.scenes.layout`.
"""

import hashlib
import itertools
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from triptych.errors import UserError, did_you_mean

# kind -> plural
PLURALS = {
    "apple": "apples", "ball": "balls", "balloon": "balloons", "banana": "bananas", "bear": "bears", "bee": "bees",
    "bicycle": "bicycles", "bird": "birds", "boat": "boats", "book": "books", "bus": "buses",
    "butterfly": "butterflies", "cake": "cakes", "car": "cars", "cat": "cats", "chicken": "chickens",
    "circle": "circles", "clock": "clocks", "cow": "cows", "cup": "cups", "dog": "dogs", "duck": "ducks",
    "elephant": "elephants", "fish": "fish", "flower": "flowers", "fox": "foxes", "frog": "frogs",
    "guitar": "guitars", "hat": "hats", "heart": "hearts", "horse": "horses", "house": "houses", "lion": "lions",
    "monkey": "monkeys", "moon": "moons", "mouse": "mice", "mushroom": "mushrooms", "octopus": "octopuses",
    "owl": "owls", "panda": "pandas", "penguin": "penguins", "pig": "pigs", "pizza": "pizzas", "plane": "planes",
    "rabbit": "rabbits", "rocket": "rockets", "shirt": "shirts", "snail": "snails", "snake": "snakes",
    "square": "squares", "star": "stars", "strawberry": "strawberries", "sun": "suns", "tiger": "tigers",
    "train": "trains", "tree": "trees", "triangle": "triangles", "turtle": "turtles", "umbrella": "umbrellas",
    "whale": "whales",
}  # fmt: skip
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
# Kinds whose natural look already is one of the colours: "a green frog" is "a frog".
NATURAL_COLOUR = {
    "apple": "red", "balloon": "red", "banana": "yellow", "bicycle": "red", "bird": "red", "book": "red",
    "butterfly": "blue", "car": "red", "cat": "yellow", "circle": "red", "fish": "blue", "fox": "orange",
    "frog": "green", "hat": "black", "heart": "red", "moon": "yellow", "octopus": "purple", "pig": "pink",
    "shirt": "blue", "snake": "green", "square": "red", "star": "yellow", "strawberry": "red", "sun": "yellow",
    "tree": "green", "triangle": "red", "turtle": "green", "umbrella": "purple", "whale": "blue",
}  # fmt: skip
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
SIZES = ("small", "big")
BACKGROUNDS = ("white", "grey", "cream", "sky", "grass", "night")
INVERSE = {
    "left of": "right of", "right of": "left of", "above": "below", "below": "above", "beside": "beside",
    "on": "under", "under": "on", "bigger than": "smaller than", "smaller than": "bigger than",
}  # fmt: skip
POSITIONS = ("left of", "right of", "above", "below", "beside")
CATEGORIES = (
    "single object", "two objects", "three objects", "counting", "colours", "position", "colour attribution",
    "size", "comparison", "on", "between", "background",
)  # fmt: skip

Look = tuple[str, str | None]
"""A kind and its colour; None is the natural look."""


@dataclass(frozen=True, order=True)
class ObjectGroup:
    """One to six objects of one kind and look: three foxes, one big red heart."""

    kind: str
    colour: str | None = None
    count: int = 1
    size: str | None = None
    """ "small", "big", or None: not stated."""

    def __post_init__(self) -> None:
        if self.kind not in PLURALS:
            raise UserError(f"unknown kind of object {self.kind!r}.{did_you_mean(self.kind, list(PLURALS))}")
        if self.colour is not None and self.colour not in COLOURS:
            raise UserError(f"a colour is one of {', '.join(COLOURS)}, got {self.colour!r}.")
        if self.count not in NUMBERS:
            raise UserError(f"a group has 1 to {len(NUMBERS)} objects, got {self.count!r}.")
        if self.size is not None and self.size not in SIZES:
            raise UserError(f"a size is one of {', '.join(SIZES)}, got {self.size!r}.")

    @property
    def look(self) -> Look:
        return natural_look(self.kind, self.colour)


def natural_look(kind: str, colour: str | None) -> Look:
    """The look of a kind in a colour: the natural one if it has that colour anyway."""
    return kind, None if colour == NATURAL_COLOUR.get(kind) else colour


def colour_of(look: Look) -> str | None:
    """The colour that a person would name; None for a natural look of several colours."""
    kind, colour = look
    return colour or NATURAL_COLOUR.get(kind)


@dataclass(frozen=True)
class Scene:
    """One to three groups of different look; what they have to do with each other; where they are.

    `relation` is the first group relative to the second; "between" is the first group between the other two.
    `background` is None if it is not stated.
    """

    groups: tuple[ObjectGroup, ...]
    relation: str | None = None
    background: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.groups) <= 3 or len({group.look for group in self.groups}) != len(self.groups):
            raise UserError(f"a scene has one to three groups of different look, got {self.groups}.")
        expected = {"between": 3}.get(self.relation or "", 2)
        if self.relation is not None and (self.relation not in (*INVERSE, "between") or len(self.groups) != expected):
            raise UserError(f"{self.relation!r} is no relation between {len(self.groups)} groups.")
        if self.background is not None and self.background not in BACKGROUNDS:
            raise UserError(f"a background is one of {', '.join(BACKGROUNDS)}, got {self.background!r}.")

    @property
    def num_objects(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def category(self) -> str:
        """The skill that the scene tests: the hardest that applies. Six of them are GenEval's."""
        first, *others = self.groups
        if self.relation in ("on", "under"):
            return "on"
        if self.relation in ("bigger than", "smaller than"):
            return "comparison"
        if self.relation:
            return "between" if self.relation == "between" else "position"
        if self.background:
            return "background"
        if any(group.size for group in self.groups):
            return "size"
        if len(others) == 2:
            return "three objects"
        if others:
            return "colour attribution" if first.colour and others[0].colour else "two objects"
        if first.count > 1:
            return "counting"
        return "colours" if first.colour else "single object"


@dataclass(frozen=True)
class World:
    """A preset of the toy world."""

    name: str
    image_size: int
    kinds: tuple[str, ...]
    coloured_kinds: tuple[str, ...]
    """Kinds that come in colours."""
    colours: tuple[str, ...]
    categories: tuple[str, ...]
    relations: tuple[str, ...]
    """Relations of the category "position"."""
    max_count: int
    max_objects: int
    sizes: dict[str, int]
    """Width of the sprites in pixels."""
    has_natural_looks: bool
    """Whether kinds that come in colours also have a natural look."""
    plain_language: bool = False
    """Whether sentences are captions of the simplest form only."""
    has_grid: bool = False
    """Whether objects stand in the four quarters of the image instead of anywhere."""

    def looks(self) -> list[Look]:
        """Every look of every kind."""
        return list(dict.fromkeys(look for kind in self.kinds for look in self._looks_of(kind)))

    def _looks_of(self, kind: str) -> list[Look]:
        colours: list[str | None] = list(self.colours) if kind in self.coloured_kinds else []
        natural = [None] if self.has_natural_looks or not colours else []
        return [
            (kind, colour) for colour in natural + colours if natural_look(kind, colour)[1] == colour or not natural
        ]

    def __hash__(self) -> int:
        return hash(self.name)

    # -- splits -------------------------------------------------------------------------------------------------------

    def split(self, scene: Scene) -> str:
        """train, validation or test, by composition: 80, 10 and 10 % of all compositions."""
        composition = self.composition(scene)
        if len(scene.groups) == 1:
            return _splits_of_one_group(self)[composition]
        return {8: "validation", 9: "test"}.get(_hash(composition) % 10, "train")

    def composition(self, scene: Scene) -> str:
        """What decides the split: the looks of the groups, or the look and count of a single group."""
        names = [f"{group.look[1] if self.has_natural_looks else group.colour} {group.kind}" for group in scene.groups]
        return f"{scene.groups[0].count} {names[0]}" if len(names) == 1 else " + ".join(sorted(names))

    # -- sampling -----------------------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, split: str | None = None, category: str | None = None) -> Scene:
        """A random scene of the split and category, by rejection. Without a category, all are equally likely."""
        if category is not None and category not in self.categories:
            raise UserError(f"unknown category {category!r}.{did_you_mean(category, list(self.categories))}")
        category = category or self.categories[rng.integers(len(self.categories))]
        while True:
            scene = self._sample_of_category(rng, category)
            if scene.relation and not self.has_grid:
                scene = self._elaborate(rng, scene)
            if scene.category == category and self.fits(scene) and (split is None or self.split(scene) == split):
                return scene

    def _elaborate(self, rng: np.random.Generator, scene: Scene) -> Scene:
        """People combine what they say: a relation with a background or a size."""
        groups, background = scene.groups, scene.background
        if rng.random() < 0.25:
            background = BACKGROUNDS[rng.integers(len(BACKGROUNDS))]
        if rng.random() < 0.2:
            chosen = int(rng.integers(len(groups)))
            size = SIZES[rng.integers(2)]
            groups = tuple(replace(group, size=size) if i == chosen else group for i, group in enumerate(groups))
        return replace(scene, groups=groups, background=background)

    def fits(self, scene: Scene) -> bool:
        """Whether an image of this world has room for the scene, and shows only one thing by it."""
        if scene.num_objects > self.max_objects or any(group.count > self.max_count for group in scene.groups):
            return False
        if self.has_grid:
            return len(scene.groups) == 1 or (len(scene.groups) == 2 and all(each.count <= 2 for each in scene.groups))
        num_big = sum(group.count for group in scene.groups if group.size == "big")
        match scene.relation:
            case None:
                return num_big <= (3 if scene.num_objects == num_big else 2 if scene.num_objects <= 4 else 1)
            case "on" | "under":  # one thing on one thing
                return scene.num_objects == 2
            case "between":
                return scene.num_objects == 3 and num_big <= 1
            case "bigger than" | "smaller than":
                return scene.num_objects <= 4 and not any(group.size for group in scene.groups)
        if scene.relation == "beside":
            return scene.num_objects == 2
        return scene.num_objects <= 4 and all(group.count <= 2 for group in scene.groups) and num_big <= 2

    def _sample_of_category(self, rng: np.random.Generator, category: str) -> Scene:
        match category:
            case "single object":
                return Scene((self._sample_group(rng, 1, colour_chance=0),))
            case "colours":
                return Scene((self._sample_group(rng, 1, colour_chance=1),))
            case "counting":
                return Scene((self._sample_group(rng, int(rng.integers(2, self.max_count + 1))),))
            case "position":
                return Scene(self._groups(rng, 2), self.relations[rng.integers(len(self.relations))])
            case "colour attribution":
                return Scene(self._groups(rng, 2, colour_chance=1))
            case "two objects":
                return Scene(self._groups(rng, 2))
            case "three objects":
                return Scene(self._groups(rng, 3))
            case "on":
                return Scene(self._groups(rng, 2, counts=[1, 1]), "on")
            case "between":
                return Scene(self._groups(rng, 3, counts=[1, 1, 1]), "between")
            case "comparison":
                return Scene(self._groups(rng, 2), ("bigger than", "smaller than")[rng.integers(2)])
            case "size":
                groups = self._groups(rng, int(rng.integers(1, 3)))
                sized = [replace(g, size=SIZES[rng.integers(2)]) if i == 0 or rng.random() < 0.6 else g
                         for i, g in enumerate(groups)]  # fmt: skip
                return Scene(tuple(sized[:: 1 if rng.random() < 0.5 else -1]))
        groups = self._groups(rng, int(rng.integers(1, 4)))
        return Scene(groups, background=BACKGROUNDS[rng.integers(len(BACKGROUNDS))])

    def _groups(
        self, rng: np.random.Generator, number: int, counts: list[int] | None = None, colour_chance: float = 0.5
    ) -> tuple[ObjectGroup, ...]:
        """Groups of different look: one object each with probability 0.6, else some of each."""
        while True:
            if counts is None:
                most = min(self.max_count, self.max_objects // number)
                chosen = [1] * number if rng.random() < 0.6 else rng.integers(1, most + 1, size=number).tolist()
            else:
                chosen = counts
            groups = tuple(self._sample_group(rng, count, colour_chance) for count in chosen)
            if len({group.look for group in groups}) == number:
                return groups

    def _is_coloured(self, kind: str) -> bool:
        return kind in self.coloured_kinds

    def _sample_group(self, rng: np.random.Generator, count: int, colour_chance: float = 0.5) -> ObjectGroup:
        """A colour is stated with the given chance, where the world leaves a choice."""
        if self.has_natural_looks:
            kind = self.kinds[rng.integers(len(self.kinds))]
            is_coloured = rng.random() < colour_chance
        else:
            kinds = [
                kind for kind in self.kinds if colour_chance not in (0, 1) or self._is_coloured(kind) == colour_chance
            ]
            kind = kinds[rng.integers(len(kinds))]
            is_coloured = self._is_coloured(kind)
        return ObjectGroup(kind, self.colours[rng.integers(len(self.colours))] if is_coloured else None, count)


def _hash(composition: str) -> int:
    return int.from_bytes(hashlib.sha256(composition.encode()).digest()[:8], "big")


@cache
def _splits_of_one_group(world: World) -> dict[str, str]:
    """One-group compositions are few, so those of each category are split exactly, in the order of hashes."""
    by_category: dict[str, dict[str, None]] = {}
    for (kind, colour), count in itertools.product(world.looks(), range(1, world.max_count + 1)):
        scene = Scene((ObjectGroup(kind, colour, count),))
        by_category.setdefault(scene.category, {})[world.composition(scene)] = None
    splits = {}
    for compositions in by_category.values():
        tenth = -(-len(compositions) // 10)
        for rank, composition in enumerate(sorted(compositions, key=_hash)):
            splits[composition] = "validation" if rank < tenth else "test" if rank < 2 * tenth else "train"
    return splits


FULL = World(
    name="full",
    image_size=128,
    kinds=tuple(PLURALS),
    coloured_kinds=tuple(PLURALS),
    colours=COLOURS,
    categories=CATEGORIES,
    relations=POSITIONS,
    max_count=6,
    max_objects=8,
    sizes={"small": 32, "big": 48},
    has_natural_looks=True,
)
_SMALL_PLAIN = (
    "bee", "boat", "butterfly", "cat", "chicken", "clock", "cow", "dog", "elephant", "fish", "flower", "fox", "frog",
    "guitar", "house", "lion", "monkey", "mushroom", "octopus", "owl", "panda", "penguin", "pig", "pizza", "rabbit",
    "rocket", "snail", "star", "sun", "tree", "turtle", "whale",
)  # fmt: skip
_SMALL_COLOURED = ("balloon", "car", "circle", "hat", "heart", "shirt", "square", "umbrella")
SMALL = World(
    name="small",
    image_size=64,
    kinds=(*_SMALL_PLAIN, *_SMALL_COLOURED),
    coloured_kinds=_SMALL_COLOURED,
    colours=COLOURS[:6],
    categories=("single object", "two objects", "counting", "colours", "position", "colour attribution"),
    relations=("left of", "right of", "above", "below"),
    max_count=4,
    max_objects=4,
    sizes={"medium": 28},
    has_natural_looks=False,
    plain_language=True,
    has_grid=True,
)
WORLDS = {world.name: world for world in (FULL, SMALL)}
