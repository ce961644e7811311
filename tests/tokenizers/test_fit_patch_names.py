"""Names of codes: a patch in all its colours is one pattern, a colour is one token for all patches, images are kept."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.backdrop import separate
from triptych.tokenizers.fit_patch_names import name_by_pattern_and_color
from triptych.tokenizers.fit_patch_vq import fit_patch_vq
from triptych.tokenizers.image import load_image_tokenizer
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig, to_patches
from triptych.tokenizers.pixels import to_pixels

SHAPES = {
    "bar": (slice(0, 8), slice(2, 4)),
    "beam": (slice(5, 7), slice(0, 8)),
    "block": (slice(1, 6), slice(3, 7)),
    "corner": (slice(0, 3), slice(0, 3)),
}
COLORS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (40, 70, 210)}
LOOKS = [(shape, color) for shape in SHAPES for color in COLORS]
CONFIG = PatchVQConfig(resolution=8, patch=8, codes=13)  # twelve things, and nothing


def _draw(shape: str, color: str) -> Image.Image:
    """A shape of a dark and a light half on white."""
    pixels = np.full((8, 8, 3), 255, np.uint8)
    area = pixels[SHAPES[shape]]
    area[:] = COLORS[color]
    area[: len(area) // 2 + 1] = np.array(COLORS[color]) * 0.7
    return Image.fromarray(pixels)


IMAGES = [_draw(*look) for look in LOOKS]


@pytest.fixture(scope="module")
def plain() -> PatchVQ:
    images = [*IMAGES, Image.new("RGB", (8, 8), "white")]
    layers = separate(to_patches(torch.from_numpy(to_pixels(images)), 8)).flatten(0, 1)
    return fit_patch_vq(CONFIG, layers, report=lambda line: None)


@pytest.fixture(scope="module")
def named(plain: PatchVQ) -> PatchVQ:
    return name_by_pattern_and_color(plain, patterns=5, colors=4)


def test_a_shape_is_a_pattern_and_a_color_is_a_token(named: PatchVQ) -> None:
    ids = dict(zip(LOOKS, named.encode(IMAGES)))
    pattern = {shape: {int(ids[shape, color][0]) for color in COLORS} for shape in SHAPES}
    color = {name: {int(ids[shape, name][1]) for shape in SHAPES} for name in COLORS}
    assert all(len(tokens) == 1 for tokens in (*pattern.values(), *color.values()))
    assert len(set.union(*pattern.values())) == len(SHAPES)
    assert len(set.union(*color.values())) == len(COLORS)


def test_an_image_of_named_codes_is_that_of_the_codes(plain: PatchVQ, named: PatchVQ) -> None:
    assert named.tokens_per_image == 2
    assert named.vocab_size < plain.vocab_size
    for before, after in zip(plain.decode(plain.encode(IMAGES)), named.decode(named.encode(IMAGES))):
        assert (np.asarray(before) == np.asarray(after)).all()


def test_every_pair_of_tokens_is_an_image(named: PatchVQ) -> None:
    for first in range(named.vocab_size):
        for second in range(named.vocab_size):
            (image,) = named.decode([np.array([first, second])])
            assert image.size == (8, 8)


def test_a_color_that_a_pattern_lacks_becomes_the_most_similar_one() -> None:
    """Two patterns; the second has no orange, and red is nearer to orange than blue is."""
    flat = {"red": (255, 0, 0), "orange": (255, 120, 0), "blue": (0, 0, 255)}
    codes = np.zeros((5, 4, 8, 8), np.uint8)
    for row, (rows, name) in enumerate([(4, "red"), (4, "orange"), (4, "blue"), (8, "red"), (8, "blue")]):
        codes[row, :3, :rows] = np.array(flat[name])[:, None, None]
        codes[row, 3, :rows] = 255
    names = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 2]])
    tokenizer = PatchVQ(codes.reshape(5, -1), PatchVQConfig(8, 8, codes=5), names)
    wanted, red = tokenizer.decode([np.array([1, 2 + 1]), np.array([1, 2 + 0])])
    assert (np.asarray(wanted) == np.asarray(red)).all()


def test_more_codes_of_a_pattern_than_colors_get_another_pattern(plain: PatchVQ) -> None:
    named = name_by_pattern_and_color(plain, patterns=1, colors=2)
    assert len({tuple(ids) for ids in named.encode(IMAGES)}) == len(IMAGES)


def test_saved_and_loaded(named: PatchVQ, tmp_path: Path) -> None:
    named.save(tmp_path)
    again = load_image_tokenizer(tmp_path)
    assert again.fingerprint == named.fingerprint
    assert [row.tolist() for row in again.encode(IMAGES)] == [row.tolist() for row in named.encode(IMAGES)]


def test_names_are_part_of_the_fingerprint(plain: PatchVQ, named: PatchVQ, tmp_path: Path) -> None:
    assert plain.fingerprint != named.fingerprint
    named.save(tmp_path / "a")
    named.with_names(np.stack([np.arange(13), np.zeros(13, int)], 1)).save(tmp_path / "b")
    (tmp_path / "b" / "names.safetensors").replace(tmp_path / "a" / "names.safetensors")
    with pytest.raises(CheckpointError, match=r"codebook.png or .*names.safetensors is not the file that was saved"):
        load_image_tokenizer(tmp_path / "a")


def test_a_missing_file_of_names_is_said(named: PatchVQ, tmp_path: Path) -> None:
    named.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["names"] is True
    (tmp_path / "names.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is not a saved PatchVQ"):
        load_image_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (np.zeros((13, 2), int), "a name of its own"),
        (np.zeros((4, 2), int), "two numbers from 0 to 12 for each of 13 codes"),
        (np.full((13, 2), -1), "two numbers from 0 to 12"),
        (np.stack([2 * np.arange(13) % 13 // 2 * 2, np.arange(13)], 1), "every pattern a code"),
    ],
)
def test_names_that_name_no_code_or_two_are_refused(plain: PatchVQ, names: np.ndarray, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        plain.with_names(names)


def test_numbers_of_names_out_of_range_are_refused(plain: PatchVQ) -> None:
    with pytest.raises(UserError, match="13 codes take between 1 and as many patterns and colours, got 14 and 2"):
        name_by_pattern_and_color(plain, 14, 2)
