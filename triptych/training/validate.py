"""Negative ELBO on validation data, by modality and direction, with fixed masks and a confidence margin."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from triptych.data.loader import Loader
from triptych.data.sequences import NO_OPEN_ENDS
from triptych.data.shards import TokenDataset
from triptych.data.steps import LoaderConfig, Step
from triptych.diffusion.likelihood import Given, k_uniform
from triptych.diffusion.objective import token_weights
from triptych.model.transformer import Transformer
from triptych.training.distributed import reshard
from triptych.training.ranks import Ranks
from triptych.training.step import model_input
from triptych.vocab import Modality, Task, Vocabulary


@dataclass(frozen=True)
class NelboEstimate:
    """An estimate of the negative ELBO."""

    nats_per_token: float
    margin: float
    """Half the width of the 95 % confidence interval over sequences."""
    tokens: int
    """Number of tokens it is a mean over."""

    @classmethod
    def of_sequences(cls, nats: np.ndarray, tokens: np.ndarray) -> "NelboEstimate":
        """Total nats over total tokens, with the linearised standard error of a ratio of sums over sequences."""
        ratio = nats.sum() / tokens.sum()
        spread = math.sqrt(float(np.square(nats - ratio * tokens).sum())) / tokens.sum()
        return cls(float(ratio), 1.96 * spread, int(tokens.sum()))

    @property
    def as_json(self) -> dict[str, float]:
        return {"nats_per_token": self.nats_per_token, "margin": self.margin, "tokens": self.tokens}


def overall(estimates: Mapping[str, NelboEstimate]) -> float:
    """Nats per token over all tokens of all modalities, from the unconditional terms."""
    unconditional = [estimate for name, estimate in estimates.items() if "|" not in name]
    return sum(e.nats_per_token * e.tokens for e in unconditional) / sum(e.tokens for e in unconditional)


class Validator:
    """Estimates the negative ELBO on validation sequences, which are read once and masked alike at every call."""

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
            fixed = _without_open_ends(config, sequences)
            with Loader([dataset], fixed, ranks.rank, ranks.size, one_pass=True, num_steps=1) as loader:
                self._steps += [(dataset.task, step) for step in loader]

    @torch.no_grad()
    def estimate(self, model: Transformer, device: torch.device) -> dict[str, NelboEstimate]:
        """By term: "image", "audio" and text of complete sequences; "image|text" and the like for one side given the
        other.

        Each rank evaluates its part; all ranks return the same result.
        """
        was_training = model.training
        model.eval()
        terms: dict[str, list[np.ndarray]] = {}
        for task, step in self._steps:
            sides: tuple[Given, ...] = ("nothing",) if task == Task.TEXT else ("nothing", "text", "media")
            for given in sides:
                for name, values in self._terms(model, task, step, given, device).items():
                    terms.setdefault(name, []).append(values)
        model.train(was_training)
        reshard(model)
        gathered: dict[str, list[np.ndarray]] = {}
        for part in self.ranks.gather(terms):
            for name, pairs in part.items():
                gathered.setdefault(name, []).extend(pairs)
        return {name: NelboEstimate.of_sequences(*np.concatenate(pairs).T) for name, pairs in sorted(gathered.items())}

    def _terms(
        self, model: Transformer, task: Task, step: Step, given: Given, device: torch.device
    ) -> dict[str, np.ndarray]:
        """For each predicted modality: [sequences, 2] of nats and tokens."""
        assert self.vocabulary is not None
        terms: dict[str, list[np.ndarray]] = {}
        for batch in step.micro_batches:
            nats = np.zeros((len(batch.sample_ids), len(Modality)))
            sequence_RT = np.maximum(batch.segment_ids - 1, 0)
            for draw in range(self.draws):
                corrupted = k_uniform(
                    batch, self.vocabulary, seed=self.seed, draw=draw, num_draws=self.draws, given=given
                )
                # Weighted to give nats per sequence, averaged over the draws only.
                weights = token_weights(batch, corrupted, "tokens", num_sequences=1, num_eligible=self.draws)
                inputs = model_input(batch, corrupted, weights, 0.0, device)
                loss = model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets)
                rows = inputs.targets.query_idx.cpu().numpy()
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
    """ "image" in a complete pair, "image|text" given the text; "text of image" is the text of such a pair."""
    partner = task.partner
    name = modality.name.lower()
    if given != "nothing":
        assert partner is not None
        return f"{name}|{'text' if given == 'text' else partner.name.lower()}"
    return name if modality != Modality.TEXT or partner is None else f"text of {partner.name.lower()}"


def _without_open_ends(config: LoaderConfig, sequences: int) -> LoaderConfig:
    return replace(config, global_batch=sequences, open_ends=NO_OPEN_ENDS, num_workers=0, prefetch=0)
