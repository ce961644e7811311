"""The converted network against an independent implementation of the original."""

import numpy as np
import pytest
import torch
from movq_reference import ReferenceMoVQ, original_checkpoint, random_reference
from PIL import Image

from triptych.errors import CheckpointError
from triptych.tokenizers.image import MoVQ, sber_config, small_config
from triptych.tokenizers.movq_keys import to_diffusers
from triptych.tokenizers.pixels import to_pixels

SHAPES = [([32, 64], 2), ([32, 64, 32], 1), ([32, 64, 64, 128], 1), ([32, 32, 64, 64, 32], 1)]


def noise_images(count: int, size: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)) for _ in range(count)]


def saved(tmp_path, content, **options):
    torch.save(content, tmp_path / "movq.ckpt", **options)
    return tmp_path / "movq.ckpt"


@pytest.mark.parametrize(("channels", "layers"), SHAPES)
@torch.no_grad()
def test_same_codes_and_pixels_as_the_original(tmp_path, channels, layers):
    reference = random_reference(channels, layers=layers)
    path = saved(tmp_path, {"state_dict": original_checkpoint(reference), "global_step": 7})
    config = small_config(channels, codes=64, layers_per_block=layers)
    tokenizer = MoVQ.from_original(path, config, resolution=64)
    images = noise_images(2, size=64)

    expected = reference.indices(torch.from_numpy(to_pixels(images)))
    assert len(expected.unique()) > 12
    np.testing.assert_array_equal(np.stack(tokenizer.encode(images)), expected)

    pixels = reference.pixels(expected)
    latents = tokenizer.model.quantize.get_codebook_entry(expected.flatten(), (2, tokenizer.grid, tokenizer.grid, 4))
    decoded = tokenizer.model.decode(latents, force_not_quantize=True).sample
    assert pixels.std() > 0.1
    assert (decoded - pixels).abs().max() < 1e-4 * pixels.abs().max().clamp(min=1)
    for actual, wanted in zip(to_pixels(tokenizer.decode(list(expected.numpy()))), pixels.clamp(-1, 1)):
        assert np.abs(actual - wanted.numpy()).max() < 1.01 / 127.5


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_a_flat_checkpoint_and_the_old_file_format(tmp_path, options):
    reference = random_reference([32, 64])
    path = saved(tmp_path, original_checkpoint(reference), **options)
    tokenizer = MoVQ.from_original(path, small_config((32, 64), codes=64), resolution=32)
    assert torch.equal(tokenizer.model.encoder.conv_in.weight, reference.encoder.conv_in.weight)
    path.write_bytes(b"")  # the weights do not depend on the file
    assert torch.isfinite(tokenizer.model.decoder.conv_in.weight).all()


def test_the_published_sizes_have_the_names_of_the_original():
    from diffusers import VQModel

    with torch.device("meta"):
        for size, width, layers in (("67M", 128, 2), ("102M", 128, 4), ("270M", 256, 2)):
            original = ReferenceMoVQ([width, 2 * width, 2 * width, 4 * width], 16_384, layers)
            expected = VQModel(**sber_config(size)).state_dict()
            renamed = to_diffusers(original_checkpoint(original))
            assert {name: weight.shape for name, weight in renamed.items()} == {n: w.shape for n, w in expected.items()}


def test_weights_that_do_not_match_are_named(tmp_path):
    weights = original_checkpoint(random_reference([32, 64]))
    config = small_config((32, 64), codes=64)

    def message(changed) -> str:
        with pytest.raises(CheckpointError) as caught:
            MoVQ.from_original(saved(tmp_path, changed), config, 32)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    without = {name: weight for name, weight in weights.items() if not name.startswith("quant_conv")}
    assert "2 missing (quant_conv.bias, quant_conv.weight)" in message(without)
    assert "1 unexpected (surplus)" in message({**weights, "surplus": torch.zeros(1)})
    smaller = {**weights, "quantize.embedding.weight": torch.zeros(63, 4)}
    assert "1 of another shape (quantize.embedding.weight (63, 4) for (64, 4))" in message(smaller)
    deeper = original_checkpoint(random_reference([32, 64, 64]))
    assert "unexpected (decoder." in message(deeper)
    assert "missing" in message({})
