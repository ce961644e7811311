"""Words for objects: nouns and their synonyms, numbers, colours, sizes, and the noun phrases made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from triptych.scenes.world import BACKGROUNDS, NUMBERS, PLURALS, ObjectGroup, World

# kind -> other names, as (singular, plural)
SYNONYMS = {
    "bicycle": (("bike", "bikes"),),
    "boat": (("ship", "ships"),),
    "car": (("automobile", "automobiles"),),
    "cat": (("kitty", "kitties"), ("kitten", "kittens")),
    "chicken": (("hen", "hens"),),
    "cup": (("mug", "mugs"),),
    "dog": (("puppy", "puppies"),),
    "horse": (("pony", "ponies"),),
    "plane": (("airplane", "airplanes"), ("aeroplane", "aeroplanes")),
    "rabbit": (("bunny", "bunnies"),),
    "rocket": (("spaceship", "spaceships"),),
    "turtle": (("tortoise", "tortoises"),),
}
SIZE_WORDS = {"small": ("small", "little", "tiny"), "big": ("big", "large", "huge", "giant")}
# Up to all objects of an image. A group has at most six, so "seven cats" is understood but impossible.
NUMBER_WORDS = {**NUMBERS, 7: "seven", 8: "eight"}
COLOUR_NOUNS = ("colour", "color")
COLOURED_WORDS = ("coloured", "colored")
PLAIN_BACKGROUNDS = BACKGROUNDS[:3]
GREYS = ("grey", "gray")

T = TypeVar("T")


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One of the options, all equally likely."""
    return options[int(rng.integers(len(options)))]


def article(next_word: str) -> str:
    return "an" if next_word[0].lower() in "aeiou" else "a"


def noun(kind: str, count: int = 1) -> str:
    """ "cat", "cats"."""
    return kind if count == 1 else PLURALS[kind]


def indefinite(group: ObjectGroup) -> str:
    """The plainest noun phrase: "a big red heart", "an owl", "three foxes"."""
    words = [word for word in (group.size, group.colour) if word] + [noun(group.kind, group.count)]
    return " ".join([article(words[0]) if group.count == 1 else NUMBERS[group.count], *words])


def listed(phrases: Sequence[str], last: str = " and ") -> str:
    """ "a cat, a dog and a fox"."""
    return ", ".join(phrases[:-1]) + last + phrases[-1] if len(phrases) > 1 else phrases[0]


@dataclass(frozen=True)
class NounTables:
    """Words that a world knows, and what they mean."""

    nouns: dict[str, tuple[str, bool | None]]
    """Word to kind, and whether it is a plural; None: both, as "fish"."""
    counts: dict[str, int]
    sizes: dict[str, str]
    colours: frozenset[str]


@cache
def noun_tables(world: World) -> NounTables:
    nouns: dict[str, tuple[str, bool | None]] = {}
    for kind in world.kinds:
        for one, many in ((kind, PLURALS[kind]), *(() if world.plain_language else SYNONYMS.get(kind, ()))):
            nouns |= {one: (kind, None)} if one == many else {one: (kind, False), many: (kind, True)}
    numbers = {count: word for count, word in NUMBER_WORDS.items() if count <= world.max_objects}
    counts = {"a": 1, "an": 1, **{word: count for count, word in numbers.items()}}
    if world.plain_language:
        return NounTables(nouns, counts, {}, frozenset(world.colours))
    digits = {str(count): count for count in numbers if count <= world.max_count}
    sizes = {word: size for size, words in SIZE_WORDS.items() for word in words}
    return NounTables(nouns, counts | digits, sizes, frozenset(world.colours))
