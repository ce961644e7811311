import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.grammar import CAPTION_PROMPT, CATEGORIES, parse
from triptych.scenes.judge import read, same_scene, shows
from triptych.scenes.samples import PICTURE_SHARES, PROMPT_SHARE, QUESTION_SHARE, scene_sample
from triptych.scenes.speech import FRAME, LONGEST_REST, speak, trim
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio
from triptych.vocab import Task


def test_a_sample_depends_on_its_number_alone():
    one = scene_sample(Task.IMAGE_TEXT, "test", 5)
    for index in range(5):
        scene_sample(Task.IMAGE_TEXT, "test", index)
    again = scene_sample(Task.IMAGE_TEXT, "test", 5)
    assert (one.scene, one.text, one.things) == (again.scene, again.text, again.things)
    assert (np.asarray(one.image) == np.asarray(again.image)).all()


def test_splits_and_tasks_and_seeds_differ():
    texts = {
        tuple(scene_sample(Task.TEXT, split, index, seed).text for index in range(5))
        for split in ("train", "validation", "test")
        for seed in (0, 1)
    }
    assert len(texts) == 6


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_samples_are_of_their_split(split):
    assert {scene_sample(Task.TEXT, split, index).scene.split for index in range(100)} == {split}


def test_pictures_show_their_scene_and_captions_say_it():
    samples = [scene_sample(Task.IMAGE_TEXT, "train", index) for index in range(200)]
    assert all(shows(reading, s.scene) for reading, s in zip(read([s.image for s in samples]), samples))
    captions = [s for s in samples if "?" not in s.text]
    assert all(same_scene(parse(s.text), s.scene) for s in captions)
    assert 1 - len(captions) / len(samples) == pytest.approx(QUESTION_SHARE, abs=0.1)


def test_pictures_to_train_on_are_mostly_of_two_groups_and_held_out_ones_of_all_categories_alike():
    assert set(PICTURE_SHARES) == set(CATEGORIES)
    alike = dict.fromkeys(CATEGORIES, 1 / 6)
    for split, shares in (("train", PICTURE_SHARES), ("validation", alike)):
        samples = [scene_sample(Task.IMAGE_TEXT, split, index) for index in range(1500)]
        found = [sample.scene.category for sample in samples]
        # Five standard deviations of a share at most.
        assert {name: found.count(name) / 1500 for name in CATEGORIES} == pytest.approx(shares, abs=0.06)
        # One caption in ten opens so anyway; the rest are questions.
        prompted = np.mean([sample.text.startswith(CAPTION_PROMPT) for sample in samples])
        assert prompted == pytest.approx(PROMPT_SHARE + (1 - PROMPT_SHARE - QUESTION_SHARE) / 10, abs=0.06)


def test_speech_says_its_caption():
    pytest.importorskip("hibari", reason="the data extra, which speaks, is not installed")
    sample = scene_sample(Task.AUDIO_TEXT, "test", 0)
    assert same_scene(parse(sample.text), sample.scene)
    assert sample.sound.rate == 24_000
    assert 0.5 < sample.sound.seconds < 6
    assert 0.05 < np.abs(sample.sound.samples).max() <= 1
    again = scene_sample(Task.AUDIO_TEXT, "test", 0)
    assert (sample.sound.samples == again.sound.samples).all()


def test_a_part_of_a_sentence_is_spoken_in_the_same_codes_wherever_it_stands():
    pytest.importorskip("hibari", reason="the data extra, which speaks, is not installed")
    audio = TokenizerBundle.load("scenes").audio
    assert audio.samples_per_frame / audio.mel.rate == FRAME
    rng = np.random.default_rng(0)
    hat, fish, both, turned = audio.encode(
        [speak(text, rng) for text in ("a red hat", "a fish", "a red hat and a fish", "a fish and a red hat")]
    )
    quiet = both[-1]
    hat, fish = (codes[: np.flatnonzero(codes != quiet)[-1] + 1] for codes in (hat, fish))
    # A code at an end may tell what is beside it, so the first and the last are left out.
    assert (both[1 : len(hat) - 1] == hat[1:-1]).all()
    assert (turned[1 : len(fish) - 1] == fish[1:-1]).all()


def test_the_quiet_at_the_end_is_drawn():
    pytest.importorskip("hibari", reason="the data extra, which speaks, is not installed")
    frames = {round(speak("an owl", np.random.default_rng(seed)).seconds / FRAME, 6) for seed in range(60)}
    assert frames == {min(frames) + rest for rest in range(LONGEST_REST + 1)}


def test_an_unknown_split_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'train'"):
        scene_sample(Task.TEXT, "trian", 0)


def test_quiet_around_speech_is_cut_and_nothing_else():
    rate = 24_000
    said = np.sin(np.arange(rate) / 20).astype(np.float32)
    quiet = np.full(rate // 2, 1e-4, np.float32)
    trimmed = trim(Audio(np.concatenate([quiet, said, quiet[:6000], said, quiet]), rate))
    assert trimmed.seconds == pytest.approx(2.25 + 2 * 0.02, abs=0.01)
    assert trimmed.samples[int(0.03 * rate) :][:100] == pytest.approx(said[int(0.01 * rate) :][:100], abs=0.2)
    assert trim(Audio(quiet, rate)).seconds == 0.5
