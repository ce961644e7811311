"""Log-mel spectrograms and their inversion: spectrum from mels, phases by fast Griffin-Lim. Needs no torchaudio."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from triptych.errors import UserError
from triptych.utils.arguments import check_fields

_MAX_FFT = 1 << 13

# S samples, T frames, F frequencies, M mel bands


@dataclass(frozen=True, kw_only=True)
class MelConfig:
    """Log-mel spectrogram; by default one frame per 10 ms of audio at 16 kHz."""

    rate: int = 16_000
    hop: int = 160
    window: int = 640
    fft: int = 1024
    bands: int = 80
    top_hz: float = 8000.0
    floor: float = 1e-3
    """Mel magnitudes below this count as silence, so that breath noise uses no codes."""

    def __post_init__(self) -> None:
        check_fields(self)
        is_possible = (
            0 < self.hop <= self.window <= self.fft <= _MAX_FFT
            and 0 < self.rate <= 1000 * self.hop  # at most one frame in a millisecond
            and 0 < self.bands <= self.fft // 2
            and 0 < self.top_hz <= self.rate / 2
            and 0 < self.floor < math.inf
        )
        if not is_possible:
            raise UserError(f"no spectrogram has these settings: {self}.")

    @cached_property
    def filters(self) -> Tensor:
        """[M, F] triangular filters, equally spaced on the mel scale."""
        hz = torch.linspace(0, self.rate / 2, self.fft // 2 + 1, dtype=torch.float64)
        top_mel = 2595 * torch.log10(torch.tensor(1 + self.top_hz / 700, dtype=torch.float64))
        mels = torch.linspace(0, 1, self.bands + 2, dtype=torch.float64) * top_mel
        edges = 700 * (10 ** (mels / 2595) - 1)
        rise = (hz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        fall = (edges[2:, None] - hz) / (edges[2:] - edges[1:-1])[:, None]
        filters = torch.minimum(rise, fall).clamp(min=0)
        return (filters / filters.sum(1, keepdim=True).clamp(min=1e-9)).float()

    def stft(self, samples: Tensor) -> Tensor:
        """[S] or [B, S] -> complex [..., F, T], one frame per hop."""
        return torch.stft(
            samples, self.fft, self.hop, self.window, torch.hann_window(self.window), center=True, return_complex=True
        )

    def istft(self, spectrum: Tensor, num_samples: int) -> Tensor:
        return torch.istft(
            spectrum, self.fft, self.hop, self.window, torch.hann_window(self.window), center=True, length=num_samples
        )

    def magnitude(self, samples: Tensor) -> Tensor:
        """[..., S] -> [..., T, F], T = S // hop."""
        num_frames = samples.shape[-1] // self.hop
        return self.stft(samples).abs().transpose(-1, -2)[..., :num_frames, :]

    def log_mel(self, samples: Tensor) -> Tensor:
        """[..., S] -> [..., T, M]."""
        return (self.magnitude(samples) @ self.filters.T).clamp(min=self.floor).log()

    def magnitude_from_log_mel(self, log_mel: Tensor) -> Tensor:
        """[T, M] -> [T, F] by the filters' transpose, scaled so that each band keeps its energy."""
        spread = self.filters / self.filters.square().sum(1, keepdim=True).clamp(min=1e-9)
        coverage = (self.filters.sum(0) > 0).float()
        return (log_mel.exp() @ spread) / (spread.T @ self.filters.sum(1)).clamp(min=1e-9) * coverage


def griffin_lim(magnitude: Tensor, config: MelConfig, iterations: int = 32, momentum: float = 0.99) -> Tensor:
    """[T, F] -> [S] audio with that magnitude (Perraudin et al. 2013); the random phase has a fixed seed."""
    num_samples = len(magnitude) * config.hop
    target = torch.cat([magnitude, magnitude[-1:]]).T  # centred frames: one more than hops
    generator = torch.Generator().manual_seed(0)
    phase = torch.rand(target.shape, generator=generator) * (2 * torch.pi)
    angles = torch.polar(torch.ones_like(target), phase)
    previous = torch.zeros_like(angles)
    for _ in range(iterations):
        rebuilt = config.stft(config.istft(target * angles, num_samples))
        angles = rebuilt - previous * (momentum / (1 + momentum))
        angles = angles / angles.abs().clamp(min=1e-9)
        previous = rebuilt
    return config.istft(target * angles, num_samples)
