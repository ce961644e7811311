"""The loss head: cross-entropy from hidden states without materialising all logits.

    naive:  logits = hidden @ cat(tables).T
            lse    = logits.logsumexp(-1)
            nll    = lse - logits[range(n), targets]
            loss   = (loss_weight * nll + z_loss_weight * lse**2).sum()

Rows are processed in chunks. The logits of a chunk become probabilities and then gradients in place, so the forward
pass already computes the gradients of hidden states and tables: three matrix products, where recomputing the logits in
the backward pass takes four. The tables of the modalities stay separate, because concatenating them would copy them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from triptych.utils.threads import map_in_threads

# n rows to predict, D width, V columns of the softmax: the selected rows of all its tables

_CHUNK_BYTES = 128 * 2**20  # logits of one chunk: every chunk reads and writes the full gradients of the tables
_PIECE_BYTES = 4 * 2**20  # logits per elementwise pass, few enough to stay in the cache
_MIN_ROWS = 64
_SLICE = 512  # columns per matrix product on a CPU: 100,000 at once take up to twice as long
_SHARED = 2**22  # numbers in a table whose slices are shared among threads: of fewer, a thread costs more than it saves


def chunk_rows(columns: int) -> int:
    """Rows of logits in one chunk."""
    return max(_MIN_ROWS, _CHUNK_BYTES // (4 * columns) // _MIN_ROWS * _MIN_ROWS)


def project(hidden_nD: Tensor, table_VD: Tensor, out: Tensor | None = None) -> Tensor:
    """hidden @ table.T, without a gradient."""
    if out is None:
        out = hidden_nD.new_empty(len(hidden_nD), len(table_VD))
    size = _SLICE if hidden_nD.device.type == "cpu" else max(1, len(table_VD))

    def fill(start: int) -> None:
        columns = slice(start, start + size)
        torch.mm(hidden_nD, table_VD[columns].T, out=out[:, columns])

    starts = range(0, len(table_VD), size)
    if torch.is_inference_mode_enabled() and table_VD.numel() >= _SHARED:
        map_in_threads(fill, starts, hidden_nD.device)
    else:
        for start in starts:
            fill(start)
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
    """The weighted loss (differentiable), and the negative log-likelihood and log-sum-exp of every row (detached).

    `sizes` is the number of leading rows of each table that are columns of the softmax; None means all rows. (Passing
    slices of the parameters instead would copy their gradients into full-size ones.)
    """
    sizes = tuple(map(len, tables)) if sizes is None else tuple(sizes)
    chunk = chunk or chunk_rows(sum(sizes))
    if not torch.is_grad_enabled():  # parameters set needs_input_grad even here
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
            _logits_to_gradients(
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
        assert ctx.gradients is not None, "the loss head supports one backward pass per forward pass"
        (grad_hidden, *grad_tables), ctx.gradients = ctx.gradients.scaled(upstream[0]), None
        return grad_hidden, None, None, None, None, None, *grad_tables


class _Gradients:
    """Gradients of hidden states and tables; those of the tables accumulate in float32."""

    def __init__(self, hidden: Tensor, tables: tuple[Tensor, ...], sizes: tuple[int, ...]):
        self.hidden, self.tables, self.sizes = hidden, tables, sizes
        self.grad_hidden = torch.empty_like(hidden)
        new = torch.empty_like if len(hidden) else torch.zeros_like
        self.grad_tables = [new(table, dtype=torch.float32) for table in tables]
        for gradient, size in zip(self.grad_tables, sizes):
            gradient[size:] = 0.0

    def add(self, rows: slice, grad_logits: Tensor) -> None:
        """Add the gradients of one chunk of rows."""
        is_first_chunk, hidden, grad_hidden = rows.start == 0, self.hidden[rows], self.grad_hidden[rows]
        for i, part in enumerate(grad_logits.split(self.sizes, dim=1)):
            table, grad_table = self.tables[i][: self.sizes[i]], self.grad_tables[i][: self.sizes[i]]
            factors = part.T.float(), hidden.float()
            if i == 0:
                torch.mm(part, table, out=grad_hidden)
            else:
                grad_hidden.addmm_(part, table)
            torch.mm(*factors, out=grad_table) if is_first_chunk else grad_table.addmm_(*factors)

    def scaled(self, grad_loss: Tensor) -> list[Tensor]:
        """The gradients times that of the loss, in the dtype of their tensors. In place, because they are large."""
        gradients = [self.grad_hidden, *self.grad_tables]
        is_readable = type(grad_loss) is Tensor and grad_loss.device.type == "cpu"  # no GPU sync, no fake tensor
        if not (is_readable and grad_loss == 1):
            gradients = [gradient.mul_(grad_loss) for gradient in gradients]
        return [gradient.to(of.dtype) for gradient, of in zip(gradients, (self.hidden, *self.tables))]


def _logits_to_gradients(
    logits: Tensor,
    targets: Tensor,
    loss_weight: Tensor,
    z_loss_weight: Tensor,
    nll: Tensor,
    lse: Tensor,
    needs_grad: bool,
) -> None:
    """Write the nll and lse of the rows, and replace the logits by their gradients in place."""
    # On a GPU all rows at once: small pieces would leave it idle.
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
