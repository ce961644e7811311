"""Fit a `PatchVQ` to images: principal components and k-means for the codes, then gradients for the decoder."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from triptych.tokenizers.patch_vq import PatchVQ, nearest_code

Report = Callable[[str], None]
Batches = Iterator[tuple[Tensor, Tensor]]
"""Images [B, 3, H, W] in [-1, 1], and weights of their pixels [B, 1, H, W]."""


@torch.no_grad()
def fit_codes(
    tokenizer: PatchVQ,
    patches: Tensor,
    weights: Tensor | None = None,
    rounds: int = 20,
    chroma: float = 2.0,
    seed: int = 0,
    report: Report = print,
) -> None:
    """Fit the components and the codebook, in place, to patches [N, 3 P P] in [-1, 1] with weights [N].

    An empty code is drawn again from the patches, those with a large weighted error first.
    """
    network, config = tokenizer.network, tokenizer.config
    generator = torch.Generator().manual_seed(seed)
    mean = patches.mean(0)
    # Distances between patches are measured with chroma enlarged: the same shape in two colours is two things.
    metric = torch.block_diag(*[_enlarge_chroma(chroma)] * config.patch**2)
    metric = metric[_by_channel(config.patch)][:, _by_channel(config.patch)]
    # Eigenvectors of the covariance; eigenvalues are in ascending order.
    enlarged = (patches - mean) @ metric
    vectors = torch.linalg.eigh(torch.cov(enlarged.T)).eigenvectors.flip(1)[:, : config.components].contiguous()
    basis, inverse = metric @ vectors, vectors.T @ torch.linalg.inv(metric)
    points = (patches - mean) @ basis
    weights = torch.ones(len(points)) if weights is None else weights
    codes = points[torch.randperm(len(points), generator=generator)[: config.codes]].clone()
    for number in range(rounds):
        nearest = torch.cat([nearest_code(part, codes) for part in points.split(4096)])
        error = weights * (points - codes[nearest]).square().sum(1)
        count = torch.zeros(len(codes)).index_add_(0, nearest, weights)
        total = torch.zeros_like(codes).index_add_(0, nearest, weights[:, None] * points)
        codes = total / count.clamp(min=1e-6)[:, None]
        empty = (count == 0).nonzero()[:, 0]
        if len(empty) and number < rounds - 1:
            codes[empty] = points[torch.multinomial(error + 1e-12, len(empty), generator=generator)]
        if (number + 1) % 5 == 0:
            lost = float((patches - (points @ inverse + mean)).square().mean())
            lost += float(error.sum() / weights.sum()) / patches.shape[1]
            report(f"codes, round {number + 1}: {10 * math.log10(4 / lost):.2f} dB on patches, {len(empty)} empty")
    network.mean.copy_(mean)
    network.basis.copy_(basis)
    network.inverse.copy_(inverse)
    network.codebook.copy_(codes)


def _enlarge_chroma(factor: float) -> Tensor:
    """A symmetric matrix [3, 3] that keeps grey and multiplies what is orthogonal to it."""
    grey = torch.full((3, 3), 1 / 3)
    return grey + factor * (torch.eye(3) - grey)


def _by_channel(patch: int) -> Tensor:
    """Order of the values of a patch: `pixel_unshuffle` puts channels first, a block per pixel has them last."""
    return torch.arange(3 * patch**2).view(patch**2, 3).T.flatten()


def fit_decoder(
    tokenizer: PatchVQ,
    batches: Batches,
    steps: int,
    learning_rate: float = 1e-3,
    report: Report = print,
    report_every: int = 100,
    checkpoint: Path | None = None,
) -> None:
    """Train the decoder in place. With a `checkpoint` folder, the tokenizer is saved there with every report."""
    network = tokenizer.network
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=1e-3)
    warmup = max(1, steps // 50)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / warmup) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    started, squared = time.monotonic(), 0.0
    network.train()
    for step in range(steps):
        images, weights = next(batches)
        patches = network.to_patches(images)
        with torch.no_grad():
            ids = network.encode(patches)
        error = network.decode(ids) - patches
        weight = network.to_patches(weights.expand_as(images))
        loss = (weight * (error.square() + 0.2 * error.abs())).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        squared += float(error.detach().square().mean())
        if (step + 1) % report_every == 0:
            psnr = 10 * math.log10(4 * report_every / squared)
            report(f"decoder, step {step + 1}: loss {loss:.4f}, {psnr:.2f} dB, {time.monotonic() - started:.0f} s")
            squared = 0.0
            if checkpoint:
                tokenizer.save(checkpoint)
    network.eval()
