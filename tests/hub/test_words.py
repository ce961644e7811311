"""Words that are not on a model's list: found whatever their form, and named with what may have been meant."""

import pytest

from triptych.errors import UserError
from triptych.hub.words import nearest_words, refuse_unknown_words, unknown_words

KNOWN = ("a", "and", "are", "cat", "cats", "don't", "elephant", "of", "one", "red", "shirt", "shirts", "there", "three")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat", []),
        ("", []),
        ("...?!", []),
        ("a red cat, and (three) cats.", []),
        ("“a cat”—a shirt…", []),
        ("red-shirt", []),  # all parts are known
        ("don't", []),  # listed as a whole
        ("don’t", ["don’t"]),
        ("t-shirt", ["t-shirt"]),
        ("there's a cat", ["there's"]),
        ("a dog and a dog and a fox", ["dog", "fox"]),
        ("3 cats", ["3"]),
        ("3cats", ["3cats"]),
        ("a ca", ["ca"]),
        ("a cat_and", []),  # an underscore separates, as in gaps
        ("un café", ["un", "café"]),
        ("猫 a cat", ["猫"]),
        ("a cat 🐱", ["🐱"]),
        ("a\u00a0cat", []),
        ("a cat\u200b", ["\u200b"]),
    ],
)
def test_unknown_words(text: str, expected: list[str]) -> None:
    assert unknown_words(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("3", ["three"]),
        ("03", ["three"]),
        ("2", []),  # "two" is not known
        ("99999999999999999999999", []),
        ("٣", []),
        ("elefant", ["elephant"]),
        ("elephants", ["elephant"]),
        ("kats", ["cats"]),
        ("zebra", []),
        ("no-cat-food", ["cat"]),
    ],
)
def test_nearest_words(word: str, expected: list[str]) -> None:
    assert nearest_words(word, KNOWN) == expected


def message_of(text: str) -> str:
    with pytest.raises(UserError) as caught:
        refuse_unknown_words(text, KNOWN)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_message_names_every_unknown_word() -> None:
    knows = f"It knows {len(KNOWN)} words; `triptych info MODEL --list-words` lists them."
    assert message_of("a zebra") == f"this model does not know the word 'zebra'. {knows}"
    assert message_of("an elephant") == f"this model does not know the word 'an'. Did you mean 'and' or 'a'? {knows}"
    assert message_of("3 zebras and 1 elefant") == (
        "this model does not know 4 of these words: '3' (did you mean 'three'?), 'zebras', "
        f"'1' (did you mean 'one'?), 'elefant' (did you mean 'elephant'?). {knows}"
    )
    refuse_unknown_words("three cats", KNOWN)


def test_a_pasted_page_is_still_one_line_of_readable_length() -> None:
    message = message_of("\n".join(f"word{n}" for n in range(500)))
    assert "this model does not know 500 of these words" in message
    assert "and 480 more" in message
    assert len(message) < 1000
