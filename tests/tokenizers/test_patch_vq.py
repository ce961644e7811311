"""PatchVQ: codes that depend on their patch alone, exact for patches that it has codes for, fitted and saved."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.fit_patch_vq import fit_codes, fit_decoder
from triptych.tokenizers.image import load_image_tokenizer
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig
from triptych.tokenizers.pixels import to_pixels

CONFIG = PatchVQConfig(resolution=32, patch=8, codes=12, components=20, width=32, layers=2)


def _images(number: int, seed: int = 0) -> list[Image.Image]:
    """Each patch is one of twelve flat colours, which lie on a grid of colours far apart."""
    rng = np.random.default_rng(seed)
    palette = np.array([(r, g, b) for r in (0, 128, 255) for g in (0, 255) for b in (0, 255)], np.uint8)
    cells = palette[rng.integers(12, size=(number, 4, 4))]
    return [Image.fromarray(image.repeat(8, 0).repeat(8, 1)) for image in cells]


@pytest.fixture(scope="module")
def tokenizer() -> PatchVQ:
    tokenizer = PatchVQ.untrained(CONFIG)
    pixels = torch.from_numpy(to_pixels(_images(40)))
    patches = tokenizer.network.to_patches(pixels).flatten(0, 1).unique(dim=0)
    fit_codes(tokenizer, patches, rounds=10, report=lambda line: None)
    return tokenizer


def test_patches_that_have_a_code_of_their_own_are_exact(tokenizer: PatchVQ) -> None:
    images = _images(5, seed=1)
    for image, again in zip(images, tokenizer.decode(tokenizer.encode(images))):
        assert np.abs(np.asarray(image, int) - np.asarray(again, int)).max() <= 1


def test_a_code_depends_on_its_patch_alone(tokenizer: PatchVQ) -> None:
    one, other = (np.asarray(image).copy() for image in _images(2, seed=2))
    other[8:16, 16:24] = one[8:16, 16:24]
    ids = tokenizer.encode([Image.fromarray(one), Image.fromarray(other)])
    assert ids[0].reshape(4, 4)[1, 2] == ids[1].reshape(4, 4)[1, 2]
    assert (tokenizer.encode([Image.fromarray(one)])[0] == ids[0]).all()


def test_patches_and_images_are_inverse(tokenizer: PatchVQ) -> None:
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(tokenizer.network.to_images(tokenizer.network.to_patches(pixels)), pixels)


def test_distances_in_chroma_count_double() -> None:
    """A step of grey keeps its length in the space of components; a step of the same length in hue is doubled."""
    grey, hue = torch.ones(3), torch.tensor([1.0, -1.0, 0.0]) * 1.5**0.5
    colours = [torch.zeros(3), 0.1 * grey, 0.1 * hue, torch.tensor([0.0, 0.1, -0.3])]
    patches = torch.stack([colour.repeat_interleave(64) for colour in colours])
    tokenizer = PatchVQ.untrained(PatchVQConfig(32, 8, codes=4, components=3, width=32, layers=1))
    fit_codes(tokenizer, patches, rounds=1, report=lambda line: None)
    start, by_grey, by_hue, _ = (patches - tokenizer.network.mean) @ tokenizer.network.basis
    length = (patches[1] - patches[0]).norm()
    assert (by_grey - start).norm() == pytest.approx(float(length), rel=1e-3)
    assert (by_hue - start).norm() == pytest.approx(2 * float(length), rel=1e-3)


def test_the_decoder_learns_from_context() -> None:
    """Patches that share a code look different beside different neighbours: only the context can tell them apart."""
    rng = np.random.default_rng(0)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        kind = torch.from_numpy(rng.integers(2, size=16))
        images = torch.full((16, 3, 32, 32), -1.0)
        images[:, :, :8] = torch.where(kind == 0, 1.0, -1.0)[:, None, None, None]  # the first row tells the kind
        images[:, :, 8:] = torch.where(kind == 0, 0.1, -0.1)[:, None, None, None]  # too similar for codes of their own
        return images, torch.ones(16, 1, 32, 32)

    tokenizer = PatchVQ.untrained(PatchVQConfig(32, 8, codes=3, components=3, width=32, layers=2))
    images, _ = batch()
    fit_codes(
        tokenizer, tokenizer.network.to_patches(images).flatten(0, 1).unique(dim=0)[[0, 1, 3]], report=lambda _: None
    )

    def error() -> float:
        patches = tokenizer.network.to_patches(images)
        return float((tokenizer.network.decode(tokenizer.network.encode(patches)) - patches).detach().square().mean())

    before = error()
    fit_decoder(tokenizer, iter(batch, None), steps=200, learning_rate=3e-3, report=lambda _: None)
    assert error() < before / 20


def test_saved_and_loaded(tokenizer: PatchVQ, tmp_path) -> None:
    tokenizer.save(tmp_path, half=False)
    loaded = load_image_tokenizer(tmp_path)
    assert isinstance(loaded, PatchVQ)
    assert loaded.fingerprint == tokenizer.fingerprint
    images = _images(3, seed=3)
    ids = tokenizer.encode(images)
    assert all((a == b).all() for a, b in zip(ids, loaded.encode(images)))
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(tokenizer.decode(ids), loaded.decode(ids)))


def test_a_better_decoder_keeps_the_fingerprint(tokenizer: PatchVQ) -> None:
    other = PatchVQ.untrained(CONFIG)
    other.network.load_state_dict(tokenizer.network.state_dict())
    other.network.paint.bias.data += 1
    assert other.fingerprint == tokenizer.fingerprint
    other = PatchVQ.untrained(CONFIG)
    other.network.load_state_dict(tokenizer.network.state_dict())
    other.network.codebook.data[0] += 1
    assert other.fingerprint != tokenizer.fingerprint


def test_damaged_files_are_refused(tokenizer: PatchVQ, tmp_path) -> None:
    tokenizer.save(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    for change in ({"decoder": "0" * 64}, {"network": {**spec["network"], "codes": 13}}, {"network": {"width": "x"}}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec | change))
        with pytest.raises((CheckpointError, UserError)):
            PatchVQ.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    (tmp_path / "patch_vq.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="not a saved PatchVQ"):
        PatchVQ.load(tmp_path)


@pytest.mark.parametrize("ids", [np.zeros(15, np.int32), np.full(16, 12), np.full(16, -1)])
def test_wrong_ids_are_refused(tokenizer: PatchVQ, ids: np.ndarray) -> None:
    with pytest.raises(UserError, match="image"):
        tokenizer.decode([ids])


@pytest.mark.parametrize("change", [{"resolution": 30}, {"width": 33}, {"codes": 0}])
def test_wrong_shapes_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(UserError, match="PatchVQ needs"):
        PatchVQConfig(**{"resolution": 32, "patch": 8, **change})
