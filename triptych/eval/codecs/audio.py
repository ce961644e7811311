"""Audio codecs: the tokenizers of this package, and the classes of transformers.

    RVQ          tokenizers (mel-rvq, higgs, dac), DacModel, EncodecModel, MimiModel, XcodecModel,
                 HiggsAudioV2TokenizerModel
    continuous   PocketTTSAudioTokenizerModel, VibeVoiceAcousticTokenizerModel

Xcodec2Model and NeuCodecModel cannot be evaluated: they take spectrograms that transformers computes with torchaudio.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.errors import CheckpointError, DataError
from triptych.eval.codecs.base import (
    CodecFacts,
    Encoded,
    MediaCodec,
    class_of,
    codec_folder,
    is_saved_tokenizer,
    short_name,
)
from triptych.eval.pretrained import find_pretrained, load_weights
from triptych.tokenizers.audio import Codec, Dac, HiggsAudio, Network, higgs_model_class, load_audio_tokenizer, resample
from triptych.tokenizers.base import AudioTokenizer
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.utils.media import Audio

AudioCodec = MediaCodec[Audio]
_PURPOSE = "an audio codec"
_NEEDS_TORCHAUDIO = ("Xcodec2Model", "NeuCodecModel")

# T samples, K codebooks, F frames


def open_audio_codec(source: str, device: str = "cpu") -> AudioCodec:
    """Open a codec by the folder of a tokenizer, of a bundle, or of a class of transformers."""
    if source in BUILTIN_TOKENIZERS or (Path(source) / "vocab.json").exists():
        return _of_tokenizer(TokenizerBundle.load(source).audio, source, device)
    folder = codec_folder(source)
    if is_saved_tokenizer(folder):
        tokenizer: Any = load_audio_tokenizer(folder)
        return _of_tokenizer(tokenizer, source, device)
    name, _ = class_of(folder)
    if name in _NEEDS_TORCHAUDIO:
        raise CheckpointError(f"{source} is a {name}, whose spectrograms need torchaudio; it cannot be evaluated here.")
    if name not in _OPENERS:
        raise CheckpointError(f"{source} is a {name}, which is no audio codec; there are {', '.join(AUDIO_CLASSES)}.")
    return _OPENERS[name](folder, source, device)


def _of_tokenizer(tokenizer: Any, source: str, device: str) -> AudioCodec:
    if isinstance(tokenizer, Codec):
        tokenizer.to(device)
        network = tokenizer.network
        return NetworkAudio(network, f"{network.kind} ({short_name(source)})", tokenizer.num_codebooks)
    return TokenizerAudio(tokenizer, source)


class TokenizerAudio:
    """An audio tokenizer of this package; of a mel-rvq, the first codebooks alone can be decoded."""

    def __init__(self, tokenizer: AudioTokenizer, source: str):
        self.tokenizer = tokenizer
        rate = tokenizer.mel.rate if isinstance(tokenizer, MelRVQ) else 16_000
        shared = getattr(tokenizer, "codebook_offsets", False)
        self.facts = CodecFacts(
            name=f"{'mel-rvq' if isinstance(tokenizer, MelRVQ) else type(tokenizer).__name__} ({short_name(source)})",
            type="RVQ" if tokenizer.num_codebooks > 1 else "VQ",
            downsampling=round(rate / tokenizer.frame_rate),
            vocabulary=tokenizer.vocab_size // (tokenizer.num_codebooks if shared else 1),
            num_codebooks=tokenizer.num_codebooks,
            sample_rate=rate,
        )

    def encode(self, item: Audio) -> Encoded:
        ids = np.asarray(self.tokenizer.encode([item])[0], np.int64).reshape(-1, self.facts.num_codebooks)
        assert self.facts.vocabulary is not None
        return Encoded((ids % self.facts.vocabulary).T)

    def decode(self, encoded: Encoded, codebooks: int | None = None) -> Audio:
        assert encoded.codes is not None
        codebooks = codebooks or self.facts.num_codebooks
        tokenizer: Any = self.tokenizer
        if isinstance(tokenizer, MelRVQ) and (codebooks < tokenizer.num_codebooks or tokenizer.codebook_offsets):
            books = tokenizer.codebooks[:codebooks]
            tokenizer = MelRVQ(tokenizer.mean, tokenizer.basis, books, tokenizer.decoder, tokenizer.mel)
        return tokenizer.decode([encoded.codes[:codebooks].T.reshape(-1)])[0]


class NetworkAudio:
    """A network with residual codebooks."""

    def __init__(self, network: Network, name: str, codebooks: int | None = None):
        self.network = network
        self.facts = CodecFacts(
            name=name,
            type="RVQ",
            downsampling=network.hop_length,
            vocabulary=network.codebook_size,
            num_codebooks=codebooks or network.num_codebooks,
            sample_rate=network.sample_rate,
        )

    @torch.inference_mode()
    def encode(self, item: Audio) -> Encoded:
        wave = _whole_frames(item, self.network.sample_rate, self.network.hop_length)
        codes = self.network.encode(wave.to(self.network.model.device))[: self.facts.num_codebooks]
        return Encoded(codes.cpu().numpy().astype(np.int64))

    @torch.inference_mode()
    def decode(self, encoded: Encoded, codebooks: int | None = None) -> Audio:
        assert encoded.codes is not None
        codes = torch.from_numpy(encoded.codes[:codebooks]).to(self.network.model.device)
        return _audio(self.network.decode(codes), self.network.sample_rate, codes.shape[1] * self.network.hop_length)


class LatentAudio:
    """A continuous codec: functions from a waveform [1, 1, T] to latents and back."""

    def __init__(
        self, facts: CodecFacts, encode: Callable[[Tensor], Tensor], decode: Callable[[Tensor], Tensor], device: str
    ):
        self.facts, self._encode, self._decode, self.device = facts, encode, decode, device

    @torch.inference_mode()
    def encode(self, item: Audio) -> Encoded:
        assert self.facts.sample_rate is not None
        wave = _whole_frames(item, self.facts.sample_rate, self.facts.downsampling)
        return Encoded(None, (self._encode(wave[None, None].to(self.device)), len(wave)))

    @torch.inference_mode()
    def decode(self, encoded: Encoded, codebooks: int | None = None) -> Audio:
        assert self.facts.sample_rate is not None
        latents, length = encoded.state
        return _audio(self._decode(latents).flatten(), self.facts.sample_rate, length)


def _whole_frames(item: Audio, rate: int, hop: int) -> Tensor:
    """[T] at the codec's rate, the last frame padded with silence."""
    samples = np.asarray(resample(item, rate).samples, np.float32)
    if not len(samples) or not np.isfinite(samples).all():
        raise DataError("a clip must have samples, all finite.")
    return torch.from_numpy(np.pad(samples, (0, -len(samples) % hop)))


def _audio(wave: Tensor, rate: int, length: int) -> Audio:
    """A clip of whole frames: networks that lose or add a few samples at the end are filled up or cut."""
    samples = np.nan_to_num(wave.float().cpu().numpy())[:length]
    return Audio(np.clip(np.pad(samples, (0, length - len(samples))), -1, 1), rate)


# -- classes of transformers ------------------------------------------------------------------------------------------


class _Encodec:
    """EnCodec at 24 kHz. Its 48 kHz model is stereo and stores a loudness beside the codes of each second."""

    kind = "encodec"

    def __init__(self, model: Any, source: str):
        config = model.config
        if config.audio_channels != 1 or config.chunk_length_s is not None or config.normalize:
            raise CheckpointError(
                f"{source}: only EnCodec with one channel and without chunks can be evaluated, such as "
                "facebook/encodec_24khz."
            )
        self.model, self.sample_rate, self.hop_length = model, config.sampling_rate, config.hop_length
        self.num_codebooks, self.codebook_size = config.num_quantizers, config.codebook_size

    def encode(self, wave_T: Tensor) -> Tensor:
        most = self.model.config.target_bandwidths[-1]
        return self.model.encode(wave_T[None, None], bandwidth=most).audio_codes[0, 0]

    def decode(self, codes_KF: Tensor) -> Tensor:
        return self.model.decode(codes_KF[None, None], [None]).audio_values[0, 0]


class _Mimi:
    """Mimi: one semantic codebook and residual ones, 12.5 frames per second."""

    kind = "mimi"

    def __init__(self, model: Any, source: str):
        config = model.config
        self.model, self.sample_rate = model, config.sampling_rate
        self.hop_length = round(config.sampling_rate / config.frame_rate)
        self.num_codebooks, self.codebook_size = config.num_quantizers, config.codebook_size

    def encode(self, wave_T: Tensor) -> Tensor:
        return self.model.encode(wave_T[None, None], num_quantizers=self.num_codebooks).audio_codes[0]

    def decode(self, codes_KF: Tensor) -> Tensor:
        return self.model.decode(codes_KF[None]).audio_values[0, 0]


class _Xcodec:
    """X-Codec: a DAC and a HuBERT, quantized together, at 16 kHz."""

    kind = "xcodec"

    def __init__(self, model: Any, source: str):
        config = model.config
        self.model, self.sample_rate, self.hop_length = model, config.sample_rate, config.hop_length
        self.num_codebooks, self.codebook_size = config.num_quantizers, config.codebook_size

    def encode(self, wave_T: Tensor) -> Tensor:
        most = self.model.config.target_bandwidths[-1]
        return self.model.encode(wave_T[None, None], bandwidth=most).audio_codes[0]

    def decode(self, codes_KF: Tensor) -> Tensor:
        return self.model.decode(codes_KF[None]).audio_values[0, 0]


def _model(name: str, folder: Path, device: str) -> Any:
    import transformers

    pretrained_model = find_pretrained(folder, (), _PURPOSE)
    model_class = higgs_model_class() if name == "HiggsAudioV2TokenizerModel" else getattr(transformers, name)
    return load_weights(model_class, pretrained_model, _PURPOSE, device)


def _rvq(name: str, adapter: Callable[[Any, str], Network]) -> Callable[[Path, str, str], AudioCodec]:
    def open_codec(folder: Path, source: str, device: str) -> AudioCodec:
        return NetworkAudio(adapter(_model(name, folder, device), source), f"{name} ({short_name(source)})")

    return open_codec


def _open_pocket(folder: Path, source: str, device: str) -> AudioCodec:
    model = _model("PocketTTSAudioTokenizerModel", folder, device)
    config = model.config
    facts = CodecFacts(
        name=f"PocketTTSAudioTokenizerModel ({short_name(source)})",
        type="continuous",
        downsampling=config.frame_size,
        vocabulary=None,
        latent_size=config.latent_dim,
        sample_rate=config.sampling_rate,
    )
    return LatentAudio(
        facts, lambda wave: model.encode(wave).latents, lambda latents: model.decode(latents).audio_values, device
    )


def _open_vibevoice(folder: Path, source: str, device: str) -> AudioCodec:
    model = _model("VibeVoiceAcousticTokenizerModel", folder, device)
    facts = CodecFacts(
        name=f"VibeVoiceAcousticTokenizerModel ({short_name(source)})",
        type="continuous",
        downsampling=model.config.hop_length,
        vocabulary=None,
        latent_size=model.config.hidden_size,
        sample_rate=24_000,  # the configuration does not say it
    )
    return LatentAudio(
        facts,
        lambda wave: model.encode(wave, sample=False).latents,
        lambda latents: model.decode(latents).audio,
        device,
    )


_OPENERS: dict[str, Callable[[Path, str, str], AudioCodec]] = {
    "DacModel": _rvq("DacModel", lambda model, source: Dac(model)),
    "EncodecModel": _rvq("EncodecModel", _Encodec),
    "MimiModel": _rvq("MimiModel", _Mimi),
    "XcodecModel": _rvq("XcodecModel", _Xcodec),
    "HiggsAudioV2TokenizerModel": _rvq("HiggsAudioV2TokenizerModel", lambda model, source: HiggsAudio(model)),
    "PocketTTSAudioTokenizerModel": _open_pocket,
    "VibeVoiceAcousticTokenizerModel": _open_vibevoice,
}
AUDIO_CLASSES = tuple(_OPENERS)
