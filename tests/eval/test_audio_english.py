"""The English normaliser, beside Whisper's own; word errors, beside jiwer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.eval.audio.english import normalize_english, normalize_other, normalizer
from triptych.eval.audio.english_spelling import american
from triptych.eval.audio.transcripts import count_errors, edit_distance
from triptych.utils.english import number_words

# Two ways to write what is heard as one thing. "whisper": Whisper's normaliser agrees; "ours": it keeps them apart.
SAME = [
    ("whisper", "twenty-one", "21"),
    ("whisper", "nineteen eighty four", "1984"),
    ("whisper", "nineteen oh five", "1905"),
    ("whisper", "nineteen hundred and five", "1905"),
    ("whisper", "twenty twenty", "2020"),
    ("whisper", "two thousand and one", "2001"),
    ("whisper", "one million three hundred five thousand", "1,305,000"),
    ("whisper", "fifteen hundred", "1500"),
    ("whisper", "twenty million", "20 million"),
    ("whisper", "five five five one two three four", "5551234"),
    ("whisper", "one hundred and one", "101"),
    ("whisper", "three point one four", "3.14"),
    ("whisper", "three hundred sixty five point two five", "365.25"),
    ("whisper", "two and a half", "2.5"),
    ("whisper", "two and a half million dollars", "$2.5 million"),
    ("whisper", "two dollars and fifty cents", "$2.50"),
    ("whisper", "fifty cents", "$0.50"),
    ("whisper", "fifty pounds", "£50"),
    ("whisper", "ten percent", "10%"),
    ("whisper", "the twenty-first of June", "the 21st of june."),
    ("whisper", "one hundred third", "103rd"),
    ("whisper", "eleventh", "11th"),
    ("whisper", "the nineteen sixties", "the 1960s"),
    ("whisper", "the one", "the 1"),
    ("whisper", "he's been", "he has been"),
    ("whisper", "he'd gone, won't he", "he had gone will not he"),
    ("whisper", "Mr. Brown", "mister brown"),
    ("whisper", "uh, well (laughs)", "well"),
    ("whisper", "The café's naïve", "the cafe is naive"),
    ("ours", "“Don’t!” she said", "do not she said"),
    ("ours", "a hundred", "100"),
    ("ours", "ten thirty", "10:30"),
    ("ours", "minus five", "-5"),
    ("ours", "ten per cent", "10 %"),
    ("ours", "to-morrow", "tomorrow"),
    ("ours", "travelled to the theatre", "traveled to the theater"),
    ("ours", "he realised the colour of the neighbour's jewellery", "he realized the color of the neighbor's jewelry"),
    ("ours", "an organisation that analyses dialogue", "an organization that analyzes dialog"),
]


@pytest.mark.parametrize(("by", "one", "other"), SAME)
def test_two_ways_to_write_one_thing(by, one, other):
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    assert normalize_english(one) == normalize_english(other)
    whisper = EnglishTextNormalizer({})
    assert (whisper(one).strip() == whisper(other).strip()) == (by == "whisper")


def test_different_things_stay_different():
    texts = [
        "seventeen", "seventy", "a cat", "the cat", "kits is", "kit's", "its", "first", "one", "won", "too", "two",
        "four", "hour", "our", "devour", "rise", "rice", "promise", "premise", "prime", "miser", "center", "enter",
        "called", "calling", "rolled", "filling", "spelling", "well", "wells", "half a million", "two million",
        "20 million", "2 billion", "1.5", "15", "1905", "1950", "$5", "5", "5%", "5th", "a few hundred", "300",
        "hundreds", "do", "do not", "can", "can not", "minus 5", "seconds", "second", "fourteen", "forty",
    ]  # fmt: skip
    assert len({normalize_english(text) for text in texts}) == len(texts)


def test_every_number_and_ordinal_agree_with_their_words():
    for number in [*range(1, 1000), 1000, 1001, 12_345, 70_000, 648_000, 999_999]:
        words = number_words(number)
        expected = "one" if number == 1 else str(number)
        assert (
            normalize_english(words) == normalize_english(f"{number:,}") == normalize_english(f"{number}") == expected
        )
    tens = "twentieth thirtieth fortieth fiftieth sixtieth seventieth eightieth ninetieth"
    assert normalize_english(tens.replace(" ", " , ")) == "20th 30th 40th 50th 60th 70th 80th 90th"
    units = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
    assert normalize_english(units) == "1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th 11th 12th 13th"
    assert normalize_english("thirty second, fifty third, one hundred and twelfth") == "32nd 53rd 112th"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Nineteen eighteen, twenty", "1918 20"),
        ("one, two, three", "one 2 3"),
        ("It was two. Three came.", "it was 2 3 came"),
        ("one hundred; five", "100 5"),
        ("two million, three hundred thousand", "2300000"),
        ("three point one. Four", "3.1 4"),
        ("one second", "one 2nd"),
        ("1 second", "one 2nd"),
        ("twenty second", "22nd"),
        ("5 1/2", "5.5"),
        ("3½", "3.5"),
        ("10:30am", "1030 am"),
        ("10:30 a.m.", "1030 am"),
        ("you'd better", "you had better"),
    ],
)
def test_numbers_end_where_a_clause_ends(text, expected):
    assert normalize_english(text) == expected


def test_normalising_random_numbers_twice_changes_nothing_more():
    text = (
        f"{number_words(999_999)} one two five eleven twenty thirty zero oh o point and a half first second third "
        "twentieth twenties ones million cents dollars percent few the , . ; ? ! 1 2 10 0 3.5 $5 1st 1/2 ½ a.m."
    )
    words = text.split()
    rng = np.random.default_rng(0)
    for _ in range(4000):
        text = " ".join(rng.choice(words, rng.integers(1, 10)))
        once = normalize_english(text)
        assert normalize_english(once) == once, text


def test_numbers_of_any_length_are_read():
    many = "9" * 5000
    assert normalize_english(f"{many} cats") == f"{many} cats"
    assert normalize_english("one " * 300) == "1" * 300


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from([*(w for _, a, b in SAME for w in f"{a} {b}".split()), "and", "a", "point", "-", "."])))
def test_normalising_twice_changes_nothing_more(words):
    once = normalize_english(" ".join(words))
    assert normalize_english(once) == once


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=60))
def test_any_text_is_read(text):
    for normalize in (normalize_english, normalize_other):
        result = normalize(text)
        assert result == " ".join(result.split())


def test_ordinary_words_keep_their_spelling():
    words = "promise exercise advised four hour flour tour source course paradise wise noise sister called filled"
    assert [american(word) for word in words.split()] == words.split()


def test_other_languages():
    assert normalize_other("Élan, ça va?  Très-bien!") == "élan ça va très bien"
    assert normalizer("fr") is normalize_other
    assert normalizer() is normalize_english


# -- errors -----------------------------------------------------------------------------------------------------------


def test_edit_distance_equals_the_table_of_distances():
    rng = np.random.default_rng(0)
    for _ in range(300):
        one, other = (list(rng.integers(0, 4, rng.integers(0, 12))) for _ in range(2))
        table = np.zeros((len(one) + 1, len(other) + 1), int)
        table[:, 0], table[0] = range(len(one) + 1), range(len(other) + 1)
        for i, a in enumerate(one, start=1):
            for j, b in enumerate(other, start=1):
                table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a != b))
        assert edit_distance(one, other) == table[-1, -1]


def test_error_rates_equal_those_of_jiwer_on_normalised_text():
    jiwer = pytest.importorskip("jiwer")
    rng = np.random.default_rng(0)
    text = "a the twenty-one 21 colour color it's is Mr. mister ten percent 10% dog, cat! nineteen 1984 uh"
    words = text.split()
    references = [" ".join(rng.choice(words, rng.integers(2, 12))) for _ in range(200)]
    heard = [" ".join(rng.choice(words, rng.integers(0, 12))) for _ in range(200)]
    clean = [(normalize_english(a), normalize_english(b)) for a, b in zip(references, heard)]
    kept = [index for index, (reference, _) in enumerate(clean) if reference]
    for unit, rate in (("words", jiwer.wer), ("characters", jiwer.cer)):
        counts = [count_errors(references[i], heard[i], unit) for i in kept]
        expected = rate([clean[i][0] for i in kept], [clean[i][1] for i in kept])
        assert sum(e for e, _ in counts) / sum(n for _, n in counts) == pytest.approx(expected)
