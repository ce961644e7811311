"""What a text means to the model: understood, refused for unknown words, or flagged as outside the grammar."""

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from triptych.errors import nearest
from triptych.hub.words import unknown_words
from triptych.scenes.captions import plain_caption
from triptych.scenes.descriptions import read_description
from triptych.scenes.nouns import noun_tables
from triptych.scenes.parse import NotInGrammar
from triptych.scenes.question_forms import read_question
from triptych.scenes.vocabulary import words, words_in
from triptych.scenes.world import COLOURS, FULL, Scene, World

# Words that people use for something that the world has, or that it has something like. Spelling finds the rest.
_LIKE = {
    "ape": "monkey", "bug": "bee", "crimson": "red", "disc": "circle", "doggy": "dog", "hare": "rabbit",
    "home": "house", "hound": "dog", "insect": "bee", "leopard": "tiger", "lilac": "purple", "nine": "six",
    "painting": "drawing", "photograph": "photo", "pic": "picture", "pup": "puppy", "rat": "mouse", "rose": "flower",
    "sailboat": "boat", "scarlet": "red", "sketch": "drawing", "sphere": "ball", "ten": "six", "toad": "frog",
    "truck": "car", "van": "bus", "violet": "purple", "wolf": "dog", "zebra": "horse",
}  # fmt: skip
_NO_COLOUR = ("beige", "brown", "silver", "turquoise", "gold", "golden", "magenta")  # any colour may be meant


@dataclass(frozen=True)
class Reading:
    """How a text is read. `message` is one line for the person who typed it."""

    verdict: Literal["understood", "refused", "flagged"]
    message: str
    reason: str = ""
    """Why the text is no scene, as the end of a sentence; empty if it is one."""
    scene: Scene | None = None
    question: str | None = None
    """Form of the question, if the text is one."""
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Unknown words, each with the nearest known ones."""


def classify(text: str, world: World = FULL) -> Reading:
    """Read a text: as a question, or as one to four sentences that describe a scene."""
    unknown = {word: near_words(word, world) for word in unknown_words(text.lower(), _known(world))}
    if unknown:
        refusal = _refusal(unknown, world)
        return Reading("refused", refusal, refusal, unknown=unknown)
    asked = read_question(text, world)
    if asked:
        reason = "it is a question; say what to draw, such as 'two cats'"
        return Reading("understood", f"a question: {asked.form}", reason, question=asked.form)
    if not words_in(text):
        reason = f"the text has no words; say for example {'a red heart' if world.plain_language else 'a red cat'!r}"
        return Reading("flagged", f"{reason}.", reason)
    try:
        scene = read_description(text, world)
    except NotInGrammar as error:
        return Reading("flagged", f"all words are known, but the model does not read this: {error}.", str(error))
    return Reading("understood", f"read as: {plain_caption(scene)}", scene=scene)


@cache
def _known(world: World) -> frozenset[str]:
    return frozenset(words(world))


def near_words(word: str, world: World = FULL) -> tuple[str, ...]:
    """Known words that mean nearly the same or are spelled nearly alike."""
    if word.isdigit():
        return ()
    if word in _NO_COLOUR:
        return COLOURS
    singular = word.removesuffix("s")
    meant = [_LIKE[form] for form in (word, singular) if form in _LIKE and _LIKE[form] in _known(world)]
    return tuple(dict.fromkeys([*meant, *nearest(word, _content(world), 2)]))[:3]


@cache
def _content(world: World) -> tuple[str, ...]:
    """Words that mean something by themselves: nobody who types "man" means "many"."""
    tables = noun_tables(world)
    numbers = [word for word, count in tables.counts.items() if count > 1]
    return tuple(sorted({*tables.nouns, *tables.colours, *tables.sizes, *numbers}))


def _refusal(unknown: dict[str, tuple[str, ...]], world: World) -> str:
    parts = []
    for word, near in unknown.items():
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        if word.isdigit():
            hint = f" (numbers go from 1 to {world.max_count})"
        parts.append(f"{word!r}{hint}")
    return f"unknown {'word' if len(parts) == 1 else 'words'} {', '.join(parts)}."
