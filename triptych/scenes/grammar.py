"""Scenes and the sentences that describe them: kinds of object, counts, colours and positions.

A scene is one or two groups of objects, at most four objects in all, and optionally a relation between the two groups.
`parse` reads every sentence that the grammar can produce, so generated captions are judged by meaning, not by wording.
"""

import hashlib
import itertools
import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from triptych.errors import UserError, did_you_mean

# kind -> plural
PLAIN_KINDS = {
    "bee": "bees", "boat": "boats", "butterfly": "butterflies", "cat": "cats", "chicken": "chickens",
    "clock": "clocks", "cow": "cows", "dog": "dogs", "elephant": "elephants", "fish": "fish", "flower": "flowers",
    "fox": "foxes", "frog": "frogs", "guitar": "guitars", "house": "houses", "lion": "lions", "monkey": "monkeys",
    "mushroom": "mushrooms", "octopus": "octopuses", "owl": "owls", "panda": "pandas", "penguin": "penguins",
    "pig": "pigs", "pizza": "pizzas", "rabbit": "rabbits", "rocket": "rockets", "snail": "snails", "star": "stars",
    "sun": "suns", "tree": "trees", "turtle": "turtles", "whale": "whales",
}  # fmt: skip
COLOURED_KINDS = {
    "balloon": "balloons", "car": "cars", "circle": "circles", "hat": "hats", "heart": "hearts", "shirt": "shirts",
    "square": "squares", "umbrella": "umbrellas",
}  # fmt: skip
KINDS = PLAIN_KINDS | COLOURED_KINDS
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}
RELATIONS = ("left of", "right of", "above", "below")
INVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
MAX_OBJECTS = 4

# Phrases for each relation, the shortest first.
_RELATION_PHRASES = {
    "left of": ("left of", "to the left of", "on the left of"),
    "right of": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
    None: ("and", "with"),
}
_SIDES = {"left of": "on the left", "right of": "on the right", "above": "above", "below": "below"}
CAPTION_PROMPT = "a picture of"  # no question starts like this, so a text that does is a caption
# Opening words of a caption; "{is}" agrees with the count of the first group.
_OPENINGS = ("", "there {is} ", "here {is} ", f"{CAPTION_PROMPT} ", "we see ", "this picture shows ")
CATEGORIES = ("single object", "two objects", "counting", "colours", "position", "colour attribution")

Appearance = tuple[str, str | None]
"""A kind and its colour: what one sprite shows."""


@dataclass(frozen=True, order=True)
class ObjectGroup:
    """One to four objects of one kind and colour: three foxes, one red heart."""

    kind: str
    colour: str | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown kind of object {self.kind!r}.{did_you_mean(self.kind, list(KINDS))}")
        if (self.colour in COLOURS) != (self.kind in COLOURED_KINDS) or self.colour not in (*COLOURS, None):
            expected = f"one of {', '.join(COLOURS)}" if self.kind in COLOURED_KINDS else "no colour"
            raise UserError(f"a {self.kind} takes {expected}, got {self.colour!r}.")
        if self.count not in NUMBERS:
            raise UserError(f"a group has 1 to {MAX_OBJECTS} objects, got {self.count!r}.")

    @property
    def appearance(self) -> Appearance:
        return self.kind, self.colour


@dataclass(frozen=True)
class Scene:
    """One group, or two of different appearance; `relation` is the position of the first relative to the second."""

    groups: tuple[ObjectGroup, ...]
    relation: str | None = None

    def __post_init__(self) -> None:
        appearances = {group.appearance for group in self.groups}
        if not 1 <= len(self.groups) <= 2 or len(appearances) != len(self.groups):
            raise UserError(f"a scene has one group, or two of different appearance, got {self.groups}.")
        if sum(group.count for group in self.groups) > MAX_OBJECTS:
            raise UserError(f"a scene has at most {MAX_OBJECTS} objects.")
        if self.relation is not None and (self.relation not in RELATIONS or len(self.groups) != 2):
            raise UserError(f"a relation is one of {', '.join(RELATIONS)} between two groups, got {self.relation!r}.")
        if self.relation and not all(group.count <= 2 for group in self.groups):
            raise UserError("groups in a relation have one or two objects each; more do not fit side by side.")

    @property
    def category(self) -> str:
        """The GenEval category of the scene: the hardest one that applies."""
        first, *others = self.groups
        if self.relation:
            return "position"
        if others:
            return "colour attribution" if first.colour and others[0].colour else "two objects"
        if first.count > 1:
            return "counting"
        return "colours" if first.colour else "single object"

    @property
    def composition(self) -> str:
        """What decides the split: the two appearances, or the appearance and count of a single group."""
        if len(self.groups) == 1:
            group = self.groups[0]
            return f"{group.count} {group.colour} {group.kind}"
        return " + ".join(sorted(f"{group.colour} {group.kind}" for group in self.groups))

    @property
    def split(self) -> str:
        """train, validation or test, by composition: 80, 10 and 10 % of all compositions."""
        if len(self.groups) == 1:
            return _splits_of_one_group()[self.composition]
        bucket = _hash(self.composition) % 10
        return {8: "validation", 9: "test"}.get(bucket, "train")


def _hash(composition: str) -> int:
    return int.from_bytes(hashlib.sha256(composition.encode()).digest()[:8], "big")


@cache
def _splits_of_one_group() -> dict[str, str]:
    """One-group compositions are few (32 single objects), so each category is split exactly, in the order of hashes."""
    by_category: dict[str, list[str]] = {}
    for kind, count in itertools.product(KINDS, NUMBERS):
        for colour in COLOURS if kind in COLOURED_KINDS else (None,):
            scene = Scene((ObjectGroup(kind, colour, count),))
            by_category.setdefault(scene.category, []).append(scene.composition)
    splits = {}
    for compositions in by_category.values():
        tenth = -(-len(compositions) // 10)
        for rank, composition in enumerate(sorted(compositions, key=_hash)):
            splits[composition] = "validation" if rank < tenth else "test" if rank < 2 * tenth else "train"
    return splits


# -- sampling scenes --------------------------------------------------------------------------------------------------


def sample_scene(rng: np.random.Generator, split: str | None = None, category: str | None = None) -> Scene:
    """A random scene of the split and category, by rejection. Without a category, all six are equally likely."""
    if category is not None and category not in CATEGORIES:
        raise UserError(f"unknown category {category!r}.{did_you_mean(category, list(CATEGORIES))}")
    category = category or CATEGORIES[rng.integers(len(CATEGORIES))]
    while True:
        scene = _sample_of_category(rng, category)
        if split is None or scene.split == split:
            return scene


def _sample_of_category(rng: np.random.Generator, category: str) -> Scene:
    match category:
        case "single object":
            return Scene((_sample_group(rng, PLAIN_KINDS),))
        case "colours":
            return Scene((_sample_group(rng, COLOURED_KINDS),))
        case "counting":
            return Scene((_sample_group(rng, KINDS, count=int(rng.integers(2, 5))),))
        case "position":
            return Scene(_two_groups(rng, KINDS), RELATIONS[rng.integers(4)])
        case "colour attribution":
            return Scene(_two_groups(rng, COLOURED_KINDS))
    while True:  # "two objects": not both coloured, which would be "colour attribution"
        scene = Scene(_two_groups(rng, KINDS))
        if scene.category == "two objects":
            return scene


def _two_groups(rng: np.random.Generator, kinds: dict[str, str]) -> tuple[ObjectGroup, ObjectGroup]:
    """Two groups of different appearance: one object each with probability 0.6, else one or two each."""
    counts = [1, 1] if rng.random() < 0.6 else rng.integers(1, 3, size=2).tolist()
    while True:
        first, second = (_sample_group(rng, kinds, count) for count in counts)
        if first.appearance != second.appearance:
            return first, second


def _sample_group(rng: np.random.Generator, kinds: dict[str, str], count: int = 1) -> ObjectGroup:
    kind = list(kinds)[rng.integers(len(kinds))]
    colour = COLOURS[rng.integers(len(COLOURS))] if kind in COLOURED_KINDS else None
    return ObjectGroup(kind, colour, count)


# -- describing scenes ------------------------------------------------------------------------------------------------


def group_phrase(group: ObjectGroup) -> str:
    """ "a red heart", "an owl", "three foxes"."""
    words = ([group.colour] if group.colour else []) + [group.kind if group.count == 1 else KINDS[group.kind]]
    if group.count > 1:
        return " ".join([NUMBERS[group.count], *words])
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def caption(scene: Scene, rng: np.random.Generator, opening: str | None = None) -> str:
    """A random caption: the order of the groups, the opening (unless given) and the relation phrase are drawn."""
    groups, relation = scene.groups, scene.relation
    if len(groups) == 2 and rng.random() < 0.5:
        groups, relation = groups[::-1], INVERSE[relation] if relation else None
    if opening is None:  # half of all captions have no opening words; the other openings share the rest
        opening = _OPENINGS[0 if rng.random() < 0.5 else rng.integers(1, len(_OPENINGS))]
    phrases = _RELATION_PHRASES[relation]
    joined = f" {phrases[rng.integers(len(phrases))]} ".join(map(group_phrase, groups))
    return opening.replace("{is}", "is" if groups[0].count == 1 else "are") + joined


def questions(scene: Scene) -> list[tuple[str, str]]:
    """Every question that the scene answers, as pairs of question and answer."""
    pairs = []
    for group in scene.groups:
        same_kind = [other for other in scene.groups if other.kind == group.kind]
        noun_phrase = f"{group.colour} {KINDS[group.kind]}" if group.colour else KINDS[group.kind]
        pairs.append((f"how many {noun_phrase} are there?", NUMBERS[group.count]))
        if group.colour and len(same_kind) == 1:
            verb, noun = ("is", group.kind) if group.count == 1 else ("are", KINDS[group.kind])
            pairs.append((f"what colour {verb} the {noun}?", group.colour))
    if scene.relation:
        first, second = scene.groups
        for here, there, relation in ((first, second, scene.relation), (second, first, INVERSE[scene.relation])):
            pairs.append((f"what is {relation} {_definite_phrase(there)}?", group_phrase(here)))
            # The answer above is always the other group. The questions below require the relation itself.
            pairs.append((f"what is {_SIDES[relation]}?", group_phrase(here)))
            for claimed, answer in ((relation, "yes"), (INVERSE[relation], "no")):
                verb = "is" if here.count == 1 else "are"
                pairs.append((f"{verb} {_definite_phrase(here)} {claimed} {_definite_phrase(there)}?", answer))
    return pairs


def _definite_phrase(group: ObjectGroup) -> str:
    words = ([group.colour] if group.colour else []) + [group.kind if group.count == 1 else KINDS[group.kind]]
    return " ".join(["the", *words])


def yes_no_question(scene: Scene, rng: np.random.Generator) -> tuple[str, str]:
    """Whether the scene contains an object of some kind; yes and no are equally likely."""
    present = {group.kind for group in scene.groups}
    kinds = sorted(present) if rng.random() < 0.5 else sorted(set(KINDS) - present)
    kind = kinds[rng.integers(len(kinds))]
    article = "an" if kind[0] in "aeiou" else "a"
    return f"is there {article} {kind}?", "yes" if kind in present else "no"


def question(scene: Scene, rng: np.random.Generator) -> tuple[str, str]:
    """A random question about the scene with its answer; one in four asks whether an object is there."""
    if rng.random() < 0.25:
        return yes_no_question(scene, rng)
    pairs = questions(scene)
    return pairs[rng.integers(len(pairs))]


def words() -> tuple[str, ...]:
    """Every word that occurs in captions, questions and answers."""
    in_captions = (*KINDS, *KINDS.values(), *COLOURS, *NUMBERS.values(), "a an", *_OPENINGS, *_RELATION_OF)
    in_questions = ("how many are there", "what colour is are the", "what is", "is there", "yes no")
    parts = (*in_captions, *in_questions)
    return tuple(sorted({word for part in parts for word in part.replace("{is}", "is are").split()}))


def document(scene: Scene, rng: np.random.Generator) -> str:
    """A text-only document: one or two captions of the scene, or a caption followed by a question and its answer."""
    first = caption(scene, rng)
    if rng.random() < 0.6:
        asked, answer = question(scene, rng)
        return f"{first}. {asked} {answer}"
    return f"{first}. {caption(scene, rng)}." if rng.random() < 0.5 else f"{first}."


# -- parsing sentences ------------------------------------------------------------------------------------------------

_KIND_OF = {word: kind for kind, plural in KINDS.items() for word in (kind, plural)}
_COUNT_OF = {"a": 1, "an": 1} | {word: count for count, word in NUMBERS.items()}
_GROUP = re.compile(
    rf"(?P<count>{'|'.join(sorted(_COUNT_OF, key=len, reverse=True))})"
    rf"(?: (?P<colour>{'|'.join(COLOURS)}))?"
    rf" (?P<kind>{'|'.join(sorted(_KIND_OF, key=len, reverse=True))})"
)
_RELATION_OF = {phrase: relation for relation, phrases in _RELATION_PHRASES.items() for phrase in phrases}
_OPENING = re.compile(
    "|".join(re.escape(text.replace("{is}", verb)) for text in _OPENINGS[1:] for verb in ("is", "are"))
)


_SPOKEN_PART = re.compile(
    r"\b(?:"
    + "|".join(
        [
            *(re.escape(text.replace("{is}", verb).strip()) for text in _OPENINGS[1:] for verb in ("is", "are")),
            rf"(?:{'|'.join(_COUNT_OF)}) (?:{'|'.join(COLOURS)})",
            rf"(?:an|a|two) (?:{'|'.join(sorted(_KIND_OF, key=len, reverse=True))})",
            *sorted(_RELATION_OF, key=len, reverse=True),
            r"\w+",
        ]
    )
    + r")\b"
)


def spoken_parts(text: str) -> list[str]:
    """Parts of a caption that are spoken separately: openings, "a red", "two foxes", "to the left of", single words.

    There are fewer than 200 parts. Each occurs hundreds of times in training, and captions of unseen compositions
    consist of the same parts.
    """
    return _SPOKEN_PART.findall(text)


def parse(text: str) -> Scene | None:
    """The scene that a sentence describes, or None if the sentence is not in the grammar."""
    text = " ".join(text.lower().split()).rstrip(".")
    opening = _OPENING.match(text)
    rest = text[opening.end() :] if opening else text
    first = _GROUP.match(rest)
    if not first:
        return None
    try:
        rest = rest[first.end() :]
        if not rest:
            return Scene((_parse_group(first),))
        # The longest phrase first: "on the left of" ends in "left of".
        for phrase in sorted(_RELATION_OF, key=len, reverse=True):
            if rest.startswith(f" {phrase} "):
                second = _GROUP.fullmatch(rest, len(phrase) + 2)
                return second and Scene((_parse_group(first), _parse_group(second)), _RELATION_OF[phrase])
    except UserError:  # well-formed, but an impossible scene: "a red fox", "four cats and a dog"
        return None
    return None


def _parse_group(match: re.Match[str]) -> ObjectGroup:
    kind, count = _KIND_OF[match["kind"]], _COUNT_OF[match["count"]]
    agrees = match["kind"] == (kind if count == 1 else KINDS[kind])
    if not agrees:
        raise UserError(f"number and noun disagree in {match[0]!r}.")
    return ObjectGroup(kind, match["colour"], count)
