"""Captions: a scene as one sentence, in the many ways in which a person writes it."""

import numpy as np

from triptych.scenes.nouns import (
    COLOUR_NOUNS,
    COLOURED_WORDS,
    GREYS,
    PLAIN_BACKGROUNDS,
    SIZE_WORDS,
    SYNONYMS,
    article,
    indefinite,
    listed,
    noun,
    pick,
)
from triptych.scenes.styles import (
    GREETINGS,
    MEDIA,
    ORDERS,
    PLACES,
    PLAIN,
    PLAIN_SHARE,
    REQUESTS,
    SMALL_STYLE,
    THANKS,
    VARIED,
    Style,
)
from triptych.scenes.world import FULL, INVERSE, NUMBERS, ObjectGroup, Scene, World


def caption(scene: Scene, rng: np.random.Generator, world: World = FULL, opening: str | None = None) -> str:
    """A random caption. With a given opening, "a picture of" or "", the rest is plain."""
    if world.plain_language:
        style = SMALL_STYLE
    else:
        style = PLAIN if opening is not None or rng.random() < PLAIN_SHARE else VARIED
    return compose(scene, rng, style, opening)


def plain_caption(scene: Scene) -> str:
    """The plainest caption: "a red cat left of a dog at night"."""
    groups, relation = _canonical(scene)
    return _with_background(_clause(groups, relation, _NO_CHANCE, PLAIN), scene.background, _NO_CHANCE, PLAIN)


def compose(scene: Scene, rng: np.random.Generator, style: Style, opening: str | None = None) -> str:
    """A random caption in a style."""
    groups, relation = _shuffled(*_canonical(scene), rng)
    if opening is None:
        opening = pick(rng, style.openings) if rng.random() < style.opening else ""
    request = opening if opening in ORDERS + REQUESTS else ""
    opening = opening.replace("{is}", "is" if groups[0].count == 1 else "are").strip()
    if request and rng.random() < style.medium_after_order:
        opening += f" {pick(rng, MEDIA)}"
    text = _with_background(
        _clause(groups, relation, rng, style, has_opening=bool(opening)), scene.background, rng, style
    )
    if opening:
        text = f"{opening} {text}"
    if (request or not opening) and rng.random() < style.thanks:
        text += pick(rng, (" ", ", ")) + pick(rng, THANKS)
    if rng.random() < style.greeting:
        text = f"{pick(rng, GREETINGS)}, {text}"
    return _lettered(text, rng, style, is_question=request in REQUESTS)


class _NoChance:
    """Stands in for a random generator whose every draw is the first, most common option."""

    def random(self) -> float:
        return 1.0

    def integers(self, *_: int) -> int:
        return 0


_NO_CHANCE: np.random.Generator = _NoChance()  # type: ignore[assignment]


def _canonical(scene: Scene) -> tuple[tuple[ObjectGroup, ...], str | None]:
    """No phrase means only "under" an object that stands on it: that is said as "on"."""
    if scene.relation == "under":
        return scene.groups[::-1], "on"
    return scene.groups, scene.relation


def _shuffled(
    groups: tuple[ObjectGroup, ...], relation: str | None, rng: np.random.Generator
) -> tuple[tuple[ObjectGroup, ...], str | None]:
    """The groups in another order that means the same."""
    if relation == "between":
        first, *others = groups
        return (first, *(others if rng.random() < 0.5 else others[::-1])), relation
    if len(groups) == 2 and relation != "on" and rng.random() < 0.5:
        return groups[::-1], INVERSE[relation] if relation else None
    if len(groups) == 3:
        return tuple(groups[i] for i in rng.permutation(3)), None
    return groups, relation


def _clause(
    groups: tuple[ObjectGroup, ...],
    relation: str | None,
    rng: np.random.Generator,
    style: Style,
    has_opening: bool = False,
) -> str:
    """The groups and their relation."""
    is_bare = not has_opening and rng.random() < style.bare
    phrases = [_noun_phrase(group, rng, style, is_bare, is_alone=len(groups) == 1) for group in groups]
    if len(groups) == 1:
        return phrases[0]
    if relation is None and len(groups) == 3:
        return listed(phrases, pick(rng, (" and ", ", and ") if style is VARIED else (" and ",)))
    if relation is None:
        return f" {pick(rng, style.relations[None])} ".join(phrases)
    if relation == "on" and rng.random() < style.inverted_on:
        on_it, below = phrases
        return f"{below} with {on_it} {pick(rng, ('on it', 'on top'))}"
    if relation in PLACES and rng.random() < style.places:
        here, there = PLACES[relation]
        return f"{phrases[0]} {here} and {phrases[1]} {there}"
    phrase = pick(rng, style.relations[relation])
    if rng.random() < style.link:
        agreeing = "is" if groups[0].count == 1 else "are"
        phrase = f"{agreeing} {phrase}" if not has_opening and rng.random() < 0.5 else f"that {agreeing} {phrase}"
    return f"{phrases[0]} {phrase} {listed(phrases[1:])}"


def _noun_phrase(group: ObjectGroup, rng: np.random.Generator, style: Style, is_bare: bool, is_alone: bool) -> str:
    if style is PLAIN:
        return indefinite(group)
    name = noun(group.kind, group.count)
    if group.kind in SYNONYMS and rng.random() < style.synonym:
        name = pick(rng, SYNONYMS[group.kind])[group.count > 1]
    before = [group.size] if group.size else []
    if group.size and rng.random() < style.size_words:
        before = [pick(rng, SIZE_WORDS[group.size][1:])]
    after = ""
    if group.colour:
        if is_alone and rng.random() < style.of_colour:
            after = f", {pick(rng, COLOUR_NOUNS)} {group.colour}"
        elif rng.random() < style.that_is:
            after = f" that {'is' if group.count == 1 else 'are'} {group.colour}"
        elif rng.random() < style.coloured:
            before += [group.colour, pick(rng, COLOURED_WORDS)]
        else:
            before.append(group.colour)
    words = [*before, name]
    if group.count > 1:
        words.insert(0, str(group.count) if rng.random() < style.digits else NUMBERS[group.count])
    elif not is_bare:
        words.insert(0, pick(rng, ("one", "1")) if rng.random() < style.one else article(words[0]))
    return " ".join(words) + after


def _with_background(text: str, background: str | None, rng: np.random.Generator, style: Style) -> str:
    if background is None:
        return text
    phrase = pick(rng, style.backgrounds[background])
    if rng.random() < style.background_first:
        return f"{phrase}, {text}"
    if background in PLAIN_BACKGROUNDS and rng.random() < style.background_last:
        return f"{text}, {pick(rng, GREYS) if background == 'grey' else background} background"
    return f"{text} {phrase}"


def _lettered(text: str, rng: np.random.Generator, style: Style, is_question: bool) -> str:
    """Capitals and the final punctuation."""
    if text.startswith("I ") and rng.random() < style.lower_i:
        text = "i" + text[1:]
    chance = rng.random()
    is_capitalised = chance < style.sentence_case
    if is_capitalised:
        text = text[0].upper() + text[1:]
    elif chance < style.sentence_case + style.capitals:
        text = text.upper()
    elif chance < style.sentence_case + style.capitals + style.title:
        text = text.title()
    if rng.random() < style.full_stop * (2 if is_capitalised else 1):
        text += "?" if is_question else "."
    return text
