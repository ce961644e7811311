"""PatchVQ: objects keep their codes on every background; exact for patches it has codes for; fitted and saved."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.backdrop import separate
from triptych.tokenizers.fit_patch_vq import fit_patch_vq
from triptych.tokenizers.image import load_image_tokenizer
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig, nearest_code, squared_length, to_images, to_patches
from triptych.tokenizers.pixels import to_pixels

CONFIG = PatchVQConfig(resolution=32, patch=8, codes=12)


def _images(number: int, seed: int = 0) -> list[Image.Image]:
    """Each patch is one of twelve flat colours, which lie on a grid of colours far apart."""
    rng = np.random.default_rng(seed)
    palette = np.array([(r, g, b) for r in (0, 128, 255) for g in (0, 255) for b in (0, 255)], np.uint8)
    cells = palette[rng.integers(12, size=(number, 4, 4))]
    return [Image.fromarray(image.repeat(8, 0).repeat(8, 1)) for image in cells]


def _layers(images: list[Image.Image]) -> torch.Tensor:
    return separate(to_patches(torch.from_numpy(to_pixels(images)), CONFIG.patch)).flatten(0, 1).unique(dim=0)


@pytest.fixture(scope="module")
def tokenizer() -> PatchVQ:
    return fit_patch_vq(CONFIG, _layers(_images(40)), report=lambda line: None)


def test_patches_that_have_a_code_of_their_own_are_exact(tokenizer: PatchVQ) -> None:
    images = _images(5, seed=1)
    for image, again in zip(images, tokenizer.decode(tokenizer.encode(images))):
        assert np.abs(np.asarray(image, int) - np.asarray(again, int)).max() <= 1


def _scene(behind: tuple[int, int, int], x: int, y: int) -> Image.Image:
    """A cross of two colours on a flat background."""
    image = Image.new("RGB", (32, 32), behind)
    image.paste((255, 0, 0), (x + 3, y, x + 5, y + 8))
    image.paste((90, 20, 160), (x, y + 3, x + 8, y + 5))
    return image


def test_an_object_has_one_code_in_every_place_and_on_every_background() -> None:
    colours = [(255, 255, 255), (30, 40, 110), (170, 215, 130)]
    scenes = [_scene(colour, x, y) for colour in colours for x in (0, 8, 24) for y in (0, 16)]
    layers = _layers(scenes)
    assert len(layers) == 4  # three backgrounds and one cross
    tokenizer = fit_patch_vq(PatchVQConfig(32, 8, codes=5), layers.repeat(2, 1), report=lambda _: None)
    ids = tokenizer.encode(scenes)
    places = [
        row.reshape(4, 4)[y // 8, x // 8] for row, (x, y) in zip(ids, 3 * [(x, y) for x in (0, 8, 24) for y in (0, 16)])
    ]
    assert len(set(places)) == 1
    for scene, again in zip(scenes, tokenizer.decode(ids)):
        assert np.abs(np.asarray(scene, int) - np.asarray(again, int)).max() <= 1


def _noise(number: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(256, size=(32, 32, 3), dtype=np.uint8)) for _ in range(number)]


def test_codes_do_not_depend_on_the_other_images_of_a_batch() -> None:
    images = _noise(3)
    together = PatchVQ.untrained(CONFIG).encode(images)
    for image, ids in zip(images, together):
        assert (PatchVQ.untrained(CONFIG).encode([image])[0] == ids).all()


def test_many_threads_get_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.tokenizers.patch_vq._MAX_REMEMBERED", 30)
    tokenizer, images = PatchVQ.untrained(CONFIG), _noise(20)
    expected = [row.tolist() for row in PatchVQ.untrained(CONFIG).encode(images)]
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(lambda _: tokenizer.encode(images), range(8)):
            assert [row.tolist() for row in rows] == expected


def test_too_few_patches_for_the_codes_are_refused() -> None:
    with pytest.raises(UserError, match="12 codes need at least as many different patches, got 5"):
        fit_patch_vq(CONFIG, torch.rand(5, 256), report=lambda _: None)


def test_codes_are_the_nearest_also_when_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    images, tokenizer = _noise(5), PatchVQ.untrained(CONFIG)
    squares = squared_length(tokenizer.codebook_KL)
    layers = separate(to_patches(torch.from_numpy(to_pixels(images)), 8))
    expected = [nearest_code(each, tokenizer.codebook_KL, squares).tolist() for each in layers]
    monkeypatch.setattr("triptych.tokenizers.patch_vq._MAX_REMEMBERED", 40)  # of 80 patches
    for order in (images, images, images[::-1]):
        codes = [row.tolist() for row in tokenizer.encode(order)]
        assert (codes if order is images else codes[::-1]) == expected


def test_patches_and_images_are_inverse() -> None:
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(to_images(to_patches(pixels, 8), 8), pixels)


def test_the_nearest_code_is_measured_with_chroma_doubled() -> None:
    generator = torch.Generator().manual_seed(0)
    layers, codes = torch.randn(50, 16, generator=generator), torch.randn(7, 16, generator=generator)

    def metric(values: torch.Tensor) -> torch.Tensor:
        """Grey kept, hue and saturation doubled, opacity kept: an orthonormal basis of colours, written out."""
        grey, first, second = (torch.tensor(axis) for axis in ([1.0, 1, 1], [1.0, -1, 0], [1.0, 1, -2]))
        colours, opacity = values.view(-1, 4, 4).split([3, 1], 1)
        parts = [(colours * (axis / axis.norm())[:, None]).sum(1) for axis in (grey, first, second)]
        return torch.stack([parts[0], 2 * parts[1], 2 * parts[2], opacity[:, 0]], 1).flatten(1)

    squares = squared_length(codes)
    torch.testing.assert_close(squares, metric(codes).square().sum(1))
    assert (nearest_code(layers, codes, squares) == torch.cdist(metric(layers), metric(codes)).argmin(1)).all()


def test_saved_and_loaded(tokenizer: PatchVQ, tmp_path) -> None:
    tokenizer.save(tmp_path)
    loaded = load_image_tokenizer(tmp_path)
    assert isinstance(loaded, PatchVQ)
    assert loaded.fingerprint == tokenizer.fingerprint
    images = _images(3, seed=3)
    ids = tokenizer.encode(images)
    assert all((a == b).all() for a, b in zip(ids, loaded.encode(images)))
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(tokenizer.decode(ids), loaded.decode(ids)))


def test_damaged_files_are_refused(tokenizer: PatchVQ, tmp_path) -> None:
    tokenizer.save(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    for change in ({"fingerprint": "0" * 64}, {"shape": {**spec["shape"], "codes": 13}}, {"shape": {"width": "x"}}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec | change))
        with pytest.raises((CheckpointError, UserError)):
            PatchVQ.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    sheet = (tmp_path / "codebook.png").read_bytes()
    Image.new("RGBA", Image.open(tmp_path / "codebook.png").size).save(tmp_path / "codebook.png")
    with pytest.raises(CheckpointError, match=r"codebook\.png is not the file that was saved"):
        PatchVQ.load(tmp_path)
    for damaged in (sheet[:50], sheet[:37] + bytes([sheet[37] ^ 0x80]) + sheet[38:], b"no picture"):
        (tmp_path / "codebook.png").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a saved PatchVQ"):
            PatchVQ.load(tmp_path)


@pytest.mark.parametrize("ids", [np.zeros(15, np.int32), np.full(16, 12), np.full(16, -1)])
def test_wrong_ids_are_refused(tokenizer: PatchVQ, ids: np.ndarray) -> None:
    with pytest.raises(UserError, match="image"):
        tokenizer.decode([ids])


@pytest.mark.parametrize("change", [{"resolution": 30}, {"patch": 0}, {"codes": 0}])
def test_wrong_shapes_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(UserError, match="PatchVQ needs"):
        PatchVQConfig(**{"resolution": 32, "patch": 8, **change})
