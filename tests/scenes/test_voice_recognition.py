"""The classifier of voices, on synthetic voices whose pitch and spectrum are known."""

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.voice_recognition import NUM_FEATURES, VoiceRecognizer, voice_features
from triptych.utils.media import Audio

RATE = 16_000
# Pitch in Hz, and decay of the overtones in dB per octave.
SPEAKERS = {"low": (100.0, -6.0), "low and bright": (100.0, -2.0), "high": (210.0, -6.0), "higher": (240.0, -6.0)}


def voice(name, seed, level=0.3, rate=RATE):
    """Half a second to a second of "vowels": overtones of a pitch that moves, with one formant that changes."""
    pitch, decay = SPEAKERS[name]
    rng = np.random.default_rng([seed, list(SPEAKERS).index(name)])
    pieces = []
    for _ in range(rng.integers(3, 6)):
        time = np.arange(int(rng.uniform(0.12, 0.25) * rate)) / rate
        base = pitch * rng.uniform(0.95, 1.05)
        formant = rng.uniform(400, 1500)
        wave = np.zeros_like(time)
        for number in range(1, int(0.45 * rate / base)):
            gain = decay * np.log2(number) + 12 * np.exp(-(((number * base - formant) / 300) ** 2))
            wave += 10 ** (gain / 20) * np.sin(2 * np.pi * base * number * time + rng.uniform(0, 6))
        pieces += [wave / np.abs(wave).max(), np.zeros(int(0.03 * rate))]
    return Audio((level * np.concatenate(pieces)).astype(np.float32), rate)


@pytest.fixture(scope="module")
def recognizer():
    return VoiceRecognizer.fit({name: [voice(name, seed) for seed in range(10)] for name in SPEAKERS})


def test_new_clips_of_known_voices_are_recognised(recognizer):
    for name in SPEAKERS:
        heard = recognizer.recognize([voice(name, seed) for seed in range(100, 125)])
        assert np.mean([each == name for each in heard]) >= 0.9, name


def test_level_and_sample_rate_do_not_matter(recognizer):
    for name in SPEAKERS:
        quiet = [voice(name, seed, level=0.05) for seed in range(100, 110)]
        assert np.mean([each == name for each in recognizer.recognize(quiet)]) >= 0.9, name
    np.testing.assert_allclose(
        voice_features(voice("high", 3)), voice_features(voice("high", 3, level=0.15)), atol=0.05
    )
    assert recognizer.recognize([voice("low", 5, rate=24_000)]) == ["low"]


@pytest.mark.parametrize("name", SPEAKERS)
def test_the_pitch_is_measured_in_hertz(name):
    median = np.exp(voice_features(voice(name, 7))[-3])
    assert median == pytest.approx(SPEAKERS[name][0], rel=0.06)


def test_labels_that_say_nothing_cannot_be_learned():
    """The accuracy on new clips is that of chance if the labels are random."""
    rng = np.random.default_rng(0)
    clips = [voice("high", seed) for seed in range(60)]
    labels = rng.permutation(np.arange(60) % 3)
    fitted = VoiceRecognizer.fit({str(k): [clips[i] for i in range(30) if labels[i] == k] for k in range(3)})
    right = [heard == str(labels[i]) for i, heard in zip(range(30, 60), fitted.recognize(clips[30:]))]
    assert np.mean(right) < 0.6


def test_silence_and_short_clips_have_features(recognizer):
    for samples in (np.zeros(16_000), np.zeros(10), np.full(100, 0.1)):
        features = voice_features(Audio(samples.astype(np.float32), RATE))
        assert features.shape == (NUM_FEATURES,)
        assert np.isfinite(features).all()
        assert recognizer.recognize([Audio(samples.astype(np.float32), RATE)])[0] in SPEAKERS


def test_one_voice_is_not_enough():
    with pytest.raises(UserError, match="at least two voices"):
        VoiceRecognizer.fit({"low": [voice("low", seed) for seed in range(3)]})
