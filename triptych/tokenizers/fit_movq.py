"""Train a small MoVQ from scratch: reconstruction loss, straight-through estimator, EMA codebook.

The codebook is not trained by gradient: each code is the moving average of the latents nearest to it, and an unused
code is reset to a latent of the current batch. That keeps all codes in use without a tuned loss weight.

A codebook larger than needed ends with many codes for nearly the same patch: `retire_codes` leaves one of each.
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from triptych.tokenizers.fit_state import FitState
from triptych.tokenizers.image import MoVQ

# B batch, C channels, K codes, N latents in a batch


class EmaCodebook:
    """A codebook whose vectors are exponential moving averages of the latents they encode."""

    def __init__(self, codes: Tensor, decay: float = 0.99):
        self.codes = codes  # [K, C], shared with the model's embedding
        self.decay = decay
        self.count = torch.ones(len(codes))
        self.total = codes.clone()

    @torch.no_grad()
    def reset(self, latents: Tensor, generator: torch.Generator) -> None:
        """Set the codes to randomly chosen latents."""
        self.codes.copy_(latents[torch.randint(len(latents), (len(self.codes),), generator=generator)])
        self.total.copy_(self.codes)
        self.count.fill_(1.0)

    @torch.no_grad()
    def update(self, latents: Tensor, indices: Tensor, generator: torch.Generator) -> None:
        """Move each code towards the latents with its index, and reset unused codes."""
        count = torch.bincount(indices, minlength=len(self.codes)).float()
        total = torch.zeros_like(self.total).index_add_(0, indices, latents)
        self.count.mul_(self.decay).add_(count, alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(total, alpha=1 - self.decay)
        self.codes.copy_(self.total / self.count.clamp(min=1e-5)[:, None])
        dead = (self.count < 0.02).nonzero()[:, 0]
        if len(dead):
            # Drawn by their error: a uniformly drawn latent is nearly always plain background.
            error = (latents - self.codes[indices]).square().sum(1)
            chosen = torch.multinomial(error + 1e-12, len(dead), replacement=True, generator=generator)
            self.codes[dead] = latents[chosen]
            self.total[dead] = latents[chosen]
            self.count[dead] = 1.0


def nearest_code(latents: Tensor, codes: Tensor) -> Tensor:
    """[N, C], [K, C] -> [N] index of the nearest code."""
    return (codes.square().sum(1) - 2 * latents @ codes.T).argmin(1)


def fit_movq(
    tokenizer: MoVQ,
    batch: Callable[[int], Tensor],
    steps: int,
    learning_rate: float = 2e-3,
    quantize_from: float = 0.05,
    commitment: float = 0.25,
    seed: int = 0,
    state: FitState | None = None,
    report: Callable[[dict[str, float]], None] | None = None,
    report_every: int = 100,
) -> None:
    """Train a tokenizer's network in place; `batch(step)` gives the images [B, 3, H, W] of a step, in [-1, 1].

    For the first `quantize_from` of the steps it is a plain autoencoder; then the codebook starts from its latents.
    Every step depends on the step before and its number alone, so a fit with a saved `state` resumes exactly.
    """
    model, state = tokenizer.model, state or FitState()
    codes = model.quantize.embedding.weight
    codes.requires_grad_(False)
    codebook = EmaCodebook(codes.data)
    kept = {"count": codebook.count, "total": codebook.total}
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=1e-4)
    quantize_step = int(steps * quantize_from)
    started = time.monotonic()
    model.train()
    first = state.restore(model, optimizer, kept)
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(seed * 2**32 + step)
        images = batch(step)
        if step == quantize_step:
            with torch.no_grad():
                recent = [_flat(tokenizer.latents(batch(earlier))) for earlier in range(max(0, step - 10), step + 1)]
            codebook.reset(torch.cat(recent), generator)
        latents = tokenizer.latents(images)
        flat = _flat(latents)
        commit = torch.zeros(())
        if step < quantize_step:
            quantized = latents
        else:
            indices = nearest_code(flat.detach(), codes)
            chosen = codes[indices].view(latents.movedim(1, -1).shape).movedim(-1, 1)
            commit = F.mse_loss(latents, chosen)
            codebook.update(flat.detach(), indices, generator)
            quantized = latents + (chosen - latents).detach()
        decoded = tokenizer.pixels(quantized)
        # Most of an image may be white background: other pixels have a larger weight.
        weight = 1 + 3 * (images.mean(1, keepdim=True) < 0.95)
        error = decoded - images
        loss = (weight * (error.square() + 0.2 * error.abs())).mean() + commitment * commit
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * _lr_factor(step, steps)
        optimizer.step()
        if report and ((step + 1) % report_every == 0 or step + 1 == steps):
            mse = F.mse_loss(decoded.detach().clamp(-1, 1), images).item()
            report(
                {
                    "step": step + 1,
                    "loss": loss.item(),
                    "psnr": 10 * math.log10(4 / max(mse, 1e-9)),
                    "codes_used": int((codebook.count > 0.05).sum()),
                    "seconds_left": (time.monotonic() - started) / (step + 1 - first) * (steps - step - 1),
                }
            )
        state.save(step + 1, model, optimizer, kept)
    model.eval()


def _flat(latents: Tensor) -> Tensor:
    """[B, C, H, W] -> [N, C]."""
    return latents.movedim(1, -1).reshape(-1, latents.shape[1])


def _lr_factor(step: int, steps: int) -> float:
    """Linear warm-up over 2 % of the steps, then a cosine down to 2 %."""
    warmup = max(1, steps // 50)
    return min(1.0, (step + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


RETIRED_VALUE = 1e3  # of all components of a retired code: no latent is ever nearest to it


@torch.no_grad()
def retire_codes(
    tokenizer: MoVQ,
    images: Sequence[Image.Image],
    max_difference: float = 8.0,
    report: Callable[[str], None] | None = None,
) -> list[int]:
    """Retire codes in place, so that a decoded image is encoded back to the same codes; returns their indices.

    Two kinds of codes are retired: those that no image uses, and the rarer of two codes that are confused when a
    decoded image is encoded again, if the decoded patches differ by less than `max_difference` (of 255) on average.
    Ids keep their meaning, and images without retired codes keep their ids.
    """
    codes = tokenizer.model.quantize.embedding.weight
    use = np.bincount(np.concatenate(tokenizer.encode(images)), minlength=len(codes))
    retired: set[int] = set()
    more = set(np.flatnonzero(use == 0).tolist())
    while True:
        retired |= more
        codes[sorted(retired)] = RETIRED_VALUE
        ids = np.stack(tokenizer.encode(images))
        decoded = tokenizer.decode(list(ids))
        again = np.stack(tokenizer.encode(decoded))
        if report:
            report(
                f"{len(codes) - len(retired)} codes in use, {np.mean(ids != again):.2%} of patches change their code"
            )
        difference = _patch_difference(tokenizer, decoded, tokenizer.decode(list(again)))
        confused = (ids != again) & (difference < max_difference)
        pairs = set(zip(ids[confused].tolist(), again[confused].tolist()))
        more = {one if use[one] < use[other] else other for one, other in pairs}
        if not more:  # each round retires at least one code, and leaves one of every pair
            return sorted(retired)


def _patch_difference(tokenizer: MoVQ, first: Sequence[Image.Image], second: Sequence[Image.Image]) -> np.ndarray:
    """[images, patches] mean absolute difference of pixel values (0 to 255)."""
    pixels = [np.stack([np.asarray(image, np.float32) for image in images]) for images in (first, second)]
    size = tokenizer.resolution // tokenizer.grid
    patches = np.abs(pixels[0] - pixels[1]).reshape(len(first), tokenizer.grid, size, tokenizer.grid, size, 3)
    return patches.mean((2, 4, 5)).reshape(len(first), -1)
