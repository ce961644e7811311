"""Negative ELBO on validation data, by modality and direction and over the training mixture, with fixed masks.

The sequences are a fixed random sample of each validation dataset. Each draw masks k of the L maskable positions of a
sequence and gives a masked token the weight L / k (`diffusion.likelihood`). The values are self-normalised:

    nats per token = sum of weight * negative log-likelihood / sum of weights      over masked tokens of a modality

Both sums are unbiased: over all masks, the mean weight of a token is 1. Their ratio has a bias of order 1 / sequences.
Dividing by the number of tokens instead would be unbiased, but in a pair the masks hit one modality more often and the
other less often than expected, and this noise would be in both values. A model with the same loss on every token of a
modality gets exactly this loss, whatever the masks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from triptych.data.loader import Loader
from triptych.data.mix import shares_in_task
from triptych.data.sequences import NO_OPEN_ENDS
from triptych.data.shards import TokenDataset, dataset_names
from triptych.data.steps import LoaderConfig, Step
from triptych.diffusion.likelihood import Given, k_uniform
from triptych.diffusion.objective import token_weights
from triptych.errors import UserError
from triptych.model.transformer import Transformer
from triptych.training.config import RunConfig
from triptych.training.distributed import reshard
from triptych.training.ranks import Ranks
from triptych.training.step import model_input
from triptych.vocab import Modality, Task, Vocabulary

MIXTURE = "all"
"""Name of the value over the training mixture."""
LOSS_VERSION = 2
"""Increase it when the same model gets another value: records of different versions must not be compared."""


class Stratum(NamedTuple):
    """The scored sequences of one dataset."""

    share: float
    """Share of the dataset in the estimate, by sequences; only ratios between datasets matter."""
    nats: np.ndarray
    """[S] estimated nats of each sequence."""
    tokens: np.ndarray
    """[S] tokens of each sequence."""


@dataclass(frozen=True)
class NelboEstimate:
    """An estimate of the negative ELBO."""

    nats_per_token: float
    margin: float
    """Half the width of the 95 % confidence interval over sequences."""
    tokens: int
    """Number of tokens it is a mean over."""

    @classmethod
    def of_strata(cls, strata: Iterable[Stratum]) -> "NelboEstimate":
        """Nats over tokens, both summed over datasets by their shares, with the linearised standard error of a ratio.

        The number of sequences of each dataset is fixed, so differences between datasets are no error.
        """
        parts = [(part.share / len(part.nats), part.nats, part.tokens) for part in strata if part.share > 0]
        total = sum(scale * float(tokens.sum()) for scale, _, tokens in parts)
        ratio = sum(scale * float(nats.sum()) for scale, nats, _ in parts) / total
        residuals = [scale * (nats - ratio * tokens) for scale, nats, tokens in parts]
        variance = sum(float(np.square(residual - residual.mean()).sum()) for residual in residuals)
        return cls(ratio, 1.96 * math.sqrt(variance) / total, sum(int(tokens.sum()) for _, _, tokens in parts))

    @property
    def as_json(self) -> dict[str, float]:
        return {"nats_per_token": self.nats_per_token, "margin": self.margin, "tokens": self.tokens}


def mixture_loss(estimates: Mapping[str, NelboEstimate]) -> float:
    """Nats per token over the training mixture: the loss that runs are compared by."""
    if MIXTURE not in estimates:
        raise UserError(
            "no task of the validation data has a weight in loader.task_weights: add validation data of a trained task."
        )
    return estimates[MIXTURE].nats_per_token


@dataclass(frozen=True)
class _Sample:
    """The sampled sequences of one validation dataset."""

    task: Task
    share: float
    """Share of the dataset in its task."""
    task_weight: float
    steps: list[Step]


class Validator:
    """Estimates the negative ELBO on validation sequences, which are read once and masked alike at every call.

    `sequences` are drawn from each dataset, the same ones for every model. Datasets count by the mixture weights of
    `config`; tasks without validation data are left out of the mixture. With `held_out`, the datasets are those of
    training, and the sequences are drawn from what the loader holds out.
    """

    @classmethod
    def of_run(cls, config: RunConfig, ranks: Ranks = Ranks()) -> "Validator":  # noqa: B008 (frozen)
        """The validation of a run, which has validation data or holds some out."""
        settings, folders = config.validation, config.validation_folders
        held_out = not config.validation_data
        return cls(folders, config.loader, settings.sequences, settings.draws, ranks=ranks, held_out=held_out)

    def __init__(
        self,
        folders: Sequence[str | Path],
        config: LoaderConfig,
        sequences: int,
        draws: int,
        seed: int = 0,
        ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
        *,
        held_out: bool = False,
    ):
        self.draws, self.seed, self.ranks = draws, seed, ranks
        self.vocabulary: Vocabulary | None = None
        datasets, sizes, steps = [TokenDataset(folder) for folder in folders], [], []
        fixed = _without_open_ends(config, sequences)
        if not held_out:
            fixed = replace(fixed, held_out=0.0)
        options: dict[str, Any] = {"one_pass": True, "pass_seed": seed, "num_steps": 1, "held_out": held_out}
        for dataset in datasets:
            self.vocabulary = dataset.vocabulary
            with Loader([dataset], fixed, ranks.rank, ranks.size, **options) as loader:
                sizes.append(len(loader.builder.sources[0]))
                steps.append(list(loader))
        names, tasks = dataset_names(datasets), [dataset.task for dataset in datasets]
        shares = shares_in_task(names, tasks, sizes, config.dataset_weights)
        self._samples = [
            _Sample(task, share, config.task_weights.get(task.label, 0.0), of_dataset)
            for task, share, of_dataset in zip(tasks, shares, steps)
        ]

    @torch.no_grad()
    def estimate(self, model: Transformer, device: torch.device) -> dict[str, NelboEstimate]:
        """By term: "image", "audio" and text of complete sequences; "image|text" and the like for one side given the
        other; "all" for complete sequences of the training mixture.

        A term whose tokens were never masked is left out, and so is "all" if no task has a weight. Each rank evaluates
        its part; all ranks return the same result.
        """
        was_training = model.training
        model.eval()
        scores: dict[tuple[int, Given, Modality], list[np.ndarray]] = {}
        for number, sample in enumerate(self._samples):
            sides: tuple[Given, ...] = ("nothing",) if sample.task == Task.TEXT else ("nothing", "text", "media")
            for step in sample.steps:
                for given in sides:
                    for modality, values in self._scores(model, sample.task, step, given, device).items():
                        scores.setdefault((number, given, modality), []).append(values)
        model.train(was_training)
        reshard(model)
        gathered: dict[tuple[int, Given, Modality], list[np.ndarray]] = {}
        for of_rank in self.ranks.gather(scores):
            for key, parts in of_rank.items():
                gathered.setdefault(key, []).extend(parts)
        return self._estimates({key: np.concatenate(parts) for key, parts in gathered.items()})

    def _scores(
        self, model: Transformer, task: Task, step: Step, given: Given, device: torch.device
    ) -> dict[Modality, np.ndarray]:
        """For each predicted modality: [S, 3] of weighted nats, weights and tokens, by sequence."""
        assert self.vocabulary is not None
        modalities = [
            modality for modality in _modalities(task) if given == "nothing" or _is_predicted(modality, given)
        ]
        scores: dict[Modality, list[np.ndarray]] = {modality: [] for modality in modalities}
        for batch in step.micro_batches:
            sums = np.zeros((len(batch.sample_ids), len(Modality), 2))
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
                weight_n = weights.reshape(-1)[rows]
                np.add.at(sums, place, np.stack([weight_n * loss.nll_n.cpu().numpy(), weight_n], axis=1))
            for modality in modalities:
                is_open = batch.maskable & (batch.modality_ids == modality)
                tokens = np.bincount(sequence_RT[is_open], minlength=len(batch.sample_ids))
                scores[modality].append(np.column_stack([sums[:, modality], tokens]))
        return {modality: np.concatenate(values) for modality, values in scores.items()}

    def _estimates(self, scores: Mapping[tuple[int, Given, Modality], np.ndarray]) -> dict[str, NelboEstimate]:
        strata: dict[str, list[Stratum]] = {}
        complete: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for (number, given, modality), values in scores.items():
            sample, (nats, weights, tokens) = self._samples[number], values.T
            if weights.sum() == 0:
                continue
            nats = _self_normalised(nats, weights, tokens)
            strata.setdefault(_name(sample.task, modality, given), []).append(Stratum(sample.share, nats, tokens))
            if given == "nothing":
                complete.setdefault(number, []).append((nats, tokens))
        for number, parts in complete.items():
            sample = self._samples[number]
            if sample.task_weight:
                nats, tokens = (np.sum(values, axis=0) for values in zip(*parts))
                strata.setdefault(MIXTURE, []).append(Stratum(sample.share * sample.task_weight, nats, tokens))
        return {
            name: NelboEstimate.of_strata(parts)
            for name, parts in sorted(strata.items())
            if any(part.share for part in parts)
        }


def _self_normalised(nats: np.ndarray, weights: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """[S] nats whose sum over sequences is the ratio of the sums of nats and weights, times the number of tokens.

    Their deviations from the ratio are the linearised errors of the ratio.
    """
    ratio = nats.sum() / weights.sum()
    return ratio * tokens + tokens.sum() / weights.sum() * (nats - ratio * weights)


def _modalities(task: Task) -> list[Modality]:
    return [Modality.TEXT] if task.partner is None else [Modality.TEXT, task.partner]


def _is_predicted(modality: Modality, given: Given) -> bool:
    return (modality == Modality.TEXT) == (given == "media")


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
