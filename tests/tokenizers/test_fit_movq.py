"""Training a MoVQ: the EMA codebook, reconstruction, and retired codes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from triptych.tokenizers.fit_movq import RETIRED_VALUE, EmaCodebook, fit_movq, nearest_code, retire_codes
from triptych.tokenizers.image import MoVQ
from triptych.tokenizers.pixels import from_pixels, to_pixels


def test_nearest_code_is_the_nearest():
    generator = torch.Generator().manual_seed(0)
    latents, codes = torch.randn(50, 4, generator=generator), torch.randn(16, 4, generator=generator)
    assert (nearest_code(latents, codes) == torch.cdist(latents, codes).argmin(1)).all()


def test_codes_follow_their_latents_and_unused_codes_are_reset():
    generator = torch.Generator().manual_seed(0)
    codes = torch.tensor([[0.0, 0.0], [100.0, 100.0]])  # no latent is near the second
    codebook = EmaCodebook(codes, decay=0.9)
    latents = torch.tensor([[5.0, 5.0], [-5.0, -5.0]]).repeat(50, 1)
    for _ in range(100):
        codebook.update(latents, nearest_code(latents, codes), generator)
    assert torch.allclose(codes[codes[:, 0].argsort()], torch.tensor([[-5.0, -5.0], [5.0, 5.0]]), atol=0.1)


@pytest.mark.parametrize("local", [False, True])
def test_a_small_movq_learns_coloured_quarters(local):
    """Eight training images of plain quarters: after a short fit the round trip is far better than before."""
    rng = np.random.default_rng(0)
    quarters = torch.from_numpy(rng.choice([-1.0, 1.0], size=(8, 3, 2, 2)).astype(np.float32))
    images = F.interpolate(quarters, scale_factor=8)  # 16 x 16

    def error(tokenizer):
        back = tokenizer.decode(tokenizer.encode(from_pixels(images.numpy())))
        pixels = np.stack([np.asarray(image, dtype=np.float32) for image in back]).transpose(0, 3, 1, 2) / 127.5 - 1
        return float(np.square(pixels - images.numpy()).mean())

    tokenizer = MoVQ.small(16, local=local, channels=(32, 32), groups=8, patch=4, codes=32, latent_channels=4)
    assert tokenizer.tokens_per_image == 4
    before = error(tokenizer)
    reports = []

    fit_movq(tokenizer, lambda step: images, steps=150, learning_rate=3e-3, report=reports.append, report_every=50)
    assert error(tokenizer) < 0.2 * before
    assert [r["step"] for r in reports] == [50, 100, 150]


def test_codes_are_retired_until_decoded_images_keep_their_codes():
    """A codebook with near duplicates: one code of each pair is retired, and so are unused codes."""
    rng = np.random.default_rng(0)
    plain = rng.integers(0, 256, size=(24, 2, 2, 3), dtype=np.uint8)
    images = [Image.fromarray(quarters.repeat(8, 0).repeat(8, 1)) for quarters in plain]
    tokenizer = MoVQ.small(16, local=True, channels=(32, 32), groups=8, patch=4, codes=64, latent_channels=4)
    codes = tokenizer.model.quantize.embedding.weight
    with torch.no_grad():
        latents = tokenizer.latents(torch.from_numpy(to_pixels(images[:6]))).movedim(1, -1).reshape(-1, 4)
        codes[:24] = latents
        codes[24:48] = latents + 1e-3 * latents.std()
        codes[48:] = 50.0
    original = codes.detach().clone()

    def confused():
        ids = tokenizer.encode(images)
        return np.mean(np.stack(ids) != np.stack(tokenizer.encode(tokenizer.decode(ids))))

    before = confused()
    lines: list[str] = []
    retired = retire_codes(tokenizer, images, max_difference=256, report=lines.append)
    assert lines[-1] == f"{64 - len(retired)} codes in use, 0.00% of patches change their code"
    assert before > 0
    assert confused() == 0
    assert set(range(48, 64)) <= set(retired)
    assert len(retired) < 64
    assert (codes[retired] == RETIRED_VALUE).all()
    remaining = [code for code in range(64) if code not in retired]
    assert torch.equal(codes[remaining], original[remaining])
    assert not set(retired) & set(np.concatenate(tokenizer.encode(images)).tolist())


def test_codes_of_different_patches_are_not_retired():
    images = [Image.fromarray(np.full((16, 16, 3), shade, np.uint8)) for shade in (0, 255)]
    tokenizer = MoVQ.small(16, local=True, channels=(32, 32), groups=8, patch=4, codes=8, latent_channels=4)
    used = set(np.concatenate(tokenizer.encode(images)).tolist())
    assert set(retire_codes(tokenizer, images, max_difference=0)) == set(range(8)) - used
