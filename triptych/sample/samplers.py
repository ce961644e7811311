"""Samplers: which of the masked positions are filled in at which look of the model. One function each.

    sampler           fills in at a look                                                   law
    ancestral         every position with the probability the schedule says, by itself     exact as steps grow
    first_hitting     one at random                                                        exact
    random_order      so many at random                                                    exact if one at a time
    low_confidence    so many, the surest of what was drawn                                greedy order
    maskgit           the same with noise, few at first and many at the end                greedy order
    threshold         all that are sure enough                                             greedy order
    entropy_bounded   as many as can depend little on each other                           error bounded per look
    remdm             as ancestral, and takes some back                                    ancestral's marginals
    blocks            what another sampler says, from left to right, block by block

"Exact" means: the law of the model, its conditionals averaged over all orders, with no error from filling in several
positions that cannot see each other.

All take (propose, group, steps, options, callback) and return tokens [B, T] with nothing left masked. Given positions
stay. `steps` is the most looks the model gets, None as many as a request has masked positions; a look that would fill
in nothing in the whole group is left out. With a `block_length`, any of them finishes that many masked positions before
it goes on to those on their right.

A request's steps, counts and ranks are its own, and so is its pace through its blocks: it gives the same tokens alone
and in any group.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from triptych.diffusion.schedule import Cosine, Linear, Schedule
from triptych.errors import UserError, did_you_mean
from triptych.sample.batch import Callback, Proposals, Propose, RequestBatch, Wants
from triptych.utils.rng import SampleStream

# B requests, T positions

Sampler = Callable[..., Tensor]
Variant = Literal["cap", "rescale"]

LINEAR, COSINE = Linear(), Cosine()
_ETA: dict[Variant, float] = {"cap": 0.008, "rescale": 0.015}  # what ReMDM's authors use for text


# -- positions chosen by chance, before the model looks ---------------------------------------------------------------


def ancestral(
    propose: Propose,
    group: RequestBatch,
    steps: int | None,
    *,
    schedule: Schedule = LINEAR,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """Ancestral sampling (MD4, MDLM): time runs from 1 to 0 in equal steps, and a masked position is filled in on the
    way from t to s with probability (alpha_s - alpha_t) / (1 - alpha_t).

    The last step fills in all that is left, also where alpha(0) is a hair below 1.
    """

    def rule(look: _Look, ask: _Ask) -> tuple[Tensor, Tensor]:
        alpha_t, alpha_s = look.alphas(schedule)
        chance_B = ((alpha_s - alpha_t) / (1 - alpha_t)).masked_fill(look.is_last, 1.0)
        chosen_BT = look.open & (group.uniform(look.step, SampleStream.POSITION) < chance_B[:, None])
        return chosen_BT, ask(chosen_BT).ids

    return _run(propose, group, _checked(steps), rule, block_length, callback, idle=True)


def first_hitting(
    propose: Propose,
    group: RequestBatch,
    steps: int | None = None,
    *,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """The first-hitting sampler (Zheng et al. 2024): one uniformly random position at a time. The model's exact law.

    `steps` is ignored: a request with n masked positions takes n looks. The times at which they would be hit are not
    drawn, since the model is not told the time.
    """
    return _run(propose, group, None, _at_random(group), block_length, callback)


def random_order(
    propose: Propose,
    group: RequestBatch,
    steps: int | None,
    *,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """The paper's default: equal numbers of random positions at every look. With one position a look, `first_hitting`.

    Of n positions in K looks, n // K at each and one more at the first n % K; K is at most n.
    """
    return _run(propose, group, _checked(steps), _at_random(group), block_length, callback)


def remdm(
    propose: Propose,
    group: RequestBatch,
    steps: int | None,
    *,
    variant: Variant = "rescale",
    eta: float | None = None,
    schedule: Schedule = LINEAR,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """Remasking (ReMDM, Wang et al. 2025): on the way from t to s a filled position is masked again with probability
    sigma, and a masked one filled in with probability (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t).

    As many are masked at every time as without remasking. Sigma may be at most min(1, (1 - alpha_s) / alpha_t); it is
    `eta` if that is less ("cap"), or `eta` times that ("rescale"). Eta 0 is `ancestral`. Given positions are never
    masked. The last step goes to time 0: it masks nothing and fills in all that is left.
    """
    if variant not in get_args(Variant):
        raise UserError(f"unknown variant of remdm {variant!r}.{did_you_mean(str(variant), list(get_args(Variant)))}")
    strength = _ETA[variant] if eta is None else eta
    if not 0 <= strength <= 1:
        raise UserError(f"eta must lie between 0 and 1, got {eta}.")

    def rule(look: _Look, ask: _Ask) -> tuple[Tensor, Tensor]:
        alpha_t, alpha_s = look.alphas(schedule)
        most_B = ((1 - alpha_s) / alpha_t).clamp(max=1.0)  # at t = 1 nothing is filled: 1 / 0 does no harm
        sigma_B = most_B.clamp(max=strength) if variant == "cap" else strength * most_B
        chance_B = ((alpha_s - (1 - sigma_B) * alpha_t) / (1 - alpha_t)).masked_fill(look.is_last, 1.0)
        sigma_B = sigma_B.masked_fill(look.is_last, 0.0)
        fill_BT = look.open & (group.uniform(look.step, SampleStream.POSITION) < chance_B[:, None])
        again_BT = look.block & ~look.open & (group.uniform(look.step, SampleStream.REMASK) < sigma_B[:, None])
        return fill_BT | again_BT, ask(fill_BT).ids

    return _run(propose, group, _checked(steps), rule, block_length, callback, idle=True, to_the_end=True)


# -- positions chosen by what the model drew for all of them ----------------------------------------------------------


def low_confidence(
    propose: Propose,
    group: RequestBatch,
    steps: int | None,
    *,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """LLaDA's low-confidence remasking: tokens are drawn for all masked positions, the likeliest draws are kept.

    As many at every look as in `random_order`. At temperature 0 nothing is random.
    """

    def rule(look: _Look, ask: _Ask) -> tuple[Tensor, Tensor]:
        proposals = ask(look.open, "confidence")
        return _lowest(-proposals.log_prob, look.open, look.equal_share), proposals.ids

    return _run(propose, group, _checked(steps), rule, block_length, callback)


def maskgit(
    propose: Propose,
    group: RequestBatch,
    steps: int | None,
    *,
    choice_temperature: float = 4.5,
    schedule: Schedule = COSINE,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """MaskGIT (Chang et al. 2022): the surest draws are kept, by log p + choice_temperature * (1 - k/K) * Gumbel noise.

    After look k of K, floor(n (1 - alpha(1 - k/K))) of n positions are left: n cos(pi k / 2K) with the cosine schedule.
    Every look fills in at least one and leaves at least one for each look to come; K is at most n.
    """
    if not 0 <= choice_temperature < math.inf:
        raise UserError(f"choice_temperature must be 0 or more, got {choice_temperature}.")

    def rule(look: _Look, ask: _Ask) -> tuple[Tensor, Tensor]:
        to_come_B = look.steps - look.taken - 1
        _, alpha_s = look.alphas(schedule)
        aim_B = (look.size * (1 - alpha_s) + 1e-9).long()  # what is whole in exact arithmetic is not rounded down
        left_B = torch.minimum(torch.maximum(aim_B, to_come_B), look.num_open - 1).masked_fill(look.is_last, 0)
        proposals = ask(look.open, "confidence")
        gumbel_BT = -(-group.uniform(look.step, SampleStream.CONFIDENCE).clamp(min=2.0**-54).log()).log()
        noise_B = choice_temperature * (to_come_B / look.steps)
        confidence_BT = proposals.log_prob + noise_B[:, None] * gumbel_BT
        return _lowest(-confidence_BT, look.open, look.num_open - left_B), proposals.ids

    return _run(propose, group, _checked(steps), rule, block_length, callback)


def threshold(
    propose: Propose,
    group: RequestBatch,
    steps: int | None = None,
    *,
    threshold: float = 0.9,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """Fast-dLLM's parallel decoding: all draws of at least this probability are kept, and always the surest one.

    Without `steps`, until nothing is masked. With `steps`, a look keeps at least the positions left divided by the
    looks left, so that it ends in time.
    """
    if not 0 < threshold <= 1:
        raise UserError(f"the threshold must be above 0 and at most 1, got {threshold}.")

    def rule(look: _Look, ask: _Ask) -> tuple[Tensor, Tensor]:
        proposals = ask(look.open, "confidence")
        sure_BT = look.open & (proposals.log_prob >= math.log(threshold))
        return sure_BT | _lowest(-proposals.log_prob, look.open, look.least), proposals.ids

    return _run(propose, group, _checked(steps), rule, block_length, callback)


def entropy_bounded(
    propose: Propose,
    group: RequestBatch,
    steps: int | None = None,
    *,
    gamma: float = 0.1,
    block_length: int | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """The EB-sampler (Ben-Hamu et al. 2025): of the positions sorted by entropy, the longest run from the most certain
    one whose sum of entropies less the largest is at most `gamma` nats; always at least one.

    That difference bounds how far the joint law of the run is from the product it is drawn from. `steps` as in
    `threshold`.
    """
    if not 0 <= gamma < math.inf:
        raise UserError(f"gamma must be 0 or more, got {gamma}.")

    def rule(look: _Look, ask: _Ask) -> tuple[Tensor, Tensor]:
        proposals = ask(look.open, "entropy")
        entropy_BT = proposals.entropy.clamp(min=0.0).masked_fill(~look.open, 0.0)
        order_BT = _order(entropy_BT, look.open)
        sorted_BT = entropy_BT.gather(1, order_BT)
        # Sorted, the largest is the last: a position joins if those before it sum to at most gamma.
        joins_BT = torch.cat([torch.zeros_like(sorted_BT[:, :1]), sorted_BT.cumsum(1)[:, :-1]], dim=1) <= gamma
        joins_BT = torch.zeros_like(joins_BT).scatter_(1, order_BT, joins_BT)
        return look.open & joins_BT | _lowest(entropy_BT, look.open, look.least), proposals.ids

    return _run(propose, group, _checked(steps), rule, block_length, callback)


# -- from left to right -----------------------------------------------------------------------------------------------


def blocks(
    propose: Propose,
    group: RequestBatch,
    steps: int | None,
    *,
    block_length: int = 32,
    inner: str = "low_confidence",
    callback: Callback | None = None,
    **options: Any,
) -> Tensor:
    """Semi-autoregressive (LLaDA, BD3-LM): each run of `block_length` masked positions is finished by the sampler
    `inner`, with its `options`, before the next one on its right begins.

    The steps are divided among the blocks by their lengths. A request does not wait for others to end their blocks.
    """
    known = [name for name in SAMPLERS if name != "blocks"]
    if inner not in known:
        raise UserError(f"unknown sampler inside blocks {inner!r}.{did_you_mean(inner, known)}")
    return SAMPLERS[inner](propose, group, steps, block_length=block_length, callback=callback, **options)


SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "first_hitting": first_hitting,
    "random_order": random_order,
    "remdm": remdm,
    "low_confidence": low_confidence,
    "maskgit": maskgit,
    "threshold": threshold,
    "entropy_bounded": entropy_bounded,
    "blocks": blocks,
}


# -- the loop they share ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    """Where each request stands before a look of the model. A request that has ended has no block and nothing open."""

    step: int
    """Number of the look, from 0."""
    block: Tensor
    """[B, T] bool, the positions being worked on: those of the request's block that are not given."""
    open: Tensor
    """[B, T] bool, those of them that are masked now."""
    size: Tensor
    """[B] int64, how many positions the block has."""
    steps: Tensor
    """[B] int64, how many looks the block gets, at least 1."""
    taken: Tensor
    """[B] int64, how many it has had."""

    @property
    def num_open(self) -> Tensor:
        return self.open.sum(1)

    @property
    def is_last(self) -> Tensor:
        """[B] bool, whether this is the block's last look."""
        return self.taken + 1 == self.steps

    @property
    def equal_share(self) -> Tensor:
        """[B] int64, how many to fill in if every look fills in as many, the first ones the remainder."""
        return self.size // self.steps + (self.taken < self.size % self.steps)

    @property
    def least(self) -> Tensor:
        """[B] int64, how many to fill in at least: one, and what is left shared among the looks left."""
        looks_left = self.steps - self.taken
        return ((self.num_open + looks_left - 1) // looks_left).clamp(min=1)

    def alphas(self, schedule: Schedule) -> tuple[Tensor, Tensor]:
        """[B] each: alpha at the time before this look and at the time after it."""
        left = (self.steps - self.taken).double()  # integers would divide into float32
        return _rowwise(schedule.alpha, left / self.steps), _rowwise(schedule.alpha, (left - 1) / self.steps)


class _Ask(Protocol):
    def __call__(self, where_BT: Tensor, wants: Wants = "ids") -> Proposals: ...


# A look -> the positions [B, T] that change, masked ones to what the model drew, filled ones to MASK; and the draws.
_Rule = Callable[[_Look, _Ask], tuple[Tensor, Tensor]]


def _run(
    propose: Propose,
    group: RequestBatch,
    steps: int | None,
    rule: _Rule,
    block_length: int | None,
    callback: Callback | None,
    *,
    idle: bool = False,
    to_the_end: bool = False,
) -> Tensor:
    """Ask the rule look after look, for every request in its own block, until nothing is masked.

    `idle`: looks may fill in nothing, so there can be more of them than positions. `to_the_end`: a block takes all its
    looks, even if nothing in it is masked for now.
    """
    total_B = group.masked.sum(1)
    place_BT = group.masked.cumsum(1) - 1  # number of a position among those to generate
    length = max(1, group.masked.shape[1]) if block_length is None else block_length
    if not _is_count(length):
        raise UserError(f"block_length must be a whole number of at least 1, got {block_length!r}.")
    steps_B = total_B if steps is None else torch.full_like(total_B, steps)
    if not idle:
        steps_B = torch.minimum(steps_B, total_B)
    _check_blocks(steps_B, total_B, length)

    tokens_BT, masked_BT = group.tokens.clone(), group.masked.clone()
    start_B, taken_B = torch.zeros_like(total_B), torch.zeros_like(total_B)  # where the block begins; looks it has had
    most = int(torch.where(total_B > 0, steps_B, 0).max()) if len(total_B) else 0
    step = 0
    while bool((start_B < total_B).any()):
        stop_B = torch.minimum(start_B + length, total_B)
        block_BT = group.masked & (place_BT >= start_B[:, None]) & (place_BT < stop_B[:, None])
        # Shares of the steps by length, rounded so that they add up; none is 0, since there is a step for every block.
        share_B = steps_B * stop_B // total_B.clamp(min=1) - steps_B * start_B // total_B.clamp(min=1)
        look = _Look(step, block_BT, block_BT & masked_BT, stop_B - start_B, share_B.clamp(min=1), taken_B)

        changed_BT, ids_BT = rule(look, _asker(propose, tokens_BT, step))
        tokens_BT = torch.where(changed_BT, torch.where(masked_BT, ids_BT, group.mask_ids), tokens_BT)
        masked_BT = masked_BT ^ changed_BT

        taken_B = taken_B + 1
        ended_B = taken_B >= look.steps if to_the_end else ~(block_BT & masked_BT).any(1)
        start_B, taken_B = torch.where(ended_B, stop_B, start_B), taken_B.masked_fill(ended_B, 0)
        if callback is not None:
            callback(step, most, tokens_BT)
        step += 1
    assert not masked_BT.any(), "a sampler left something masked"
    return tokens_BT


def _asker(propose: Propose, tokens_BT: Tensor, step: int) -> _Ask:
    """What a rule asks the model with; the model is spared a look at nothing."""

    def ask(where_BT: Tensor, wants: Wants = "ids") -> Proposals:
        if bool(where_BT.any()):
            return propose(tokens_BT, where_BT, step, wants)
        nothing = torch.zeros_like(tokens_BT, dtype=torch.float64)
        return Proposals(tokens_BT, nothing, nothing)

    return ask


def _at_random(group: RequestBatch) -> _Rule:
    """Equal numbers of random positions at every look, chosen before it."""

    def rule(look: _Look, ask: _Ask) -> tuple[Tensor, Tensor]:
        chosen_BT = _lowest(group.uniform(look.step, SampleStream.POSITION), look.open, look.equal_share)
        return chosen_BT, ask(chosen_BT).ids

    return rule


def _order(keys_BT: Tensor, among_BT: Tensor) -> Tensor:
    """[B, T] positions of each row, those `among` first, by rising key, equal ones from left to right.

    Sorted twice, not once with infinite keys outside: so a key that is infinite or not a number cannot get a position
    from outside into the front.
    """
    order_BT = keys_BT.argsort(dim=1, stable=True)
    outside_BT = (~among_BT).gather(1, order_BT)
    return order_BT.gather(1, outside_BT.to(torch.uint8).argsort(dim=1, stable=True))


def _lowest(keys_BT: Tensor, among_BT: Tensor, count_B: Tensor) -> Tensor:
    """[B, T] bool, the `count_B` positions of lowest key in each row among some."""
    order_BT = _order(keys_BT, among_BT)
    first_BT = torch.arange(order_BT.shape[1], device=order_BT.device) < count_B[:, None]
    return among_BT & torch.zeros_like(among_BT).scatter_(1, order_BT, first_BT)


def _rowwise(function: Callable[[Tensor], Tensor], values_B: Tensor) -> Tensor:
    """A function of one number for each request. On a whole tensor, `pow` differs in the last bit with its length."""
    distinct, which_B = values_B.double().unique(return_inverse=True)
    return torch.stack([function(value) for value in distinct])[which_B]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _checked(steps: int | None) -> int | None:
    if steps is not None and not _is_count(steps):
        raise UserError(f"steps must be a whole number of at least 1, got {steps!r}.")
    return steps


def _check_blocks(steps_B: Tensor, total_B: Tensor, length: int) -> None:
    """A look belongs to one block."""
    for steps, total in torch.stack([steps_B, total_B], dim=1).unique(dim=0).tolist():
        num_blocks = -(-total // length)
        if num_blocks > steps:
            raise UserError(
                f"{steps} steps are too few for {num_blocks} blocks of {length} positions: "
                f"take at least {num_blocks} steps, or a block_length of at least {-(-total // steps)}."
            )
