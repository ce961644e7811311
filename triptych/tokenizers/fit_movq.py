"""Train a small MoVQ from scratch: reconstruction loss, straight-through codes, a codebook that follows its inputs.

The codebook is not trained by gradient: each code moves to the running mean of the latents it is nearest to, and a code
that nothing uses is set on a latent of the current batch. That keeps all codes alive without a tuned loss weight.

A codebook with room to spare ends with many codes for nearly the same patch: `retire_codes` leaves one of each.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from triptych.tokenizers.image import MoVQ

# B batch, C channels, K codes, N latents in a batch


class FollowingCodebook:
    """Nearest-neighbour codes whose vectors are exponential moving averages of what they encode."""

    def __init__(self, codes: Tensor, decay: float = 0.99):
        self.codes = codes  # [K, C], shared with the model's embedding
        self.decay = decay
        self.count = torch.ones(len(codes))
        self.total = codes.clone()

    @torch.no_grad()
    def place_on(self, latents: Tensor, generator: torch.Generator) -> None:
        """Start from a random subset of real latents."""
        self.codes.copy_(latents[torch.randint(len(latents), (len(self.codes),), generator=generator)])
        self.total.copy_(self.codes)
        self.count.fill_(1.0)

    @torch.no_grad()
    def follow(self, latents: Tensor, indices: Tensor, generator: torch.Generator) -> None:
        count = torch.bincount(indices, minlength=len(self.codes)).float()
        total = torch.zeros_like(self.total).index_add_(0, indices, latents)
        self.count.mul_(self.decay).add_(count, alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(total, alpha=1 - self.decay)
        self.codes.copy_(self.total / self.count.clamp(min=1e-5)[:, None])
        dead = (self.count < 0.02).nonzero()[:, 0]
        if len(dead):
            # On the worst-served latents: a random one is nearly always plain background.
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
    batches: Iterator[Tensor],
    steps: int,
    learning_rate: float = 2e-3,
    quantize_from: float = 0.05,
    commitment: float = 0.25,
    seed: int = 0,
    report: Callable[[dict[str, float]], None] | None = None,
    report_every: int = 100,
) -> None:
    """Train a tokenizer's network in place on pictures [B, 3, H, W] in [-1, 1].

    For the first `quantize_from` of the steps it is a plain autoencoder; then the codebook is placed on its latents.
    """
    generator = torch.Generator().manual_seed(seed)
    model = tokenizer.model
    codes = model.quantize.embedding.weight
    codes.requires_grad_(False)
    codebook = FollowingCodebook(codes.data)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=1e-4)
    warmup = max(1, steps // 50)
    quantize_step = int(steps * quantize_from)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    recent: list[Tensor] = []
    started = time.monotonic()
    model.train()
    for step in range(steps):
        images = next(batches)
        latents = tokenizer.latents(images)
        flat = latents.movedim(1, -1).reshape(-1, latents.shape[1])
        commit = torch.zeros(())
        if step < quantize_step:
            quantized = latents
            recent = [*recent[-9:], flat.detach()]
        else:
            if step == quantize_step:
                codebook.place_on(torch.cat(recent), generator)
            indices = nearest_code(flat.detach(), codes)
            chosen = codes[indices].view(latents.movedim(1, -1).shape).movedim(-1, 1)
            commit = F.mse_loss(latents, chosen)
            codebook.follow(flat.detach(), indices, generator)
            quantized = latents + (chosen - latents).detach()
        decoded = tokenizer.pixels(quantized)
        # Most of a picture may be plain background: what differs from white counts more.
        weight = 1 + 3 * (images.mean(1, keepdim=True) < 0.95)
        error = decoded - images
        loss = (weight * (error.square() + 0.2 * error.abs())).mean() + commitment * commit
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if report and (step + 1) % report_every == 0:
            mse = F.mse_loss(decoded.detach().clamp(-1, 1), images).item()
            report(
                {
                    "step": step + 1,
                    "loss": loss.item(),
                    "psnr": 10 * math.log10(4 / mse),
                    "codes_used": int((codebook.count > 0.05).sum()),
                    "seconds": time.monotonic() - started,
                }
            )
    model.eval()


FAR = 1e3  # where a retired code lies: no latent is ever nearest to it


@torch.no_grad()
def retire_codes(
    tokenizer: MoVQ,
    pictures: Sequence[Image.Image],
    alike: float = 8.0,
    report: Callable[[str], None] | None = None,
) -> list[int]:
    """Take codes out of use, in place, so that a picture drawn from codes is read back as those codes; say which.

    Out goes what no picture uses and, of two codes one of which is read as the other after decoding, the rarer, if
    the decoded patches differ by less than `alike` of 255 on average: those that differ more are worth an error.
    Ids keep their meaning, and pictures that used no retired code keep theirs.
    """
    codes = tokenizer.model.quantize.embedding.weight
    use = np.bincount(np.concatenate(tokenizer.encode(pictures)), minlength=len(codes))
    retired: set[int] = set()
    more = set(np.flatnonzero(use == 0).tolist())
    while True:
        retired |= more
        codes[sorted(retired)] = FAR
        ids = np.stack(tokenizer.encode(pictures))
        drawn = tokenizer.decode(list(ids))
        again = np.stack(tokenizer.encode(drawn))
        if report:
            report(f"{len(codes) - len(retired)} codes in use, {np.mean(ids != again):.2%} of patches read otherwise")
        difference = _patch_difference(tokenizer, drawn, tokenizer.decode(list(again)))
        confused = (ids != again) & (difference < alike)
        pairs = set(zip(ids[confused].tolist(), again[confused].tolist()))
        more = {one if use[one] < use[other] else other for one, other in pairs}
        if not more:  # each round takes one at least, and leaves one of every pair
            return sorted(retired)


def _patch_difference(tokenizer: MoVQ, some: Sequence[Image.Image], others: Sequence[Image.Image]) -> np.ndarray:
    """[pictures, patches] mean absolute difference of pixels, of 255."""
    pixels = [np.stack([np.asarray(picture, np.float32) for picture in pictures]) for pictures in (some, others)]
    size = tokenizer.resolution // tokenizer.grid
    patches = np.abs(pixels[0] - pixels[1]).reshape(len(some), tokenizer.grid, size, tokenizer.grid, size, 3)
    return patches.mean((2, 4, 5)).reshape(len(some), -1)
