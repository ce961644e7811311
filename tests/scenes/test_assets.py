"""The demo tokenizers are intact and as good as documented: a small run of `triptych eval tokenizers`."""

import numpy as np
import pytest

from triptych.eval.audio import dnsmos, transcribe, word_error_rate
from triptych.eval.image import psnr
from triptych.scenes.image import PlacedObject, draw
from triptych.scenes.judge import score_images
from triptych.scenes.samples import scene_sample
from triptych.scenes.sprites import APPEARANCES
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Task


@pytest.fixture(scope="module")
def bundle():
    return TokenizerBundle.load("scenes")


def test_weights_match_their_fingerprints(bundle):
    assert set(bundle.fingerprints) == {"text", "image", "audio"}
    bundle.verify()


def test_captions_have_one_token_per_word(bundle):
    texts = [scene_sample(task, "test", index).text for task in (Task.TEXT, Task.IMAGE_TEXT) for index in range(200)]
    ids = bundle.text.encode(texts)
    assert bundle.text.decode(ids) == texts
    words = [len(text.replace(".", " .").replace("?", " ?").split()) for text in texts]
    assert [len(row) for row in ids] == words


def test_images_are_reconstructed(bundle):
    samples = [scene_sample(Task.IMAGE_TEXT, "test", index) for index in range(60)]
    images = [sample.image for sample in samples]
    ids = bundle.image.encode(images)
    assert {len(row) for row in ids} == {16}
    reconstructed = bundle.image.decode(ids)
    assert np.mean([psnr(a, b) for a, b in zip(images, reconstructed)]) >= 30
    assert score_images(reconstructed, [sample.scene for sample in samples])["overall"] >= 0.97


def test_every_patch_of_the_dataset_has_one_code(bundle):
    """Independent of its surroundings: patches of single objects and of images with several."""
    single = [draw([PlacedObject(appearance, 2, 2)]) for appearance in APPEARANCES]
    together = [scene_sample(Task.IMAGE_TEXT, "test", index).image for index in range(60)]
    codes: dict[bytes, set[int]] = {}
    for image, ids in zip([*single, *together], bundle.image.encode([*single, *together])):
        patches = np.asarray(image).reshape(4, 16, 4, 16, 3).swapaxes(1, 2).reshape(16, -1)
        for patch, code in zip(patches, ids):
            codes.setdefault(patch.tobytes(), set()).add(int(code))
    assert len(codes) == 321
    assert all(len(ids) == 1 for ids in codes.values())


def test_decoding_and_encoding_keeps_codes(bundle):
    """A model can caption its own images only if they are encoded as the codes they were generated from."""
    images = [scene_sample(Task.IMAGE_TEXT, "test", index).image for index in range(100)]
    ids = np.stack(bundle.image.encode(images))
    again = np.stack(bundle.image.encode(bundle.image.decode(list(ids))))
    assert np.mean(ids != again) <= 0.002


def test_reconstructed_speech_is_intelligible(bundle):
    samples = [scene_sample(Task.AUDIO_TEXT, "test", index) for index in range(12)]
    reconstructed = bundle.audio.decode(bundle.audio.encode([sample.audio for sample in samples]))
    assert word_error_rate([sample.text for sample in samples], transcribe(reconstructed)) <= 0.1
    assert dnsmos(reconstructed)[:, 2].mean() >= 2.5
