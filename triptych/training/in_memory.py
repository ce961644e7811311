"""A training run without files: trains in memory and returns the final losses. Studies are made of these."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from triptych.data.loader import Loader
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.step import build_model, build_optimizer, train_step
from triptych.training.validate import MIXTURE, Validator, mixture_loss

_FINAL_SHARE = 0.1  # share of the steps whose training loss is averaged
_MAX_POINTS = 40  # of a training curve


@dataclass(frozen=True)
class Outcome:
    validation: dict[str, float] = field(default_factory=dict)
    """Validation nats per token by term; "all" is that of the training mixture."""
    train_loss: float = math.nan
    """Mean over the last tenth of the steps."""
    diverged: bool = False
    tokens: int = 0
    """Tokens seen in training."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Tokens seen, and mean training loss since the previous point; points are evenly spaced in log steps."""
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """Validation nats per token of the training mixture; infinite if the run diverged."""
        return math.inf if self.diverged else self.validation[MIXTURE]

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "loss": None if math.isinf(self.loss) else self.loss,
            "held_out": self.validation,
            "train_loss": None if math.isnan(self.train_loss) else self.train_loss,
            "diverged": self.diverged,
            "tokens_seen": self.tokens,
        }


def train_in_memory(
    config: RunConfig,
    bundle: TokenizerBundle,
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> Outcome:
    """Train a run from start to end. It counts as diverged at the first number that is not finite."""
    return train_model(config, bundle, device)[1]


def train_model(
    config: RunConfig,
    bundle: TokenizerBundle,
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> tuple[Transformer, Outcome]:
    """Like `train_in_memory`, with the trained model."""
    started = time.monotonic()
    model = build_model(config, bundle.vocabulary, device)
    optimizer = build_optimizer(model, config.resolved)
    losses, seen, tokens = [], [], 0
    with Loader(list(config.data), config.loader, 0, 1, start_step=0, num_steps=config.num_steps) as loader:
        for step in loader:
            sums, _ = train_step(model, optimizer, step, config, bundle.vocabulary, device)
            tokens += step.num_tokens
            losses.append(sums.loss)
            seen.append(tokens)
            if sums.skipped or not math.isfinite(sums.loss):
                return model, Outcome(diverged=True, tokens=tokens, seconds=time.monotonic() - started)
    validator = Validator.of_run(config)
    estimates = validator.estimate(model, device)
    validation = {name: estimate.nats_per_token for name, estimate in estimates.items()}
    validation[MIXTURE] = mixture_loss(estimates)
    final = losses[-max(1, round(_FINAL_SHARE * len(losses))) :]
    diverged = not all(map(math.isfinite, validation.values()))
    seconds = time.monotonic() - started
    return model, Outcome(validation, float(np.mean(final)), diverged, tokens, _curve(seen, losses), seconds)


def _curve(seen: list[int], losses: list[float]) -> list[tuple[int, float]]:
    ends = np.unique(np.geomspace(1, len(losses), _MAX_POINTS).round().astype(int))
    starts = [0, *ends[:-1]]
    return [(seen[end - 1], round(float(np.mean(losses[start:end])), 5)) for start, end in zip(starts, ends)]
