"""Parts of a block with a hand-written backward pass, which reads and writes half as much as autograd on a CPU.

Each has a plain equivalent beside it for other devices, where torch's own kernels or a compiler fuse the same
operations. `tests/model/test_fused.py` compares the gradients with autograd's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# N positions, D width, H heads, h head width


def use_manual_backward(x: Tensor) -> bool:
    """Whether to use the hand-written backward passes: on a CPU in float32 or float64, outside of torch.compile.

    In lower precision a CPU rounds them differently from torch's kernels.
    """
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


def rms_norm(x_ND: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """x / rms(x) * gain."""
    if use_manual_backward(x_ND):
        return _RMSNorm.apply(x_ND, gain_D, eps)
    return F.rms_norm(x_ND, (x_ND.shape[-1],), gain_D, eps)


def norm_and_rotate(x_N2Hh: Tensor, gains_2h: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """QK-norm per head, then rotary positions: the pairs (i, i + h/2) of queries and keys are rotated by their angles.

    `cos` and `sin` are [N, 1, 1, h/2], in float32 even if the rest of the model is not.
    """
    gains = gains_2h[:, None]
    if use_manual_backward(x_N2Hh):
        return _NormAndRotate.apply(x_N2Hh, gains, cos, sin, eps)
    normed = torch.stack([F.rms_norm(x, (x.shape[-1],), gain, eps) for x, gain in zip(x_N2Hh.unbind(1), gains_2h)], 1)
    first, second = normed.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x_N2Hh)


def take_rows(x: Tensor, index: Tensor, inverse: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    """x[index] for an index without duplicates, padding aside: the backward pass copies gradients, it never adds them.

    `inverse` is the place of every row of x in the result; None if some rows are not taken. The gradient of padding is
    ignored. Padding is every row of the result that `inverse` does not point to, and every row of x in `padding`.
    """
    if not x.requires_grad:
        return x.index_select(0, index)
    return _TakeRows.apply(x, index, inverse, padding)


def linear_in_bfloat16(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T. Factors and results of the products are rounded to bfloat16; the tensors outside stay float32.

    CPUs with bfloat16 instructions multiply twice as fast; norms, softmax and sums of residuals lose nothing.
    """
    return _LinearInBfloat16.apply(x, weight)


class _LinearInBfloat16(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rounded = x.bfloat16()
        ctx.save_for_backward(rounded, weight)  # a rounded copy of the weight would outlive FSDP's gathered one
        return F.linear(rounded, weight.bfloat16()).float()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = upstream[0].bfloat16()
        return (grad @ weight.bfloat16()).float(), (grad.T @ x).float()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        ctx.save_for_backward(x, gain, scale)
        return (x * scale).mul_(gain)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, scale = ctx.saved_tensors
        (grad,), width = upstream, x.shape[-1]
        normed = x * scale
        product = (grad * normed).view(-1, width)
        grad_gain = product.T @ product.new_ones(len(product))  # a sum over rows, at the speed of memory
        projection = (product @ gain).mul_(-1 / width).view(scale.shape)
        grad_x = torch.mul(grad, gain, out=product.view(x.shape)).addcmul_(normed, projection).mul_(scale)
        return grad_x, grad_gain, None


class _NormAndRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gains: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        ctx.save_for_backward(x, gains, cos, sin, scale)
        return rotate((x * scale).mul_(gains), cos, sin)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, gains, cos, sin, scale = ctx.saved_tensors
        positions, two, heads, width = x.shape
        grad = rotate(upstream[0], cos, sin, -1)
        normed = x * scale
        product = grad * normed
        over_positions = product.view(positions, -1).T @ product.new_ones(positions)
        grad_gains = over_positions.view(two, heads, width).sum(1, keepdim=True)
        # Multiply by both gains, then take the diagonal: a matrix product with a single column is slow.
        both = (product.view(-1, width) @ gains.view(two, width).T).view(positions, two, heads, two)
        projection = both.diagonal(dim1=1, dim2=3).movedim(-1, 1)[..., None] * (-1 / width)
        grad_x = torch.mul(grad, gains, out=product).addcmul_(normed, projection).mul_(scale)
        return grad_x, grad_gains, None, None, None


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor | None, padding: Tensor | None) -> Tensor:
        ctx.save_for_backward(index, inverse, padding)
        ctx.rows = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        index, inverse, padding = ctx.saved_tensors
        (grad,) = upstream
        if inverse is None:
            return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, index, grad), None, None, None
        grad_x = grad.index_select(0, inverse)
        return grad_x if padding is None else grad_x.index_fill_(0, padding, 0.0), None, None, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean of squares + eps) over the last dimension."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    """Rotate the pairs (i, i + h/2) by their angles; back with sign = -1."""
    half = x.shape[-1] // 2
    rotated = torch.empty_like(x, memory_format=torch.contiguous_format)
    first, second = x[..., :half], x[..., half:]
    torch.mul(first, cos, out=rotated[..., :half]).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=rotated[..., half:]).addcmul_(first, sin, value=sign)
    return rotated
