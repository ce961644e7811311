"""The ways to phrase a caption: tables of openings, relations and backgrounds, and how often each variation occurs.

PLAIN    "a red cat left of a dog": half of all captions of the full world
VARIED   the other half: "Please draw 2 little kitties on the left of a dog that is blue."
SPOKEN   what voices say: no digits, capitals or synonyms
SMALL    the one style of the small world
"""

from dataclasses import dataclass, field

from triptych.scenes.nouns import GREYS, PLAIN_BACKGROUNDS

CAPTION_PROMPT = "a picture of"  # no question starts like this, so a text that does is a caption
PLAIN_SHARE = 0.5  # of the captions of the full world; the shares of VARIED apply to the rest

# Opening words; "{is}" agrees with the count of the first group.
MEDIA = (CAPTION_PROMPT, "a photo of", "a drawing of", "an image of")
STATEMENTS = ("there {is}", "here {is}", "we see", "I see", "this picture shows")
ORDERS = ("draw", "draw me", "paint", "show me", "make", "I want", "I would like", "please draw", "please show me")
REQUESTS = ("can you draw", "can you show me", "could you draw", "could you please draw")  # these end in "?"
GREETINGS = ("hello", "hi", "hey")
THANKS = ("please", "thanks", "thank you")

# Phrases for each relation, the plainest first.
_SIDES = {side: (f"{side} of", f"to the {side} of", f"on the {side} of") for side in ("left", "right")}
_SMALL_RELATIONS: dict[str | None, tuple[str, ...]] = {
    "left of": _SIDES["left"],
    "right of": _SIDES["right"],
    "above": ("above", "over"),
    "below": ("below", "under"),
    None: ("and", "with"),
}
RELATION_PHRASES: dict[str | None, tuple[str, ...]] = {
    **_SMALL_RELATIONS,
    "below": ("below", "under", "underneath"),
    "beside": ("beside", "next to", "by", "near"),
    "on": ("on", "on top of", "sitting on", "standing on"),
    "bigger than": ("bigger than", "larger than"),
    "smaller than": ("smaller than",),
    "between": ("between", "in between"),
}
# Where two groups are in the image, for "a cat on the left and a dog on the right": first and second group
PLACES = {
    "left of": ("on the left", "on the right"),
    "right of": ("on the right", "on the left"),
    "above": ("at the top", "at the bottom"),
    "below": ("at the bottom", "at the top"),
}

_ON_BACKGROUND = (
    "on a {} background",
    "with a {} background",
    "against a {} background",
    "in front of a {} background",
)
BACKGROUND_PHRASES = {
    "sky": ("in the sky", "in front of the sky", "against the sky", _ON_BACKGROUND[0].format("sky")),
    "grass": ("on the grass", "in the grass", "on grass", _ON_BACKGROUND[0].format("grass")),
    "night": ("at night", "in the night", _ON_BACKGROUND[0].format("night")),
} | {
    name: tuple(
        text.format(word) for text in (*_ON_BACKGROUND, "on {}") for word in (GREYS if name == "grey" else (name,))
    )
    for name in PLAIN_BACKGROUNDS
}


@dataclass(frozen=True)
class Style:
    """A way to phrase captions. Shares are probabilities where the variation is possible."""

    relations: dict[str | None, tuple[str, ...]]
    backgrounds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # -- the sentence
    opening: float = 0.0
    openings: tuple[str, ...] = ()
    medium_after_order: float = 0.0
    """ "draw" becomes "draw a picture of"."""
    greeting: float = 0.0
    thanks: float = 0.0
    link: float = 0.0
    """ "a cat that is left of a dog", "a cat is left of a dog"."""
    places: float = 0.0
    """ "a cat on the left and a dog on the right"."""
    inverted_on: float = 0.0
    """ "a ball with a cat on it"."""
    background_first: float = 0.0
    """ "at night, a cat"."""
    background_last: float = 0.0
    """ "a cat, white background"."""
    # -- noun phrases
    bare: float = 0.0
    """No articles: "cat and dog"."""
    one: float = 0.0
    """ "one cat", "1 cat"."""
    digits: float = 0.0
    synonym: float = 0.0
    size_words: float = 0.0
    """Words other than small and big."""
    coloured: float = 0.0
    """ "a blue colored cat"."""
    that_is: float = 0.0
    """ "a cat that is blue"."""
    of_colour: float = 0.0
    """ "a cat, colour blue", for a single group."""
    # -- letters
    lower_i: float = 0.0
    sentence_case: float = 0.0
    capitals: float = 0.0
    title: float = 0.0
    full_stop: float = 0.0
    """After a capital, twice as often."""


PLAIN = Style(
    relations={relation: phrases[:1] for relation, phrases in RELATION_PHRASES.items()},
    backgrounds={name: phrases[:1] for name, phrases in BACKGROUND_PHRASES.items()},
)
VARIED = Style(
    relations=RELATION_PHRASES,
    backgrounds=BACKGROUND_PHRASES,
    opening=0.5, openings=(*MEDIA, *STATEMENTS, *ORDERS, *REQUESTS), medium_after_order=0.2,
    greeting=0.03, thanks=0.06, link=0.15, places=0.15, inverted_on=0.15, background_first=0.1, background_last=0.1,
    bare=0.2, one=0.1, digits=0.3, synonym=0.3, size_words=0.5, coloured=0.08, that_is=0.1, of_colour=0.05,
    lower_i=0.4, sentence_case=0.4, capitals=0.03, title=0.03, full_stop=0.25,
)  # fmt: skip
SPOKEN = Style(
    relations=RELATION_PHRASES
    | {"beside": ("beside", "next to", "near"), "on": ("on", "on top of", "sitting on"), "between": ("between",)},
    backgrounds={
        name: (f"on a {name} background", f"with a {name} background") if name in PLAIN_BACKGROUNDS else phrases[:1]
        for name, phrases in BACKGROUND_PHRASES.items()
    },
    opening=0.4,
    openings=(
        *MEDIA[:2], *STATEMENTS, "draw", "please draw", "can you draw", "show me", "please show me", "I want",
        "I would like",
    ),
)  # fmt: skip
_SMALL_OPENINGS = ("there {is}", "here {is}", CAPTION_PROMPT, "we see", "this picture shows")
SMALL_STYLE = Style(_SMALL_RELATIONS, opening=0.5, openings=_SMALL_OPENINGS)
