"""Resampling, and codecs of `transformers` as tokenizers: ids, batches, saving, errors."""

import json
import math
import sys
import time
from types import ModuleType

import numpy as np
import pytest
import torch

from triptych.errors import CheckpointError, DataError, UserError
from triptych.tokenizers.audio import (
    Codec,
    Dac,
    HiggsAudio,
    _hann_resample,
    higgs_model_class,
    load_audio_tokenizer,
    resample,
)
from triptych.utils.media import Audio
from triptych.vocab import Modality


def sine(hertz: float, rate: int, seconds: float = 1.0) -> Audio:
    t = np.arange(round(seconds * rate)) / rate
    return Audio((0.5 * np.sin(2 * math.pi * hertz * t)).astype(np.float32), rate)


def noise(seconds: float, rate: int = 24_000, seed: int = 0) -> Audio:
    return Audio(np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * rate)).astype(np.float32), rate)


# -- resampling -------------------------------------------------------------------------------------------------------


def decibels_of_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Error relative to a sine of amplitude 0.5, away from the ends."""
    middle = slice(len(actual) // 4, 3 * len(actual) // 4)
    return 10 * math.log10(np.mean((actual[middle] - expected[middle]) ** 2) / 0.125)


@pytest.mark.parametrize(
    ("before", "after"),
    [(44_100, 24_000), (48_000, 16_000), (8_000, 24_000), (22_050, 24_000), (16_000, 24_000), (192_000, 24_000)],
)
def test_tones_below_90_percent_of_the_band_survive(before, after):
    for part in (0.01, 0.3, 0.88):
        hertz = part * min(before, after) / 2
        resampled = resample(sine(hertz, before), after)
        assert resampled.sample_rate == after
        assert resampled.samples.dtype == np.float32
        assert len(resampled.samples) == after
        assert decibels_of_error(resampled.samples, sine(hertz, after).samples) < -85


@pytest.mark.parametrize(("before", "after"), [(44_100, 24_000), (48_000, 16_000), (24_000, 8_000)])
def test_tones_above_the_band_leave_no_alias(before, after):
    for part in (1.005, 1.1, 1.7):
        resampled = resample(sine(part * after / 2, before), after)
        assert decibels_of_error(resampled.samples, np.zeros(after)) < -80


def test_unusual_sample_rates_and_lengths():
    for before in (44_099, 11_127):
        assert decibels_of_error(resample(sine(1_000, before), 24_000).samples, sine(1_000, 24_000).samples) < -80
    assert decibels_of_error(resample(sine(1_000, 383_987), 24_000).samples, sine(1_000, 24_000).samples) < -70
    for length in (1, 2, 999, 1_001):
        assert len(resample(Audio(np.zeros(length, np.float32), 44_100), 24_000).samples) == math.ceil(
            length * 80 / 147
        )
    audio = noise(0.1)
    assert resample(audio, 24_000) is audio


def test_samples_stay_within_range():
    square = Audio(np.sign(sine(300, 44_100).samples), 44_100)
    assert np.abs(resample(square, 24_000).samples).max() == 1


def test_the_codecs_own_filter():
    # From the definition, one output sample at a time: a Hann-windowed sinc at 0.99 of the lower rate.
    wave = torch.from_numpy(noise(0.01).samples)
    resampled = _hann_resample(wave[None, None], 24_000, 16_000)[0, 0]
    assert len(resampled) == 160
    cutoff = 0.99 * 16_000
    for index in (0, 1, 40, 159):
        t = (np.arange(len(wave)) / 24_000 - index / 16_000) * cutoff
        kernel = np.where(np.abs(t) < 6, np.sinc(t) * np.cos(t * math.pi / 12) ** 2, 0) * cutoff / 24_000
        assert abs(float(resampled[index]) - float(kernel @ wave.numpy())) < 1e-6
    assert _hann_resample(torch.zeros(2, 3, 1_001), 24_000, 16_000).shape == (2, 3, 668)


# -- codecs -----------------------------------------------------------------------------------------------------------


def higgs_config(**changes):
    """The paper's codec in shape, small in width: 24 kHz, 960 samples to a frame, 8 codebooks of 1,024."""
    from transformers import DacConfig, HubertConfig
    from transformers.models.higgs_audio_v2_tokenizer.configuration_higgs_audio_v2_tokenizer import (
        HiggsAudioV2TokenizerConfig,
    )

    ratios = [8, 5, 4, 2, 3]
    small = {
        "acoustic_model_config": DacConfig(
            encoder_hidden_size=4,
            decoder_hidden_size=64,
            hidden_size=16,
            downsampling_ratios=ratios,
            upsampling_ratios=ratios,
        ),
        "semantic_model_config": HubertConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            conv_dim=(8,) * 7,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2,
            mask_time_prob=0.0,
        ),
    }
    return HiggsAudioV2TokenizerConfig(target_bandwidths=[0.5, 1, 1.5, 2], **{**small, **changes})


@pytest.fixture(scope="module")
def higgs() -> Codec:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = higgs_model_class()(higgs_config()).eval()
        seen = []
        hook = model.quantizer.quantizers[0].project_in.register_forward_hook(lambda *args: seen.append(args[2]))
        with torch.no_grad():
            model.encode(torch.from_numpy(noise(4.0, seed=9).samples)[None, None])
        hook.remove()
        spread = seen[0].reshape(-1, seen[0].shape[-1])
        for quantizer in model.quantizer.quantizers:  # all zero at first: put the codes where the latents are
            embed = quantizer.codebook.embed
            embed.copy_(spread.mean(0) + spread.std(0) * torch.randn_like(embed))
    return Codec(HiggsAudio(model))


@pytest.fixture(scope="module")
def dac() -> Codec:
    from transformers import DacConfig, DacModel

    config = DacConfig(
        encoder_hidden_size=4,
        decoder_hidden_size=64,
        hidden_size=64,
        downsampling_ratios=[2, 4, 5, 8],
        upsampling_ratios=[8, 5, 4, 2],
        n_codebooks=6,
        sampling_rate=24_000,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Codec(Dac(DacModel(config)), codebooks=3, codebook_offsets=True)


def test_thirty_seconds_are_three_thousand_ids(higgs):
    (ids,) = higgs.encode([noise(30.0)])
    assert ids.shape == (3_000,)
    assert ids.dtype == np.int32
    assert (higgs.vocab_size, higgs.modality) == (1_024, Modality.AUDIO)
    assert len(np.unique(ids)) > 20
    (audio,) = higgs.decode([ids])
    assert (len(audio.samples), audio.sample_rate) == (720_000, 24_000)
    assert audio.samples.dtype == np.float32


@pytest.mark.parametrize(
    ("samples", "rate", "frames"),
    [
        (1, 24_000, 1),
        (960, 24_000, 1),
        (961, 24_000, 2),
        (1, 44_100, 1),
        (44_100, 44_100, 25),
        (44_101, 44_100, 26),
        (32_000, 16_000, 50),
    ],
)
def test_frames_cover_all_samples(higgs, samples, rate, frames):
    audio = Audio(np.full(samples, 0.1, np.float32), rate)
    (ids,) = higgs.encode([audio])
    assert len(ids) == 4 * frames
    assert len(higgs.decode([ids])[0].samples) == 960 * frames


def test_ids_are_the_first_codebooks_frame_by_frame(higgs):
    wave = torch.from_numpy(noise(1.0).samples)[None, None]
    model = higgs.network.model
    with torch.no_grad():
        codes_KF = model.encode(wave, bandwidth=1.0).audio_codes[0]  # 1 kbit/s is 4 codebooks
        decoded = model.decode(codes_KF[None]).audio_values[0, 0].numpy()
    assert codes_KF.shape == (4, 25)
    assert not torch.equal(codes_KF[0], codes_KF[1])
    (ids,) = higgs.encode([noise(1.0)])
    np.testing.assert_array_equal(ids[:8], [*codes_KF[:, 0], *codes_KF[:, 1]])
    np.testing.assert_array_equal(ids.reshape(25, 4).T, codes_KF)
    np.testing.assert_allclose(higgs.decode([ids])[0].samples, np.clip(decoded, -1, 1), atol=1e-6)
    eight = Codec(higgs.network, codebooks=8).encode([noise(1.0)])[0]
    np.testing.assert_array_equal(eight.reshape(25, 8)[:, :4].reshape(-1), ids)


def test_offsets_give_each_codebook_its_range(higgs):
    plain = higgs.encode([noise(0.5)])[0]
    with_offsets = Codec(higgs.network, codebook_offsets=True)
    assert with_offsets.vocab_size == 4_096
    (ids,) = with_offsets.encode([noise(0.5)])
    np.testing.assert_array_equal(ids // 1_024, np.tile([0, 1, 2, 3], 13))
    np.testing.assert_array_equal(ids % 1_024, plain)
    np.testing.assert_array_equal(with_offsets.decode([ids])[0].samples, higgs.decode([plain])[0].samples)


@pytest.mark.parametrize("name", ["higgs", "dac"])
def test_items_do_not_depend_on_their_batch(name, request):
    codec = request.getfixturevalue(name)
    clips = [noise(0.31), noise(1.7, seed=1), noise(0.9, rate=16_000, seed=2)]
    together = codec.encode(clips)
    for clip, ids in zip(clips, together):
        np.testing.assert_array_equal(codec.encode([clip])[0], ids)
        np.testing.assert_array_equal(codec.decode([*together[:1], ids])[1].samples, codec.decode([ids])[0].samples)


def test_dac(dac):
    assert (dac.vocab_size, dac.network.hop_length) == (3_072, 320)
    (ids,) = dac.encode([noise(0.5)])
    assert len(ids) == math.ceil(0.5 * 75) * 3
    np.testing.assert_array_equal(ids // 1_024, np.tile([0, 1, 2], 38))
    with torch.no_grad():
        wave = np.pad(noise(0.5).samples, (0, 160))
        codes_KF = dac.network.model.encode(torch.from_numpy(wave)[None, None], n_quantizers=3).audio_codes[0]
    np.testing.assert_array_equal(ids.reshape(-1, 3).T % 1_024, codes_KF)
    assert len(dac.decode([ids])[0].samples) == 38 * 320


@pytest.mark.parametrize("name", ["higgs", "dac"])
def test_saved_and_loaded(name, request, tmp_path, capfd):
    codec = request.getfixturevalue(name)
    codec.save(tmp_path)
    loaded = load_audio_tokenizer(tmp_path)
    assert loaded.fingerprint == codec.fingerprint
    assert json.loads((tmp_path / "tokenizer.json").read_text())["fingerprint"] == codec.fingerprint
    assert (loaded.vocab_size, loaded.num_codebooks, loaded.kind) == (codec.vocab_size, codec.num_codebooks, name)
    np.testing.assert_array_equal(loaded.encode([noise(0.4)])[0], codec.encode([noise(0.4)])[0])
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".safetensors")]
    assert capfd.readouterr() == ("", "")


def test_different_codecs_have_different_fingerprints(higgs):
    assert Codec(higgs.network, codebooks=3).fingerprint != higgs.fingerprint
    assert Codec(higgs.network, codebook_offsets=True).fingerprint != higgs.fingerprint


def test_the_real_higgs_has_200_million_parameters():
    from transformers import DacConfig

    ratios = [8, 5, 4, 2, 3]
    acoustic = DacConfig(
        encoder_hidden_size=64,
        decoder_hidden_size=1024,
        hidden_size=256,
        downsampling_ratios=ratios,
        upsampling_ratios=ratios,
    )
    with torch.device("meta"):
        model = higgs_model_class()(higgs_config(acoustic_model_config=acoustic, semantic_model_config=None))
    assert sum(weight.numel() for weight in model.parameters()) == 200_343_777
    network = HiggsAudio(model)
    assert (network.sample_rate, network.hop_length) == (24_000, 960)
    assert (network.num_codebooks, network.codebook_size) == (8, 1_024)


def test_the_torchaudio_stand_in_is_removed(monkeypatch):
    from transformers.utils import is_torchaudio_available

    model_class = higgs_model_class()
    assert "torchaudio" not in sys.modules
    assert not is_torchaudio_available()
    module = sys.modules[model_class.__module__]
    assert module.torchaudio.functional.resample is _hann_resample
    # With the real package installed, the stand-in is used all the same and the real one stays.
    real = ModuleType("torchaudio")
    monkeypatch.setitem(sys.modules, "torchaudio", real)
    monkeypatch.delitem(sys.modules, model_class.__module__)
    assert sys.modules[higgs_model_class().__module__].torchaudio is not real
    assert sys.modules["torchaudio"] is real


# -- errors ----------------------------------------------------------------------------------------------------------


def test_wrong_audio_is_refused(higgs):
    with pytest.raises(DataError, match=r"is 30\.04 s long, the limit is 30 s"):
        higgs.encode([noise(30.04)])
    for samples in (np.zeros(0), np.zeros((10, 2)), np.array([0.0, np.nan])):
        with pytest.raises(DataError, match="one channel of at least one sample, all finite"):
            higgs.encode([Audio(samples.astype(np.float32), 24_000)])


def test_wrong_ids_are_refused(higgs):
    with pytest.raises(UserError, match=r"expected a multiple of 4 audio ids \(one per codebook\), got shape \[6\]"):
        higgs.decode([np.zeros(6, np.int32)])
    for wrong in (-1, 1_024):
        with pytest.raises(UserError, match=r"must be in \[0, 1024\)"):
            higgs.decode([np.full(4, wrong)])
    assert len(higgs.decode([np.zeros(0, np.int32)])[0].samples) == 0


def test_wrong_numbers_of_codebooks_are_refused(higgs):
    for wrong in (0, 9):
        with pytest.raises(UserError, match="has 8 codebooks"):
            Codec(higgs.network, codebooks=wrong)


def test_incomplete_folders_are_refused(higgs, tmp_path):
    from safetensors.torch import load_file, save_file

    higgs.save(tmp_path)
    with pytest.raises(CheckpointError, match="not a complete DacModel") as caught:
        Dac.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["fc2.bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 weights are missing, such as fc2\.bias"):
        load_audio_tokenizer(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"Pass a local folder with config\.json and model\.safetensors"):
        load_audio_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"kind": "higgs", "version": 1}')
    with pytest.raises(CheckpointError, match="does not describe a codec"):
        load_audio_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="HiggsAudioV2TokenizerModel cannot be loaded from"):
        HiggsAudio.from_pretrained(tmp_path / "nothing" / "here")


def test_hostile_codecs_are_refused_at_once(tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import DacConfig, DacModel

    shape = {"encoder_hidden_size": 8, "decoder_hidden_size": 8, "downsampling_ratios": [2, 2], "n_codebooks": 2}
    config = DacConfig(**shape, upsampling_ratios=[2, 2], codebook_size=16, codebook_dim=4, sampling_rate=8000)
    codec = Codec(Dac(DacModel(config)), codebooks=2)
    codec.save(tmp_path)
    assert load_audio_tokenizer(tmp_path).fingerprint == codec.fingerprint
    good = json.loads((tmp_path / "config.json").read_text())
    hostile = [{"n_codebooks": 10**9}, {"codebook_size": 10**12}, {"encoder_hidden_size": 10**9}]
    hostile += [{"downsampling_ratios": [2] * 10**5}, {"sampling_rate": 10**30}, {"downsampling_ratios": [0, 2]}]
    for changes in hostile:
        (tmp_path / "config.json").write_text(json.dumps({**good, **changes}))
        started = time.monotonic()
        with pytest.raises(CheckpointError) as caught:
            load_audio_tokenizer(tmp_path)
        assert "\n" not in str(caught.value)
        assert time.monotonic() - started < 20, changes
    (tmp_path / "config.json").write_text(json.dumps(good))
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**spec, "max_seconds": math.nan}))
    with pytest.raises(CheckpointError, match="does not describe a codec"):
        load_audio_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    weights = load_file(tmp_path / "model.safetensors")
    weights[min(weights)].view(-1)[0] = math.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="numbers that are not finite"):
        load_audio_tokenizer(tmp_path)
