"""Fit a `MelRVQ` to audio clips: principal components, then k-means per codebook, then the spectrum decoder."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.tokenizers.audio import resample
from triptych.tokenizers.fit_state import FitState
from triptych.tokenizers.kmeans import kmeans
from triptych.tokenizers.mel import MelConfig
from triptych.tokenizers.mel_rvq import STACK, MelRVQ, SpectrumDecoder
from triptych.utils.media import Audio
from triptych.utils.units import human_duration

Report = Callable[[str], None]


def fit_mel_rvq(
    clips: Sequence[Audio],
    num_codebooks: int,
    codes: int = 1024,
    components: int = 96,
    decoder_steps: int = 3000,
    mel: MelConfig | None = None,
    seed: int = 0,
    state: FitState | None = None,
    report: Report = print,
) -> MelRVQ:
    """Fit the quantiser and the decoder; `decoder_steps=0` fits no decoder. With a saved `state` it resumes exactly."""
    mel = mel or MelConfig()
    generator = torch.Generator().manual_seed(seed)
    waves = [_whole_frames(clip, mel) for clip in clips]
    features = torch.cat([mel.log_mel(wave).reshape(-1, STACK * mel.bands) for wave in waves])
    state = state or FitState()
    mean, basis, books = _read_quantizer(state) or _fit_quantizer(
        features, num_codebooks, codes, components, generator, report
    )
    tokenizer = MelRVQ(mean, basis, books, None, mel)
    if decoder_steps:
        parts = ((features - mean) @ basis).split(8192)  # all distances at once would not fit into memory
        quantized = torch.cat([tokenizer.dequantize(tokenizer.quantize(part)) for part in parts])
        kept = {"mean": mean, "basis": basis, "codebooks": books}
        tokenizer.decoder = fit_decoder(
            quantized, waves, mel, decoder_steps, seed, state=state, kept=kept, report=report
        ).eval()
    return tokenizer


Quantizer = tuple[Tensor, Tensor, Tensor]
"""Mean, basis and codebooks of a `MelRVQ`."""


def _read_quantizer(state: FitState) -> Quantizer | None:
    mean, basis, books = (state.read(name) for name in ("mean", "basis", "codebooks"))
    return None if mean is None or basis is None or books is None else (mean, basis, books)


def _fit_quantizer(
    features: Tensor, num_codebooks: int, codes: int, components: int, generator: torch.Generator, report: Report
) -> Quantizer:
    mean = features.mean(0)
    # Eigenvectors of the covariance; eigenvalues are in ascending order.
    basis = torch.linalg.eigh(torch.cov(features.T)).eigenvectors.flip(1)[:, :components].contiguous()
    residual = (features - mean) @ basis
    variance, codebooks = residual.square().sum(), []
    report(f"{len(features):,} frames, {components} components")
    for number in range(num_codebooks):
        codebook, chosen = kmeans(residual, codes, generator)
        residual = residual - codebook[chosen]
        codebooks.append(codebook)
        report(f"codebook {number}: {float(residual.square().sum() / variance):.2%} of the variance left")
    return mean, basis, torch.stack(codebooks)


def _whole_frames(clip: Audio, mel: MelConfig) -> Tensor:
    samples = resample(clip, mel.rate).samples
    return torch.from_numpy(np.pad(samples, (0, -len(samples) % (mel.hop * STACK))).astype(np.float32))


def fit_decoder(
    quantized_NC: Tensor,
    waves: Sequence[Tensor],
    mel: MelConfig,
    steps: int,
    seed: int = 0,
    learning_rate: float = 2e-3,
    crop_frames: int = 32,
    batch: int = 32,
    state: FitState | None = None,
    kept: Mapping[str, Tensor] | None = None,
    report: Report = print,
) -> SpectrumDecoder:
    """Train the decoder to predict the fine spectrum of the waves from their quantised components, on random crops.

    Clips are joined to one, so that short ones are used, too; a crop may cross from one to the next. `kept` tensors are
    saved with the `state`.
    """
    state, kept = state or FitState(), kept or {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = SpectrumDecoder(quantized_NC.shape[1], mel.fft // 2 + 1)
    with torch.no_grad():
        targets = torch.cat([mel.magnitude(wave).clamp(min=1e-4).log().half() for wave in waves])
        decoder.leave.bias.copy_(targets[: 2**16].float().mean(0))
    crop_frames = min(crop_frames, len(quantized_NC))
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
    started, recent = time.monotonic(), torch.zeros(())
    kept = {**kept, "loss": recent}
    first = state.restore(decoder, optimizer, kept)
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(seed * 2**32 + step)
        starts = torch.randint(len(quantized_NC) - crop_frames + 1, (batch,), generator=generator).tolist()
        crops = torch.stack([quantized_NC[start : start + crop_frames] for start in starts])
        target = torch.stack([targets[start * STACK : (start + crop_frames) * STACK] for start in starts]).float()
        # Loud parts matter most to the ear: the weight grows with the level, with a minimum for quiet parts.
        weight = (target.exp() / 2).clamp(0.1, 1.0)
        loss = (weight * F.l1_loss(decoder(crops), target, reduction="none")).mean() / weight.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        for group in optimizer.param_groups:
            decay = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps))
            group["lr"] = learning_rate * min(1.0, (step + 1) / 100) * decay
        optimizer.step()
        recent += (loss.detach() - recent) / min(step + 1, 100)
        if (step + 1) % 250 == 0 or step + 1 == steps:
            left = (time.monotonic() - started) / (step + 1 - first) * (steps - step - 1)
            report(f"decoder step {step + 1:,} of {steps:,}: loss {recent:.4f}, {human_duration(left)} left")
        state.save(step + 1, decoder, optimizer, kept)
    return decoder
