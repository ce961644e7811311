import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes.grammar import CAPTION_PROMPT, CATEGORIES, parse
from triptych.scenes.judge import detect, matches
from triptych.scenes.samples import CATEGORY_SHARES, PROMPT_SHARE, QUESTION_SHARE, scene_sample
from triptych.scenes.speech import FRAME_SECONDS, MAX_TRAILING_FRAMES, synthesize, trim_silence
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio
from triptych.vocab import Task


def test_a_sample_depends_only_on_its_index():
    one = scene_sample(Task.IMAGE_TEXT, "test", 5)
    for index in range(5):
        scene_sample(Task.IMAGE_TEXT, "test", index)
    again = scene_sample(Task.IMAGE_TEXT, "test", 5)
    assert (one.scene, one.text, one.objects) == (again.scene, again.text, again.objects)
    assert (np.asarray(one.image) == np.asarray(again.image)).all()


def test_splits_and_tasks_and_seeds_differ():
    texts = {
        tuple(scene_sample(Task.TEXT, split, index, seed).text for index in range(5))
        for split in ("train", "validation", "test")
        for seed in (0, 1)
    }
    assert len(texts) == 6


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_samples_belong_to_their_split(split):
    assert {scene_sample(Task.TEXT, split, index).scene.split for index in range(100)} == {split}


def test_images_and_captions_match_their_scene(same_scene):
    samples = [scene_sample(Task.IMAGE_TEXT, "train", index) for index in range(200)]
    assert all(matches(detection, s.scene) for detection, s in zip(detect([s.image for s in samples]), samples))
    captions = [s for s in samples if "?" not in s.text]
    assert all(same_scene(parse(s.text), s.scene) for s in captions)
    assert 1 - len(captions) / len(samples) == pytest.approx(QUESTION_SHARE, abs=0.1)


def test_categories_have_their_shares_in_training_and_equal_shares_in_validation():
    assert set(CATEGORY_SHARES) == set(CATEGORIES)
    alike = dict.fromkeys(CATEGORIES, 1 / 6)
    for split, shares in (("train", CATEGORY_SHARES), ("validation", alike)):
        samples = [scene_sample(Task.IMAGE_TEXT, split, index) for index in range(1500)]
        categories = [sample.scene.category for sample in samples]
        # The tolerance is about five standard deviations of the largest share.
        assert {name: categories.count(name) / 1500 for name in CATEGORIES} == pytest.approx(shares, abs=0.06)
        # One in ten of the other captions has this opening, too; questions never have it.
        prompted = np.mean([sample.text.startswith(CAPTION_PROMPT) for sample in samples])
        assert prompted == pytest.approx(PROMPT_SHARE + (1 - PROMPT_SHARE - QUESTION_SHARE) / 10, abs=0.06)


def test_speech_is_deterministic(same_scene):
    pytest.importorskip("hibari", reason="the data extra, with the speech synthesizer, is not installed")
    sample = scene_sample(Task.AUDIO_TEXT, "test", 0)
    assert same_scene(parse(sample.text), sample.scene)
    assert sample.audio.sample_rate == 24_000
    assert 0.5 < sample.audio.seconds < 6
    assert 0.05 < np.abs(sample.audio.samples).max() <= 1
    again = scene_sample(Task.AUDIO_TEXT, "test", 0)
    assert (sample.audio.samples == again.audio.samples).all()


def test_a_part_of_a_sentence_has_the_same_codes_in_every_sentence():
    pytest.importorskip("hibari", reason="the data extra, with the speech synthesizer, is not installed")
    tokenizer = TokenizerBundle.load("scenes").audio
    assert tokenizer.samples_per_frame / tokenizer.mel.rate == FRAME_SECONDS
    rng = np.random.default_rng(0)
    hat, fish, both, turned = tokenizer.encode(
        [synthesize(text, rng) for text in ("a red hat", "a fish", "a red hat and a fish", "a fish and a red hat")]
    )
    silence = both[-1]
    hat, fish = (codes[: np.flatnonzero(codes != silence)[-1] + 1] for codes in (hat, fish))
    # The first and the last code may depend on their neighbours.
    assert (both[1 : len(hat) - 1] == hat[1:-1]).all()
    assert (turned[1 : len(fish) - 1] == fish[1:-1]).all()


def test_the_silence_at_the_end_is_random():
    pytest.importorskip("hibari", reason="the data extra, with the speech synthesizer, is not installed")
    frames = {round(synthesize("an owl", np.random.default_rng(seed)).seconds / FRAME_SECONDS, 6) for seed in range(60)}
    assert frames == {min(frames) + rest for rest in range(MAX_TRAILING_FRAMES + 1)}


def test_an_unknown_split_suggests_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'train'"):
        scene_sample(Task.TEXT, "trian", 0)


def test_only_silence_around_speech_is_cut():
    rate = 24_000
    speech = np.sin(np.arange(rate) / 20).astype(np.float32)
    silence = np.full(rate // 2, 1e-4, np.float32)
    trimmed = trim_silence(Audio(np.concatenate([silence, speech, silence[:6000], speech, silence]), rate))
    assert trimmed.seconds == pytest.approx(2.25 + 2 * 0.02, abs=0.01)
    assert trimmed.samples[int(0.03 * rate) :][:100] == pytest.approx(speech[int(0.01 * rate) :][:100], abs=0.2)
    assert trim_silence(Audio(silence, rate)).seconds == 0.5
