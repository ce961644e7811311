"""The spoken language: captions and questions that voices say, and the parts of which they are put together.

Each part is synthesized once per voice (docs/decisions/0013). Parts are short phrases, because voices swallow single
articles: "there are", "two red", "hats", "to the left of", "an owl".
"""

import re
from functools import cache

import numpy as np

from triptych.errors import UserError
from triptych.scenes.captions import compose
from triptych.scenes.nouns import NUMBER_WORDS, article, noun, pick
from triptych.scenes.styles import SMALL_STYLE, SPOKEN
from triptych.scenes.world import FULL, NUMBERS, PLURALS, SIZES, ObjectGroup, Scene, World

TRANSCRIPT_PROMPT = "someone says"  # what a transcript starts with
VOICE_REQUEST = "say {text} as {voice}"
SPOKEN_QUESTION_SHARE = 0.2  # of spoken sentences of the full world
_ASKED_RELATIONS = ("left of", "right of", "above", "below", "beside", "on", "bigger than", "smaller than")
# "A" and "B" are nouns of the first and the second group, "As" and "Bs" their plurals, "an A" takes an article.
_QUESTIONS_OF_NONE = (
    "how many things are there?", "what is in the picture?", "what do you see?", "what is the background?",
    "is it night?",
)  # fmt: skip
_QUESTIONS_OF_ONE = (
    "how many As are there?", "what colour {is} the A?", "is there an A?", "are there any As?", "where {is} the A?",
    "{is} the A big or small?",
    *(f"what is {relation} the A?" for relation in _ASKED_RELATIONS if not relation.endswith("than")),
)  # fmt: skip
_QUESTIONS_OF_TWO = (
    *(f"{{is}} the A {relation} the B?" for relation in _ASKED_RELATIONS), "what is between the A and the B?",
    "are there more As than Bs?",
)  # fmt: skip
_TOO_BIG = {("big", number) for number in ("four", "five", "six")}  # there is no room for so many
_ANSWERS = ("yes", "no", "one", "two")


def spoken_caption(scene: Scene, rng: np.random.Generator, world: World = FULL) -> str:
    """A caption of a scene as people say it, or a question about it."""
    if world.plain_language:
        return compose(scene, rng, SMALL_STYLE)
    if rng.random() < SPOKEN_QUESTION_SHARE:
        return _spoken_question(scene, rng)
    return compose(scene, rng, SPOKEN)


def _spoken_question(scene: Scene, rng: np.random.Generator) -> str:
    groups = [scene.groups[i] for i in rng.permutation(len(scene.groups))]
    templates = (_QUESTIONS_OF_NONE, _QUESTIONS_OF_ONE, _QUESTIONS_OF_TWO)[int(rng.integers(min(len(groups), 2) + 1))]
    first, second = groups[0], groups[-1]
    names = {"A": _name(first, first.count), "As": _name(first, 2), "B": _name(second, second.count)}
    names |= {"Bs": _name(second, 2), "an A": f"{article(_name(first, 1))} {_name(first, 1)}"}
    text = pick(rng, templates).replace("{is}", "is" if first.count == 1 else "are")
    return re.sub(r"\ban A\b|\b[AB]s?\b", lambda match: names[match[0]], text)


def _name(group: ObjectGroup, count: int) -> str:
    return f"{group.colour} {noun(group.kind, count)}" if group.colour else noun(group.kind, count)


def spoken_text(text: str) -> str:
    """The words of a text as they are spoken: lower case, numbers as words, no punctuation."""
    words = re.findall(r"[a-z]+|\d+", text.lower().replace("&", " and "))
    return " ".join(NUMBER_WORDS.get(int(word), word) if word.isdigit() else word for word in words)


def spoken_parts(text: str, world: World = FULL) -> list[str]:
    """The parts of a spoken sentence, as few as possible."""
    words = spoken_text(text).split()
    parts, most = _part_of(world)
    best: list[list[str] | None] = [[], *[None] * len(words)]
    for end in range(1, len(words) + 1):
        for start in range(max(0, end - most), end):
            before, part, known = best[start], parts.get(tuple(words[start:end])), best[end]
            if before is not None and part and (known is None or len(before) + 1 < len(known)):
                best[end] = [*before, part]
    complete = best[-1]
    if not complete:
        reached = max(i for i, sequence in enumerate(best) if sequence is not None)
        problem = f"no voice says {' '.join(words[reached : reached + 3])!r}" if words else "it has no words"
        raise UserError(f"{text!r} is not in the spoken language: {problem}.")
    return complete


@cache
def _part_of(world: World) -> tuple[dict[tuple[str, ...], str], int]:
    """Words to part, and the most words of a part."""
    parts = {tuple(part.lower().split()): part for part in all_spoken_parts(world)}
    return parts, max(map(len, parts))


@cache
def all_spoken_parts(world: World = FULL) -> tuple[str, ...]:
    """Every part of every spoken sentence."""
    style = SMALL_STYLE if world.plain_language else SPOKEN
    numbers = [word for count, word in NUMBERS.items() if 1 < count <= world.max_count]
    sizes = () if world.plain_language else SIZES
    adjectives = (*world.colours, *sizes)
    openings = [text.replace("{is}", agreeing) for text in style.openings for agreeing in ("is", "are")]
    natural = [kind for kind in world.kinds if world.has_natural_looks or kind not in world.coloured_kinds]
    parts = [
        *openings,
        *(f"{article(kind)} {kind}" for kind in natural),
        *(f"two {PLURALS[kind]}" for kind in natural),
        *(PLURALS[kind] for kind in world.kinds),
        *world.coloured_kinds,
        *(f"{article(word)} {word}" for word in adjectives),
        *(f"{number} {word}" for word in adjectives for number in numbers if (word, number) not in _TOO_BIG),
        *numbers[1:],
        *(phrase for phrases in style.relations.values() for phrase in phrases),
        *(phrase for phrases in style.backgrounds.values() for phrase in phrases),
    ]
    if not world.plain_language:
        parts += [*world.colours, *_ANSWERS, *_question_parts()]
    return tuple(dict.fromkeys(parts))


def _question_parts() -> list[str]:
    """What is left of the questions without their nouns."""
    templates = (*_QUESTIONS_OF_NONE, *_QUESTIONS_OF_ONE, *_QUESTIONS_OF_TWO)
    texts = [text.replace("{is}", agreeing) for text in templates for agreeing in ("is", "are")]
    pieces = [spoken_text(piece) for text in texts for piece in re.split(r"\ban A\b|\b[AB]s?\b", text)]
    return [piece for piece in pieces if piece]
