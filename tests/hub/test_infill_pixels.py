"""Repainting the pixels of a mask of any shape."""

import numpy as np
import pytest
from PIL import Image

from triptych import Pipeline
from triptych.errors import UserError
from triptych.hub.boxes import masked_codes, touched_codes
from triptych.sample.canvas import MASKED
from triptych.utils.media import read_transparency


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.from_pretrained("scenes", check_inputs=False)


@pytest.mark.parametrize("seed", range(30))
def test_codes_of_a_mask_are_those_that_its_pixels_touch(seed):
    rng = np.random.default_rng(seed)
    width, side = int(rng.integers(1, 40)), int(rng.integers(1, 12))
    mask = rng.random((width, width)) < 0.1
    expected = np.zeros((side, side), bool)
    for y, x in zip(*np.nonzero(mask)):
        expected |= touched_codes((x, y, x + 1, y + 1), width, side)
    assert (masked_codes(mask, side) == expected).all()


def test_a_rectangle_is_the_same_as_a_box(pipe):
    image = pipe.text_to_image("a cat", seed=1).resize((60, 40))
    mask = np.zeros((40, 60), bool)
    mask[5:20, 10:31] = True
    by_mask = pipe._requests.infill_pixels(image, mask, "a dog")
    by_box = pipe._requests.infill_image(image, (10, 5, 31, 20), "a dog", "codes")
    assert (by_mask.canvas.media.ids == by_box.canvas.media.ids).all()
    assert 0 < by_mask.canvas.media.num_masked < 16
    ids = np.where(by_mask.canvas.media.ids == MASKED, 3, by_mask.canvas.media.ids)
    filled = by_mask.canvas.with_span(type(by_mask.canvas.media)(by_mask.canvas.media.modality, ids))
    assert by_mask.read(filled).tobytes() == by_box.read(filled).tobytes()
    assert by_mask.read(filled).size == image.size


def test_masks_that_do_not_fit_are_refused(pipe):
    image = Image.new("RGB", (64, 64))
    with pytest.raises(UserError, match="64 x 64 pixels, got 32 x 64"):
        pipe._requests.infill_pixels(image, np.ones((64, 32), bool), None)
    with pytest.raises(UserError, match="marks no pixel"):
        pipe._requests.infill_pixels(image, np.zeros((64, 64), bool), None)


def test_transparent_pixels_of_a_file(tmp_path):
    image = Image.new("RGBA", (3, 2), (10, 20, 30, 255))
    image.putpixel((2, 1), (10, 20, 30, 0))
    image.putpixel((0, 0), (10, 20, 30, 100))
    image.putpixel((1, 0), (10, 20, 30, 200))
    image.save(tmp_path / "mask.png")
    assert read_transparency(tmp_path / "mask.png").tolist() == [[True, False, False], [False, False, True]]
    image.convert("RGB").save(tmp_path / "opaque.png")
    assert not read_transparency(tmp_path / "opaque.png").any()
