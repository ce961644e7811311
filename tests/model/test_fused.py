"""Hand-written backward passes equal autograd: up to rounding in float64, as accurately as autograd in float32."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.model.fused import linear_in_bfloat16, norm_and_rotate, rms_norm, rotate, take_rows, use_manual_backward
from triptych.model.layers import rotary_angles

POSITIONS, HEADS, HEAD = 7, 3, 8
WIDTH = HEADS * HEAD
EPS = 1e-2  # large, so that a gradient without it would fail


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def plain_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def plain_norm_and_rotate(x_N2Hh: Tensor, gains_2h: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """The same with complex numbers: the pair (i, i + h/2) is one number, multiplied by its angle."""
    normed = plain_norm(x_N2Hh, gains_2h[:, None], eps)
    first, second = normed.chunk(2, dim=-1)
    rotated = torch.complex(first, second) * torch.complex(cos, sin).to(torch.complex128)
    return torch.cat((rotated.real, rotated.imag), -1)


def angles(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    positions = torch.tensor([0, 1, 2, 3, 50, 0, 999])
    cos, sin = rotary_angles(positions, HEAD, 10_000.0)
    return cos.to(dtype), sin.to(dtype)


def value_and_gradients(function: Callable[..., Tensor], inputs: list[Tensor], up: Tensor) -> list[Tensor]:
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, up.to(out.dtype))]


def strided_rows(seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """[N, 2, H, h] queries and keys, as a block has them: a view of the fused QKV projection."""
    return random(POSITIONS, 3, HEADS, HEAD, seed=seed, dtype=dtype)[:, :2]


# Memory layouts of the upstream gradient.
UPSTREAM = {
    "contiguous": lambda shape: random(*shape, seed=9),
    "strided": lambda shape: random(*shape[:-1], 2 * shape[-1], seed=9)[..., ::2],
    "transposed": lambda shape: random(*shape[::-1], seed=9).permute(*range(len(shape))[::-1]),
    "expanded": lambda shape: random(1, seed=9).expand(shape),
}


@pytest.mark.parametrize("up", UPSTREAM.values(), ids=list(UPSTREAM))
@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous rows", "strided rows"])
def test_rms_norm_equals_autograd(is_strided: bool, up: Callable[[tuple[int, ...]], Tensor]) -> None:
    # The input is the full tensor: a slice as an input would be copied and become contiguous.
    x = random(POSITIONS, (2 if is_strided else 1) * WIDTH)
    x[3] = 0  # a division by zero without eps
    inputs, upstream = [x, random(WIDTH, seed=2)], up((POSITIONS, WIDTH))
    ours, plain, torchs = (
        value_and_gradients(lambda x, gain, norm=norm: norm(x[:, :WIDTH], gain, EPS), inputs, upstream)
        for norm in (rms_norm, plain_norm, lambda x, gain, eps: F.rms_norm(x, (WIDTH,), gain, eps))
    )
    for actual, expected, of_torch in zip(ours, plain, torchs, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(actual, of_torch, atol=1e-10, rtol=1e-10)


def test_rms_norm_passes_gradcheck() -> None:
    """Compared with finite differences, without autograd."""
    inputs = (random(4, 6).requires_grad_(), random(6, seed=2).requires_grad_())
    assert torch.autograd.gradcheck(lambda x, gain: rms_norm(x, gain, EPS), inputs)


@pytest.mark.parametrize("up", UPSTREAM.values(), ids=list(UPSTREAM))
@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous rows", "strided rows"])
def test_norm_and_rotate_equals_autograd(is_strided: bool, up: Callable[[tuple[int, ...]], Tensor]) -> None:
    cos, sin = angles()
    inputs = [random(POSITIONS, 3 if is_strided else 2, HEADS, HEAD), random(2, HEAD, seed=2)]
    upstream = up((POSITIONS, 2, HEADS, HEAD))
    ours, plain = (
        value_and_gradients(lambda x, gains, norm=norm: norm(x[:, :2], gains, cos, sin, EPS), inputs, upstream)
        for norm in (norm_and_rotate, plain_norm_and_rotate)
    )
    for actual, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
    assert ours[0].is_contiguous()
    query_gain_grad, key_gain_grad = ours[2]
    assert not torch.allclose(query_gain_grad, key_gain_grad)


def test_norm_and_rotate_passes_gradcheck() -> None:
    cos, sin = angles()
    inputs = (strided_rows().requires_grad_(), random(2, HEAD, seed=2).requires_grad_())
    assert torch.autograd.gradcheck(lambda x, gains: norm_and_rotate(x, gains, cos, sin, EPS), inputs)


def test_rotating_back_restores_the_input() -> None:
    x, (cos, sin) = strided_rows(), angles()
    torch.testing.assert_close(rotate(rotate(x, cos, sin), cos, sin, -1), x, atol=1e-6, rtol=0)  # angles are float32


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_float32_is_as_accurate_as_autograd(size: float) -> None:
    cos, sin = angles(torch.float32)
    cases: list[tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = [
        (
            lambda x, gain: rms_norm(x, gain, 1e-6),
            lambda x, gain: plain_norm(x, gain, 1e-6),
            [size * random(POSITIONS, WIDTH), random(WIDTH, seed=2)],
        ),
        (
            lambda x, gains: norm_and_rotate(x, gains, cos, sin, 1e-6),
            lambda x, gains: plain_norm_and_rotate(x, gains, cos, sin, 1e-6),
            [size * strided_rows(), random(2, HEAD, seed=2)],
        ),
    ]
    for manual, plain, inputs in cases:
        rounded = [x.float() for x in inputs]
        exact = [x.double() for x in rounded]
        up = random(*manual(*rounded).shape, seed=9).float()
        true = value_and_gradients(plain, exact, up)
        ours, autograds = (value_and_gradients(function, rounded, up) for function in (manual, plain))
        for actual, of_autograd, expected in zip(ours, autograds, true, strict=True):
            assert actual.dtype == torch.float32
            error, allowed = (float((value - expected).abs().max()) for value in (actual, of_autograd))
            assert error <= allowed + 4 * torch.finfo(torch.float32).eps * float(expected.abs().max())


def test_float32_angles_work_with_float64_inputs() -> None:
    """As in a model converted to float64, whose angles stay in float32."""
    cos, sin = angles(torch.float32)
    inputs = [strided_rows(), random(2, HEAD, seed=2)]
    up = random(POSITIONS, 2, HEADS, HEAD, seed=9)
    ours = value_and_gradients(lambda x, gains: norm_and_rotate(x, gains, cos, sin, EPS), inputs, up)
    exact = value_and_gradients(
        lambda x, gains: plain_norm_and_rotate(x, gains, cos.double(), sin.double(), EPS), inputs, up
    )
    for actual, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def test_lower_precisions_use_autograd() -> None:
    """There torch's own norm computes in float32 internally; the output has the dtype of the input."""
    x, gains = strided_rows(dtype=torch.float32).bfloat16(), random(2, HEAD, seed=2).bfloat16()
    cos, sin = angles(torch.float32)
    assert not use_manual_backward(x)
    assert use_manual_backward(x.float())
    assert use_manual_backward(x.double())
    assert not use_manual_backward(x.float().to("meta"))  # not on a CPU

    x.requires_grad_()
    normed = rms_norm(x, gains[0], EPS)
    assert normed.grad_fn is not None
    assert "_RMSNorm" not in normed.grad_fn.name()
    assert "_RMSNorm" in rms_norm(x.float(), gains[0].float(), EPS).grad_fn.name()
    assert torch.equal(normed, F.rms_norm(x, (HEAD,), gains[0], EPS))
    rotated = norm_and_rotate(x, gains, cos, sin, EPS)
    assert rotated.dtype == torch.bfloat16
    assert "_NormAndRotate" not in rotated.grad_fn.name()
    assert "_NormAndRotate" in norm_and_rotate(x.float(), gains.float(), cos, sin, EPS).grad_fn.name()
    # Rounded after the norm and after the rotation only.
    normed = torch.stack([F.rms_norm(x.detach()[:, i], (HEAD,), gains[i], EPS) for i in range(2)], 1)
    torch.testing.assert_close(rotated.float(), rotate(normed.float(), cos, sin), rtol=2**-8, atol=1e-6)


def test_linear_in_bfloat16_rounds_each_factor_once() -> None:
    """Integers below 256 are exact in bfloat16, and their sums in float32; results are rounded once."""
    generator = torch.Generator().manual_seed(0)
    x, weight, up = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((40, 12), (7, 12), (40, 7)))
    value, grad_x, grad_weight = value_and_gradients(linear_in_bfloat16, [x, weight], up)
    for actual, exact in ((value, x @ weight.T), (grad_x, up @ weight), (grad_weight, up.T @ x)):
        assert actual.dtype == torch.float32
        assert torch.equal(actual, exact.bfloat16().float())
    rounded = linear_in_bfloat16(x * (1 + 2**-12), weight)
    assert torch.equal(rounded, value), "a factor is rounded to 8 bits"


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [(), (5,), (2, 3, 4)], ids=str)
def test_take_rows_equals_indexing(tail: tuple[int, ...]) -> None:
    x = random(6, *tail)
    index = torch.tensor([4, 0, 5, 2, 1, 3])
    up = random(6, *tail, seed=9)
    plain = value_and_gradients(lambda x: x[index], [x], up)
    for inverse in (None, index.argsort()):
        ours = value_and_gradients(lambda x, inverse=inverse: take_rows(x, index, inverse), [x], up)
        for actual, expected in zip(ours, plain, strict=True):
            assert torch.equal(actual, expected)


def test_rows_that_are_not_taken_get_zero_gradients() -> None:
    x, index, up = random(6, 5), torch.tensor([4, 0, 2]), random(3, 5, seed=9)
    ours = value_and_gradients(lambda x: take_rows(x, index), [x], up)
    plain = value_and_gradients(lambda x: x[index], [x], up)
    for actual, expected in zip(ours, plain, strict=True):
        assert torch.equal(actual, expected)
    none = value_and_gradients(lambda x: take_rows(x, index[:0]), [x], up[:0])
    assert torch.equal(none[1], torch.zeros_like(x))


def test_padding_gets_no_gradient() -> None:
    """To a padded layout and back, as for buckets: row 2 is taken three times, twice as padding."""
    x, index = random(4, 5), torch.tensor([3, 0, 2, 2, 2, 1])
    inverse, padding = torch.tensor([1, 5, 2, 0]), torch.tensor([3, 4])
    factors = random(6, 1, seed=3)
    up = random(4, 5, seed=9)

    def around(x: Tensor) -> Tensor:
        wide = take_rows(x, index, inverse) * factors
        return take_rows(wide, inverse, index, padding)

    ours = value_and_gradients(around, [x], up)
    plain = value_and_gradients(lambda x: (x[index] * factors)[inverse], [x], up)
    for actual, expected in zip(ours, plain, strict=True):
        assert torch.equal(actual, expected)
    # Padding gets no gradient, even from infinite values.
    wide = take_rows(x, index, inverse)
    wide.requires_grad_()
    take_rows(wide, inverse, index, padding).backward(torch.full((4, 5), torch.inf, dtype=torch.float64))
    assert torch.equal(wide.grad[padding], torch.zeros(2, 5, dtype=torch.float64))
    assert wide.grad[inverse].isinf().all()


def test_take_rows_without_gradients() -> None:
    x, index = random(6, 5), torch.tensor([4, 0, 2])
    assert take_rows(x, index).grad_fn is None
    with torch.no_grad():
        moved = take_rows(x.requires_grad_(), index)
    assert not moved.requires_grad
    assert torch.equal(moved, x[index])
