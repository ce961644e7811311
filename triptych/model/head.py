"""The loss head: cross-entropy straight from hidden rows, without ever holding all logits.

    naive:  logits = hidden @ unembed.T
            lse    = logits.logsumexp(-1)
            nll    = lse - logits[range(n), targets]
            loss   = (loss_weight * nll + z_weight * lse**2).sum()

Rows are taken in chunks; each chunk's logits become probabilities and then gradients in place, so that the gradient
with respect to hidden rows and unembedding is there when the forward pass ends: three matrix products in all, where
recomputing in the backward pass would take four.
"""

from typing import Any

import torch
from torch import Tensor

# n rows to predict, D width, V columns of this softmax

_CHUNK_BYTES = 16 * 2**20  # logits of one chunk: about half of a common last-level cache
_LEAST_ROWS = 64


def linear_cross_entropy(
    hidden_nD: Tensor,
    unembed_VD: Tensor,
    targets_n: Tensor,
    loss_weight_n: Tensor,
    z_weight_n: Tensor,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted loss, differentiable; the negative log-likelihood and log-sum-exp of every row, which are not."""
    if not torch.is_grad_enabled():  # a slice of a parameter asks for its gradient even here
        hidden_nD, unembed_VD = hidden_nD.detach(), unembed_VD.detach()
    chunk_rows = chunk_rows or max(_LEAST_ROWS, _CHUNK_BYTES // (4 * len(unembed_VD)))
    return _LinearCrossEntropy.apply(hidden_nD, unembed_VD, targets_n, loss_weight_n, z_weight_n, chunk_rows)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, unembed: Tensor, targets: Tensor, loss_weight: Tensor, z_weight: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad = any(ctx.needs_input_grad[:2])
        nll, lse = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2))
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_unembed = torch.zeros_like(unembed, dtype=torch.float32) if needs_grad else None
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = (hidden[rows] @ unembed.T).float()
            target = targets[rows, None]
            lse[rows] = logits.logsumexp(-1)
            nll[rows] = lse[rows] - logits.gather(1, target)[:, 0]
            if grad_hidden is not None and grad_unembed is not None:
                scale = loss_weight[rows] + 2 * z_weight[rows] * lse[rows]
                gradient = logits.sub_(lse[rows, None]).exp_().mul_(scale[:, None])
                gradient.scatter_add_(1, target, -loss_weight[rows, None])
                gradient = gradient.to(hidden.dtype)
                torch.mm(gradient, unembed, out=grad_hidden[rows])
                grad_unembed.addmm_(gradient.T.float(), hidden[rows].float())
        loss = (loss_weight * nll + z_weight * lse.square()).sum()
        if grad_hidden is not None and grad_unembed is not None:
            ctx.save_for_backward(grad_hidden, grad_unembed.to(unembed.dtype))
        ctx.mark_non_differentiable(nll, lse)
        return loss, nll, lse

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_unembed = ctx.saved_tensors
        return upstream[0] * grad_hidden, upstream[0] * grad_unembed, None, None, None, None
