"""From the model's logits to a drawn token: guidance, which tokens may stand there, temperature, top-p, the draw.

Probabilities of 100,000 columns are never made in float64, nor even divided by their sum: numbers up to a factor, each
in the precision of the logits, are summed up in blocks, and a block, then a column of it, is found by a uniform number
of 53 bits, in float64. So a token that is a billion times rarer than another comes up as often as it should, which
cumulative sums or Gumbel noise in float32 would not give, at the cost of one exponential a column.

A row gives the same bits whatever other rows it stands among. That forbids sums over whole rows, whose order of
addition depends on the shape and the number of threads; those over blocks do not, and are added up from left to right.
"""

import math
from functools import cached_property

import torch
from torch import Tensor

from triptych.errors import UserError

# n rows, V columns of one modality: its data ids, then BOS and EOS; K blocks of columns

_BOS, _EOS = -2, -1
_BLOCK = 256


def apply_cfg(cond_nV: Tensor, uncond_nV: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: uncond + scale * (cond - uncond). Scale 1 is no guidance; LLaDA's is ours minus 1."""
    if not math.isfinite(scale):
        raise UserError(f"the guidance scale must be a finite number, got {scale}.")
    return cond_nV if scale == 1 else torch.lerp(uncond_nV, cond_nV, scale)


def mask_specials(logits_nV: Tensor, allow_eos_n: Tensor) -> Tensor:
    """Only tokens that may stand at a position: data, and EOS where `allow_eos_n` says so; never BOS. In place."""
    logits_nV[:, _BOS] = -math.inf
    logits_nV[:, _EOS].masked_fill_(~allow_eos_n, -math.inf)
    return logits_nV


class Categorical:
    """What may be drawn in each row, by its logits, which it takes over."""

    def __init__(self, logits_nV: Tensor):
        # Less the largest first: else a tiny temperature overflows to inf - inf.
        self.shifted_nV = logits_nV.sub_(logits_nV.amax(1, keepdim=True))

    @cached_property
    def _weights_nV(self) -> Tensor:
        return self.shifted_nV.exp()

    @cached_property
    def _log_total_n(self) -> Tensor:
        return _row_sums(self._weights_nV).log()

    def draw(self, uniform_n: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
        """Ids [n]. At temperature 0 the likeliest token, the first of equals."""
        if temperature == 0:
            return self.shifted_nV.argmax(1)
        plain = temperature == 1 and top_p == 1
        return draw(
            self._weights_nV if plain else apply_temperature_top_p(self.shifted_nV, temperature, top_p), uniform_n
        )

    def log_prob(self, ids_n: Tensor) -> Tensor:
        """[n] float64, before temperature and top-p."""
        return self.shifted_nV.gather(1, ids_n[:, None])[:, 0].double() - self._log_total_n

    @property
    def entropy(self) -> Tensor:
        """[n] float64, in nats, of the law before temperature and top-p."""
        terms_nV = (self._weights_nV * self.shifted_nV).masked_fill_(self._weights_nV == 0, 0.0)  # 0 * -inf
        return self._log_total_n - _row_sums(terms_nV) / self._log_total_n.exp()


def apply_temperature_top_p(logits_nV: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Probabilities [n, V] up to a factor, after temperature and top-p; the largest is 1.

    Top-p keeps the smallest set of likeliest tokens that together reach `top_p`: at least one, and the one that crosses
    the line is in. Of equal tokens those with smaller ids go first.
    """
    if not 0 <= temperature < math.inf:
        raise UserError(f"the temperature must be 0 or more, got {temperature}.")
    if not 0 <= top_p <= 1:
        raise UserError(f"top_p must lie between 0 and 1, got {top_p}.")
    if temperature == 0:
        return torch.zeros_like(logits_nV).scatter_(1, logits_nV.argmax(1, keepdim=True), 1.0)
    smallest = torch.finfo(logits_nV.dtype).tiny  # else 0 / 0
    weights_nV = (logits_nV - logits_nV.amax(1, keepdim=True)).div_(max(temperature, smallest)).exp_()
    if top_p == 1:  # a cumulative sum can reach the whole before the last token
        return weights_nV
    sorted_nV, order_nV = weights_nV.sort(dim=1, descending=True, stable=True)
    cumulative_nV = sorted_nV.cumsum(1, dtype=torch.float64)
    drop_nV = cumulative_nV >= top_p * cumulative_nV[:, -1:]
    drop_nV = torch.cat([torch.zeros_like(drop_nV[:, :1]), drop_nV[:, :-1]], dim=1)  # those behind the crossing one
    return weights_nV.masked_fill_(torch.zeros_like(drop_nV).scatter_(1, order_nV, drop_nV), 0.0)


def draw(weights_nV: Tensor, uniform_n: Tensor) -> Tensor:
    """Ids [n] by inverting the cumulative distribution: the first column whose cumulative sum exceeds uniform * total.

    Such a column is one where the sum grows, so it never has probability zero. If none exceeds it, as for a uniform
    that was rounded to 1, it is the column at which the sum stops growing.
    """
    blocks_nK = _block_sums(weights_nV)
    cumulative_nK = blocks_nK.cumsum(1)
    aim_n = uniform_n.double() * cumulative_nK[:, -1]
    block_n1 = _first_above(cumulative_nK, aim_n)[:, None]
    before_n = (cumulative_nK - blocks_nK).gather(1, block_n1)[:, 0]
    # Within the block, the same share of its own exact sum: that of the block may be rounded otherwise.
    share_n = ((aim_n - before_n) / blocks_nK.gather(1, block_n1)[:, 0]).clamp_(0.0, 1.0)
    columns_nB = block_n1 * _BLOCK + torch.arange(_BLOCK, device=weights_nV.device)
    is_past_nB = columns_nB >= weights_nV.shape[1]
    found_nB = weights_nV.gather(1, columns_nB.clamp(max=max(0, weights_nV.shape[1] - 1))).double()
    inside_nB = found_nB.masked_fill_(is_past_nB, 0.0).cumsum(1)
    return block_n1[:, 0] * _BLOCK + _first_above(inside_nB, share_n * inside_nB[:, -1])


def _first_above(cumulative: Tensor, aim: Tensor) -> Tensor:
    """[n] the first column whose sum exceeds the aim, or at which it stops growing."""
    return ((cumulative <= aim[:, None]) & (cumulative < cumulative[:, -1:])).sum(1)


def _block_sums(values_nV: Tensor) -> Tensor:
    """[n, K] float64."""
    columns = values_nV.shape[1]
    whole = columns // _BLOCK * _BLOCK
    sums = [values_nV[:, :whole].unflatten(1, (-1, _BLOCK)).sum(-1)] if whole else []
    if whole < columns:
        sums.append(values_nV[:, whole:].sum(-1, keepdim=True))
    return torch.cat(sums, dim=1).double()


def _row_sums(values_nV: Tensor) -> Tensor:
    """[n] float64, blocks added from left to right."""
    return _block_sums(values_nV).cumsum(1)[:, -1]
