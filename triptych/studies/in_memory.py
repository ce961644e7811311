"""A run without files: trains in memory and says where it ended. What studies are made of."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from triptych.data.loader import Loader
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.step import build_model, build_optimizer, train_step
from triptych.training.validate import Validator, overall

_LAST = 0.1  # share of the run whose training loss is averaged
_POINTS = 40  # of a training curve, at most


@dataclass(frozen=True)
class Outcome:
    held_out: dict[str, float] = field(default_factory=dict)
    """Nats per token by term, as in validation, and over all tokens of whole sequences."""
    train_loss: float = math.nan
    """Mean over the last tenth of the steps."""
    diverged: bool = False
    tokens: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Tokens seen and the mean training loss since the point before, at tokens that grow evenly on a log scale."""
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """Held-out nats per token of whole sequences, infinite if the run diverged."""
        return math.inf if self.diverged else self.held_out["all"]

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "loss": None if math.isinf(self.loss) else self.loss,
            "held_out": self.held_out,
            "train_loss": None if math.isnan(self.train_loss) else self.train_loss,
            "diverged": self.diverged,
            "tokens_seen": self.tokens,
        }


def train_in_memory(config: RunConfig, bundle: TokenizerBundle) -> Outcome:
    """Train a run from its beginning to its end. Numbers that are not finite end it: it diverged."""
    began = time.monotonic()
    device = torch.device("cpu")
    model = build_model(config, bundle.vocabulary)
    optimizer = build_optimizer(model, config.resolved)
    losses, seen, tokens = [], [], 0
    with Loader(list(config.data), config.loader, 0, 1, start_step=0, num_steps=config.num_steps) as loader:
        for step in loader:
            sums, _ = train_step(model, optimizer, step, config, bundle.vocabulary, device)
            tokens += step.num_tokens
            losses.append(sums.loss)
            seen.append(tokens)
            if sums.skipped or not math.isfinite(sums.loss):
                return Outcome(diverged=True, tokens=tokens, seconds=time.monotonic() - began)
    held_out = Validator(config.validation_data, config.loader, config.validation.sequences, config.validation.draws)
    estimates = held_out.estimate(model, device)
    found = {name: each.nats_per_token for name, each in estimates.items()}
    found["all"] = overall(estimates)
    last = losses[-max(1, round(_LAST * len(losses))) :]
    diverged = not all(map(math.isfinite, found.values()))
    return Outcome(found, float(np.mean(last)), diverged, tokens, _curve(seen, losses), time.monotonic() - began)


def _curve(seen: list[int], losses: list[float]) -> list[tuple[int, float]]:
    ends = np.unique(np.geomspace(1, len(losses), _POINTS).round().astype(int))
    begins = [0, *ends[:-1]]
    return [(seen[end - 1], round(float(np.mean(losses[begin:end])), 5)) for begin, end in zip(begins, ends)]
