"""Networks that turn audio into feature vectors, for Fréchet audio distances (FAD).

    whisper              encoder states of a Whisper (the installed tiny.en), averaged over each second
    clap=FOLDER          `ClapModel`: the normalised embedding of a window of 10 s, every second (Gui et al. 2024)
    encoder=FOLDER       any audio encoder of transformers that takes waveforms (WavLM, HuBERT, wav2vec 2.0, ...):
                         its last hidden states, averaged over each second

A clip gives one vector for each second that has begun, so the vectors of short and long clips mean the same. The
published FADs use VGGish or CLAP: distances of different networks are not comparable. There is no class for VGGish in
transformers.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from triptych.errors import UserError, did_you_mean
from triptych.eval.audio.whisper import STATES_PER_SECOND, Whisper, load_whisper
from triptych.eval.metrics import Judge
from triptych.eval.pretrained import find_pretrained, load_processor, load_weights
from triptych.tokenizers.audio import resample
from triptych.utils.media import Audio

_BATCH = 16
_CLAP_SECONDS = 10


class AudioFeatures(Protocol):
    """A network for clips of any length and sample rate."""

    kind: str
    title: str
    judge: Judge

    def __call__(self, clip: Audio) -> np.ndarray:
        """[n, d] float32, one vector for each second that has begun."""
        ...


class WhisperFeatures:
    """The states of Whisper's encoder, averaged over each second."""

    kind, title = "whisper", "Whisper encoder"

    def __init__(self, whisper: Whisper):
        self.whisper = whisper
        self.judge = Judge(f"{whisper.judge.name}, encoder", whisper.judge.sha256)

    def __call__(self, clip: Audio) -> np.ndarray:
        return mean_of_seconds(self.whisper.states(clip), STATES_PER_SECOND)


class ClapFeatures:
    """CLAP embeddings of windows of 10 s that start every second; the last ones are padded with silence."""

    kind, title = "clap", "CLAP"

    def __init__(self, source: str, device: str = "cpu"):
        purpose = "FAD with CLAP"
        pretrained_model = find_pretrained(source, ("clap",), purpose)
        from transformers import AutoFeatureExtractor, ClapModel

        self.model = load_weights(ClapModel, pretrained_model, purpose, device)
        self.extractor = load_processor(AutoFeatureExtractor, pretrained_model, purpose)
        self.judge, self.device = Judge(f"CLAP ({pretrained_model.name})", pretrained_model.sha256), device

    @torch.inference_mode()
    def __call__(self, clip: Audio) -> np.ndarray:
        rate = int(self.extractor.sampling_rate)
        samples = resample(clip, rate).samples
        width = _CLAP_SECONDS * rate
        starts = range(0, max(len(samples), 1), rate)
        windows = [np.pad(each, (0, width - len(each))) for each in (samples[at : at + width] for at in starts)]
        vectors = []
        for start in range(0, len(windows), _BATCH):
            inputs = self.extractor(
                windows[start : start + _BATCH], sampling_rate=rate, padding="pad", return_tensors="pt"
            )
            # No window is longer than the network's own; the extractor would mark one at random.
            is_longer = torch.zeros_like(inputs["is_longer"])
            features = self.model.get_audio_features(
                input_features=inputs["input_features"].to(self.device), is_longer=is_longer.to(self.device)
            )
            vectors.append(features.pooler_output.float().cpu().numpy())
        return np.concatenate(vectors)


class EncoderFeatures:
    """The last hidden states of an encoder of waveforms, averaged over each second."""

    kind = "encoder"

    def __init__(self, source: str, device: str = "cpu"):
        purpose = "FAD with an audio encoder"
        pretrained_model = find_pretrained(source, (), purpose)
        from transformers import AutoFeatureExtractor, AutoModel

        self.extractor = load_processor(AutoFeatureExtractor, pretrained_model, purpose)
        if "input_values" not in self.extractor.model_input_names:
            raise UserError(
                f"{purpose}: {pretrained_model.name} ({pretrained_model.model_type}) takes no waveforms; use WavLM, "
                "HuBERT, wav2vec 2.0, or clap=FOLDER for CLAP."
            )
        self.model = load_weights(AutoModel, pretrained_model, purpose, device)
        self.kind, self.title = pretrained_model.model_type.replace("-", "_"), f"{pretrained_model.model_type} encoder"
        self.judge, self.device = (
            Judge(f"{pretrained_model.name} ({pretrained_model.model_type})", pretrained_model.sha256),
            device,
        )

    @torch.inference_mode()
    def __call__(self, clip: Audio) -> np.ndarray:
        rate = int(self.extractor.sampling_rate)
        samples = np.asarray(resample(clip, rate).samples, np.float32)
        samples = np.pad(samples, (0, max(0, rate - len(samples))))  # their convolutions need a few hundred samples
        inputs = self.extractor(samples, sampling_rate=rate, return_tensors="pt")
        hidden = self.model(inputs["input_values"].to(self.device)).last_hidden_state[0]
        return mean_of_seconds(hidden.float().cpu().numpy(), len(hidden) * rate / len(samples))


def mean_of_seconds(states: np.ndarray, per_second: float) -> np.ndarray:
    """[n, d] states at a constant rate -> the mean of each second; the last one may be shorter."""
    number = max(1, int(np.ceil(len(states) / per_second - 1e-6)))
    edges = np.minimum(np.round(np.arange(number + 1) * per_second).astype(int), len(states))
    return np.stack([states[a:b].mean(0) for a, b in pairwise(edges) if b > a]).astype(np.float32)


@dataclass(frozen=True)
class AudioFeatureSpec:
    """A network by its name, before it is loaded. Picklable."""

    kind: str
    source: str = ""

    @classmethod
    def parse(cls, text: str) -> "AudioFeatureSpec":
        """`whisper`, `whisper=FOLDER`, `clap=FOLDER`, `encoder=OWNER/NAME`."""
        kind, _, source = text.partition("=")
        kinds = ("whisper", "clap", "encoder")
        if kind not in kinds:
            raise UserError(f"there are no audio features {kind!r}.{did_you_mean(kind, kinds)}")
        if kind != "whisper" and not source:
            raise UserError(f"audio features {text!r} need weights: {kind}=FOLDER or {kind}=OWNER/NAME.")
        return cls(kind, source)

    def __str__(self) -> str:
        return f"{self.kind}={self.source}" if self.source else self.kind

    def load(self, device: str = "cpu") -> AudioFeatures:
        """Load the network; what is missing is a `UserError` that names it."""
        match self.kind:
            case "whisper":
                return WhisperFeatures(load_whisper(self.source or None, device=device))
            case "clap":
                return ClapFeatures(self.source, device)
            case _:
                return EncoderFeatures(self.source, device)
