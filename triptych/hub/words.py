"""The word list of a model: which words of a text are not on it, and what may have been meant."""

import re
from collections.abc import Collection, Sequence

from triptych.errors import UserError, nearest
from triptych.utils.english import number_words

_WORD = re.compile(r"[^\W_]+(?:['’\-‐‑][^\W_]+)*")  # letters and digits, joined by apostrophes and hyphens
_JOINT = re.compile(r"['’\-‐‑]")
_PUNCTUATION = set(" \t\n.,;:!?'\"()[]{}-_‐‑–—…‘’“”/&*#@%+=<>|\\~^`$")
_MAX_DIGITS = 5  # of a number that has a name
_MOST_NAMED = 20  # unknown words in one message; a pasted page has hundreds


def unknown_words(text: str, known: Collection[str]) -> list[str]:
    """The words of a text in lower case that are not `known`, each once, in their order.

    A word joined by hyphens or apostrophes is known if it is listed or all its parts are. Punctuation is not a word;
    other symbols, such as emoji, are.
    """
    words = set(known)
    unknown: dict[str, None] = {}  # a dictionary keeps the order
    for word in _WORD.findall(text):
        if word not in words and not all(part in words for part in _JOINT.split(word)):
            unknown[word] = None
    for symbol in _WORD.sub("", text):
        if symbol not in _PUNCTUATION and not symbol.isspace() and symbol not in words:
            unknown[symbol] = None
    return list(unknown)


def nearest_words(word: str, known: Sequence[str]) -> list[str]:
    """Known words that an unknown one may stand for: a number's name, a listed part, or similar spelling."""
    if word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS and number_words(int(word)) in known:
        return [number_words(int(word))]
    parts = [part for part in _JOINT.split(word) if part in known and part != word]
    return nearest(word, known, 2) or parts


def refuse_unknown_words(text: str, known: Sequence[str]) -> None:
    """Raise one line that names every unknown word with its nearest known words."""
    unknown = unknown_words(text, known)
    if not unknown:
        return
    near = {word: " or ".join(map(repr, nearest_words(word, known))) for word in unknown[:_MOST_NAMED]}
    knows = f"It knows {len(known)} words; `triptych info MODEL --list-words` lists them."
    if len(unknown) == 1:
        (word, meant) = next(iter(near.items()))
        hint = f" Did you mean {meant}?" if meant else ""
        raise UserError(f"this model does not know the word {word!r}.{hint} {knows}")
    named = [f"{word!r} (did you mean {meant}?)" if meant else repr(word) for word, meant in near.items()]
    rest = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    raise UserError(f"this model does not know {len(unknown)} of these words: {', '.join(named)}{rest}. {knows}")
