"""The true answer to a question, from the picture alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triptych.scenes.nouns import NUMBER_WORDS, PLAIN_BACKGROUNDS, article, listed, noun
from triptych.scenes.picture import Picture, PlacedObject, holds, is_between
from triptych.scenes.question_forms import SIDES, Asked, name
from triptych.scenes.styles import BACKGROUND_PHRASES
from triptych.scenes.world import INVERSE, ObjectGroup, World, colour_of

NONE = "none"
NOTHING = "nothing"
BACKGROUND_SENTENCES = {
    "white": "The background is white.", "grey": "The background is grey.", "cream": "The background is cream.",
    "sky": "The background is the sky.", "grass": "The background is grass.", "night": "It is night.",
}  # fmt: skip


@dataclass(frozen=True)
class SeenGroup:
    """All objects of one look in a picture."""

    kind: str
    colour: str | None
    """The colour that a sentence names; None for a natural look."""
    objects: tuple[PlacedObject, ...]

    @property
    def count(self) -> int:
        return len(self.objects)

    @property
    def is_are(self) -> str:
        return "is" if self.count == 1 else "are"

    @property
    def indefinite(self) -> str:
        """ "a red cat", "two dogs"."""
        words = ([self.colour] if self.colour else []) + [noun(self.kind, self.count)]
        return " ".join([article(words[0]) if self.count == 1 else number_word(self.count), *words])


def number_word(count: int) -> str:
    return NUMBER_WORDS.get(count, str(count))


def seen_groups(picture: Picture, world: World) -> list[SeenGroup]:
    """The groups of a picture, in the order of their objects."""
    groups = []
    for look in picture.looks:
        kind, colour = look
        if not world.has_natural_looks:
            colour = colour_of(look) if kind in world.coloured_kinds else None
        groups.append(SeenGroup(kind, colour, tuple(item for item in picture.objects if item.look == look)))
    return groups


def _matching(thing: ObjectGroup, groups: Sequence[SeenGroup]) -> list[SeenGroup]:
    return [
        group
        for group in groups
        if group.kind == thing.kind and thing.colour in (None, group.colour, colour_of((group.kind, group.colour)))
    ]


def _the_one(thing: ObjectGroup, groups: Sequence[SeenGroup]) -> SeenGroup | None:
    """The group that "the red cat" refers to; None if there are none or several."""
    matching = _matching(thing, groups)
    return matching[0] if len(matching) == 1 else None


Truth = tuple[str, str]
"""A short answer and a full sentence."""


def truth(asked: Asked, picture: Picture, world: World, groups: Sequence[SeenGroup] | None = None) -> Truth | None:
    """The answer to a question; None if the picture does not decide it, or it presupposes what is not there.

    `groups` are those of the picture, if they are already known.
    """
    groups = seen_groups(picture, world) if groups is None else groups
    return _ANSWERS[asked.form](asked, groups, picture, world)


_Groups = Sequence[SeenGroup]


def _count(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth:
    thing = asked.things[0]
    count = sum(group.count for group in _matching(thing, groups))
    if not count:
        return NONE, f"There are no {name(thing, 2)}."
    return number_word(count), f"There {'is' if count == 1 else 'are'} {number_word(count)} {name(thing, count)}."


def _total(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth:
    count = len(picture.objects)
    if count == 1:
        return "one", "There is one thing."
    return number_word(count), f"There are {number_word(count)} things."


def _colour(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    group = _the_one(asked.things[0], groups)
    colour = group and colour_of((group.kind, group.colour))
    return (colour, f"The {noun(group.kind, group.count)} {group.is_are} {colour}.") if group and colour else None


def _is_colour(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    group = _the_one(asked.things[0], groups)
    if group is None:
        return None
    is_true = colour_of((group.kind, group.colour)) == asked.detail
    return _yes_no(is_true, f"{_the(asked, 0)} {group.is_are}", asked.detail)


def _yes_no(is_true: bool, subject: str, claim: str) -> Truth:
    return ("yes", f"Yes, {subject} {claim}.") if is_true else ("no", f"No, {subject} not {claim}.")


def _the(asked: Asked, index: int) -> str:
    thing = asked.things[index]
    return f"the {name(thing, thing.count)}"


def _what_is(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    relation = asked.detail or "on"
    there = _the_one(asked.things[0], groups)
    if there is None:
        return None
    named = []
    for here in groups:
        if here is not there:
            pairs = [holds(relation, [one], [other]) for one in here.objects for other in there.objects]
            if any(pairs) and not all(pairs):
                return None
            named += [here] if all(pairs) else []
    return _named(named, f"{relation} {_the(asked, 0)}")


def _named(groups: _Groups, where: str) -> Truth:
    """Which things are somewhere."""
    if not groups:
        return NOTHING, f"Nothing is {where}."
    answer = listed([group.indefinite for group in groups])
    is_are = groups[0].is_are if len(groups) == 1 else "are"
    return answer, f"{answer[0].upper()}{answer[1:]} {is_are} {where}."


def _relation(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    here, there = (_the_one(thing, groups) for thing in asked.things)
    if here is None or there is None or here is there:
        return None
    is_true = relation_holds(asked.detail, here, there)
    if is_true is None:
        return None
    return _yes_no(is_true, f"{_the(asked, 0)} {here.is_are}", f"{asked.detail} {_the(asked, 1)}")


def relation_holds(relation: str, here: SeenGroup, there: SeenGroup) -> bool | None:
    """Whether a relation holds; None if that is a matter of opinion."""
    if holds(relation, here.objects, there.objects):
        return True
    if relation in SIDES:
        return False if holds(INVERSE[relation], here.objects, there.objects) else None
    pairs = [holds(relation, [one], [other]) for one in here.objects for other in there.objects]
    return None if any(pairs) else False


def _exists(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth:
    thing = asked.things[0]
    if _matching(thing, groups):
        return "yes", f"Yes, there is {article(name(thing))} {name(thing)}."
    return "no", f"No, there is no {name(thing)}."


def _any(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth:
    answer, sentence = _count(asked, groups, picture, world)
    sentence = sentence[0].lower() + sentence[1:]
    return ("no", f"No, {sentence}") if answer == NONE else ("yes", f"Yes, {sentence}")


def _contents(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    if not groups:
        return None
    answer = listed([group.indefinite for group in groups])
    return answer, f"There {groups[0].is_are} {answer}."


def _background(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth:
    return picture.background, BACKGROUND_SENTENCES[picture.background]


def _is_background(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth:
    is_true = picture.background == asked.detail
    if asked.detail == "night":
        return _yes_no(is_true, "it is", "night")
    return _yes_no(is_true, "the background is", "the sky" if asked.detail == "sky" else asked.detail)


def _which(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    seen = [_the_one(thing, groups) for thing in asked.things]
    for index, (here, there) in enumerate((seen, seen[::-1])):
        if here and there and holds(f"{asked.detail} than", here.objects, there.objects):
            answer = _the(asked, index)
            return answer, f"{answer[0].upper()}{answer[1:]} {here.is_are} {asked.detail}."
    return None


def _size(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    group = _the_one(asked.things[0], groups)
    size = group and picture.size_of(world, group.objects[0].look)
    if not group or size not in ("small", "big"):
        return None
    return size, f"The {name(asked.things[0], group.count)} {group.is_are} {size}."


def _between(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    first, second = (_the_one(thing, groups) for thing in asked.things)
    if first is None or second is None or first is second:
        return None
    others = [group for group in groups if group not in (first, second)]
    named = [group for group in others if is_between(group.objects, first.objects, second.objects)]
    return _named(named, f"between {_the(asked, 0)} and {_the(asked, 1)}") if len(named) == 1 else None


def _more(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    first, second = (sum(group.count for group in _matching(thing, groups)) for thing in asked.things)
    if not first and not second:
        return None
    names = [name(thing, 2) for thing in asked.things]
    return _yes_no(first > second, "there are", f"more {names[0]} than {names[1]}")


def _where(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    here = _the_one(asked.things[0], groups)
    if here is None or len(groups) > 2:
        return None
    if len(groups) == 1:
        if picture.background in PLAIN_BACKGROUNDS:
            return None
        answer = BACKGROUND_PHRASES[picture.background][0]
    else:
        there = next(group for group in groups if group is not here)
        relation = main_relation(here, there)
        if relation is None or here.kind == there.kind:
            return None
        answer = f"{relation} the {noun(there.kind, there.count)}"
    return answer, f"The {name(asked.things[0], here.count)} {here.is_are} {answer}."


def main_relation(here: SeenGroup, there: SeenGroup) -> str | None:
    """The relation that a person would name first."""
    for relation in ("on", "under"):
        if holds(relation, here.objects, there.objects):
            return relation
    centres = [
        [sum(item.centre[axis] for item in group.objects) / group.count for axis in (0, 1)] for group in (here, there)
    ]
    dx, dy = (centres[1][axis] - centres[0][axis] for axis in (0, 1))
    relation = ("left of" if dx > 0 else "right of") if abs(dx) > abs(dy) else ("above" if dy > 0 else "below")
    return relation if holds(relation, here.objects, there.objects) else None


def _side(asked: Asked, groups: _Groups, picture: Picture, world: World) -> Truth | None:
    if len(groups) < 2:
        return None
    named = [
        here
        for here in groups
        if all(holds(asked.detail, here.objects, there.objects) for there in groups if there is not here)
    ]
    where = asked.detail if world.plain_language and asked.detail in ("above", "below") else SIDES[asked.detail]
    return _named(named, where) if named else None


_ANSWERS: dict[str, Callable[[Asked, _Groups, Picture, World], Truth | None]] = {
    "count": _count, "total": _total, "colour": _colour, "is colour": _is_colour, "what is": _what_is, "on": _what_is,
    "relation": _relation, "exists": _exists, "any": _any, "contents": _contents, "background": _background,
    "is background": _is_background, "which": _which, "size": _size, "between": _between,
    "more": _more, "where": _where, "side": _side,
}  # fmt: skip
