"""Questions about a picture, with short answers and full sentences."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from triptych.scenes.answers import NONE, NOTHING, SeenGroup, Truth, seen_groups, truth
from triptych.scenes.nouns import pick
from triptych.scenes.picture import Picture
from triptych.scenes.question_forms import COMPARISONS, SENTENCE_REQUEST, SIDES, Asked, forms, phrases, wordings, write
from triptych.scenes.world import BACKGROUNDS, FULL, INVERSE, POSITIONS, ObjectGroup, Scene, World, colour_of

PLAIN_WORDING_SHARE = 0.6  # of questions in the plainest wording
AMERICAN_SHARE = 0.5  # of questions about colours that spell "color"
CAPITAL_SHARE = 0.4
SENTENCE_SHARE = 0.2  # of questions that request a full sentence
NOTHING_SHARE = 0.15  # of questions such as "how many" and "what is left of" whose answer is none or nothing
SMALL_EXISTS_SHARE = 0.25  # of the small world's questions that ask whether an object is there


@dataclass(frozen=True)
class Question:
    """A question in its plainest wording, and its answer."""

    text: str
    answer: str
    """ "two"."""
    sentence: str
    """ "There are two cats."."""
    form: str


def questions(scene: Scene, picture: Picture, world: World = FULL) -> list[Question]:
    """Every question that the picture decides, in its plainest wording.

    The small world asks about the relation that the scene states. The full world asks what the picture shows.
    """
    return [
        Question(write(asked, wordings(world, asked)[0], phrases(world, asked)[0]), *answered, asked.form)
        for asked, answered in _decided(list(forms(world)), scene, picture, world)
    ]


def question(
    scene: Scene,
    picture: Picture,
    rng: np.random.Generator,
    world: World = FULL,
    accept: Callable[[Asked], bool] | None = None,
) -> tuple[str, str]:
    """A random question and its answer. Forms are equally likely, and within a form yes and no.

    `accept` restricts what may be asked in the full world.
    """
    if world.plain_language:
        is_exists = rng.random() < SMALL_EXISTS_SHARE
        chosen = ["exists"] if is_exists else [form for form in forms(world) if form != "exists"]
        decided = _decided(chosen, scene, picture, world)
        asked, (answer, _) = pick(rng, _balanced(decided, rng) if is_exists else decided)
        return write(asked, wordings(world, asked)[0], phrases(world, asked)[0]), answer
    while True:
        decided = _decided([pick(rng, forms(world))], scene, picture, world)
        options = _balanced([pair for pair in decided if accept is None or accept(pair[0])], rng)
        if options:
            asked, (answer, sentence) = pick(rng, options)
            return _worded(asked, answer, sentence, rng, world)


def _decided(chosen: list[str], scene: Scene, picture: Picture, world: World) -> list[tuple[Asked, Truth]]:
    """The questions of some forms that the picture decides."""
    groups = seen_groups(picture, world)
    asked = [each for form in chosen for each in _all_asked(form, scene, groups, world)]
    pairs = [(each, answered) for each in asked if (answered := truth(each, picture, world, groups))]
    return [pair for pair in pairs if not world.plain_language or pair[1][0] != NOTHING]


_NEGATIVE = ("no", NONE, NOTHING)


def _balanced(options: list[tuple[Asked, Truth]], rng: np.random.Generator) -> list[tuple[Asked, Truth]]:
    """Only positive or only negative answers, or none at all: yes and no equally often, "nothing" rarely."""
    negative = [pair for pair in options if pair[1][0] in _NEGATIVE]
    positive = [pair for pair in options if pair[1][0] not in _NEGATIVE]
    share = 0.5 if any(pair[1][0] in ("yes", "no") for pair in options[:1]) else NOTHING_SHARE
    return negative if rng.random() < share else positive


def _worded(asked: Asked, answer: str, sentence: str, rng: np.random.Generator, world: World) -> tuple[str, str]:
    is_plain = rng.random() < PLAIN_WORDING_SHARE
    template, detail = (
        options[0] if is_plain else pick(rng, options) for options in (wordings(world, asked), phrases(world, asked))
    )
    text = write(asked, template, detail)
    if rng.random() < AMERICAN_SHARE:
        text = text.replace("colour", "color")
    if rng.random() < CAPITAL_SHARE:
        text = text[0].upper() + text[1:]
    if rng.random() < SENTENCE_SHARE:
        return f"{text} {SENTENCE_REQUEST}", sentence
    return text, answer


# -- what can be asked ------------------------------------------------------------------------------------------------


def _all_asked(form: str, scene: Scene, groups: list[SeenGroup], world: World) -> Iterator[Asked]:
    """Every question of a form that makes sense. Some of them the picture may not decide."""
    match form:
        case "count":
            yield from (Asked(form, (thing,)) for thing in _countable(groups, world))
        case "total" | "contents" | "background":
            yield Asked(form)
        case "colour":
            yield from (Asked(form, (thing,)) for thing in _by_kind(groups) if thing.kind in world.coloured_kinds)
        case "is colour":
            yield from (Asked(form, (thing,), colour) for thing in _by_kind(groups) for colour in world.colours)
        case "what is" | "side":
            relations = [each for each in _asked_relations(scene, world) if form == "what is" or each in SIDES]
            things = [(thing,) for thing in _definite(groups, world)] if form == "what is" else [()]
            yield from (Asked(form, each, relation) for relation in relations for each in things)
        case "on" | "where":
            yield from (Asked(form, (thing,)) for thing in _definite(groups, world))
        case "size":
            yield from (Asked(form, (thing,)) for thing in _by_kind(groups))
        case "exists" | "any":
            yield from (Asked(form, (thing,)) for thing in _perhaps_there(groups, world))
        case "is background":
            yield from (Asked(form, (), background) for background in BACKGROUNDS)
        case _:
            yield from _about_two(form, groups, scene, world)


def _about_two(form: str, groups: list[SeenGroup], scene: Scene, world: World) -> Iterator[Asked]:
    details: tuple[str, ...] = ("",)
    if form == "relation":
        details = _asked_relations(scene, world)
        if not world.plain_language:
            details += ("on", "bigger than", "smaller than")
    elif form == "which":
        details = COMPARISONS
    for one, other in permutations(range(len(groups)), 2):
        if form == "more" and groups[one].count == groups[other].count:
            continue
        for things in dict.fromkeys(_names(groups, world, is_short) for is_short in (True, False)):
            here, there = things[one], things[other]
            if here and there:
                yield from (Asked(form, (here, there), detail) for detail in details)


def _asked_relations(scene: Scene, world: World) -> tuple[str, ...]:
    if not world.plain_language:
        return POSITIONS
    return (scene.relation, INVERSE[scene.relation]) if scene.relation else ()


def _thing(group: SeenGroup, colour: str | None) -> ObjectGroup:
    return ObjectGroup(group.kind, colour, min(group.count, 2))


def _is_only(group: SeenGroup, groups: list[SeenGroup]) -> bool:
    """Whether no other group is of its kind."""
    return sum(other.kind == group.kind for other in groups) == 1


def _by_kind(groups: list[SeenGroup]) -> list[ObjectGroup]:
    """Groups that their kind alone identifies."""
    return [_thing(group, None) for group in groups if _is_only(group, groups)]


def _names(groups: list[SeenGroup], world: World, is_short: bool) -> tuple[ObjectGroup | None, ...]:
    """How "the ..." refers to each group: as short as possible, or with every colour that a caption states."""
    names = []
    for group in groups:
        is_only = _is_only(group, groups)
        colour = group.colour or (None if is_only else colour_of((group.kind, None)))
        if is_only and is_short and world.has_natural_looks:
            colour = None
        names.append(_thing(group, colour) if colour or is_only else None)
    return tuple(names)


def _definite(groups: list[SeenGroup], world: World) -> list[ObjectGroup]:
    things = [thing for is_short in (True, False) for thing in _names(groups, world, is_short) if thing]
    return list(dict.fromkeys(things))


def _countable(groups: list[SeenGroup], world: World) -> list[ObjectGroup]:
    """Looks that are there, and in the full world every kind."""
    things = _definite(groups, world) + ([ObjectGroup(kind) for kind in world.kinds] if world.has_natural_looks else [])
    return list({(thing.kind, thing.colour): thing for thing in things}.values())


def _perhaps_there(groups: list[SeenGroup], world: World) -> list[ObjectGroup]:
    """Every kind; and kinds that are there in every colour."""
    things = [ObjectGroup(kind) for kind in world.kinds]
    if world.has_natural_looks:
        things += [
            ObjectGroup(group.kind, colour) for group in groups if _is_only(group, groups) for colour in world.colours
        ]
    return things
