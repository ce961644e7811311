"""Which of the known voices speaks in a clip: a linear classifier of long-term spectrum and pitch.

    recognizer = VoiceRecognizer.fit({"emma": clips, "george": clips})
    recognizer.recognize(clips)      names

It sees 84 numbers of a clip: mean and spread of 40 log-mel bands over the frames with speech, relative to their level,
and the distribution of the pitch. The words hardly matter. Its weights are those of a linear discriminant analysis, in
closed form, so the same clips give the same classifier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from triptych.errors import UserError
from triptych.tokenizers.audio import resample
from triptych.tokenizers.mel import MelConfig
from triptych.utils.media import Audio

_MEL = MelConfig(bands=40, floor=1e-5)
_SPEECH_NATS = 3.0  # frames so much quieter than the loudest ones are not speech (26 dB)
_PITCH_HZ = (70.0, 400.0)
_VOICED = 0.5  # autocorrelation at the pitch, of 1
_NEARLY = 0.9  # of the highest peak: the first such peak is the pitch, the others are its multiples
_SHRINKAGE = 0.1  # of the covariance towards its diagonal
NUM_FEATURES = 2 * _MEL.bands + 4


@dataclass(frozen=True, eq=False)
class VoiceRecognizer:
    names: tuple[str, ...]
    weights: np.ndarray
    """[features, voices]."""
    bias: np.ndarray
    """[voices]."""

    @classmethod
    def fit(cls, clips: Mapping[str, Sequence[Audio]]) -> "VoiceRecognizer":
        """From clips of each voice, at least two."""
        if len(clips) < 2 or min(map(len, clips.values())) < 2:
            raise UserError("a classifier of voices needs at least two voices with two clips each.")
        features = [np.stack([voice_features(clip) for clip in of_voice]) for of_voice in clips.values()]
        means = np.stack([rows.mean(0) for rows in features])
        deviations = np.concatenate([rows - mean for rows, mean in zip(features, means)])
        covariance = deviations.T @ deviations / (len(deviations) - len(clips))
        diagonal = np.diag(np.diag(covariance) + 1e-6)
        weights = np.linalg.solve((1 - _SHRINKAGE) * covariance + _SHRINKAGE * diagonal, means.T)
        return cls(tuple(clips), weights, -0.5 * (means.T * weights).sum(0))

    def recognize(self, clips: Sequence[Audio]) -> list[str]:
        """The likeliest voice of each clip."""
        scores = [voice_features(clip) @ self.weights + self.bias for clip in clips]
        return [self.names[int(row.argmax())] for row in scores]


def voice_features(audio: Audio) -> np.ndarray:
    """Spectrum and pitch of a clip [84]; zeros if it is silent."""
    samples = torch.from_numpy(np.ascontiguousarray(resample(audio, _MEL.rate).samples, np.float32))
    if len(samples) < _MEL.fft:
        samples = torch.nn.functional.pad(samples, (0, _MEL.fft - len(samples)))
    magnitude = _MEL.magnitude(samples)
    log_mel = (magnitude @ _MEL.filters.T).clamp(min=_MEL.floor).log()
    level = log_mel.mean(1)
    is_speech = (level > level.max() - _SPEECH_NATS) & (log_mel.amax(1) > np.log(_MEL.floor))
    if not is_speech.any():
        return np.zeros(NUM_FEATURES)
    speech = log_mel[is_speech] - level[is_speech].mean()
    spectrum = [speech.mean(0).double().numpy(), speech.std(0, unbiased=False).double().numpy()]
    return np.concatenate([*spectrum, _pitch(magnitude[is_speech])])


def _pitch(magnitude_TF: torch.Tensor) -> np.ndarray:
    """Quantiles of the logarithm of the pitch in voiced frames, and the share of these frames."""
    correlation = torch.fft.irfft(magnitude_TF.double().square())
    window = torch.fft.rfft(torch.hann_window(_MEL.window, dtype=torch.float64), _MEL.fft).abs().square()
    correlation /= torch.fft.irfft(window).clamp(min=1e-3)  # that of the window itself
    low, high = (round(_MEL.rate / hertz) for hertz in reversed(_PITCH_HZ))
    heights = correlation[:, low - 1 : high + 1] / correlation[:, :1].clamp(min=1e-12)
    inner = heights[:, 1:-1]
    is_peak = (inner >= heights[:, :-2]) & (inner >= heights[:, 2:])
    peaks = torch.where(is_peak, inner, 0.0)
    highest = peaks.amax(1, keepdim=True)
    lag = low + (peaks >= _NEARLY * highest).int().argmax(1)
    is_voiced = highest[:, 0] > _VOICED
    if not is_voiced.any():
        return np.zeros(4)
    pitch = torch.log(_MEL.rate / lag[is_voiced].double())
    quantiles = torch.quantile(pitch, torch.tensor((0.2, 0.5, 0.8), dtype=torch.float64))
    return np.array([*quantiles.tolist(), float(is_voiced.double().mean())])
