"""The loop that all samplers share: at every step a sampler's rule chooses positions, and the model fills them.

The loop divides the steps among blocks, applies what the rule returns, and calls the callback. Each request moves
through its own steps and blocks, so it gives the same tokens in any batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.diffusion.schedule import Schedule
from triptych.errors import UserError
from triptych.sample.batch import Callback, Need, Predictor, Proposals, RequestBatch
from triptych.sample.checks import check_count
from triptych.utils.rng import SampleStream

# B requests, T positions


@dataclass(frozen=True)
class StepState:
    """Where each request is before a step. A finished request has no position in `block` or `masked`."""

    batch: RequestBatch
    predictor: Predictor
    tokens: Tensor
    """[B, T] int64, current tokens."""
    step: int
    """Number of the step, from 0."""
    block: Tensor
    """[B, T] bool, the positions to generate in each request's current block, filled or not."""
    masked: Tensor
    """[B, T] bool, the positions of the block that are still masked."""
    block_size: Tensor
    """[B] int64, number of positions in the block."""
    num_steps: Tensor
    """[B] int64, number of steps for the block, at least 1."""
    steps_taken: Tensor
    """[B] int64, steps the block has had so far."""

    @property
    def num_masked(self) -> Tensor:
        return self.masked.sum(1)

    @property
    def steps_left(self) -> Tensor:
        """[B] int64, steps left for the block, this one included."""
        return self.num_steps - self.steps_taken

    @property
    def is_last(self) -> Tensor:
        """[B] bool, whether this is the last step of the block."""
        return self.steps_taken + 1 == self.num_steps

    @property
    def equal_share(self) -> Tensor:
        """[B] int64, positions to fill if all steps fill equally many; the first steps take the remainder."""
        return self.block_size // self.num_steps + (self.steps_taken < self.block_size % self.num_steps)

    @property
    def min_fill(self) -> Tensor:
        """[B] int64, positions to fill at least: masked positions over steps left, rounded up, and at least one."""
        return ((self.num_masked + self.steps_left - 1) // self.steps_left).clamp(min=1)

    def alphas(self, schedule: Schedule) -> tuple[Tensor, Tensor]:
        """[B] each: alpha before this step and after it. Time runs from 1 to 0 over the steps of the block."""
        left = self.steps_left.double()  # integers would divide into float32
        return _rowwise(schedule.alpha, left / self.num_steps), _rowwise(schedule.alpha, (left - 1) / self.num_steps)

    def uniform(self, stream: SampleStream) -> Tensor:
        """[B, T] float64 in [0, 1): this step's random numbers for a purpose."""
        return self.batch.uniform(self.step, stream)

    def predict(self, where: Tensor, need: Need = "ids") -> Proposals:
        """Run the model: draws for the masked positions `where` [B, T]. Without any, the forward pass is skipped."""
        if bool(where.any()):
            return self.predictor(self.tokens, where, self.step, need)
        zeros = torch.zeros_like(self.tokens, dtype=torch.float64)
        return Proposals(self.tokens, zeros, zeros)


Rule = Callable[[StepState], tuple[Tensor, Tensor]]
"""One step of a sampler: (changed, ids), both [B, T]. Masked positions in `changed` get their id of `ids`; filled
positions in `changed` are masked again."""


@dataclass(frozen=True)
class Sampler:
    """A rule, and how the loop runs it."""

    rule: Rule
    block_length: int | None = None
    """Fill blocks of this many masked positions from left to right, each to its end; None for a single block."""
    uses_num_steps: bool = True
    """False: always one step per masked position, whatever `num_steps` is."""
    may_fill_nothing: bool = False
    """Whether a step may fill no position. Then there can be more steps than masked positions."""
    runs_all_steps: bool = False
    """Whether a block takes all its steps, even if nothing is masked: a later step may mask positions again."""

    def __post_init__(self) -> None:
        if self.block_length is not None:
            check_count("block_length", self.block_length)

    def run(
        self, predictor: Predictor, batch: RequestBatch, num_steps: int | None = None, callback: Callback | None = None
    ) -> Tensor:
        """Fill every masked position of the batch: tokens [B, T].

        `num_steps` is the maximum number of steps per request; None for one step per masked position.
        """
        if not self.uses_num_steps:
            num_steps = None
        if num_steps is not None:
            check_count("num_steps", num_steps)
        total_B = batch.masked.sum(1)
        rank_BT = batch.masked.cumsum(1) - 1  # number of a position among those to generate
        length = max(1, batch.masked.shape[1]) if self.block_length is None else self.block_length
        steps_B = total_B if num_steps is None else torch.full_like(total_B, num_steps)
        if not self.may_fill_nothing:
            steps_B = torch.minimum(steps_B, total_B)
        _check_blocks(steps_B, total_B, length)

        tokens_BT, masked_BT = batch.tokens.clone(), batch.masked.clone()
        start_B, taken_B = torch.zeros_like(total_B), torch.zeros_like(total_B)  # of the block: first rank, steps taken
        step = 0
        while bool((start_B < total_B).any()):
            stop_B = torch.minimum(start_B + length, total_B)
            block_BT = batch.masked & (rank_BT >= start_B[:, None]) & (rank_BT < stop_B[:, None])
            # Steps are shared by length and rounded so that they add up. Each block of a request gets at least one,
            # since there are at least as many steps as blocks; the clamp is for finished requests.
            share_B = _steps_before(stop_B, steps_B, total_B) - _steps_before(start_B, steps_B, total_B)
            state = StepState(
                batch=batch,
                predictor=predictor,
                tokens=tokens_BT,
                step=step,
                block=block_BT,
                masked=block_BT & masked_BT,
                block_size=stop_B - start_B,
                num_steps=share_B.clamp(min=1),
                steps_taken=taken_B,
            )

            changed_BT, ids_BT = self.rule(state)
            tokens_BT = torch.where(changed_BT, torch.where(masked_BT, ids_BT, batch.mask_ids), tokens_BT)
            masked_BT = masked_BT ^ changed_BT

            taken_B = taken_B + 1
            ended_B = taken_B >= state.num_steps if self.runs_all_steps else ~(block_BT & masked_BT).any(1)
            start_B, taken_B = torch.where(ended_B, stop_B, start_B), taken_B.masked_fill(ended_B, 0)
            step += 1
            if callback is not None:
                left_B = steps_B - _steps_before(start_B, steps_B, total_B) - taken_B
                if not self.may_fill_nothing:
                    left_B = torch.minimum(left_B, masked_BT.sum(1))
                left_B = left_B.clamp(min=1).masked_fill(start_B >= total_B, 0)
                callback(step - 1, step + int(left_B.max()), tokens_BT)
        assert not masked_BT.any(), "a sampler left something masked"
        return tokens_BT


def _steps_before(rank_B: Tensor, steps_B: Tensor, total_B: Tensor) -> Tensor:
    """[B] int64, steps for all blocks to the left of a position, which is given by its rank among those to generate."""
    return steps_B * rank_B // total_B.clamp(min=1)


def _check_blocks(steps_B: Tensor, total_B: Tensor, length: int) -> None:
    """Every block needs at least one step."""
    for num_steps, total in torch.stack([steps_B, total_B], dim=1).unique(dim=0).tolist():
        num_blocks = -(-total // length)
        if num_blocks > num_steps:
            raise UserError(
                f"num_steps={num_steps} is too few for {num_blocks} blocks of {length} positions: "
                f"use at least {num_blocks} steps, or a block_length of at least {-(-total // num_steps)}."
            )


def _rowwise(function: Callable[[Tensor], Tensor], values_B: Tensor) -> Tensor:
    """A function of one number, applied to each request. On tensors, the last bit of `pow` depends on their length."""
    distinct, which_B = values_B.double().unique(return_inverse=True)
    return torch.stack([function(value) for value in distinct])[which_B]
