"""How well a tokenizer reconstructs what it encodes: PSNR of images, distance of the log-mels of audio.

A folder of tokenizers may hold `report.json`, the values on samples that they were not fitted to. `poor_reconstruction`
compares other samples with them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from triptych.tokenizers.audio import resample
from triptych.tokenizers.base import AudioTokenizer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.mel import MelConfig
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.tokenizers.pixels import resize_with_white_padding
from triptych.utils.json_files import read_json
from triptych.utils.media import Audio

REPORT = "report.json"
TAIL = 5
"""Percent of the held-out samples that are reconstructed worse than `psnr_low` or `log_mel_high` in the report."""
_MUCH_DB = 3.0  # below `psnr_low`: other images, not just difficult ones
_MUCH_RATIO = 1.5  # of `log_mel_high`
_MEL = MelConfig()


_LEAST_ERROR = 1e-3  # mean squared, of 255 levels
LARGEST_PSNR = float(10 * np.log10(255**2 / _LEAST_ERROR))
"""Of equal images."""


def psnr(one: Image.Image, other: Image.Image) -> float:
    """Peak signal-to-noise ratio in dB of two images of the same size."""
    difference = np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    return float(10 * np.log10(255**2 / max(np.square(difference).mean(), _LEAST_ERROR)))


def image_psnr(bundle: TokenizerBundle, images: Sequence[Image.Image]) -> np.ndarray:
    """[n] PSNR of images and their reconstructions."""
    given = [resize_with_white_padding(image, bundle.image.resolution) for image in images]
    rebuilt = bundle.image.decode(bundle.image.encode(given))
    return np.array([psnr(one, other) for one, other in zip(given, rebuilt)])


def audio_distance(bundle: TokenizerBundle, clips: Sequence[Audio]) -> np.ndarray:
    """[n] distance of the log-mels of clips and their reconstructions."""
    ids = bundle.audio.encode(list(clips))
    return np.array([log_mel_distance(clip, row, bundle.audio) for clip, row in zip(clips, ids)])


@torch.inference_mode()
def log_mel_distance(given: Audio, ids: np.ndarray, tokenizer: AudioTokenizer) -> float:
    """Mean absolute difference between the log-mels of audio and of its reconstruction."""
    if isinstance(tokenizer, MelRVQ):  # its mels are known without the phases, which take long to find
        mel = tokenizer.mel
        codes = torch.from_numpy(ids.astype(np.int64)).view(-1, tokenizer.num_codebooks)
        decoded = (tokenizer.magnitude(tokenizer.dequantize(codes)) @ mel.filters.T).clamp(min=mel.floor).log()
    else:
        mel = _MEL
        decoded = _log_mel(tokenizer.decode([ids])[0], mel)
    encoded = _log_mel(given, mel)
    count = min(len(encoded), len(decoded))
    return float((encoded[:count] - decoded[:count]).abs().mean())


def _log_mel(audio: Audio, mel: MelConfig) -> torch.Tensor:
    samples = np.ascontiguousarray(resample(audio, mel.rate).samples, np.float32)
    # A spectrogram reflects half a window, so it needs a whole one.
    return mel.log_mel(torch.from_numpy(np.pad(samples, (0, max(0, mel.fft - len(samples))))))


def read_report(bundle: TokenizerBundle) -> dict[str, Any]:
    """The report of a folder of tokenizers; empty if there is none."""
    path = None if bundle.folder is None else bundle.folder / REPORT
    try:
        return {} if path is None else dict(read_json(path))
    except (OSError, ValueError):
        return {}


def poor_reconstruction(
    bundle: TokenizerBundle, images: Sequence[Image.Image] = (), clips: Sequence[Audio] = ()
) -> str | None:
    """A warning if samples are reconstructed much worse than those of the report; None if not, or without a report."""
    report = read_report(bundle)
    known: dict[str, Any] = report.get("image", {}) if images else report.get("audio", {})
    if images and "psnr_low" in known:
        value = float(np.median(image_psnr(bundle, images)))
        if value < known["psnr_low"] - _MUCH_DB:
            return _warning("images", f"{value:.1f} dB", f"{known['psnr']:.1f} dB")
    if clips and "log_mel_high" in known:
        value = float(np.median(audio_distance(bundle, clips)))
        if value > known["log_mel_high"] * _MUCH_RATIO:
            shown = f"a log-mel distance of {value:.2f}"
            return _warning("recordings", shown, f"{known['log_mel']:.2f}")
    return None


def _warning(what: str, value: str, usual: str) -> str:
    return (
        f"warning: these {what} are reconstructed with {value}, those that the tokenizers were fitted to with {usual}: "
        "a model will not generate them well. Fit tokenizers to them with `triptych tokenizers fit`."
    )
