"""Long texts in pieces whose tokens are those of the whole text.

Byte-pair encoding takes a few hundred bytes of memory per character, so 30 MB at once would take gigabytes. It merges
within words only, and both splits into words that are used here (GPT-2's and cl100k_base's) end a word at these places,
whatever comes before or after:

    word| word        before a space that follows a letter, a digit or a sign
    word\\n|word       after a single line break between two of these

A text of normal language has one in every few hundred characters. Where there is none in the last `_SEARCHED`
characters of a piece, the piece ends within a word; decoding still returns the text.
"""

import string
from collections.abc import Iterator

PIECE_CHARS = 1 << 18
_SEARCHED = 1 << 14


def split_text(text: str, size: int = PIECE_CHARS) -> Iterator[str]:
    """The text in pieces of at most `size` characters."""
    start = 0
    while len(text) - start > size:
        stop = last_place(text, max(start, start + size - _SEARCHED), start + size) or start + size
        yield text[start:stop]
        start = stop
    yield text[start:]


def last_place(text: str, start: int, stop: int) -> int | None:
    """The last place above `start` and up to `stop` where a piece may end without changing a token, or None."""
    space = text.rfind(" ", start + 1, stop + 1)
    while space > start and not _is_solid(text[space - 1]):
        space = text.rfind(" ", start + 1, space)
    first = max(start, 1)
    line = text.rfind("\n", first, stop)
    while line >= first and not (_is_solid(text[line - 1]) and _is_solid(text[line + 1 : line + 2])):
        line = text.rfind("\n", first, line)
    place = max(space, line + 1)
    return place if place > start else None


def _is_solid(char: str) -> bool:
    """Whether this is no kind of white space by any definition: a letter, a digit or an ASCII sign."""
    return char.isalnum() or (char != "" and char in string.punctuation)
