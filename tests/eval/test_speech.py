import numpy as np
import pytest

from triptych.errors import UserError
from triptych.eval.audio import dnsmos, normalize_transcript, transcribe, word_error_rate
from triptych.utils.media import Audio


@pytest.mark.parametrize(
    ("reference", "transcript", "rate"),
    [
        (["a cat"], ["a cat"], 0.0),
        (["a cat"], ["A cat."], 0.0),
        (["three cats"], ["3 cats!"], 0.0),
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


def test_normalizing_twice_changes_nothing():
    once = normalize_transcript("Here’s 2 CATS, and a dog...")
    assert once == "here is two cats and a dog"
    assert normalize_transcript(once) == once


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

    from triptych.eval import audio

    audio._whisper.cache_clear()
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(UserError, match=r"speech evaluation needs the package 'faster_whisper'.*\[eval\]"):
        transcribe([Audio(np.zeros(16_000, np.float32), 16_000)])
