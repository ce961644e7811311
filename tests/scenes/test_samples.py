from collections import Counter

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.answer_check import answer_is_right
from triptych.scenes.caption_check import caption_is_true
from triptych.scenes.judge import detect, matches
from triptych.scenes.question_forms import read_question
from triptych.scenes.reading import classify
from triptych.scenes.samples import CATEGORY_SHARES, PROMPT_SHARE, QUESTION_SHARE, scene_sample
from triptych.scenes.spoken import TRANSCRIPT_PROMPT, spoken_parts
from triptych.scenes.styles import CAPTION_PROMPT
from triptych.scenes.voices import TRAINING_VOICES
from triptych.scenes.world import FULL, SMALL
from triptych.vocab import Task

BOTH = pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)
SPLITS = ("train", "validation", "test")


@BOTH
def test_a_sample_depends_only_on_its_index(world):
    one = scene_sample(Task.IMAGE_TEXT, "test", 5, world=world)
    for index in range(5):
        scene_sample(Task.IMAGE_TEXT, "test", index, world=world)
    again = scene_sample(Task.IMAGE_TEXT, "test", 5, world=world)
    assert (one.scene, one.text, one.picture) == (again.scene, again.text, again.picture)
    assert (np.asarray(one.image) == np.asarray(again.image)).all()


@BOTH
def test_splits_and_seeds_and_tasks_differ(world):
    texts = {
        tuple(scene_sample(task, split, index, seed, world).text for index in range(5))
        for split in SPLITS
        for seed in (0, 1)
        for task in (Task.TEXT, Task.IMAGE_TEXT)
    }
    assert len(texts) == 12


@BOTH
@pytest.mark.parametrize("split", SPLITS)
def test_samples_belong_to_their_split(split, world):
    scenes = [scene_sample(Task.TEXT, split, index, world=world).scene for index in range(100)]
    assert {world.split(scene) for scene in scenes} == {split}


@BOTH
def test_images_and_texts_match_their_scene(world):
    samples = [scene_sample(Task.IMAGE_TEXT, "train", index, world=world) for index in range(200)]
    detections = detect([sample.image for sample in samples], world)
    right = [matches(detection, sample.scene, world) for detection, sample in zip(detections, samples)]
    assert np.mean(right) >= 0.99
    num_questions = 0
    for sample in samples:
        assert sample.text == sample.text.lower()
        split = question_and_answer(sample.text, world)
        if split is None:
            assert caption_is_true(sample.text, sample.picture, world), sample.text
        else:
            num_questions += 1
            assert answer_is_right(*split, sample.picture, world), sample.text
    assert num_questions / len(samples) == pytest.approx(QUESTION_SHARE, abs=0.1)


def question_and_answer(text, world):
    """A text cut after its question, or None if it is none."""
    for mark in ("? answer in a sentence. ", "? "):
        asked, found, answer = text.partition(mark)
        if found and read_question(asked + found, world):
            return asked + found, answer
    return None


@BOTH
def test_categories_have_their_shares_in_training_and_equal_shares_in_validation(world):
    alike = dict.fromkeys(world.categories, 1 / len(world.categories))
    for split, shares in (("train", CATEGORY_SHARES[world.name]), ("validation", alike)):
        samples = [scene_sample(Task.IMAGE_TEXT, split, index, world=world) for index in range(1000)]
        categories = Counter(sample.scene.category for sample in samples)
        # The tolerance is about five standard deviations of the largest share.
        measured = {name: categories[name] / 1000 for name in world.categories}
        assert measured == pytest.approx(shares, abs=0.075)
        # Some of the other captions have this opening, too; questions never have it.
        prompted = np.mean([sample.text.startswith(CAPTION_PROMPT) for sample in samples])
        assert PROMPT_SHARE[world.name] - 0.06 < prompted < PROMPT_SHARE[world.name] + 0.1


@BOTH
def test_documents_are_of_known_words(world):
    for index in range(200):
        text = scene_sample(Task.TEXT, "test", index, world=world).text
        assert classify(text, world).verdict != "refused", text


@BOTH
def test_images_have_the_size_of_their_preset(world):
    assert scene_sample(Task.IMAGE_TEXT, "test", 0, world=world).image.size == (world.image_size, world.image_size)


def test_an_unknown_split_suggests_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'train'"):
        scene_sample(Task.TEXT, "trian", 0)
    with pytest.raises(UserError, match="must not be negative, got -1 and 0"):
        scene_sample(Task.TEXT, "train", -1)


# -- speech -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def voices(tmp_path):
    """A folder with noise as the parts of four voices, one of which is held out."""
    from triptych.scenes.spoken import all_spoken_parts
    from triptych.scenes.voice_parts import build_parts

    def noise(part, voice):
        rng = np.random.default_rng([len(part), len(voice), ord(voice[0])])
        return (0.1 * rng.standard_normal(1000 + 50 * len(part))).astype(np.float32)

    build_parts(tmp_path, ["heart", "emma", "robin", "puck"], all_spoken_parts(FULL), lambda line: None, noise)
    return tmp_path


def test_speech_is_in_all_training_voices_and_asked_for_in_three_ways(voices):
    samples = [scene_sample(Task.AUDIO_TEXT, "train", index, voices=voices) for index in range(300)]
    assert Counter(sample.voice for sample in samples).keys() == {"heart", "emma", "robin"}
    kinds = Counter()
    for sample in samples:
        bare = sample.text
        if bare.startswith(TRANSCRIPT_PROMPT):
            kind, bare = "transcript", bare.removeprefix(TRANSCRIPT_PROMPT).strip()
        elif bare.startswith("say "):
            kind = "request"
            bare, _, voice = bare.removeprefix("say ").rpartition(" as ")
            assert voice == sample.voice
        else:
            kind = "sentence"
        assert spoken_parts(bare)
        assert sample.audio.sample_rate == 16_000
        assert sample.audio.seconds >= 0.08
        kinds[kind] += 1
    shares = {kind: count / len(samples) for kind, count in kinds.items()}
    assert shares == pytest.approx({"transcript": 0.4, "request": 0.3, "sentence": 0.3}, abs=0.1)


def test_speech_is_a_pure_function_of_the_index(voices):
    first, other, again = (scene_sample(Task.AUDIO_TEXT, "test", index, voices=voices) for index in (3, 4, 3))
    assert (first.text, first.voice) == (again.text, again.voice)
    assert np.array_equal(first.audio.samples, again.audio.samples)
    assert first.text != other.text


def test_held_out_voices_are_never_sampled(voices):
    assert "puck" not in TRAINING_VOICES
    assert (voices / "puck.json").exists()
    assert "puck" not in {scene_sample(Task.AUDIO_TEXT, "train", index, voices=voices).voice for index in range(100)}


def test_the_small_preset_has_one_voice_and_bare_sentences():
    pytest.importorskip("hibari", reason="the data extra, with the speech synthesizer, is not installed")
    sample = scene_sample(Task.AUDIO_TEXT, "test", 0, world=SMALL)
    assert classify(sample.text, SMALL).scene is not None
    assert sample.audio.sample_rate == 24_000
    assert 0.5 < sample.audio.seconds < 6
    assert 0.05 < np.abs(sample.audio.samples).max() <= 1
    again = scene_sample(Task.AUDIO_TEXT, "test", 0, world=SMALL)
    assert (sample.audio.samples == again.audio.samples).all()
