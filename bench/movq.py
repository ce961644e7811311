"""Training speed of a small MoVQ with and without folding images into patches.

python bench/movq.py [--batch 16] [--rounds 3]
"""

import argparse
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F

from triptych.tokenizers.image import MoVQ

NETWORKS: dict[str, dict[str, Any]] = {
    "three halvings": {"channels": (32, 32, 64, 96), "patch": 1},
    "4 x 4 patches, one halving": {"channels": (64, 128), "patch": 4},
}


def seconds_per_step(network: MoVQ, batch: int) -> float:
    """One forward and backward pass, without the optimizer, on random images of 64 x 64."""
    images = F.pixel_unshuffle(torch.rand(batch, 3, 64, 64), network.patch)
    started = time.perf_counter()
    latents = network.model.encode(images).latents
    decoded = network.model.decode(latents, force_not_quantize=True).sample
    F.mse_loss(decoded, images).backward()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    networks = {name: MoVQ.small(64, groups=8, latent_channels=8, **config) for name, config in NETWORKS.items()}
    times: dict[str, list[float]] = {name: [] for name in networks}
    for round_ in range(args.rounds + 1):  # the first round is warm-up; the networks alternate
        for name, network in networks.items():
            seconds = seconds_per_step(network, args.batch)
            if round_:
                times[name].append(seconds)
    slowest = max(statistics.median(spent) for spent in times.values())
    for name, spent in times.items():
        parameters = sum(p.numel() for p in networks[name].model.parameters())
        print(f"{name:28} {parameters / 1e6:5.2f}M parameters  {slowest / statistics.median(spent):5.2f} x as fast")


if __name__ == "__main__":
    main()
