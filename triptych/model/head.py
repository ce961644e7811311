"""The loss head: cross-entropy straight from hidden rows, without ever holding all logits.

    naive:  logits = hidden @ cat(tables).T
            lse    = logits.logsumexp(-1)
            nll    = lse - logits[range(n), targets]
            loss   = (loss_weight * nll + z_loss_weight * lse**2).sum()

Rows are taken in chunks; each chunk's logits become probabilities and then gradients in place, so that the gradient
with respect to hidden rows and tables is there when the forward pass ends: three matrix products in all, where
recomputing in the backward pass would take four. Tables stay apart: one of all would be copied together and back.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# n rows to predict, D width, V columns of this softmax: those of its tables side by side

_CHUNK_BYTES = 128 * 2**20  # logits that are there at once: each chunk reads and writes the tables' whole gradients
_PIECE_BYTES = 4 * 2**20  # logits that are worked on at once, and stay in a cache between one pass and the next
_LEAST_ROWS = 64
_SLICE = 512  # columns of one product on a CPU: a table of 100,000 at once takes up to twice as long


def chunk_rows(columns: int) -> int:
    """How many rows of logits are there at once."""
    return max(_LEAST_ROWS, _CHUNK_BYTES // (4 * columns) // _LEAST_ROWS * _LEAST_ROWS)


def project(hidden_nD: Tensor, table_VD: Tensor, out: Tensor | None = None) -> Tensor:
    """hidden @ table.T, without a gradient."""
    if out is None:
        out = hidden_nD.new_empty(len(hidden_nD), len(table_VD))
    size = _SLICE if hidden_nD.device.type == "cpu" else max(1, len(table_VD))
    for start in range(0, len(table_VD), size):
        columns = slice(start, start + size)
        torch.mm(hidden_nD, table_VD[columns].T, out=out[:, columns])
    return out


def linear_cross_entropy(
    hidden_nD: Tensor,
    tables: Sequence[Tensor],
    targets_n: Tensor,
    loss_weight_n: Tensor,
    z_loss_weight_n: Tensor,
    *,
    sizes: Sequence[int] | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted loss, differentiable; the negative log-likelihood and log-sum-exp of every row, which are not.

    `sizes` says how many rows of each table are columns of the softmax, from its first on; None for all. (Slices of
    parameters would have their gradients copied into gradients of the whole.)
    """
    sizes = tuple(map(len, tables)) if sizes is None else tuple(sizes)
    chunk = chunk or chunk_rows(sum(sizes))
    if not torch.is_grad_enabled():  # a parameter asks for its gradient even here
        hidden_nD, tables = hidden_nD.detach(), [table.detach() for table in tables]
    return _LinearCrossEntropy.apply(hidden_nD, targets_n, loss_weight_n, z_loss_weight_n, sizes, chunk, *tables)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        targets: Tensor,
        loss_weight: Tensor,
        z_loss_weight: Tensor,
        sizes: tuple[int, ...],
        chunk: int,
        *tables: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0] or any(ctx.needs_input_grad[6:])
        nll, lse = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2))
        gradients = _Gradients(hidden, tables, sizes) if needs_grad else None
        buffer = hidden.new_empty(min(chunk, len(hidden)), sum(sizes))
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = buffer[: len(hidden[rows])]
            for table, size, part in zip(tables, sizes, logits.split(sizes, dim=1)):
                project(hidden[rows], table[:size], out=part)
            _to_gradients(
                logits, targets[rows], loss_weight[rows], z_loss_weight[rows], nll[rows], lse[rows], needs_grad
            )
            if gradients is not None:
                gradients.add(rows, logits)
        loss = (loss_weight * nll + z_loss_weight * lse.square()).sum()
        ctx.gradients = gradients
        ctx.mark_non_differentiable(nll, lse)
        return loss, nll, lse

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        assert ctx.gradients is not None, "the gradients of the loss head can be asked for once"
        found, ctx.gradients = ctx.gradients.scaled(upstream[0]), None
        return found[0], None, None, None, None, None, *found[1:]


class _Gradients:
    """Of hidden rows and tables. Those of tables are summed up in float32."""

    def __init__(self, hidden: Tensor, tables: tuple[Tensor, ...], sizes: tuple[int, ...]):
        self.hidden, self.tables, self.sizes = hidden, tables, sizes
        self.of_hidden = torch.empty_like(hidden)
        new = torch.empty_like if len(hidden) else torch.zeros_like
        self.of_tables = [new(table, dtype=torch.float32) for table in tables]
        for gradient, size in zip(self.of_tables, sizes):
            gradient[size:] = 0.0

    def add(self, rows: slice, of_logits: Tensor) -> None:
        is_rank0, own, of_own = rows.start == 0, self.hidden[rows], self.of_hidden[rows]
        for number, part in enumerate(of_logits.split(self.sizes, dim=1)):
            size = self.sizes[number]
            of_table, factors = self.of_tables[number][:size], (part.T.float(), own.float())
            if number == 0:
                torch.mm(part, self.tables[number][:size], out=of_own)
            else:
                of_own.addmm_(part, self.tables[number][:size])
            torch.mm(*factors, out=of_table) if is_rank0 else of_table.addmm_(*factors)

    def scaled(self, scale: Tensor) -> list[Tensor]:
        """Each in the precision of what it is of, times the gradient of the loss itself: in place, they are large."""
        precise = [self.of_hidden, *self.of_tables]
        is_at_hand = type(scale) is Tensor and scale.device.type == "cpu"  # not on a GPU, nor pretended
        if not (is_at_hand and scale == 1):
            precise = [gradient.mul_(scale) for gradient in precise]
        return [gradient.to(of.dtype) for gradient, of in zip(precise, (self.hidden, *self.tables))]


def _to_gradients(
    logits: Tensor,
    targets: Tensor,
    loss_weight: Tensor,
    z_loss_weight: Tensor,
    nll: Tensor,
    lse: Tensor,
    needs_grad: bool,
) -> None:
    """Write the rows' nll and lse; turn the logits into the gradient with respect to them, in place."""
    # On a GPU all at once: there a piece would be too little to do.
    piece = max(1, _PIECE_BYTES // (4 * logits.shape[1])) if logits.device.type == "cpu" else max(1, len(logits))
    for start in range(0, len(logits), piece):
        rows = slice(start, start + piece)
        own = logits[rows]
        target, z = targets[rows, None], own if own.dtype == torch.float32 else own.float()
        at_target = z.gather(1, target)[:, 0]
        largest = z.amax(1, keepdim=True)
        total = z.sub_(largest).exp_().sum(1)
        torch.add(total.log(), largest[:, 0], out=lse[rows])
        torch.sub(lse[rows], at_target, out=nll[rows])
        if not needs_grad:
            continue
        z.mul_(((loss_weight[rows] + 2 * z_loss_weight[rows] * lse[rows]) / total)[:, None])
        z.scatter_add_(1, target, -loss_weight[rows, None])
        if z is not own:
            own.copy_(z)
