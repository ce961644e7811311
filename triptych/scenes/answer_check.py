"""Whether an answer is right: short or a sentence, "2" or "two", "cat" or "a cat"."""

import re

from triptych.scenes.answers import NONE, NOTHING, SeenGroup, relation_holds, seen_groups, truth
from triptych.scenes.nouns import GREYS, NUMBER_WORDS, noun_tables
from triptych.scenes.parse import grammar_of
from triptych.scenes.picture import Picture
from triptych.scenes.question_forms import Asked, name, read_question
from triptych.scenes.styles import BACKGROUND_PHRASES
from triptych.scenes.world import BACKGROUNDS, FULL, World, colour_of

_YES_NO = ("is colour", "relation", "exists", "any", "is background", "more")
_NAMING = ("what is", "on", "between", "side", "contents")
_NONE_WORDS = {NONE, "no", "zero", "0"}


def answer_is_right(question: str, answer: str, picture: Picture, world: World = FULL) -> bool:
    """Whether an answer to a question is true of a picture. No answer to a question that it leaves open is right."""
    asked = read_question(question, world)
    answered = asked and truth(asked, picture, world)
    if not asked or not answered:
        return False
    words = _words(answer)
    if words in (_words(answered[0]), _words(answered[1])):
        return True
    if not words:
        return False
    right, text = answered[0], " ".join(words)
    if asked.form in _YES_NO:
        return words[0] == right and (len(words) == 1 or not _contradicts(words, right))
    if asked.form in _NAMING:
        return _names_the_same(text, right, asked, picture, world)
    if asked.form in ("count", "total"):
        return _number(words) == right and _nouns(words, world) <= {thing.kind for thing in asked.things}
    if asked.form == "where":
        return _is_where(text, asked, picture, world)
    tables = noun_tables(world)
    if asked.form == "which":
        chosen, right_words = text.split(" than ")[0].split(), right.split()
        colours = {word for word in chosen if word in tables.colours}
        needs_colour = asked.things[0].kind == asked.things[1].kind
        kind = tables.nouns[right_words[-1]][0]
        allowed = {colour_of(item.look) for item in picture.objects if item.look[0] == kind}
        allowed = set(right_words) if needs_colour else allowed
        return _nouns(chosen, world) == {kind} and colours <= allowed and bool(colours or not needs_colour)
    if asked.form == "size":
        return {tables.sizes[word] for word in words if word in tables.sizes} == {right}
    known = BACKGROUNDS if asked.form == "background" else tables.colours
    return {word for word in words if word in known} == {right}


def _words(text: str) -> list[str]:
    """Lower case, numbers as words, British spelling."""
    words = re.findall(r"[a-z]+|\d+", text.lower())
    spelled = ("grey" if word in GREYS else "colour" if word == "color" else word for word in words)
    return [NUMBER_WORDS.get(int(word), word) if word.isdigit() else word for word in spelled]


def _contradicts(words: list[str], right: str) -> bool:
    """ "yes, it is not": a negation that does not fit."""
    return bool({"not", "no"} & set(words[1:])) == (right == "yes")


def _number(words: list[str]) -> str | None:
    numbers = [word for word in words if word in NUMBER_WORDS.values() or word in _NONE_WORDS]
    if len(numbers) != 1:
        return None
    return NONE if numbers[0] in _NONE_WORDS else numbers[0]


def _nouns(words: list[str], world: World) -> set[str]:
    """The kinds that are named."""
    nouns = noun_tables(world).nouns
    return {nouns[word][0] for word in words if word in nouns}


def _names_the_same(text: str, right: str, asked: Asked, picture: Picture, world: World) -> bool:
    """Whether a text names the groups of the right answer, in any order. Where a kind is alone, its colour may miss."""
    if right == NOTHING:
        return bool({NOTHING, NONE} & set(text.split()))
    for thing in reversed(asked.things):  # "a cat is left of the dog": the dog is no part of the answer
        for is_plural in (1, 2):
            text = text.removesuffix(f"the {name(thing, is_plural)}").strip().removesuffix(" and").strip()
    groups = seen_groups(picture, world)
    expected = [group for group in groups if group.indefinite in _phrases(right)]
    matches = list(grammar_of(world).noun_phrase.finditer(text))
    if len(matches) != len(expected):
        return False
    return all(any(_is_named(match, group, groups, asked, world) for match in matches) for group in expected)


def _phrases(answer: str) -> list[str]:
    return answer.replace(" and ", ", ").split(", ")


def _is_named(match: re.Match[str], group: SeenGroup, groups: list[SeenGroup], asked: Asked, world: World) -> bool:
    tables = noun_tables(world)
    kind, is_plural = tables.nouns[match["noun"]]
    stated = [word for word in (match["adjectives"] or "").split() if word in tables.colours]
    colour = colour_of((group.kind, group.colour))
    is_only = sum(other.kind == kind for other in groups) == 1
    may_omit = group.colour is None or (is_only and asked.form != "contents")
    is_colour_right = stated == [colour] if stated else may_omit
    count = tables.counts.get(match["count"] or "")
    is_count_right = count == group.count if count else is_plural in (None, group.count > 1)
    return kind == group.kind and is_colour_right and is_count_right


def _is_where(text: str, asked: Asked, picture: Picture, world: World) -> bool:
    """Any true position will do: "left of the dog", "next to it" is not one."""
    if any(text.endswith(phrase) for phrase in BACKGROUND_PHRASES[picture.background]):
        return True
    grammar = grammar_of(world)
    groups = seen_groups(picture, world)
    here = [group for group in groups if group.kind == asked.things[0].kind]
    for match in grammar.relation.finditer(f" {text}"):
        thing = grammar.noun_phrase.fullmatch(f" {text}", match.end())
        relation = grammar.relation_of.get(match["relation"] or "")
        if not thing or not relation or relation == "between":
            continue
        kind = noun_tables(world).nouns[thing["noun"]][0]
        there = [group for group in groups if group.kind == kind]
        return len(here) == len(there) == 1 and bool(relation_holds(relation, here[0], there[0]))
    return False
