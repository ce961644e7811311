"""Samplers: which masked positions are filled at each step.

    sampler           fills at each step                                             distribution
    ancestral         each position independently, with the schedule's probability   exact as num_steps grows
    first_hitting     one random position                                            exact
    random_order      equal numbers of random positions                              exact with one position per step
    remdm             like ancestral, and masks some filled positions again          ancestral's marginals
    low_confidence    equal numbers, the most confident draws                        greedy order
    maskgit           confidence plus noise, few positions first and many last       greedy order
    threshold         all draws above a confidence                                   greedy order
    entropy_bounded   as many positions as depend little on each other               error bounded per step
    blocks            another sampler, block by block from left to right

"Exact" means the model's own distribution: its conditionals averaged over all orders of positions, without the error
of filling several positions that do not see each other.

Use: `make_sampler(name, options).run(predictor, batch, num_steps, callback)` returns tokens [B, T] with nothing masked.
Given positions never change. Every sampler has the option `block_length`.

To add a sampler, write one function, add one line to `SAMPLERS`, and its name to `sample/names.py`. The function takes
the sampler's options as keyword-only arguments, checks them, and returns a `Sampler` around a rule:

    def leftmost(*, count: int = 1) -> Sampler:
        def rule(state: StepState) -> tuple[Tensor, Tensor]:
            count_B = state.min_fill.clamp(min=count)  # at least what num_steps requires
            chosen_BT = state.masked & (state.masked.cumsum(1) <= count_B[:, None])
            return chosen_BT, state.predict(chosen_BT).ids

        return Sampler(rule)

A rule gets the state of the batch (`StepState`), runs the model with `state.predict`, and returns which positions
change, and their ids. A step must fill at least one masked position of each unfinished request, unless the sampler has
`may_fill_nothing`.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from triptych.diffusion.schedule import Cosine, Linear, Schedule
from triptych.errors import UserError, did_you_mean
from triptych.sample.checks import check_number
from triptych.sample.sampling_loop import Sampler, StepState
from triptych.utils.arguments import shown
from triptych.utils.rng import SampleStream

# B requests, T positions

Variant = Literal["cap", "rescale"]

LINEAR, COSINE = Linear(), Cosine()
_ETA: dict[Variant, float] = {"cap": 0.008, "rescale": 0.015}  # ReMDM's values for text


# -- positions chosen at random, before the forward pass --------------------------------------------------------------


def ancestral(*, schedule: Schedule = LINEAR) -> Sampler:
    """Ancestral sampling (MD4, MDLM): time runs from 1 to 0 in equal steps. Between t and s each masked position is
    filled with probability (alpha_s - alpha_t) / (1 - alpha_t).

    The last step fills everything left, even if alpha(0) is slightly below 1.
    """
    _check_schedule(schedule)

    def rule(state: StepState) -> tuple[Tensor, Tensor]:
        alpha_t, alpha_s = state.alphas(schedule)
        chance_B = ((alpha_s - alpha_t) / (1 - alpha_t)).masked_fill(state.is_last, 1.0)
        chosen_BT = state.masked & (state.uniform(SampleStream.POSITION) < chance_B[:, None])
        return chosen_BT, state.predict(chosen_BT).ids

    return Sampler(rule, may_fill_nothing=True)


def first_hitting() -> Sampler:
    """The first-hitting sampler (Zheng et al. 2024): one uniformly random position per step, the exact distribution.

    `num_steps` is ignored: a request with n masked positions takes n steps. The hitting times are not drawn, since the
    model does not see the time.
    """
    return replace(random_order(), uses_num_steps=False)


def random_order() -> Sampler:
    """The paper's default: equal numbers of random positions per step. With one position per step, `first_hitting`.

    K steps for n positions fill n // K each, and one more in the first n % K; K is at most n.
    """

    def rule(state: StepState) -> tuple[Tensor, Tensor]:
        chosen_BT = _lowest(state.uniform(SampleStream.POSITION), state.masked, state.equal_share)
        return chosen_BT, state.predict(chosen_BT).ids

    return Sampler(rule)


def remdm(*, variant: Variant = "rescale", eta: float | None = None, schedule: Schedule = LINEAR) -> Sampler:
    """Remasking (ReMDM, Wang et al. 2025): between t and s a filled position is masked again with probability sigma,
    and a masked one is filled with probability (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t).

    The expected number of masked positions at each time is that of `ancestral`. The upper limit of sigma is
    min(1, (1 - alpha_s) / alpha_t). Sigma is the smaller of `eta` and that limit ("cap"), or `eta` times the limit
    ("rescale"). Eta 0 is `ancestral`. Given positions are never masked. The last step masks nothing and fills
    everything left.
    """
    if not isinstance(variant, str) or variant not in get_args(Variant):
        raise UserError(f"unknown variant of remdm {variant!r}.{did_you_mean(str(variant), list(get_args(Variant)))}")
    strength = _ETA[variant] if eta is None else eta
    check_number("eta", strength, "between 0 and 1", lambda x: 0 <= x <= 1)
    _check_schedule(schedule)

    def rule(state: StepState) -> tuple[Tensor, Tensor]:
        alpha_t, alpha_s = state.alphas(schedule)
        limit_B = ((1 - alpha_s) / alpha_t).clamp(max=1.0)  # 1 / 0 at t = 1 is harmless: nothing is filled yet
        sigma_B = limit_B.clamp(max=strength) if variant == "cap" else strength * limit_B
        chance_B = ((alpha_s - (1 - sigma_B) * alpha_t) / (1 - alpha_t)).masked_fill(state.is_last, 1.0)
        sigma_B = sigma_B.masked_fill(state.is_last, 0.0)
        fill_BT = state.masked & (state.uniform(SampleStream.POSITION) < chance_B[:, None])
        remask_BT = state.block & ~state.masked & (state.uniform(SampleStream.REMASK) < sigma_B[:, None])
        return fill_BT | remask_BT, state.predict(fill_BT).ids

    return Sampler(rule, may_fill_nothing=True, runs_all_steps=True)


# -- positions chosen by the model's draws for all masked positions ---------------------------------------------------


def low_confidence() -> Sampler:
    """LLaDA's low-confidence remasking: draw all masked positions, keep the most probable draws.

    Keeps as many per step as `random_order`. Deterministic at temperature 0.
    """

    def rule(state: StepState) -> tuple[Tensor, Tensor]:
        proposals = state.predict(state.masked, "confidence")
        return _lowest(-proposals.log_prob, state.masked, state.equal_share), proposals.ids

    return Sampler(rule)


def maskgit(*, choice_temperature: float = 4.5, schedule: Schedule = COSINE) -> Sampler:
    """MaskGIT (Chang et al. 2022): keep the draws of highest log p + choice_temperature * (1 - k/K) * Gumbel noise.

    After step k of K, floor(n (1 - alpha(1 - k/K))) of n positions are masked: n cos(pi k / 2K) for the cosine
    schedule. Every step fills at least one position and leaves at least one for each later step; K is at most n.
    """
    check_number("choice_temperature", choice_temperature, "of at least 0", lambda x: 0 <= x < math.inf)
    _check_schedule(schedule)

    def rule(state: StepState) -> tuple[Tensor, Tensor]:
        later_steps_B = state.steps_left - 1
        _, alpha_s = state.alphas(schedule)
        target_B = (state.block_size * (1 - alpha_s) + 1e-9).long()  # exact integers must not be rounded down
        left_B = torch.minimum(torch.maximum(target_B, later_steps_B), state.num_masked - 1)
        left_B = left_B.masked_fill(state.is_last, 0)
        proposals = state.predict(state.masked, "confidence")
        gumbel_BT = -(-state.uniform(SampleStream.CONFIDENCE).clamp(min=2.0**-54).log()).log()
        noise_B = choice_temperature * (later_steps_B / state.num_steps)
        confidence_BT = proposals.log_prob + noise_B[:, None] * gumbel_BT
        return _lowest(-confidence_BT, state.masked, state.num_masked - left_B), proposals.ids

    return Sampler(rule)


def threshold(*, threshold: float = 0.9) -> Sampler:
    """Fast-dLLM's parallel decoding: keep all draws of at least this probability, and always the most probable one.

    Without `num_steps`, runs until nothing is masked. With it, a step keeps at least the positions left divided by the
    steps left.
    """
    check_number("threshold", threshold, "above 0 and at most 1", lambda x: 0 < x <= 1)

    def rule(state: StepState) -> tuple[Tensor, Tensor]:
        proposals = state.predict(state.masked, "confidence")
        confident_BT = state.masked & (proposals.log_prob >= math.log(threshold))
        return confident_BT | _lowest(-proposals.log_prob, state.masked, state.min_fill), proposals.ids

    return Sampler(rule)


def entropy_bounded(*, gamma: float = 0.1) -> Sampler:
    """The EB-sampler (Ben-Hamu et al. 2025): sort positions by entropy and keep the longest prefix whose sum of
    entropies minus the largest is at most `gamma` nats; always at least one position.

    That difference bounds the distance between the joint distribution of the kept positions and the product of
    marginals they are drawn from. `num_steps` works as in `threshold`.
    """
    check_number("gamma", gamma, "of at least 0", lambda x: 0 <= x < math.inf)

    def rule(state: StepState) -> tuple[Tensor, Tensor]:
        proposals = state.predict(state.masked, "entropy")
        entropy_BT = proposals.entropy.clamp(min=0.0).masked_fill(~state.masked, 0.0)
        order_BT = _order(entropy_BT, state.masked)
        sorted_BT = entropy_BT.gather(1, order_BT)
        # The largest of a sorted prefix is its last: a position is kept if those before it sum to at most gamma.
        keep_BT = torch.cat([torch.zeros_like(sorted_BT[:, :1]), sorted_BT.cumsum(1)[:, :-1]], dim=1) <= gamma
        keep_BT = torch.zeros_like(keep_BT).scatter_(1, order_BT, keep_BT)
        return state.masked & keep_BT | _lowest(entropy_BT, state.masked, state.min_fill), proposals.ids

    return Sampler(rule)


# -- from left to right -----------------------------------------------------------------------------------------------


def blocks(*, block_length: int | None = 32, inner: str = "low_confidence", **options: Any) -> Sampler:
    """Semi-autoregressive (LLaDA, BD3-LM): the sampler `inner`, with its `options`, fills each block of `block_length`
    masked positions before the next block to the right.

    Steps are divided among the blocks by length. Requests of a batch do not wait for each other at the end of a block.
    """
    names = [name for name in SAMPLERS if name != "blocks"]
    if not isinstance(inner, str) or inner not in names:
        raise UserError(f"unknown sampler inside blocks {inner!r}.{did_you_mean(str(inner), names)}")
    return replace(SAMPLERS[inner](**options), block_length=block_length)


SAMPLERS: dict[str, Callable[..., Sampler]] = {
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


def make_sampler(name: str, options: Mapping[str, Any] | None = None) -> Sampler:
    """A sampler by name, with checked options."""
    if not isinstance(name, str) or name not in SAMPLERS:
        raise UserError(f"unknown sampler {shown(name)}.{did_you_mean(shown(name), list(SAMPLERS))}")
    own = dict(options or {})
    known = {"block_length", *_option_names(name)}
    if name == "blocks":
        known |= _option_names(own.get("inner", "low_confidence"))
    for option in own:
        if not isinstance(option, str) or option not in known:
            raise UserError(f"the sampler {name!r} has no option {option!r}.{did_you_mean(str(option), sorted(known))}")
    if name == "blocks":
        return blocks(**own)
    block_length = own.pop("block_length", None)
    return replace(SAMPLERS[name](**own), block_length=block_length)


def _option_names(name: object) -> set[str]:
    if not isinstance(name, str) or name not in SAMPLERS:
        return set()
    parameters = inspect.signature(SAMPLERS[name]).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY}


def _check_schedule(schedule: object) -> None:
    if not callable(getattr(schedule, "alpha", None)):
        raise UserError(f"schedule must be one of triptych.diffusion.schedule, such as Linear(), got {schedule!r}.")


# -- choosing positions -----------------------------------------------------------------------------------------------


def _order(keys_BT: Tensor, among_BT: Tensor) -> Tensor:
    """[B, T] positions of each row: first those in `among` by ascending key, ties from left to right.

    Two sorts instead of one with infinite keys outside `among`: a key that is infinite or NaN must not move a position
    from outside to the front.
    """
    order_BT = keys_BT.argsort(dim=1, stable=True)
    outside_BT = (~among_BT).gather(1, order_BT)
    return order_BT.gather(1, outside_BT.to(torch.uint8).argsort(dim=1, stable=True))


def _lowest(keys_BT: Tensor, among_BT: Tensor, count_B: Tensor) -> Tensor:
    """[B, T] bool, in each row the `count_B` positions of `among` with the lowest keys."""
    order_BT = _order(keys_BT, among_BT)
    first_BT = torch.arange(order_BT.shape[1], device=order_BT.device) < count_B[:, None]
    return among_BT & torch.zeros_like(among_BT).scatter_(1, order_BT, first_BT)
