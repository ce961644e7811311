"""Descriptions of a picture in two or three sentences, and how they are read."""

import re
from dataclasses import replace
from functools import cache

import numpy as np

from triptych.errors import UserError
from triptych.scenes.answers import BACKGROUND_SENTENCES, SeenGroup, main_relation, seen_groups
from triptych.scenes.captions import caption
from triptych.scenes.nouns import SIZE_WORDS, listed, noun, pick
from triptych.scenes.parse import NotInGrammar, grammar_of, normalise, read, read_group
from triptych.scenes.picture import Picture
from triptych.scenes.styles import GREETINGS, RELATION_PHRASES, THANKS
from triptych.scenes.world import FULL, ObjectGroup, Scene, World, colour_of

THIRD_SENTENCE_SHARE = 0.5
PRONOUN_SHARE = 0.4  # "It is big.", where there is only one group
PLAIN_WORDING_SHARE = 0.7  # of the words for a size or relation
_OPENINGS = ("There {is}", "There {is}", "Here {is}", "I see", "We see", "A picture of", "This picture shows", "")


def describe(scene: Scene, picture: Picture, rng: np.random.Generator, world: World = FULL) -> str:
    """Two or three sentences that are true of the picture: what is there; its size, position or background.

    "There are two cats and a red ball. The cats are small. It is night."
    """
    if world.plain_language:
        return f"{caption(scene, rng, world)}."
    groups = [seen_groups(picture, world)[i] for i in rng.permutation(len(picture.looks))]
    opening = pick(rng, _OPENINGS).replace("{is}", groups[0].is_are)
    first = f"{opening} {listed([group.indefinite for group in groups])}.".strip()
    is_compared = scene.relation in ("bigger than", "smaller than")
    others = [] if is_compared else _sizes(groups, picture, rng, world)
    others += _relations(groups, scene, rng)
    others.append(BACKGROUND_SENTENCES[picture.background])
    count = 2 if len(others) > 1 and rng.random() < THIRD_SENTENCE_SHARE else 1
    chosen = sorted(rng.permutation(len(others))[:count])  # the background comes last
    return " ".join([first[0].upper() + first[1:], *(others[i] for i in chosen)])


def _definite(group: SeenGroup, groups: list[SeenGroup]) -> str | None:
    is_only = sum(other.kind == group.kind for other in groups) == 1
    colour = None if is_only else colour_of((group.kind, group.colour))
    if not is_only and not colour:
        return None
    return " ".join(["the", *([colour] if colour else []), noun(group.kind, group.count)])


def _sizes(groups: list[SeenGroup], picture: Picture, rng: np.random.Generator, world: World) -> list[str]:
    """One of the groups of which a size is true."""
    sized = []
    for group in groups:
        size, phrase = picture.size_of(world, group.objects[0].look), _definite(group, groups)
        if size in SIZE_WORDS and phrase:
            if len(groups) == 1 and rng.random() < PRONOUN_SHARE:
                phrase = "it" if group.count == 1 else "they"
            sized.append(f"{phrase[0].upper()}{phrase[1:]} {group.is_are} {_worded(SIZE_WORDS[size], rng)}.")
    return [pick(rng, sized)] if sized else []


def _worded(options: tuple[str, ...], rng: np.random.Generator) -> str:
    return options[0] if rng.random() < PLAIN_WORDING_SHARE else pick(rng, options)


def _relations(groups: list[SeenGroup], scene: Scene, rng: np.random.Generator) -> list[str]:
    """The relation that the scene states, or else the one that a person would name."""
    if scene.relation:
        by_look = {group.objects[0].look: group for group in groups}
        ordered = [by_look[group.look] for group in scene.groups]
        relation: str | None = scene.relation
    elif len(groups) == 2 and all(group.count <= 2 for group in groups):
        ordered, relation = groups, main_relation(groups[0], groups[1])
    else:
        return []
    if relation == "under":
        ordered, relation = ordered[::-1], "on"
    phrases = [phrase for phrase in (_definite(group, groups) for group in ordered) if phrase]
    if relation is None or len(phrases) < len(ordered):
        return []
    where = _worded(RELATION_PHRASES[relation], rng)
    return [f"The{phrases[0][3:]} {ordered[0].is_are} {where} {listed(phrases[1:])}."]


# -- reading ----------------------------------------------------------------------------------------------------------


def parse_description(text: str, world: World = FULL) -> Scene | None:
    """The scene that one to four sentences describe together, or None."""
    try:
        return read_description(text, world)
    except NotInGrammar:
        return None


def read_description(text: str, world: World = FULL) -> Scene:
    """As `parse_description`, but a text outside the grammar raises NotInGrammar with the reason."""
    sentences = [sentence for sentence in re.split(r"[.!?]+(?:\s+|$)", text) if sentence.strip()]
    sentences = [each for each in sentences if each.lower() not in (*GREETINGS, *THANKS)] or sentences
    if len(sentences) <= 1 or world.plain_language:
        return read(text if world.plain_language else " ".join(sentences), world)
    scene = None
    for sentence in sentences[:4]:
        text = normalise(sentence, world)
        stated = _statement(world).fullmatch(text) if scene else None
        try:
            scene = _with_statement(scene, stated, world) if scene and stated else _merged(scene, read(text, world))
        except NotInGrammar:
            raise
        except UserError as error:
            raise NotInGrammar(str(error)) from None
    if scene is None or len(sentences) > 4:
        raise NotInGrammar("a description has at most four sentences")
    if not world.fits(scene):
        raise NotInGrammar("there is no room for all of this in one image")
    return scene


@cache
def _statement(world: World) -> re.Pattern[str]:
    """ "the cats are small", "the cat is left of the dog", "the background is white", "it is night"."""
    grammar = grammar_of(world)
    noun_phrase = re.sub(r"\?P<\w+>", "?:", grammar.noun_phrase.pattern)
    adjective = "|".join([*(word for words in SIZE_WORDS.values() for word in words), *world.colours])
    relation = "|".join(sorted(grammar.relation_of, key=len, reverse=True))
    return re.compile(
        rf"it is (?P<night>night)|the background is (?:the )?(?P<background>white|grey|gray|cream|sky|grass|night)"
        rf"|(?P<it>it|they|the {noun_phrase}) (?:is|are) (?:(?P<adjective>{adjective})"
        rf"|(?P<where>(?:in the|on the|at) (?:sky|grass|night))"
        rf"|(?:sitting |standing )?(?P<relation>{relation}) (?P<there>the .*))"
    )


def _with_statement(scene: Scene, stated: re.Match[str], world: World) -> Scene:
    background = stated["night"] or stated["background"] or (stated["where"] or "").split(" ")[-1]
    if background:
        return _with_background(scene, "grey" if background == "gray" else background)
    here = _referred(stated["it"], scene, world)
    adjective = stated["adjective"]
    if adjective:
        sizes = {word: size for size, words in SIZE_WORDS.items() for word in words}
        size, colour = (sizes[adjective], here.colour) if adjective in sizes else (here.size, adjective)
        if here.size not in (None, size) or here.colour not in (None, colour):
            raise NotInGrammar(
                f"the {noun(here.kind, here.count)} cannot be {here.size or here.colour} and {adjective}"
            )
        described = replace(here, size=size, colour=colour)
        return replace(scene, groups=tuple(described if group is here else group for group in scene.groups))
    relation = grammar_of(world).relation_of[stated["relation"]]
    there = [_referred(phrase, scene, world) for phrase in stated["there"].split(" and ")]
    if scene.relation or len(scene.groups) != len(there) + 1:
        raise NotInGrammar("a description has one relation between all its things")
    return Scene((here, *there), relation, scene.background)


def _referred(phrase: str, scene: Scene, world: World) -> ObjectGroup:
    """The group of a scene that "the red cats" or "it" refers to."""
    if phrase in ("it", "they"):
        candidates = list(scene.groups) if len(scene.groups) == 1 else []
    else:
        match = grammar_of(world).noun_phrase.fullmatch(phrase)
        if not match:
            raise NotInGrammar(f"{phrase!r} is no thing of the description")
        named = read_group(match, world, is_definite=True)
        candidates = [
            group
            for group in scene.groups
            if group.kind == named.kind
            and named.colour in (None, group.colour, colour_of(group.look))
            and named.size in (None, group.size)
        ]
    if len(candidates) != 1:
        raise NotInGrammar(f"{phrase!r} does not say which of the things is meant")
    return candidates[0]


def _with_background(scene: Scene, background: str) -> Scene:
    if scene.background not in (None, background):
        raise NotInGrammar(f"an image has one background, not {scene.background} and {background}")
    return replace(scene, background=background)


def _merged(scene: Scene | None, added: Scene) -> Scene:
    if scene is None:
        return added
    if scene.relation or added.relation:
        raise NotInGrammar("a description with a relation names all its things in one sentence")
    if added.background:
        scene = _with_background(scene, added.background)
    return replace(scene, groups=(*scene.groups, *added.groups))
