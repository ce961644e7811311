"""The forward process on a batch: when, what and how a token is masked, as a pure function of the sample.

Times and masks depend on (seed, epoch, sample id, view) and, for the strata of the times, on the place of the sample in
the global batch and the step: never on ranks, rows or what was drawn before. Resuming needs no random state.

    time      stratified over the global batch: the sample in slot i gets a random point of stratum permutation(i)
    what      both sides of a pair by default; with some probability only one side, the other given whole
    mask      position p is masked if its own uniform number is at least alpha(t); at the end of a text, if its rank is
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from triptych.data.types import Batch
from triptych.diffusion.schedule import Linear, Schedule, complement_weight
from triptych.errors import UserError
from triptych.utils.rng import CorruptStream, permute, random_bits, to_uniform
from triptych.vocab import Modality, Vocabulary

# R rows, T tokens in a row, S sequences in the batch, M modalities


@dataclass(frozen=True, kw_only=True)
class CorruptConfig:
    """How training inputs are masked."""

    schedule: Schedule = field(default_factory=Linear)
    """How many tokens are kept at time t."""
    text_schedule: Schedule | None = None
    """The same for texts, if they have one of their own: a text has few tokens, and its words depend on each other."""
    time_mode: Literal["shared", "per_modality"] = "shared"
    """One time for a whole sequence (the joint ELBO), or one for each modality in it (averages conditional ELBOs)."""
    p_one_sided: float = 0.0
    """Probability that only one side of a pair, either with even odds, is masked and the other is given whole."""
    p_prompt_masked: float = 0.0
    """Probability that the text of a pair is masked whole and not predicted: the unconditional branch of guidance."""
    p_text_end: float = 0.0
    """Probability that what is masked of a text is its end instead of places all over it: how a text is continued and
    a question answered. As many positions are masked as the time says."""
    smallest_time: float = 1e-3
    """Times are drawn from here to 1; with complements also only up to 1 minus this."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.time_mode not in ("shared", "per_modality"):
            raise UserError(f"time_mode must be 'shared' or 'per_modality', got {self.time_mode!r}.")
        if min(self.p_one_sided, self.p_prompt_masked) < 0 or self.p_one_sided + self.p_prompt_masked > 1:
            raise UserError(
                "p_one_sided and p_prompt_masked must not be negative nor sum to more than 1, "
                f"got {self.p_one_sided} and {self.p_prompt_masked}."
            )
        if not 0 <= self.p_text_end <= 1:
            raise UserError(f"p_text_end must lie between 0 and 1, got {self.p_text_end}.")
        if not 0 < self.smallest_time < 0.5:
            raise UserError(f"smallest_time must lie between 0 and 0.5, got {self.smallest_time}.")


@dataclass(frozen=True)
class Corrupted:
    """A batch as the model sees it, and what it is to predict."""

    tokens: np.ndarray
    """[R, T] int32, with each modality's own MASK where it is masked."""
    predicted: np.ndarray
    """[R, T] bool, masked positions whose loss counts."""
    weight: np.ndarray
    """[S, M] float64, the ELBO weight of a predicted token of that modality in that sequence."""
    num_eligible: np.ndarray
    """[S] int64, how many positions could have been predicted: what a mean over a sequence divides by."""
    times: np.ndarray
    """[S, M] float64."""


def corrupt(
    batch: Batch,
    vocabulary: Vocabulary,
    config: CorruptConfig,
    *,
    step: int,
    global_batch: int,
    view: Literal[0, 1] | None = None,
) -> Corrupted:
    """Mask a batch. Views 0 and 1 of a sample mask complementary positions, each with its own weight (anti-masking)."""
    times_SM = sample_times(batch, config, step, global_batch, both_ends=view is not None)
    keep_SM = _by_modality(config, times_SM, lambda schedule, t: schedule.alpha(t))
    weight_SM = _by_modality(
        config, times_SM, lambda schedule, t: schedule.weight(t) if view != 1 else complement_weight(schedule, t)
    )

    if not len(batch.sample_ids):  # an empty micro-batch, there so that all ranks have as many
        return Corrupted(batch.tokens, batch.maskable, weight_SM, np.zeros(0, np.int64), times_SM)

    # Padding has segment 0; it borrows sequence 0 and is never maskable.
    sequence_RT = np.maximum(batch.segment_ids.astype(np.int64) - 1, 0)
    modality_RT = np.minimum(batch.modality_ids, len(Modality) - 1)
    eligible_RT, whole_RT = _sides(batch, config, sequence_RT)
    uniform_RT = to_uniform(
        random_bits(
            config.seed, CorruptStream.MASK, batch.epochs[sequence_RT], batch.sample_ids[sequence_RT], batch.positions
        )
    )
    if config.p_text_end:
        _mask_ends(uniform_RT, batch, config, sequence_RT)
    chosen_RT = uniform_RT >= keep_SM[sequence_RT, modality_RT]
    predicted_RT = eligible_RT & (chosen_RT if view != 1 else ~chosen_RT)

    masks = np.array([vocabulary.mask(modality) for modality in Modality], np.int32)
    tokens_RT = np.where(predicted_RT | whole_RT, masks[modality_RT], batch.tokens)
    num_eligible = np.bincount(sequence_RT[eligible_RT], minlength=len(batch.sample_ids))
    return Corrupted(tokens_RT, predicted_RT, weight_SM, num_eligible, times_SM)


def _by_modality(
    config: CorruptConfig, times_SM: np.ndarray, function: Callable[[Schedule, Tensor], Tensor]
) -> np.ndarray:
    """A function of every modality's schedule and times, [S, M]."""
    columns = []
    for modality in Modality:
        own = config.text_schedule if modality == Modality.TEXT else None
        columns.append(function(own or config.schedule, torch.from_numpy(times_SM[:, modality])).numpy())
    return np.stack(columns, axis=1)


def sample_times(
    batch: Batch, config: CorruptConfig, step: int, global_batch: int, both_ends: bool = False
) -> np.ndarray:
    """[S, M] times: stratified over the global batch, the same for all modalities or one for each.

    The strata are dealt by a random permutation: without it, a batch whose tasks take turns would always give small
    times to one task and large ones to another.
    """
    columns = []
    for modality in Modality:
        number = modality if config.time_mode == "per_modality" else 0
        strata = permute(batch.slots, np.array([global_batch]), config.seed, CorruptStream.STRATUM, step, number)
        inside = to_uniform(random_bits(config.seed, CorruptStream.TIME, batch.epochs, batch.sample_ids, number))
        columns.append((strata + inside) / global_batch)
    lowest, highest = config.smallest_time, 1 - config.smallest_time if both_ends else 1.0
    return lowest + (highest - lowest) * np.stack(columns, axis=1)


def _sides(batch: Batch, config: CorruptConfig, sequence_RT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which positions may be predicted, and which are masked whole without being predicted; both [R, T]."""
    is_pair_S = batch.tasks > 0
    chance_S = to_uniform(random_bits(config.seed, CorruptStream.CHANCE, batch.epochs, batch.sample_ids))
    only_text_S = random_bits(config.seed, CorruptStream.SIDE, batch.epochs, batch.sample_ids) % np.uint64(2) == 0
    one_sided_S = is_pair_S & (chance_S < config.p_one_sided)
    prompt_masked_S = is_pair_S & (chance_S >= 1 - config.p_prompt_masked)

    is_text_RT = batch.modality_ids == Modality.TEXT
    given_RT = one_sided_S[sequence_RT] & (is_text_RT != only_text_S[sequence_RT])
    whole_RT = batch.maskable & prompt_masked_S[sequence_RT] & is_text_RT
    return batch.maskable & ~given_RT & ~whole_RT, whole_RT


def _mask_ends(uniform_RT: np.ndarray, batch: Batch, config: CorruptConfig, sequence_RT: np.ndarray) -> None:
    """Give the texts of some sequences numbers that rise from their first token to their last.

    Shifted by one uniform number for all, each number is uniform, so as many are masked as the schedule says.
    """
    ends_S = (
        to_uniform(random_bits(config.seed, CorruptStream.TEXT_END, batch.epochs, batch.sample_ids)) < config.p_text_end
    )
    shift_S = to_uniform(random_bits(config.seed, CorruptStream.TEXT_END_SHIFT, batch.epochs, batch.sample_ids))
    is_text = batch.maskable & (batch.modality_ids == Modality.TEXT) & ends_S[sequence_RT]
    sequence_n = sequence_RT[is_text]
    _, first_n, place_n, count_n = np.unique(sequence_n, return_index=True, return_inverse=True, return_counts=True)
    rank_n = np.arange(len(sequence_n)) - first_n[place_n]  # a sequence lies in one piece
    uniform_RT[is_text] = (rank_n + shift_S[sequence_n]) / count_n[place_n]
