"""The demo tokenizers are intact and as good as documented: a small run of `triptych eval tokenizers`."""

import re

import numpy as np
import pytest

from triptych.eval.audio.speech import dnsmos, transcribe, word_error_rate
from triptych.scenes.exam_samples import Voices, spoken_sentence, world_with_images_of
from triptych.scenes.image import draw
from triptych.scenes.judge import score_images
from triptych.scenes.picture import Picture, PlacedObject
from triptych.scenes.samples import scene_sample
from triptych.scenes.world import SMALL, natural_look
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.tokenizers.reconstruction import psnr
from triptych.vocab import Task


@pytest.fixture(scope="module", params=list(BUILTIN_TOKENIZERS))
def bundle(request):
    return TokenizerBundle.load(request.param)


@pytest.fixture(scope="module")
def world(bundle):
    return world_with_images_of(bundle.image.resolution)


def test_weights_match_their_fingerprints(bundle):
    assert set(bundle.fingerprints) == {"text", "image", "audio"}
    bundle.verify()


def test_captions_have_one_token_per_word(bundle, world):
    texts = [
        scene_sample(task, "test", index, world=world).text
        for task in (Task.TEXT, Task.IMAGE_TEXT)
        for index in range(200)
    ]
    ids = bundle.text.encode(texts)
    assert bundle.text.decode(ids) == texts
    words = [len(re.findall(r"[a-z0-9]+|[.,?]", text)) for text in texts]
    assert [len(row) for row in ids] == words


def test_images_are_reconstructed(bundle, world):
    samples = [scene_sample(Task.IMAGE_TEXT, "test", index, world=world) for index in range(60)]
    images = [sample.image for sample in samples]
    ids = bundle.image.encode(images)
    assert {len(row) for row in ids} == {(world.image_size // 16) ** 2 * bundle.image.num_codebooks}
    reconstructed = bundle.image.decode(ids)
    assert np.mean([psnr(a, b) for a, b in zip(images, reconstructed)]) >= (30 if world is SMALL else 28)
    assert score_images(reconstructed, [sample.scene for sample in samples], world)["overall"] >= 0.97


def test_every_patch_of_the_small_preset_has_one_code():
    """Independent of its surroundings: patches of single objects and of images with several."""
    bundle = TokenizerBundle.load("scenes")
    single = [draw(Picture((PlacedObject(natural_look(*look), 2, 2, 28),)), SMALL) for look in SMALL.looks()]
    together = [scene_sample(Task.IMAGE_TEXT, "test", index, world=SMALL).image for index in range(60)]
    codes: dict[bytes, set[int]] = {}
    for image, ids in zip([*single, *together], bundle.image.encode([*single, *together])):
        patches = np.asarray(image).reshape(4, 16, 4, 16, 3).swapaxes(1, 2).reshape(16, -1)
        for patch, code in zip(patches, ids):
            codes.setdefault(patch.tobytes(), set()).add(int(code))
    assert len(codes) == 321
    assert all(len(ids) == 1 for ids in codes.values())


def test_decoding_and_encoding_keeps_codes(bundle, world):
    """A model can caption its own images only if they are encoded as the codes they were generated from."""
    images = [scene_sample(Task.IMAGE_TEXT, "test", index, world=world).image for index in range(100)]
    ids = np.stack(bundle.image.encode(images))
    again = np.stack(bundle.image.encode(bundle.image.decode(list(ids))))
    assert np.mean(ids != again) <= 0.002


def test_reconstructed_speech_is_intelligible(bundle, world):
    count = 8 if world is SMALL else 24
    spoken = [spoken_sentence(index, "test", world, Voices.find(None)) for index in range(count)]
    reconstructed = bundle.audio.decode(bundle.audio.encode([sentence.audio for sentence in spoken]))
    errors = word_error_rate([sentence.text for sentence in spoken], transcribe(reconstructed))
    assert errors <= (0.1 if world is SMALL else 0.25)
    assert dnsmos(reconstructed)[:, 2].mean() >= 2.5
