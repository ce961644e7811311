"""Sentences put together from parts."""

from importlib.util import find_spec

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.samples import scene_sample
from triptych.scenes.speech import (
    FRAME_SECONDS,
    MAX_TRAILING_FRAMES,
    available_voices,
    join_parts,
    says,
    speakable,
    synthesize,
)
from triptych.scenes.spoken import all_spoken_parts, spoken_parts
from triptych.scenes.voice_parts import RATE, build_parts, read_voice, write_voice
from triptych.scenes.voices import trim_silence
from triptych.scenes.world import FULL, SMALL, ObjectGroup, Scene
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio
from triptych.vocab import Task

FRAME = round(FRAME_SECONDS * RATE)
needs_synthesizer = pytest.mark.skipif(
    find_spec("hibari") is None,
    reason="the data extra, with the speech synthesizer, is not installed",
)


def tone(part, voice):
    """A part whose length and pitch depend on its text and voice; never whole frames."""
    length = 3 * FRAME + 7 * len(part) + 1
    return (0.3 * np.sin(np.arange(length) * len(voice) / 40)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    parts = ("a red", "hat", "and", "a fish", "there are", "two cats")
    build_parts(tmp_path, ["emma", "sarah"], parts, lambda line: None, tone)
    return tmp_path


def test_every_part_fills_whole_frames(folder):
    rng = np.random.default_rng(0)
    for text, parts in (("a red hat and a fish", ["a red", "hat", "and", "a fish"]), ("two cats", ["two cats"])):
        audio = synthesize(text, rng, FULL, "emma", folder)
        assert audio.sample_rate == RATE
        assert len(audio.samples) % FRAME == 0
        starts = 0
        for part in parts:
            expected = tone(part, "emma")
            missing = -len(expected) % FRAME
            piece = audio.samples[starts : starts + len(expected) + missing]
            np.testing.assert_allclose(piece[missing // 2 :][: len(expected)], expected, atol=1e-4)
            assert not piece[: missing // 2].any()
            starts += len(expected) + missing
        assert not audio.samples[starts:].any()


def test_the_silence_at_the_end_is_random(folder):
    lengths = {
        len(synthesize("two cats", np.random.default_rng(seed), FULL, "emma", folder).samples) for seed in range(60)
    }
    assert lengths == {min(lengths) + FRAME * rest for rest in range(MAX_TRAILING_FRAMES + 1)}


def test_parts_are_joined_at_any_rate():
    audio = join_parts([np.ones(10, np.float32), np.ones(961, np.float32)], num_silent=2, rate=24_000)
    assert len(audio.samples) == (1 + 2 + 2) * 960
    assert audio.samples.sum() == 971


def test_voices_of_a_folder_are_found_by_group(folder):
    assert available_voices(folder) == ("emma",)
    assert available_voices(folder, held_out=True) == ("sarah",)
    assert available_voices(None) == ("robin",)
    assert available_voices(None, held_out=True) == ()


def test_missing_parts_are_added_and_the_others_kept(folder):
    lines = []
    build_parts(folder, ["emma"], ["a fish", "an owl"], lines.append, tone)
    stored = read_voice(folder, "emma")
    assert set(stored) == {"a red", "hat", "and", "a fish", "there are", "two cats", "an owl"}
    np.testing.assert_allclose(stored["an owl"], tone("an owl", "emma"), atol=1e-4)
    assert len(lines) == 1
    build_parts(folder, ["emma"], ["a fish"], lines.append, lambda part, voice: 1 / 0)
    assert len(lines) == 1
    with pytest.raises(UserError, match="has no voice 'lewis'; `triptych scenes voices` makes it"):
        read_voice(folder, "lewis")


# -- voices that lack a part ------------------------------------------------------------------------------------------


@pytest.fixture
def incomplete(tmp_path):
    """Two training voices: emma does not say "cats", george does not say "and"; neither says "an owl"."""
    for name, dropped in (("emma", "cats"), ("george", "and")):
        clips = {part: tone(part, name) for part in all_spoken_parts() if part not in (dropped, "an owl")}
        write_voice(tmp_path, name, clips, checked=True, dropped=[dropped, "an owl"])
    return tmp_path


def test_a_voice_says_a_sentence_or_names_what_it_does_not_say(incomplete):
    assert says("three cats", "george", folder=incomplete)
    assert not says("three cats", "emma", folder=incomplete)
    assert says("three cats", "Robin", folder=incomplete)  # not stored: synthesized when it is needed
    with pytest.raises(UserError, match=r"'emma' in .* does not say 'cats' clearly; choose another voice"):
        synthesize("three cats", np.random.default_rng(0), FULL, "emma", incomplete)


def test_another_voice_or_another_sentence_replaces_what_is_missing(incomplete):
    names = available_voices(incomplete)
    assert names == ("emma", "george")
    cats, owl = (Scene((ObjectGroup(kind, None, count),)) for kind, count in (("cat", 3), ("owl", 1)))
    replaced = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        scene, text, voice = speakable(cats, "train", rng, names, "emma", folder=incomplete)
        assert says(text, voice, folder=incomplete)
        assert scene == cats
        assert voice == ("george" if "cats" in spoken_parts(text) else "emma")
        replaced += voice == "george"
        scene, text, voice = speakable(owl, "test", rng, ["emma"], folder=incomplete)
        assert says(text, "emma", folder=incomplete)
        assert "an owl" not in spoken_parts(text)
        if scene != owl:
            assert FULL.split(scene) == "test"
    assert replaced > 10


def test_voices_that_say_nothing_are_one_line(tmp_path):
    write_voice(tmp_path, "emma", {"yes": tone("yes", "emma")}, dropped=["a cat"])
    with pytest.raises(UserError, match=r"the voices emma in .* say none of 200 sentences"):
        speakable(FULL.sample(np.random.default_rng(0)), "train", np.random.default_rng(0), ["emma"], folder=tmp_path)


def test_every_sample_of_incomplete_voices_has_all_of_its_words(incomplete):
    """The clip is exactly the parts of the text in the voice, and the sample is a pure function of its index."""
    used = set()
    for index in range(150):
        sample = scene_sample(Task.AUDIO_TEXT, "train", index, voices=incomplete)
        again = scene_sample(Task.AUDIO_TEXT, "train", index, voices=incomplete)
        assert (sample.text, sample.voice, sample.scene) == (again.text, again.voice, again.scene)
        assert np.array_equal(sample.audio.samples, again.audio.samples)
        used.add(sample.voice)
        if sample.text.startswith("someone says"):
            continue  # some are degraded
        bare = sample.text.removeprefix("say ").removesuffix(f" as {sample.voice}")
        parts = spoken_parts(bare)
        assert {"emma": "cats", "george": "and"}[sample.voice] not in parts
        expected = join_parts([tone(part, sample.voice) for part in parts]).samples
        assert np.abs(sample.audio.samples[: len(expected)] - expected).max() < 1e-4
        assert not sample.audio.samples[len(expected) :].any()
        assert FULL.split(sample.scene) == "train"
    assert used == {"emma", "george"}


@needs_synthesizer
def test_a_part_of_a_sentence_has_the_same_codes_in_every_sentence():
    tokenizer = TokenizerBundle.load("scenes").audio
    assert tokenizer.samples_per_frame / tokenizer.mel.rate == FRAME_SECONDS
    rng = np.random.default_rng(0)
    texts = ("a red hat", "a fish", "a red hat and a fish", "a fish and a red hat")
    hat, fish, both, turned = tokenizer.encode([synthesize(text, rng, SMALL) for text in texts])
    silence = both[-1]
    hat, fish = (codes[: np.flatnonzero(codes != silence)[-1] + 1] for codes in (hat, fish))
    # The first and the last code may depend on their neighbours.
    assert (both[1 : len(hat) - 1] == hat[1:-1]).all()
    assert (turned[1 : len(fish) - 1] == fish[1:-1]).all()


def test_only_silence_around_speech_is_cut():
    rate = 24_000
    speech = np.sin(np.arange(rate) / 20).astype(np.float32)
    silence = np.full(rate // 2, 1e-4, np.float32)
    trimmed = trim_silence(Audio(np.concatenate([silence, speech, silence[:6000], speech, silence]), rate))
    assert trimmed.seconds == pytest.approx(2.25 + 2 * 0.02, abs=0.01)
    assert trimmed.samples[int(0.03 * rate) :][:100] == pytest.approx(speech[int(0.01 * rate) :][:100], abs=0.2)
    assert trim_silence(Audio(silence, rate)).seconds == 0.5
