"""From logits to a drawn token: guidance, allowed tokens, temperature, top-p, the draw.

Weights exp(logit - max) are not normalised and stay in the precision of the logits: there is no float64 copy of 100,000
columns. They are summed in blocks. A uniform number of 53 bits selects a block, then a column in it, with cumulative
sums in float64. So even a token a billion times rarer than another is drawn at the right rate, which cumulative sums or
Gumbel noise in float32 do not achieve. The cost is one exponential per column.

A row gives the same bits in any batch. A sum over a whole row does not: its order of addition depends on the shape and
the number of threads. Sums over blocks of fixed size do not depend on them, and are added from left to right.
"""

import math
from functools import cached_property

import torch
from torch import Tensor

from triptych.errors import UserError

# n rows, V logits of one modality (`Vocabulary.num_logits`): its data ids, then BOS, then EOS; K blocks of columns

_BOS, _EOS = -2, -1
_BLOCK = 256


def apply_cfg(cond_nV: Tensor, uncond_nV: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: uncond + scale * (cond - uncond). Scale 1 is off. LLaDA's scale is this minus 1."""
    if not math.isfinite(scale):
        raise UserError(f"guidance_scale must be a finite number, got {scale}.")
    return cond_nV if scale == 1 else torch.lerp(uncond_nV, cond_nV, scale)


def mask_specials(logits_nV: Tensor, allow_eos_n: Tensor) -> Tensor:
    """Set the logits of BOS, and of EOS where `allow_eos_n` is false, to -inf, in place."""
    logits_nV[:, _BOS] = -math.inf
    logits_nV[:, _EOS].masked_fill_(~allow_eos_n, -math.inf)
    return logits_nV


class Categorical:
    """One categorical distribution per row, from logits, which it overwrites."""

    def __init__(self, logits_nV: Tensor):
        # Subtract the maximum first: a tiny temperature would overflow to inf - inf.
        self.shifted_nV = logits_nV.sub_(logits_nV.amax(1, keepdim=True))

    @cached_property
    def _weights_nV(self) -> Tensor:
        return self.shifted_nV.exp()

    @cached_property
    def _log_total_n(self) -> Tensor:
        return _row_sums(self._weights_nV).log()

    def draw(self, uniform_n: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
        """Ids [n]. At temperature 0 the most probable token, the first of equals."""
        if temperature == 0:
            return self.shifted_nV.argmax(1)
        plain = temperature == 1 and top_p == 1
        return draw(
            self._weights_nV if plain else apply_temperature_top_p(self.shifted_nV, temperature, top_p), uniform_n
        )

    def log_prob(self, ids_n: Tensor) -> Tensor:
        """[n] float64, without temperature and top-p."""
        return self.shifted_nV.gather(1, ids_n[:, None])[:, 0].double() - self._log_total_n

    def most_probable(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` most probable ids [n, count], best first, and their probabilities in float64."""
        top_nk, ids_nk = self.shifted_nV.topk(count, dim=1)
        return ids_nk, (top_nk.double() - self._log_total_n[:, None]).exp()

    @property
    def entropy(self) -> Tensor:
        """[n] float64, in nats, without temperature and top-p."""
        terms_nV = (self._weights_nV * self.shifted_nV).masked_fill_(self._weights_nV == 0, 0.0)  # 0 * -inf
        return self._log_total_n - _row_sums(terms_nV) / self._log_total_n.exp()


def apply_temperature_top_p(logits_nV: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Unnormalised probabilities [n, V] after temperature and top-p; the largest is 1.

    Top-p keeps the smallest set of most probable tokens whose sum reaches `top_p`, including the token that crosses it.
    Of equal tokens, smaller ids come first.
    """
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature must be a number of at least 0, got {temperature}.")
    if not 0 <= top_p <= 1:
        raise UserError(f"top_p must be a number between 0 and 1, got {top_p}.")
    if temperature == 0:
        return torch.zeros_like(logits_nV).scatter_(1, logits_nV.argmax(1, keepdim=True), 1.0)
    smallest = torch.finfo(logits_nV.dtype).tiny  # avoids 0 / 0
    weights_nV = (logits_nV - logits_nV.amax(1, keepdim=True)).div_(max(temperature, smallest)).exp_()
    if top_p == 1:  # a cumulative sum can reach the total before the last token
        return weights_nV
    sorted_nV, order_nV = weights_nV.sort(dim=1, descending=True, stable=True)
    cumulative_nV = sorted_nV.cumsum(1, dtype=torch.float64)
    drop_nV = cumulative_nV >= top_p * cumulative_nV[:, -1:]
    drop_nV = torch.cat([torch.zeros_like(drop_nV[:, :1]), drop_nV[:, :-1]], dim=1)  # tokens after the crossing one
    return weights_nV.masked_fill_(torch.zeros_like(drop_nV).scatter_(1, order_nV, drop_nV), 0.0)


def draw(weights_nV: Tensor, uniform_n: Tensor) -> Tensor:
    """Ids [n] by inverse transform sampling: the first column whose cumulative sum exceeds uniform * total.

    The sum grows at that column, so its probability is never zero. If no column exceeds it, for example because the
    uniform number was rounded to 1, the id is the last column at which the sum grows.
    """
    blocks_nK = _block_sums(weights_nV)
    cumulative_nK = blocks_nK.cumsum(1)
    target_n = uniform_n.double() * cumulative_nK[:, -1]
    block_n1 = _first_above(cumulative_nK, target_n)[:, None]
    before_n = (cumulative_nK - blocks_nK).gather(1, block_n1)[:, 0]
    # Inside the block, take the same share of the float64 sum: the sum of the block may be rounded differently.
    share_n = ((target_n - before_n) / blocks_nK.gather(1, block_n1)[:, 0]).clamp_(0.0, 1.0)
    columns_nB = block_n1 * _BLOCK + torch.arange(_BLOCK, device=weights_nV.device)
    is_past_nB = columns_nB >= weights_nV.shape[1]
    block_nB = weights_nV.gather(1, columns_nB.clamp(max=max(0, weights_nV.shape[1] - 1))).double()
    cumulative_nB = block_nB.masked_fill_(is_past_nB, 0.0).cumsum(1)
    return block_n1[:, 0] * _BLOCK + _first_above(cumulative_nB, share_n * cumulative_nB[:, -1])


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """[n] the first column whose sum exceeds the target, or else the last at which it grows."""
    return ((cumulative <= target[:, None]) & (cumulative < cumulative[:, -1:])).sum(1)


def _block_sums(values_nV: Tensor) -> Tensor:
    """[n, K] float64, sums over blocks of columns."""
    columns = values_nV.shape[1]
    in_full_blocks = columns // _BLOCK * _BLOCK
    sums = [values_nV[:, :in_full_blocks].unflatten(1, (-1, _BLOCK)).sum(-1)] if in_full_blocks else []
    if in_full_blocks < columns:
        sums.append(values_nV[:, in_full_blocks:].sum(-1, keepdim=True))
    return torch.cat(sums, dim=1).double()


def _row_sums(values_nV: Tensor) -> Tensor:
    """[n] float64, blocks added from left to right."""
    return _block_sums(values_nV).cumsum(1)[:, -1]
