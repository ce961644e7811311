"""Word and character error rates of transcripts.

    errors / length, summed over all sentences: (substituted + missing + added) / words or characters of the reference

Both texts are normalised first (`triptych.eval.audio.english`). Characters include the spaces between words, as in
jiwer.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from triptych.eval.audio.english import normalize_english

Unit = Literal["words", "characters"]
Normalize = Callable[[str], str]


def count_errors(
    reference: str, transcript: str, unit: Unit = "words", normalize: Normalize = normalize_english
) -> tuple[int, int]:
    """The number of errors of one transcript, and the length of its reference."""
    expected, heard = normalize(reference), normalize(transcript)
    if unit == "words":
        return edit_distance(expected.split(), heard.split()), len(expected.split())
    return edit_distance(expected, heard), len(expected)


def edit_distance(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Levenshtein distance: the fewest substitutions, deletions and insertions that make one sequence the other.

    A column of the table of distances is two integers, whose bits say where the next row is larger or smaller by one
    (Myers 1999, Hyyrö 2003). Each item of `other` takes a few operations on them, whatever the length of `one`.
    """
    if not one:
        return len(other)
    places: dict[Hashable, int] = {}
    for row, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << row
    full, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    larger, smaller, distance = full, 0, len(one)
    for item in other:
        equal = places.get(item, 0)
        vertical = equal | smaller
        equal |= (((equal & larger) + larger) ^ larger) | smaller
        right_larger = smaller | (full & ~(equal | larger))
        right_smaller = larger & equal
        distance += bool(right_larger & last) - bool(right_smaller & last)
        right_larger, right_smaller = (right_larger << 1 | 1) & full, (right_smaller << 1) & full
        larger = right_smaller | (full & ~(vertical | right_larger))
        smaller = right_larger & vertical
    return distance
