import numpy as np
import pytest

from triptych.errors import UserError
from triptych.eval.audio.speech import dnsmos, normalize_transcript, transcribe, word_error_rate
from triptych.utils.media import Audio


@pytest.mark.parametrize(
    ("reference", "transcript", "rate"),
    [
        (["a cat"], ["a cat"], 0.0),
        (["a cat"], ["A cat."], 0.0),
        (["three cats"], ["3 cats!"], 0.0),
        (["twenty-one grey cats"], ["21 gray cats"], 0.0),
        (["what colour is it"], ["What color is that"], 1 / 4),
        (["seven doughnuts"], ["7 donuts"], 0.0),
        (["seventeen cats"], ["70 cats"], 0.5),
        (["there is a cat"], ["There's a cat."], 0.0),
        (["a cat"], ["a bat"], 0.5),
        (["a cat"], [""], 1.0),
        (["a cat"], ["a big cat sat"], 1.0),
        (["a b c d", "x"], ["a c d", "x"], 0.2),
    ],
)
def test_word_error_rate_by_hand(reference, transcript, rate):
    assert word_error_rate(reference, transcript) == pytest.approx(rate)


def test_word_error_rate_equals_that_of_jiwer():
    jiwer = pytest.importorskip("jiwer", reason="the eval extra is not installed")
    rng = np.random.default_rng(0)
    words = ["a", "red", "cat", "left", "of", "two", "dogs"]
    reference = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(200)]
    transcript = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(200)]
    assert word_error_rate(reference, transcript) == pytest.approx(jiwer.wer(reference, transcript))


def test_every_small_number_is_read_in_digits_and_words():
    """A list that is written out by hand."""
    units = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    units = [*units.split(), "seventeen", "eighteen", "nineteen"]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    words = units + [f"{ten} {unit}".removesuffix(" zero") for ten in tens for unit in units[:10]]
    assert [normalize_transcript(str(number)) for number in range(100)] == words
    assert [normalize_transcript(word.replace(" ", "-")) for word in words] == words
    assert normalize_transcript("1,305 cats, 40 dogs") == "one thousand three hundred five cats forty dogs"
    assert normalize_transcript("200000") == "two hundred thousand"
    assert normalize_transcript("12345678") == "12345678"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Colours, coloured", "colors colored"),
        ("a GREY greyhound", "a gray grayhound"),
        ("two aeroplanes", "2 airplanes"),
        ("what's there? It isn't 'here'.", "what is there it is not here"),
        ("okay", "OK"),
    ],
)
def test_two_spellings_are_one_text(one, other):
    assert normalize_transcript(one) == normalize_transcript(other)


def test_different_words_stay_different():
    texts = ["kits is", "kit's", "exit's", "a colossal cat", "a gram", "okra", "one two", "twelve"]
    assert len({normalize_transcript(text) for text in texts}) == len(texts)


def test_normalizing_twice_changes_nothing():
    once = normalize_transcript("Here’s 2 CATS, and a dog...")
    assert once == "here is two cats and a dog"
    assert normalize_transcript(once) == once


@pytest.mark.parametrize("text", ["'It's a cat'", "‘It’s a cat.’", "it's 'a' cat''", "It‘s a cat"])
def test_quotes_are_no_part_of_a_contraction(text):
    once = normalize_transcript(text)
    assert once == "it is a cat"
    assert normalize_transcript(once) == once


def test_numbers_of_any_length_are_read():
    many = "9" * 5000  # int() refuses them
    assert normalize_transcript(f"{many} cats") == f"{many} cats"
    assert normalize_transcript("0" * 5000 + "21 cats") == "twenty one cats"
    assert normalize_transcript("000 '3' 1000000") == "zero three 1000000"


def test_whisper_and_dnsmos_distinguish_speech_from_noise():
    pytest.importorskip("faster_whisper", reason="the eval extra, with Whisper, is not installed")
    from triptych.scenes.speech import synthesize
    from triptych.scenes.world import SMALL

    rng = np.random.default_rng(0)
    speech = synthesize("there is a penguin above a yellow balloon", rng, SMALL)
    noise = Audio(0.1 * rng.standard_normal(32_000).astype(np.float32), 16_000)
    assert transcribe([speech]) == ["there is a penguin above a yellow balloon"]
    ratings = dnsmos([speech, noise])
    assert ratings.shape == (2, 3)
    assert ratings[0, 2] > 2.5 > ratings[1, 2]


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    import sys

    from triptych.eval.audio import speech as audio

    audio._whisper.cache_clear()
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(UserError, match=r"speech evaluation needs the package 'faster_whisper'.*\[eval\]"):
        transcribe([Audio(np.zeros(16_000, np.float32), 16_000)])
