"""Parts of a block whose backward pass is written out: on a CPU, half of what autograd would read and write.

Each has its plain equivalent beside it, which is used on other devices, where kernels of torch's own or a compiler do
the same. Written-out gradients are compared with autograd's in `tests/model/test_fused.py`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# N positions, D width, H heads, h head width


def use_manual_backward(x: Tensor) -> bool:
    """Whether the gradients that are written out here pay: below float32 a CPU's products round differently."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


def rms_norm(x_ND: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """x / rms(x) * gain."""
    if use_manual_backward(x_ND):
        return _RMSNorm.apply(x_ND, gain_D, eps)
    return F.rms_norm(x_ND, (x_ND.shape[-1],), gain_D, eps)


def norm_and_rotate(x_N2Hh: Tensor, gains_2h: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Queries and keys, each head normed, then the pairs (i, i + h/2) turned by their angles.

    So a dot product depends on the distance of positions only. Angles are [N, 1, 1, h/2], in float32 also where all
    else is not.
    """
    gains = gains_2h[:, None]
    if use_manual_backward(x_N2Hh):
        return _NormAndRotate.apply(x_N2Hh, gains, cos, sin, eps)
    normed = torch.stack([F.rms_norm(x, (x.shape[-1],), gain, eps) for x, gain in zip(x_N2Hh.unbind(1), gains_2h)], 1)
    first, second = normed.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x_N2Hh)


def take_rows(x: Tensor, there: Tensor, back: Tensor | None = None, extra: Tensor | None = None) -> Tensor:
    """x[there], where no row that counts is taken twice: gradients are moved, not added up.

    `back` says where each row of x stands in the result (None if some are not taken). Rows that do not count, for
    nobody asks for their gradient: those of the result that `back` does not name, and those of x named in `extra`.
    """
    if not x.requires_grad:
        return x.index_select(0, there)
    return _TakeRows.apply(x, there, back, extra)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        ctx.save_for_backward(x, gain, scale)
        return (x * scale).mul_(gain)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, scale = ctx.saved_tensors
        (up,), width = upstream, x.shape[-1]
        normed = x * scale
        product = (up * normed).view(-1, width)
        of_gain = product.T @ product.new_ones(len(product))  # a sum, as fast as memory is read
        share = (product @ gain).mul_(-1 / width).view(scale.shape)
        of_x = torch.mul(up, gain, out=product.view(x.shape)).addcmul_(normed, share).mul_(scale)
        return of_x, of_gain, None


class _NormAndRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gains: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        ctx.save_for_backward(x, gains, cos, sin, scale)
        return turn((x * scale).mul_(gains), cos, sin)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, gains, cos, sin, scale = ctx.saved_tensors
        positions, two, heads, width = x.shape
        up = turn(upstream[0], cos, sin, -1)
        normed = x * scale
        product = up * normed
        over_positions = product.view(positions, -1).T @ product.new_ones(positions)
        of_gains = over_positions.view(two, heads, width).sum(1, keepdim=True)
        # Both gains at once, then each for its own: a product with one column is a slow one.
        both = (product.view(-1, width) @ gains.view(two, width).T).view(positions, two, heads, two)
        share = both.diagonal(dim1=1, dim2=3).movedim(-1, 1)[..., None] * (-1 / width)
        of_x = torch.mul(up, gains, out=product).addcmul_(normed, share).mul_(scale)
        return of_x, of_gains, None, None, None


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor | None, extra: Tensor | None) -> Tensor:
        ctx.save_for_backward(there, back, extra)
        ctx.rows = len(x)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        there, back, extra = ctx.saved_tensors
        (up,) = upstream
        if back is None:
            return up.new_zeros(ctx.rows, *up.shape[1:]).index_copy_(0, there, up), None, None, None
        found = up.index_select(0, back)
        return found if extra is None else found.index_fill_(0, extra, 0.0), None, None, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean of squares + eps) over the last dimension."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def turn(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    """The pairs (i, i + h/2) by their angles, or back."""
    half = x.shape[-1] // 2
    turned = torch.empty_like(x, memory_format=torch.contiguous_format)
    first, second = x[..., :half], x[..., half:]
    torch.mul(first, cos, out=turned[..., :half]).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=turned[..., half:]).addcmul_(first, sin, value=sign)
    return turned
