"""Held-out negative ELBO per modality and direction, on fixed masks, with its margin."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from triptych.data.loader import Loader, LoaderConfig, Step
from triptych.data.sequences import NO_OPEN_ENDS
from triptych.data.shards import TokenDataset
from triptych.diffusion.likelihood import Given, k_uniform
from triptych.diffusion.objective import token_weights
from triptych.training.distributed import drop_gathered
from triptych.training.ranks import Ranks
from triptych.training.step import model_input
from triptych.vocab import Modality, Task, Vocabulary


@dataclass(frozen=True)
class NelboEstimate:
    nats_per_token: float
    margin: float
    """Half of the 95 % interval, over sequences."""
    tokens: int

    @property
    def as_json(self) -> dict[str, float]:
        return {"nats_per_token": self.nats_per_token, "margin": self.margin, "tokens": self.tokens}


def overall(estimates: Mapping[str, NelboEstimate]) -> float:
    """Nats per token over all tokens of whole sequences, whatever their modality."""
    whole = [each for name, each in estimates.items() if "|" not in name]
    return sum(each.nats_per_token * each.tokens for each in whole) / sum(each.tokens for each in whole)


class Validator:
    """Validation sequences, read once, with masks that are the same at every call."""

    def __init__(
        self,
        folders: Sequence[str | Path],
        config: LoaderConfig,
        sequences: int,
        draws: int,
        seed: int = 0,
        ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
    ):
        self.draws, self.seed, self.ranks = draws, seed, ranks
        self._steps: list[tuple[Task, Step]] = []
        self.vocabulary: Vocabulary | None = None
        for folder in folders:
            dataset = TokenDataset(folder)
            self.vocabulary = dataset.vocabulary
            whole = _closed(config, sequences)
            with Loader([dataset], whole, ranks.rank, ranks.size, one_pass=True, num_steps=1) as loader:
                self._steps += [(dataset.task, step) for step in loader]

    @torch.no_grad()
    def estimate(self, model: nn.Module, device: torch.device) -> dict[str, NelboEstimate]:
        """By term: text, image and audio of whole sequences, and each side of pairs given the other.

        Every rank looks at its part, and all find the same.
        """
        was_training = model.training
        model.eval()
        found: dict[str, list[np.ndarray]] = {}
        for task, step in self._steps:
            sides: tuple[Given, ...] = ("nothing",) if task == Task.TEXT else ("nothing", "text", "media")
            for given in sides:
                for name, values in self._terms(model, task, step, given, device).items():
                    found.setdefault(name, []).append(values)
        model.train(was_training)
        drop_gathered(model)
        gathered: dict[str, list[np.ndarray]] = {}
        for part in self.ranks.gather(found):
            for name, pairs in part.items():
                gathered.setdefault(name, []).extend(pairs)
        return {name: _ratio(np.concatenate(pairs)) for name, pairs in sorted(gathered.items())}

    def _terms(
        self, model: nn.Module, task: Task, step: Step, given: Given, device: torch.device
    ) -> dict[str, np.ndarray]:
        """For each modality that is predicted: [sequences, 2] of nats and tokens."""
        assert self.vocabulary is not None
        terms: dict[str, list[np.ndarray]] = {}
        for batch in step.micro_batches:
            nats = np.zeros((len(batch.sample_ids), len(Modality)))
            sequence_RT = np.maximum(batch.segment_ids - 1, 0)
            for draw in range(self.draws):
                corrupted = k_uniform(
                    batch, self.vocabulary, seed=self.seed, draw=draw, num_draws=self.draws, given=given
                )
                # As nats of whole sequences, over the draws: no other mean is taken.
                weights = token_weights(batch, corrupted, "tokens", num_sequences=1, num_eligible=self.draws)
                inputs = model_input(batch, corrupted, weights, 0.0, device)
                loss = model(inputs.tokens, inputs.positions, inputs.segments, inputs.targets)
                rows = inputs.targets.rows_n.cpu().numpy()
                place = (sequence_RT.reshape(-1)[rows], batch.modality_ids.reshape(-1)[rows])
                np.add.at(nats, place, (inputs.targets.loss_weight_n * loss.nll_n).cpu().numpy())
            for modality in Modality:
                is_open = batch.maskable & (batch.modality_ids == modality)
                if given != "nothing" and (modality == Modality.TEXT) == (given == "text"):
                    continue
                tokens = np.bincount(sequence_RT[is_open], minlength=len(batch.sample_ids))
                if tokens.sum():
                    pairs = np.stack([nats[:, modality], tokens], axis=1)
                    terms.setdefault(_name(task, modality, given), []).append(pairs)
        return {name: np.concatenate(values) for name, values in terms.items()}


def _name(task: Task, modality: Modality, given: Given) -> str:
    """ "image" in a pair as a whole, "image|text" given the text; the text of a pair says which pair."""
    partner = task.partner
    name = modality.name.lower()
    if given != "nothing":
        assert partner is not None
        return f"{name}|{'text' if given == 'text' else partner.name.lower()}"
    return name if modality != Modality.TEXT or partner is None else f"text of {partner.name.lower()}"


def _closed(config: LoaderConfig, sequences: int) -> LoaderConfig:
    return replace(config, global_batch=sequences, open_ends=NO_OPEN_ENDS, num_workers=0, prefetch=0)


def _ratio(pairs: np.ndarray) -> NelboEstimate:
    """Nats over tokens, with the linearised standard error of a ratio of sums over sequences."""
    nats, tokens = pairs[:, 0], pairs[:, 1]
    ratio = nats.sum() / tokens.sum()
    spread = math.sqrt(float(np.square(nats - ratio * tokens).sum())) / tokens.sum()
    return NelboEstimate(float(ratio), 1.96 * spread, int(tokens.sum()))
