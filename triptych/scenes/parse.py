"""Sentences to scenes: every caption that can be written, and what is close to one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

from triptych.errors import UserError
from triptych.scenes.nouns import GREYS, PLAIN_BACKGROUNDS, noun, noun_tables
from triptych.scenes.styles import RELATION_PHRASES, SMALL_STYLE
from triptych.scenes.world import FULL, ObjectGroup, Scene, World


class NotInGrammar(UserError):
    """A text that means no scene. The message says why, for the person who typed it."""


def parse(text: str, world: World = FULL) -> Scene | None:
    """The scene that a sentence describes, or None if the sentence is not in the grammar."""
    try:
        return read(text, world)
    except NotInGrammar:
        return None


def read(text: str, world: World = FULL) -> Scene:
    """As `parse`, but a sentence outside the grammar raises NotInGrammar with the reason."""
    return read_normalised(normalise(text, world), world)


def read_normalised(text: str, world: World) -> Scene:
    grammar = grammar_of(world)
    opening = grammar.opening.match(text)
    text = text[opening.end() :] if opening else text
    background = None
    if grammar.background:
        text = grammar.thanks.sub("", text)
        text, background = _take_background(text, grammar.background)
    groups, relation = _read_clause(text, grammar)
    try:
        scene = Scene(tuple(groups), relation, background)
    except UserError as error:
        same = len({group.look for group in groups}) < len(groups)
        raise NotInGrammar(
            "two groups look the same; say their sum or another colour" if same else str(error)
        ) from None
    if not world.fits(scene):
        raise NotInGrammar(too_much(scene, world))
    return scene


def normalise(text: str, world: World) -> str:
    """Lower case, single spaces, and no final punctuation; in the full world, less punctuation."""
    text = text.lower()
    if not world.plain_language:
        text = _SEPARATORS.sub(", ", text.replace("&", " and ").replace("-", " ").replace('"', " "))
        text = re.sub(r"[\s,]*,[\s,]*", ", ", text).strip(" ,.!?\n\t")
        return " ".join(text.split())
    return " ".join(text.split()).rstrip(".")


_SEPARATORS = re.compile(r"[;:\n]")


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grammar:
    """Regular expressions of a world's sentences."""

    world: World
    opening: re.Pattern[str]
    noun_phrase: re.Pattern[str]
    relation: re.Pattern[str]
    """What stands between two groups, with spaces around."""
    relation_of: dict[str, str | None]
    place: re.Pattern[str] | None = None
    """Where a group is in the image."""
    relation_to_it: re.Pattern[str] | None = None
    """ "on it", after a second group."""
    background: re.Pattern[str] | None = None
    thanks: re.Pattern[str] = re.compile(r",? (?:please|thanks|thank you)(?:,? (?:please|thanks|thank you))*$")


def one_of(phrases: Iterable[str]) -> str:
    """A regular expression of any of the phrases, the longest first."""
    return "|".join(map(re.escape, sorted(phrases, key=len, reverse=True)))


@cache
def grammar_of(world: World) -> Grammar:
    words = noun_tables(world)
    nouns, colours = one_of(words.nouns), one_of(words.colours)
    if world.plain_language:
        relation_of = {phrase: relation for relation, phrases in SMALL_STYLE.relations.items() for phrase in phrases}
        openings = [text.replace("{is}", is_are) for text in SMALL_STYLE.openings for is_are in ("is", "are")]
        return Grammar(
            world,
            opening=re.compile(rf"(?:{one_of(openings)}) "),
            noun_phrase=re.compile(
                rf"(?P<count>{one_of(words.counts)}) (?P<adjectives>(?:{colours}) )?(?P<noun>{nouns})\b"
            ),
            relation=re.compile(rf" (?P<relation>{one_of(relation_of)}) "),
            relation_of=relation_of,
        )
    relation_of = {phrase: relation for relation, each in RELATION_PHRASES.items() if relation for phrase in each}
    relation_of |= {"at the left of": "left of", "at the right of": "right of"}
    adjective = rf"(?:{one_of(words.sizes)}|(?:{colours})(?: colou?r(?:ed)?)?)"
    related = rf"(?:(?:that |which )?(?:is |are ))?(?:sitting |standing )?(?P<relation>{one_of(relation_of)})"
    return Grammar(
        world,
        opening=_OPENING,
        noun_phrase=re.compile(
            rf"(?:the )?(?:(?P<count>{one_of(words.counts)}) )?(?P<adjectives>(?:{adjective},? )*)(?P<noun>{nouns})\b"
            rf"(?P<after>(?: (?:that|which) (?:is|are)|,? colou?r(?:ed)?|,? (?:in|of) colou?r) {adjective})?(?![a-z])"
        ),
        relation=re.compile(rf",? {related} |,? ?(?:, | )(?:and|with) | ?, "),
        relation_of=relation_of,
        place=re.compile(r",? (?:(?:that |which )?(?:is|are) )?(?:on|at|in|to) the (left|right|top|bottom)(?! of)\b"),
        relation_to_it=re.compile(
            rf" (?:(?:sitting |standing )?(?P<relation>{one_of(relation_of)}) (?:it|them)|on top)$"
        ),
        background=_background_pattern(),
    )


_OPENING = re.compile(
    r"(?:(?:hello|hi|hey)(?:,? |$))?"
    r"(?:(?:can|could|would) you )?(?:please,? )?"
    r"(?:(?:draw|paint|show|make)(?: me)?(?: please)? |(?:i|we) (?:can )?(?:want|see|would like)(?: to see)? )?"
    r"(?:(?:a |an |the |one )?(?:picture|photo|drawing|image) (?:of|with) )?"
    r"(?:there (?:is|are) |here (?:is|are) |th(?:is|e) (?:picture|photo|drawing|image) shows )?"
)


def _background_pattern() -> re.Pattern[str]:
    plain = one_of({*PLAIN_BACKGROUNDS, *GREYS})
    return re.compile(
        rf"(?:^|,? )(?:"
        rf"(?:(?:on|with|against|in|over|in front of) )?(?:(?:a|an|the|one) )?"
        rf"(?P<named>{plain}|sky|grass|night) background"
        rf"|(?:at|in the) (?P<night>night)(?: sky)?"
        rf"|(?:in|against|in front of) the (?:blue )?(?P<sky>sky)"
        rf"|(?:on|in|in front of) (?:the )?(?:green )?(?P<grass>grass)"
        rf"|on (?P<on>{plain})(?=,|$)"
        rf")(?=,|\s|$)"
    )


# -- reading ----------------------------------------------------------------------------------------------------------


def _take_background(text: str, pattern: re.Pattern[str]) -> tuple[str, str | None]:
    """The text without its background phrases, and the background."""
    match = pattern.search(text)
    if not match:
        return text, None
    names = {_background_name(match) for match in pattern.finditer(text)}
    if len(names) > 1:
        raise NotInGrammar(f"an image has one background, not {' and '.join(sorted(names))}")
    rest = pattern.sub("", text).strip(" ,")
    return rest.removeprefix("with ").removeprefix("and "), names.pop()


def _background_name(match: re.Match[str]) -> str:
    name = next(name for name in match.groupdict().values() if name)
    return "grey" if name in GREYS else name


def _read_clause(text: str, grammar: Grammar) -> tuple[list[ObjectGroup], str | None]:
    """Groups and what stands between them."""
    groups: list[ObjectGroup] = []
    relations: list[str | None] = []
    places: list[str | None] = []
    position = 0
    while True:
        match = grammar.noun_phrase.match(text, position)
        if not match:
            _no_noun_phrase(text, position, grammar)
        groups.append(read_group(match, grammar.world))
        position = match.end()
        place = grammar.place and grammar.place.match(text, position)
        places.append(place[1] if place else None)
        position = place.end() if place else position
        if position == len(text):
            break
        if len(groups) == 2 and relations == [None] and grammar.relation_to_it:
            to_it = grammar.relation_to_it.match(text, position)
            if to_it:
                return groups[::-1], grammar.relation_of[to_it["relation"] or "on"]
        between = grammar.relation.match(text, position)
        if not between:
            raise NotInGrammar(f"nothing known follows {text[:position].strip()!r}")
        relations.append(grammar.relation_of.get(between["relation"]) if between["relation"] else None)
        position = between.end()
    if any(places):
        return groups, _relation_of_places(places, relations)
    return groups, _one_relation(groups, relations, grammar)


def _one_relation(groups: list[ObjectGroup], relations: list[str | None], grammar: Grammar) -> str | None:
    stated = [relation for relation in relations if relation]
    most = 2 if grammar.world.plain_language else 3
    if len(groups) > most:
        raise NotInGrammar(f"at most {most} kinds of thing fit into one image")
    if not stated:
        return None
    if "between" in stated:
        if relations != ["between", None]:
            raise NotInGrammar("'between' takes three things: a cat between a dog and a fox")
    elif len(groups) > 2:
        raise NotInGrammar("a relation holds between two kinds of thing: a cat left of a dog")
    return stated[0]


_OPPOSITE = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
_RELATION_OF_PLACE = {"left": "left of", "right": "right of", "top": "above", "bottom": "below"}


def _relation_of_places(places: list[str | None], relations: list[str | None]) -> str:
    """ "a cat on the left and a dog on the right": the cat is left of the dog."""
    if len(places) != 2 or relations != [None]:
        raise NotInGrammar("a place such as 'on the left' takes two things: a cat on the left and a dog on the right")
    first, second = places
    if first is None:  # "a cat and a dog on the left": perhaps both are there
        raise NotInGrammar("say where both things are: a cat on the left and a dog on the right")
    if second not in (None, _OPPOSITE[first]):
        raise NotInGrammar(f"'{first}' and '{second}' are no opposite places")
    return _RELATION_OF_PLACE[first]


def read_group(match: re.Match[str], world: World, is_definite: bool = False) -> ObjectGroup:
    """The group of a noun phrase. "the cats" says how many only where they were named before."""
    words = noun_tables(world)
    kind, is_plural = words.nouns[match["noun"]]
    count = words.counts.get(match["count"], 1)  # "cat", "the cat": one
    adjectives = match["adjectives"] or ""
    if not world.plain_language:
        adjectives += match["after"] or ""
    stated = adjectives.replace(",", " ").split()
    colours = [word for word in stated if word in words.colours]
    sizes = [words.sizes[word] for word in stated if word in words.sizes]
    if is_definite:
        count = 2 if is_plural else 1
    elif is_plural and match["count"] is None:
        raise NotInGrammar(f"say how many {match['noun']}: two {match['noun']}")
    if (is_plural and count == 1) or (world.plain_language and is_plural is False and count > 1):
        raise NotInGrammar(f"number and noun disagree in {match[0]!r}")
    if count > world.max_count:
        raise NotInGrammar(f"an image has at most {world.max_count} {noun(kind, 2)}")
    if len(colours) > 1 or len(sizes) > 1:
        raise NotInGrammar(f"one colour and one size at a time, got {match[0]!r}")
    colour = colours[0] if colours else None
    if not world.has_natural_looks and (colour is not None) != (kind in world.coloured_kinds):
        raise NotInGrammar(f"{noun(kind, 2)} {'come in no colour' if colour else 'need a colour'}")
    return ObjectGroup(kind, colour, count, sizes[0] if sizes else None)


def _no_noun_phrase(text: str, position: int, grammar: Grammar) -> NoReturn:
    rest = text[position:]
    if not rest:
        raise NotInGrammar("nothing to draw is named" if not text else f"a thing is missing after {text.strip()!r}")
    words = noun_tables(grammar.world)
    named = [word for word in re.findall(r"[a-z]+", rest) if word in words.nouns]
    examples = ("a red heart", "two cats") if grammar.world.plain_language else ("a red cat", "two big dogs")
    if not named:
        raise NotInGrammar(f"{rest!r} names no thing; say for example {examples[0]!r}")
    wrong = [word for word in rest.split() if word in (*PLAIN_BACKGROUNDS, *GREYS)]
    if wrong:
        colours = ", ".join(grammar.world.colours)
        raise NotInGrammar(f"things come in {colours}; {wrong[0]} is only a background")
    if re.match(r"(?:(?:\w+) )?colou?r(?:ed)?\b", rest):
        raise NotInGrammar(f"say which colour: a red {words.nouns[named[0]][0]}")
    first = rest.split()[0]
    if words.nouns.get(first, ("", False))[1]:
        raise NotInGrammar(f"say how many {first}: two {first}")
    raise NotInGrammar(f"{rest!r} is no noun phrase such as {examples[0]!r} or {examples[1]!r}")


def too_much(scene: Scene, world: World) -> str:
    """Why a scene does not fit into an image."""
    if scene.num_objects > world.max_objects:
        return f"an image has at most {world.max_objects} things, not {scene.num_objects}"
    if world.has_grid and len(scene.groups) == 2:
        return "of two kinds of thing, at most two each fit into an image"
    if scene.relation in ("on", "under"):
        return "'on' takes one thing on one thing"
    if scene.relation in ("bigger than", "smaller than") and any(group.size for group in scene.groups):
        return "a comparison takes no sizes: a cat bigger than a dog"
    if sum(group.count for group in scene.groups if group.size == "big") > 1:
        return "there is no room for so many big things"
    return "there is no room for so many things in this position"
