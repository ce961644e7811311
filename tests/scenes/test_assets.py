"""The shipped tokenizers are whole and as good as promised; a quick sample of `triptych eval tokenizers`."""

import numpy as np
import pytest

from triptych.eval.audio import dnsmos, transcribe, word_error_rate
from triptych.eval.image import psnr
from triptych.scenes.image import Placed, draw
from triptych.scenes.judge import score
from triptych.scenes.samples import scene_sample
from triptych.scenes.sprites import LOOKS
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Task


@pytest.fixture(scope="module")
def bundle():
    return TokenizerBundle.load("scenes")


def test_weights_match_their_fingerprints(bundle):
    assert set(bundle.fingerprints) == {"text", "image", "audio"}
    bundle.verify()


def test_captions_are_one_token_a_word(bundle):
    texts = [scene_sample(task, "test", index).text for task in (Task.TEXT, Task.IMAGE_TEXT) for index in range(200)]
    ids = bundle.text.encode(texts)
    assert bundle.text.decode(ids) == texts
    words = [len(text.replace(".", " .").replace("?", " ?").split()) for text in texts]
    assert [len(row) for row in ids] == words


def test_pictures_survive(bundle):
    samples = [scene_sample(Task.IMAGE_TEXT, "test", index) for index in range(60)]
    pictures = [sample.image for sample in samples]
    ids = bundle.image.encode(pictures)
    assert {len(row) for row in ids} == {16}
    rebuilt = bundle.image.decode(ids)
    assert np.mean([psnr(a, b) for a, b in zip(pictures, rebuilt)]) >= 30
    assert score(rebuilt, [sample.scene for sample in samples])["overall"] >= 0.97


def test_every_patch_of_the_world_has_one_code(bundle):
    """Whatever is around it: of every look in every plot, and of what stands in pictures together."""
    lone = [draw([Placed(look, 2, 2)]) for look in LOOKS]
    together = [scene_sample(Task.IMAGE_TEXT, "test", index).image for index in range(60)]
    codes: dict[bytes, set[int]] = {}
    for picture, ids in zip([*lone, *together], bundle.image.encode([*lone, *together])):
        patches = np.asarray(picture).reshape(4, 16, 4, 16, 3).swapaxes(1, 2).reshape(16, -1)
        for patch, code in zip(patches, ids):
            codes.setdefault(patch.tobytes(), set()).add(int(code))
    assert len(codes) == 321
    assert all(len(found) == 1 for found in codes.values())


def test_what_is_drawn_from_codes_is_read_as_those_codes(bundle):
    """A model's drawing can be captioned only if encoding it gives the codes it was drawn from."""
    pictures = [scene_sample(Task.IMAGE_TEXT, "test", index).image for index in range(100)]
    ids = np.stack(bundle.image.encode(pictures))
    again = np.stack(bundle.image.encode(bundle.image.decode(list(ids))))
    assert np.mean(ids != again) <= 0.002


def test_speech_is_understood_after_the_round_trip(bundle):
    samples = [scene_sample(Task.AUDIO_TEXT, "test", index) for index in range(12)]
    rebuilt = bundle.audio.decode(bundle.audio.encode([sample.sound for sample in samples]))
    assert word_error_rate([sample.text for sample in samples], transcribe(rebuilt)) <= 0.1
    assert dnsmos(rebuilt)[:, 2].mean() >= 2.5
