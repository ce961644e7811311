"""What the loss head saves over logits for all positions: masked rows gathered first, logits in chunks, turn by turn.

python bench/head.py [--tokens 1024] [--width 256] [--vocabulary 117698] [--masked 0.5] [--rounds 3]

Memory is the largest that tensors of one pass take at once, counted by the profiler.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from triptych.model.head import linear_cross_entropy


def dense(hidden: Tensor, unembed: Tensor, targets: Tensor, predicted: Tensor) -> Tensor:
    """Logits of every position, loss of the masked ones: what a plain training loop does."""
    losses = F.cross_entropy(hidden @ unembed.T, targets, reduction="none")
    return (losses * predicted).sum() / predicted.sum()


def gathered(hidden: Tensor, unembed: Tensor, targets: Tensor, predicted: Tensor) -> Tensor:
    """Masked rows first, then logits of all of them at once."""
    rows = predicted.nonzero()[:, 0]
    return F.cross_entropy(hidden[rows] @ unembed.T, targets[rows])


def chunked(hidden: Tensor, unembed: Tensor, targets: Tensor, predicted: Tensor) -> Tensor:
    """The head of Triptych."""
    rows = predicted.nonzero()[:, 0]
    weight = torch.full((len(rows),), 1 / len(rows))
    return linear_cross_entropy(hidden[rows], unembed, targets[rows], weight, torch.zeros(len(rows)))[0]


HEADS: dict[str, Callable[..., Tensor]] = {"dense": dense, "gathered": gathered, "gathered, chunked": chunked}


def run(head: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[float, float]:
    """Seconds and loss of a forward and backward pass."""
    hidden, unembed, *others = inputs
    hidden.grad = unembed.grad = None
    started = time.perf_counter()
    loss = head(hidden, unembed, *others)
    loss.backward()
    return time.perf_counter() - started, float(loss.detach())


def peak_bytes(head: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> int:
    inputs[0].grad = inputs[1].grad = None  # else their end would be counted, but not their beginning
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run(head, inputs)
    now = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=117_698)
    parser.add_argument("--masked", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(args.tokens, args.width, generator=generator).requires_grad_()
    unembed = (torch.randn(args.vocabulary, args.width, generator=generator) / args.width**0.5).requires_grad_()
    targets = torch.randint(args.vocabulary, (args.tokens,), generator=generator)
    predicted = torch.rand(args.tokens, generator=generator) < args.masked
    inputs = (hidden, unembed, targets, predicted)
    times: dict[str, list[float]] = {name: [] for name in HEADS}
    losses: dict[str, float] = {}
    for round_ in range(args.rounds + 1):  # the first warms up
        for name, head in HEADS.items():
            seconds, losses[name] = run(head, inputs)
            if round_:
                times[name].append(seconds)
    assert max(losses.values()) - min(losses.values()) < 1e-3, losses
    peaks = {name: peak_bytes(head, inputs) for name, head in HEADS.items()}
    slowest = statistics.median(times["dense"])
    for name in HEADS:
        speed, memory = slowest / statistics.median(times[name]), peaks["dense"] / peaks[name]
        print(f"{name:20} {speed:5.2f} x as fast, {memory:5.2f} x less memory ({peaks[name] / 2**20:,.0f} MiB)")


if __name__ == "__main__":
    main()
