"""The words of a world: every word of its captions, descriptions, questions and answers."""

import re
from functools import cache

from triptych.scenes.answers import BACKGROUND_SENTENCES, NONE, NOTHING
from triptych.scenes.nouns import COLOUR_NOUNS, COLOURED_WORDS, GREYS, noun_tables
from triptych.scenes.question_forms import NIGHT_TEMPLATES, SENTENCE_REQUEST, TEMPLATES
from triptych.scenes.spoken import TRANSCRIPT_PROMPT, VOICE_REQUEST
from triptych.scenes.styles import GREETINGS, PLACES, SMALL_STYLE, THANKS, VARIED
from triptych.scenes.voices import TRAINING_VOICES
from triptych.scenes.world import FULL, World

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+")
_IN_CAPTIONS = "a an the is are and with that on it they top background"
_IN_ANSWERS = "there is are no yes not the things thing than more bigger smaller size"
_IN_SMALL_QUESTIONS = "how many are there what colour is the yes no"


def words_in(text: str) -> list[str]:
    """The words and numbers of a text, in lower case."""
    return _WORD.findall(text.lower())


def model_words(world: World = FULL) -> tuple[str, ...]:
    """Every word that a model of the world knows: those of its texts, and those that ask for speech and voices."""
    if world.plain_language:
        return words(world)
    spoken = words_in(f"{TRANSCRIPT_PROMPT} {VOICE_REQUEST.format(text='', voice='')}")
    return tuple(sorted({*words(world), *spoken, *TRAINING_VOICES}))


@cache
def words(world: World = FULL) -> tuple[str, ...]:
    """Every word that occurs in any text of the world."""
    tables = noun_tables(world)
    style = SMALL_STYLE if world.plain_language else VARIED
    texts = [*tables.nouns, *tables.counts, *tables.sizes, *tables.colours, *style.openings]
    texts += [phrase for phrases in style.relations.values() for phrase in phrases]
    if world.plain_language:
        texts += ["is are", _IN_SMALL_QUESTIONS]
    else:
        texts += [phrase for phrases in style.backgrounds.values() for phrase in phrases]
        texts += [phrase for pair in PLACES.values() for phrase in pair]
        texts += [template for templates in TEMPLATES.values() for template in templates]
        texts += [*GREETINGS, *THANKS, *COLOUR_NOUNS, *COLOURED_WORDS, *GREYS, *NIGHT_TEMPLATES, SENTENCE_REQUEST]
        texts += [*BACKGROUND_SENTENCES.values(), NONE, NOTHING, _IN_CAPTIONS, _IN_ANSWERS]
    plain = (re.sub(r"\{\w+\}|\b[AB]s?\b", " ", text) for text in texts)
    return tuple(sorted({word for text in plain for word in words_in(text)}))
