"""The forward process on a batch: which tokens are masked, as a pure function of the sample.

Times and masks depend on (seed, epoch, sample id, view). The strata of the times also depend on the step and on the
slot of the sample in the global batch. Nothing depends on ranks, rows or earlier draws, so resuming needs no random
state.

    time      stratified over the global batch: the sample in slot i draws uniformly from stratum permutation(i)
    side      both sides of a pair are masked; with some probability only one side is, and the other is the condition
    mask      position p is masked if its uniform number is at least alpha(t); for a masked text end, if its rank is
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from triptych.data.types import Batch
from triptych.diffusion.schedule import Linear, Schedule, TimeRange, complement_weight, time_range
from triptych.errors import UserError
from triptych.utils.arguments import check_fields
from triptych.utils.rng import CorruptStream, permute, random_bits, to_uniform
from triptych.vocab import Modality, Vocabulary

# R rows, T positions per row, S sequences in the batch, M modalities


@dataclass(frozen=True, kw_only=True)
class CorruptConfig:
    """How training inputs are masked."""

    schedule: Schedule = field(default_factory=Linear)
    """Masking schedule alpha(t)."""
    text_schedule: Schedule | None = None
    """Masking schedule of text tokens; None for `schedule`. Texts are short, and their words depend on each other."""
    time_mode: Literal["shared", "per_modality"] = "shared"
    """One time per sequence (the joint ELBO), or one per modality of a sequence (a mean of conditional ELBOs)."""
    p_one_sided: float = 0.0
    """Probability that only one side of a pair, chosen with even odds, is masked; the other side is the condition."""
    p_prompt_masked: float = 0.0
    """Probability that the text of a pair is fully masked and not predicted. This trains the unconditional branch of
    classifier-free guidance."""
    p_text_end: float = 0.0
    """Probability that the masked tokens of a text are its last ones instead of random ones, as in continuation and
    question answering. The number of masked tokens follows the schedule either way."""
    smallest_mask_rate: float = 1e-3
    """Smallest mask rate 1 - alpha(t) of the times that are drawn. The largest is 1, or 1 - smallest_mask_rate with
    complementary masks. ELBO weights are scaled accordingly (see `diffusion.schedule`)."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.time_mode not in ("shared", "per_modality"):
            raise UserError(f"time_mode must be 'shared' or 'per_modality', got {self.time_mode!r}.")
        if min(self.p_one_sided, self.p_prompt_masked) < 0 or self.p_one_sided + self.p_prompt_masked > 1:
            raise UserError(
                "p_one_sided and p_prompt_masked must not be negative nor sum to more than 1, "
                f"got {self.p_one_sided} and {self.p_prompt_masked}."
            )
        if not 0 <= self.p_text_end <= 1:
            raise UserError(f"p_text_end must lie between 0 and 1, got {self.p_text_end}.")
        if not 0 < self.smallest_mask_rate < 0.5:
            raise UserError(f"smallest_mask_rate must lie between 0 and 0.5, got {self.smallest_mask_rate}.")

    def schedule_of(self, modality: Modality) -> Schedule:
        return self.schedule if modality != Modality.TEXT or self.text_schedule is None else self.text_schedule

    def time_range_of(self, modality: Modality, both_ends: bool = False) -> TimeRange:
        """The times that are drawn for tokens of a modality; `both_ends` is for complementary masks."""
        return time_range(self.schedule_of(modality), self.smallest_mask_rate, both_ends)


@dataclass(frozen=True)
class Corrupted:
    """A masked batch: the model's inputs and the positions to predict."""

    tokens: np.ndarray
    """[R, T] int32, with the MASK id of its modality at every masked position."""
    predicted: np.ndarray
    """[R, T] bool: masked positions that have a loss."""
    weight: np.ndarray
    """[S, M] float64: ELBO weight of a predicted token, by sequence and modality."""
    num_eligible: np.ndarray
    """[S] int64: number of positions that could have been predicted; a mean over a sequence divides by it."""
    times: np.ndarray
    """[S, M] float64: diffusion times. Those of a sequence differ between modalities with different schedules."""


def corrupt(
    batch: Batch,
    vocabulary: Vocabulary,
    config: CorruptConfig,
    *,
    step: int,
    global_batch: int,
    view: Literal[0, 1] | None = None,
) -> Corrupted:
    """Mask a batch. Views 0 and 1 mask complementary positions, each with its own ELBO weight (anti-masking)."""
    both_ends = view is not None
    times_SM = sample_times(batch, config, step, global_batch, both_ends)
    keep_SM = _by_modality(config, times_SM, lambda schedule, t: schedule.alpha(t))
    weight_SM = _by_modality(
        config, times_SM, lambda schedule, t: schedule.weight(t) if view != 1 else complement_weight(schedule, t)
    ) * [config.time_range_of(modality, both_ends).factor for modality in Modality]

    if not len(batch.sample_ids):  # an empty micro-batch, so that all ranks have the same number
        return Corrupted(batch.tokens, batch.maskable, weight_SM, np.zeros(0, np.int64), times_SM)

    # Padding has segment 0. It is assigned to sequence 0 but is never maskable.
    sequence_RT = np.maximum(batch.segment_ids.astype(np.int64) - 1, 0)
    modality_RT = np.minimum(batch.modality_ids, len(Modality) - 1)
    eligible_RT, hidden_RT = _eligible_positions(batch, config, sequence_RT)
    uniform_RT = to_uniform(
        random_bits(
            config.seed, CorruptStream.MASK, batch.epochs[sequence_RT], batch.sample_ids[sequence_RT], batch.positions
        )
    )
    if config.p_text_end:
        _mask_text_ends(uniform_RT, batch, config, sequence_RT)
    is_masked_RT = uniform_RT >= keep_SM[sequence_RT, modality_RT]
    predicted_RT = eligible_RT & (is_masked_RT if view != 1 else ~is_masked_RT)

    mask_ids = vocabulary.mask_ids.astype(np.int32)
    tokens_RT = np.where(predicted_RT | hidden_RT, mask_ids[modality_RT], batch.tokens)
    num_eligible = np.bincount(sequence_RT[eligible_RT], minlength=len(batch.sample_ids))
    return Corrupted(tokens_RT, predicted_RT, weight_SM, num_eligible, times_SM)


def _by_modality(
    config: CorruptConfig, times_SM: np.ndarray, function: Callable[[Schedule, Tensor], Tensor]
) -> np.ndarray:
    """[S, M]: a function applied to every modality's schedule and times."""
    columns = []
    for modality in Modality:
        columns.append(function(config.schedule_of(modality), torch.from_numpy(times_SM[:, modality])).numpy())
    return np.stack(columns, axis=1)


def sample_times(
    batch: Batch, config: CorruptConfig, step: int, global_batch: int, both_ends: bool = False
) -> np.ndarray:
    """[S, M] times, stratified over the global batch; shared by all modalities, or one for each.

    A random permutation assigns strata to slots. Without it, a batch whose tasks alternate in a fixed order would
    always give small times to one task and large ones to another.
    """
    columns = []
    for modality in Modality:
        number = modality if config.time_mode == "per_modality" else 0
        strata = permute(batch.slots, np.array([global_batch]), config.seed, CorruptStream.STRATUM, step, number)
        inside = to_uniform(random_bits(config.seed, CorruptStream.TIME, batch.epochs, batch.sample_ids, number))
        drawn = config.time_range_of(modality, both_ends)
        columns.append(drawn.lowest + (drawn.highest - drawn.lowest) * (strata + inside) / global_batch)
    return np.stack(columns, axis=1)


def _eligible_positions(batch: Batch, config: CorruptConfig, sequence_RT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two [R, T] masks: positions that may be predicted, and positions that are masked without being predicted."""
    is_text_RT = batch.modality_ids == Modality.TEXT
    # Either side of a pair can be predicted, unless it is a response to a prompt: its media are given.
    has_media_S = np.bincount(sequence_RT[batch.maskable & ~is_text_RT], minlength=len(batch.sample_ids)) > 0
    is_pair_S = (batch.tasks > 0) & has_media_S
    chance_S = to_uniform(random_bits(config.seed, CorruptStream.CHANCE, batch.epochs, batch.sample_ids))
    only_text_S = random_bits(config.seed, CorruptStream.SIDE, batch.epochs, batch.sample_ids) % np.uint64(2) == 0
    one_sided_S = is_pair_S & (chance_S < config.p_one_sided)
    prompt_masked_S = is_pair_S & (chance_S >= 1 - config.p_prompt_masked)

    is_condition_RT = one_sided_S[sequence_RT] & (is_text_RT != only_text_S[sequence_RT])
    hidden_RT = batch.maskable & prompt_masked_S[sequence_RT] & is_text_RT
    return batch.maskable & ~is_condition_RT & ~hidden_RT, hidden_RT


def _mask_text_ends(uniform_RT: np.ndarray, batch: Batch, config: CorruptConfig, sequence_RT: np.ndarray) -> None:
    """Replace the uniform numbers of some texts by numbers that rise from the first token to the last.

    One uniform shift per sequence keeps every single number uniform, so the expected number of masked tokens is that
    of the schedule.
    """
    ends_S = (
        to_uniform(random_bits(config.seed, CorruptStream.TEXT_END, batch.epochs, batch.sample_ids)) < config.p_text_end
    )
    shift_S = to_uniform(random_bits(config.seed, CorruptStream.TEXT_END_SHIFT, batch.epochs, batch.sample_ids))
    is_text = batch.maskable & (batch.modality_ids == Modality.TEXT) & ends_S[sequence_RT]
    sequence_n = sequence_RT[is_text]
    # first, count: of each sequence with such a text; inverse: the sequence of each token
    _, first, inverse_n, count = np.unique(sequence_n, return_index=True, return_inverse=True, return_counts=True)
    rank_n = np.arange(len(sequence_n)) - first[inverse_n]  # the tokens of a sequence are contiguous
    uniform_RT[is_text] = (rank_n + shift_S[sequence_n]) / count[inverse_n]
