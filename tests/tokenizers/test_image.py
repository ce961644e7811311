"""MoVQ as a tokenizer: shapes, batches, local encoding, saving, damaged files, pixels."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.image import MoVQ, _batches, load_image_tokenizer, sber_config, small_config
from triptych.tokenizers.pixels import from_pixels, resize_with_white_padding, to_pixels
from triptych.vocab import Modality

WEIGHTS = "diffusion_pytorch_model.safetensors"


def build(resolution: int = 32, **changes) -> MoVQ:
    """An untrained network whose codes are latents of noise."""
    tokenizer = MoVQ.small(resolution, **{"channels": (32, 32, 64, 64), "codes": 256, **changes})
    noise = torch.randn((16, 3, 32, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        latents = tokenizer.model.encode(noise).latents.transpose(0, 1).flatten(1).T
        tokenizer.model.quantize.embedding.weight.copy_(latents)
    return tokenizer


@pytest.fixture(scope="module")
def movq() -> MoVQ:
    return build()


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    """Smooth images and noise."""
    rng = np.random.default_rng(0)
    coarse = [Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize((32, 32)) for _ in range(4)]
    return coarse + [Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(5)]


def test_shapes(movq, images):
    ids = movq.encode(images)
    assert movq.modality == Modality.IMAGE
    assert (movq.grid, movq.tokens_per_image, movq.vocab_size) == (4, 16, 256)
    assert all(row.shape == (16,) and row.dtype == np.int32 for row in ids)
    assert len(np.unique(np.concatenate(ids))) > 30
    decoded = movq.decode(ids)
    assert all(image.size == (32, 32) and image.mode == "RGB" for image in decoded)
    assert movq.encode([]) == movq.decode([]) == []


@pytest.mark.parametrize("batch_size", [1, 4])
def test_items_do_not_depend_on_their_batch(movq, images, batch_size):
    tokenizer = MoVQ(movq.model, 32, batch_size=batch_size)
    ids = tokenizer.encode(images)
    shuffled = tokenizer.encode(images[::-1])[::-1]
    single = [tokenizer.encode([image])[0] for image in images]
    np.testing.assert_array_equal(ids, shuffled)
    np.testing.assert_array_equal(ids, single)
    decoded = tokenizer.decode(ids)
    for image, row in zip(decoded, ids):
        np.testing.assert_array_equal(np.asarray(image), np.asarray(tokenizer.decode([row])[0]))


def test_all_batches_have_one_size():
    assert list(_batches([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5, 5]]
    assert list(_batches([1], 3)) == [[1, 1, 1]]


def test_other_sizes_are_fitted_on_white(movq):
    wide = Image.fromarray(np.random.default_rng(3).integers(0, 256, (20, 50, 3), dtype=np.uint8))
    np.testing.assert_array_equal(movq.encode([wide]), movq.encode([resize_with_white_padding(wide, 32)]))
    grey = Image.new("L", (32, 32))
    np.testing.assert_array_equal(movq.encode([grey]), movq.encode([Image.new("RGB", (32, 32))]))


def test_ids_depend_on_every_part_of_the_image(movq, images):
    before = movq.encode([images[5]])[0]
    changed = images[5].copy()
    changed.paste((255, 0, 0), (24, 24, 32, 32))
    assert movq.encode([changed])[0][-1] != before[-1]


def test_a_local_encoder_sees_one_patch_at_a_time(images):
    """A patch has the same code in any image and at any place; with a global encoder its code changes."""
    tokenizer = MoVQ(build(groups=8).model, 32, local=True)
    assert tokenizer.grid == 4
    noise = images[5]
    patch = noise.crop((8, 16, 16, 24))
    code = tokenizer.encode([noise])[0].reshape(4, 4)[2, 1]
    for other, place in ((images[0], (24, 0)), (images[6], (8, 16)), (Image.new("RGB", (32, 32)), (0, 8))):
        changed = other.copy()
        changed.paste(patch, place)
        assert tokenizer.encode([changed])[0].reshape(4, 4)[place[1] // 8, place[0] // 8] == code
    rest = noise.copy()
    rest.paste((255, 0, 0), (0, 0, 8, 8))
    before, after = (tokenizer.encode([image])[0] for image in (noise, rest))
    assert (before[1:] == after[1:]).all()
    not_local = MoVQ(tokenizer.model, 32)
    assert (not_local.encode([noise])[0][1:] != not_local.encode([rest])[0][1:]).any()


def test_a_local_tokenizer_needs_wide_norm_groups(movq):
    with pytest.raises(UserError, match="4 channels per group"):
        MoVQ(movq.model, 32, local=True)


def test_a_saved_local_tokenizer_stays_local(images, tmp_path):
    tokenizer = MoVQ(build(groups=8).model, 32, local=True)
    tokenizer.save(tmp_path)
    loaded = load_image_tokenizer(tmp_path)
    assert loaded.local
    assert loaded.fingerprint == tokenizer.fingerprint != MoVQ(tokenizer.model, 32).fingerprint
    np.testing.assert_array_equal(loaded.encode(images), tokenizer.encode(images))


def test_saved_and_loaded(movq, images, tmp_path):
    movq.save(tmp_path)
    loaded = load_image_tokenizer(tmp_path)
    assert loaded.fingerprint == movq.fingerprint
    assert json.loads((tmp_path / "tokenizer.json").read_text())["fingerprint"] == movq.fingerprint
    np.testing.assert_array_equal(loaded.encode(images), movq.encode(images))
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".safetensors")]


def test_diffusers_reads_saved_tokenizers(movq, tmp_path):
    from diffusers import VQModel

    movq.save(tmp_path)
    loaded = VQModel.from_pretrained(tmp_path, use_safetensors=True, low_cpu_mem_usage=False)
    assert MoVQ(loaded, 32).fingerprint == movq.fingerprint


def test_half_precision_is_half_the_size_and_another_tokenizer(movq, tmp_path):
    movq.save(tmp_path / "full")
    movq.save(tmp_path / "half", half=True)
    full, half = ((tmp_path / name / WEIGHTS).stat().st_size for name in ("full", "half"))
    assert 0.49 < half / full < 0.52
    loaded = load_image_tokenizer(tmp_path / "half")
    assert loaded.model.dtype == torch.float32
    assert loaded.fingerprint == json.loads((tmp_path / "half" / "tokenizer.json").read_text())["fingerprint"]
    assert loaded.fingerprint != movq.fingerprint


def test_different_tokenizers_have_different_fingerprints(movq):
    assert build().fingerprint == movq.fingerprint
    assert build(resolution=64).fingerprint != movq.fingerprint
    assert build(seed=1).fingerprint != movq.fingerprint
    changed = build()
    changed.model.decoder.conv_out.bias.data[0] += 1e-6
    assert changed.fingerprint != movq.fingerprint


def test_building_a_small_movq_leaves_the_random_state_unchanged():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build()
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("size", "parameters"), [("67M", 67_832_495), ("102M", 101_614_255), ("270M", 270_669_103)])
def test_parameters_of_the_published_sizes(size, parameters):
    from diffusers import VQModel

    with torch.device("meta"):
        model = VQModel(**sber_config(size))
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    tokenizer = MoVQ(model, 256)
    assert (tokenizer.tokens_per_image, tokenizer.vocab_size) == (1_024, 16_384)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_wrong_ids_are_refused(movq):
    with pytest.raises(UserError, match="an image has 16 tokens"):
        movq.decode([np.zeros(15, np.int32)])
    for wrong in (-1, 256):
        with pytest.raises(UserError, match=r"must be in \[0, 256\)"):
            movq.decode([np.full(16, wrong)])


def test_wrong_configurations_are_refused(movq):
    with pytest.raises(UserError, match="multiples of 32"):
        small_config((16, 32))
    with pytest.raises(UserError, match="multiples of 32"):
        small_config((32,))
    with pytest.raises(UserError, match="multiple of 8"):
        MoVQ(movq.model, 36)
    with pytest.raises(UserError, match="Did you mean '270M'"):
        sber_config("270")


class Touch:
    """A pickle that would run code."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("as_pickle", [False, True], ids=["torch.save", "pickle"])
def test_a_checkpoint_with_code_is_refused_and_nothing_runs(tmp_path, as_pickle):
    path, trace = tmp_path / "movqgan_270M.ckpt", tmp_path / "trace"
    content = {"state_dict": {"encoder.conv_in.weight": Touch(trace)}}
    if as_pickle:
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match="was not loaded") as caught:
        MoVQ.from_sber(path)
    assert "\n" not in str(caught.value)
    assert not trace.exists()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 nor a zip"])
def test_files_that_are_not_checkpoints_are_refused(tmp_path, content):
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.ckpt") as caught:
        MoVQ.from_sber(tmp_path / "x.ckpt")
    assert "\n" not in str(caught.value)


def test_missing_and_truncated_checkpoints_are_refused(tmp_path):
    path = tmp_path / "movq.ckpt"
    with pytest.raises(CheckpointError, match=r"movq\.ckpt cannot be read"):
        MoVQ.from_sber(path)
    torch.save({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"movq\.ckpt"):
        MoVQ.from_sber(path)
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match="must hold named tensors"):
        MoVQ.from_sber(path)


def test_damaged_folders_are_refused(movq, tmp_path):
    with pytest.raises(CheckpointError, match="not a diffusers VQModel"):
        MoVQ.from_folder(tmp_path)
    movq.save(tmp_path)
    weights = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError, match="not a diffusers VQModel"):
        load_image_tokenizer(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(weights)
    config = json.loads((tmp_path / "config.json").read_text())
    for changes in ({"num_vq_embeddings": 10**12}, {"block_out_channels": "x"}, {"auto_map": "x.py"}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(CheckpointError) as caught:
            load_image_tokenizer(tmp_path)
        assert "\n" not in str(caught.value)


# -- pixels -----------------------------------------------------------------------------------------------------------


def test_pixels_round_trip_exactly():
    every = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16).repeat(3).reshape(16, 16, 3))
    pixels = to_pixels([every, every])
    assert pixels.shape == (2, 3, 16, 16)
    assert pixels.dtype == np.float32
    assert (pixels.min(), pixels.max()) == (-1, 1)
    np.testing.assert_array_equal(np.asarray(from_pixels(pixels)[1]), np.asarray(every))
    assert np.asarray(from_pixels(pixels * 3)[0]).tolist()[0][0] == [0, 0, 0]


@pytest.mark.parametrize(
    ("size", "box"), [((40, 20), (0, 8, 32, 24)), ((10, 20), (8, 0, 24, 32)), ((1, 99), (15, 0, 16, 32))]
)
def test_white_padding(size, box):
    fitted = resize_with_white_padding(Image.new("RGB", size, (200, 0, 0)), 32)
    assert fitted.size == (32, 32)
    inside = np.zeros((32, 32), bool)
    inside[box[1] : box[3], box[0] : box[2]] = True
    pixels = np.asarray(fitted)
    assert (pixels[inside] == (200, 0, 0)).all()
    assert (pixels[~inside] == 255).all()
