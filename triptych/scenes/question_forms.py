"""Forms of question: how each is worded, and how a text is read as one of them."""

import re
from dataclasses import dataclass
from functools import cache

from triptych.scenes.nouns import article, noun, noun_tables
from triptych.scenes.parse import one_of
from triptych.scenes.styles import PLACES, RELATION_PHRASES, SMALL_STYLE
from triptych.scenes.world import BACKGROUNDS, POSITIONS, ObjectGroup, World

SENTENCE_REQUEST = "Answer in a sentence."
# "A" and "B" are nouns with or without a colour, "As" and "Bs" their plurals; "an A" takes an article. "{is}" agrees
# with the number of A. "{detail}" is a relation, colour, place, background or comparison. The plainest wording first.
TEMPLATES = {
    "count": ("how many As are there", "how many As do you see", "how many As are in the picture"),
    "total": (
        "how many things are there", "how many things are there in all", "how many things do you see",
        "how many things are in the picture",
    ),
    "colour": ("what colour {is} the A", "which colour {is} the A"),
    "is colour": ("{is} the A {detail}",),
    "what is": ("what is {detail} the A", "what do you see {detail} the A"),
    "on": ("what is on the A", "what is on top of the A"),
    "relation": ("{is} the A {detail} the B",),
    "exists": ("is there an A", "do you see an A", "can you see an A"),
    "any": ("are there any As", "do you see any As"),
    "contents": ("what is in the picture", "what do you see", "what is in this picture", "what is this a picture of"),
    "background": ("what is the background", "what is in the background"),
    "is background": ("is the background {detail}",),
    "which": ("which is {detail}, the A or the B", "which {is} {detail}, the A or the B"),
    "size": ("{is} the A big or small", "{is} the A small or big", "what size {is} the A"),
    "between": ("what is between the A and the B",),
    "more": ("are there more As than Bs",),
    "where": ("where {is} the A",),
    "side": ("what is {detail}", "what do you see {detail}"),
}  # fmt: skip
NIGHT_TEMPLATES = ("is it night", "is it night in the picture")  # of "is background"
SMALL_FORMS = ("count", "colour", "what is", "relation", "exists", "side")
COMPARISONS = ("bigger", "smaller")
SIDES = {relation: here for relation, (here, _) in PLACES.items()}
_SMALL_SIDES = SIDES | {"above": "above", "below": "below"}


@dataclass(frozen=True)
class Asked:
    """What a question asks. Things are kinds with or without a colour; a count above one makes a noun plural."""

    form: str
    things: tuple[ObjectGroup, ...] = ()
    detail: str = ""


def forms(world: World) -> tuple[str, ...]:
    return SMALL_FORMS if world.plain_language else tuple(TEMPLATES)


def name(thing: ObjectGroup, count: int = 1) -> str:
    """ "red cat", "cats"."""
    return f"{thing.colour} {noun(thing.kind, count)}" if thing.colour else noun(thing.kind, count)


def wordings(world: World, asked: Asked) -> tuple[str, ...]:
    """The templates of a question, the plainest first."""
    if asked.detail == "night":
        return NIGHT_TEMPLATES
    return TEMPLATES[asked.form][: 1 if world.plain_language else None]


def phrases(world: World, asked: Asked) -> tuple[str, ...]:
    """The wordings of the detail, the plainest first."""
    if asked.form in ("what is", "relation"):
        return RELATION_PHRASES[asked.detail][: 1 if world.plain_language else None]
    if asked.form == "side":
        return ((_SMALL_SIDES if world.plain_language else SIDES)[asked.detail],)
    if asked.form == "which":
        return ("bigger", "larger") if asked.detail == "bigger" else ("smaller",)
    if asked.form == "is background":
        return ("the sky",) if asked.detail == "sky" else (asked.detail,)
    return (asked.detail,)


def write(asked: Asked, template: str, detail: str) -> str:
    """The text of a question."""
    is_one = not asked.things or asked.things[0].count == 1
    text = template.replace("{is}", "is" if is_one else "are").replace("{detail}", detail)

    def replaced(match: re.Match[str]) -> str:
        thing = asked.things[match[0].rstrip("s")[-1] == "B"]
        if match[0] == "an A":
            return f"{article(name(thing))} {name(thing)}"
        return name(thing, 2 if match[0].endswith("s") else thing.count)

    return re.sub(r"\ban A\b|\b[AB]s?\b", replaced, text) + "?"


# -- reading ----------------------------------------------------------------------------------------------------------


def normalise_question(text: str) -> tuple[str, bool]:
    """Lower case without punctuation, in British spelling; and whether a full sentence is requested."""
    words = re.sub(r"[^\w\s']", " ", text.lower()).split()
    spelled = " ".join({"color": "colour", "gray": "grey"}.get(word, word) for word in words)
    request = SENTENCE_REQUEST.lower().rstrip(".")
    text = spelled.removesuffix("please").strip()
    return text.removesuffix(request).removesuffix("please").strip(), text.endswith(request)


def read_question(text: str, world: World) -> Asked | None:
    """What a text asks, or None if it is no question of a known form."""
    text, _ = normalise_question(text.removeprefix("please "))
    for form, pattern in _patterns(world):
        match = pattern.fullmatch(text)
        if match:
            values = match.groupdict()
            things = tuple(_thing(values[slot], world) for slot in ("A", "B") if values.get(slot))
            detail = _details(form, world)[values["detail"]] if "detail" in values else ""
            return Asked(form, things, detail)
    return None


def _thing(text: str, world: World) -> ObjectGroup:
    *colour, word = text.split()
    return ObjectGroup(noun_tables(world).nouns[word][0], colour[0] if colour else None)


@cache
def _details(form: str, world: World) -> dict[str, str]:
    """Wording to detail."""
    match form:
        case "is colour":
            values: tuple[str, ...] = world.colours
        case "relation":
            values = tuple(relation for relation in RELATION_PHRASES if relation and relation != "between")
        case "what is":
            values = POSITIONS
        case "side":
            values = tuple(SIDES)
        case "which":
            values = COMPARISONS
        case "is background":
            values = BACKGROUNDS
        case _:
            return {}
    if world.plain_language:
        values = tuple(
            value for value in values if form not in ("relation", "what is") or value in SMALL_STYLE.relations
        )
    return {phrase: value for value in values for phrase in phrases(world, Asked(form, detail=value))}


@cache
def _patterns(world: World) -> list[tuple[str, re.Pattern[str]]]:
    words = noun_tables(world)
    thing = rf"(?:(?:{one_of(words.colours)}) )?(?:{one_of(words.nouns)})"
    patterns = []
    for form in forms(world):
        details = one_of(_details(form, world))
        for template in wordings(world, Asked(form)):
            text = template.replace(",", "").replace("{is}", "(?:is|are)").replace("{detail}", f"(?P<detail>{details})")
            text = re.sub(r"\ban A\b", "(?:a|an|one) A", text)
            text = re.sub(r"\b([AB])s?\b", lambda match: f"(?P<{match[1]}>{thing})", text)
            patterns.append((form, re.compile(text)))
    if not world.plain_language:
        patterns.append(("is background", re.compile(r"is it (?P<detail>night)(?: in the picture)?")))
    return patterns
