"""From the model's logits to a drawn token: guidance, which tokens may stand there, temperature, top-p, the draw.

Pure functions, to be called in this order. The model gives float32; from here on all is float64, because a
float32 cumulative sum over 100,000 columns would lose the rare tokens, and with them some of the temperature.

A row gives the same bits whatever other rows it stands among. That forbids `sum` and `logsumexp`, whose order of
addition depends on the shape and the number of threads; softmax and cumulative sums go row by row.
"""

import math

import torch
from torch import Tensor

from triptych.errors import UserError

# n rows, V columns of one modality: its data ids, then BOS and EOS

_BOS, _EOS = -2, -1


def guide(cond_nV: Tensor, uncond_nV: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: uncond + scale * (cond - uncond). Scale 1 is no guidance; LLaDA's is ours minus 1."""
    if not math.isfinite(scale):
        raise UserError(f"the guidance scale must be a finite number, got {scale}.")
    if scale == 1:
        return cond_nV.double()
    uncond_nV = uncond_nV.double()
    return uncond_nV + scale * (cond_nV.double() - uncond_nV)


def constrain(logits_nV: Tensor, allow_eos_n: Tensor) -> Tensor:
    """Only tokens that may stand at a position: data, and EOS where `allow_eos_n` says so; never BOS."""
    logits_nV = logits_nV.to(torch.float64, copy=True)
    logits_nV[:, _BOS] = -math.inf
    logits_nV[:, _EOS].masked_fill_(~allow_eos_n, -math.inf)
    return logits_nV


def log_prob_and_entropy(logits_nV: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [n, V] and the entropy [n] in nats of each row's law."""
    log_prob_nV = logits_nV.double().log_softmax(-1)
    prob_nV = log_prob_nV.exp()
    terms_nV = (prob_nV * log_prob_nV).masked_fill_(prob_nV == 0, 0.0)  # 0 * -inf
    return log_prob_nV, -_row_sums(terms_nV)[:, 0]


def temper(logits_nV: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Probabilities [n, V] after temperature and top-p. At temperature 0 the likeliest token, the first of equals.

    Top-p keeps the smallest set of likeliest tokens that together reach `top_p`: at least one, and the one that crosses
    the line is in. Of equal tokens those with smaller ids go first.
    """
    if not 0 <= temperature < math.inf:
        raise UserError(f"the temperature must be 0 or more, got {temperature}.")
    if not 0 <= top_p <= 1:
        raise UserError(f"top_p must lie between 0 and 1, got {top_p}.")
    logits_nV = logits_nV.double()
    if temperature == 0:
        return torch.zeros_like(logits_nV).scatter_(1, logits_nV.argmax(1, keepdim=True), 1.0)
    # Less the maximum first, else a tiny temperature overflows to inf - inf.
    prob_nV = ((logits_nV - logits_nV.amax(1, keepdim=True)) / temperature).softmax(-1)
    if top_p == 1:  # the cumulative sum can reach 1 before the last token
        return prob_nV
    sorted_nV, order_nV = prob_nV.sort(dim=1, descending=True, stable=True)
    drop_nV = sorted_nV.cumsum(1) >= top_p
    drop_nV = torch.cat([torch.zeros_like(drop_nV[:, :1]), drop_nV[:, :-1]], dim=1)  # those behind the crossing one
    prob_nV = prob_nV.masked_fill(torch.zeros_like(drop_nV).scatter_(1, order_nV, drop_nV), 0.0)
    return prob_nV / _row_sums(prob_nV)


def draw(prob_nV: Tensor, uniform_n: Tensor) -> Tensor:
    """Ids [n] by inverting the cumulative distribution: the first column whose cumulative sum exceeds uniform * total.

    Such a column is one where the sum grows, so it never has probability zero. If none exceeds it, as for a uniform
    that was rounded to 1, it is the column at which the sum stops growing.
    """
    cumulative_nV = prob_nV.double().cumsum(1)
    total_n1 = cumulative_nV[:, -1:]
    passed_nV = (cumulative_nV <= uniform_n.double()[:, None] * total_n1) & (cumulative_nV < total_n1)
    return passed_nV.sum(1)


def _row_sums(values_nV: Tensor) -> Tensor:
    """[n, 1], added from left to right."""
    return values_nV.cumsum(1)[:, -1:]
