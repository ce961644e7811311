"""Gradients that are written out are those of autograd: in float64 to rounding, in float32 as near as autograd's."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.model.fused import norm_and_rotate, rms_norm, take_rows, turn, use_manual_backward
from triptych.model.layers import rotary_angles

POSITIONS, HEADS, HEAD = 7, 3, 8
WIDTH = HEADS * HEAD
EPS = 1e-2  # so large that a gradient which forgets it would show


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def plain_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def plain_norm_and_rotate(x_N2Hh: Tensor, gains_2h: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """By complex numbers: the pair (i, i + h/2) is one, and its angle a factor."""
    normed = plain_norm(x_N2Hh, gains_2h[:, None], eps)
    first, second = normed.chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.complex(cos, sin).to(torch.complex128)
    return torch.cat((turned.real, turned.imag), -1)


def angles(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    positions = torch.tensor([0, 1, 2, 3, 50, 0, 999])
    cos, sin = rotary_angles(positions, HEAD, 10_000.0)
    return cos.to(dtype), sin.to(dtype)


def value_and_gradients(function: Callable[..., Tensor], inputs: list[Tensor], up: Tensor) -> list[Tensor]:
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, up.to(out.dtype))]


def strided_rows(seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """[N, 2, H, h] as a block has them: queries and keys of one product with the values."""
    return random(POSITIONS, 3, HEADS, HEAD, seed=seed, dtype=dtype)[:, :2]


# What comes from behind: as it is made, as a part of something wider, transposed, and one number for all.
UPSTREAM = {
    "contiguous": lambda shape: random(*shape, seed=9),
    "strided": lambda shape: random(*shape[:-1], 2 * shape[-1], seed=9)[..., ::2],
    "transposed": lambda shape: random(*shape[::-1], seed=9).permute(*range(len(shape))[::-1]),
    "expanded": lambda shape: random(1, seed=9).expand(shape),
}


@pytest.mark.parametrize("up", UPSTREAM.values(), ids=list(UPSTREAM))
@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous rows", "strided rows"])
def test_norm_is_that_of_autograd(is_strided: bool, up: Callable[[tuple[int, ...]], Tensor]) -> None:
    # Gradients are taken of the whole: a slice that is an input of its own would be made contiguous.
    x = random(POSITIONS, (2 if is_strided else 1) * WIDTH)
    x[3] = 0  # only eps keeps it from dividing by zero
    inputs, upstream = [x, random(WIDTH, seed=2)], up((POSITIONS, WIDTH))
    ours, plain, torchs = (
        value_and_gradients(lambda x, gain, norm=norm: norm(x[:, :WIDTH], gain, EPS), inputs, upstream)
        for norm in (rms_norm, plain_norm, lambda x, gain, eps: F.rms_norm(x, (WIDTH,), gain, eps))
    )
    for found, expected, theirs in zip(ours, plain, torchs, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(found, theirs, atol=1e-10, rtol=1e-10)


def test_norm_s_gradient_is_a_slope() -> None:
    """By finite differences: no autograd on either side."""
    inputs = (random(4, 6).requires_grad_(), random(6, seed=2).requires_grad_())
    assert torch.autograd.gradcheck(lambda x, gain: rms_norm(x, gain, EPS), inputs)


@pytest.mark.parametrize("up", UPSTREAM.values(), ids=list(UPSTREAM))
@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous rows", "strided rows"])
def test_norm_and_rotation_are_those_of_autograd(is_strided: bool, up: Callable[[tuple[int, ...]], Tensor]) -> None:
    cos, sin = angles()
    inputs = [random(POSITIONS, 3 if is_strided else 2, HEADS, HEAD), random(2, HEAD, seed=2)]
    upstream = up((POSITIONS, 2, HEADS, HEAD))
    ours, plain = (
        value_and_gradients(lambda x, gains, each=each: each(x[:, :2], gains, cos, sin, EPS), inputs, upstream)
        for each in (norm_and_rotate, plain_norm_and_rotate)
    )
    for found, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    assert ours[0].is_contiguous()
    of_queries, of_keys = ours[2]
    assert not torch.allclose(of_queries, of_keys)  # each gain has its own


def test_norm_and_rotation_s_gradients_are_slopes() -> None:
    cos, sin = angles()
    inputs = (strided_rows().requires_grad_(), random(2, HEAD, seed=2).requires_grad_())
    assert torch.autograd.gradcheck(lambda x, gains: norm_and_rotate(x, gains, cos, sin, EPS), inputs)


def test_turning_back_undoes_a_turn() -> None:
    x, (cos, sin) = strided_rows(), angles()
    torch.testing.assert_close(turn(turn(x, cos, sin), cos, sin, -1), x, atol=1e-6, rtol=0)  # angles are float32


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_float32_is_as_near_the_truth_as_autograd_is(size: float) -> None:
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
    for by_hand, plain, inputs in cases:
        rounded = [x.float() for x in inputs]
        exact = [x.double() for x in rounded]
        up = random(*by_hand(*rounded).shape, seed=9).float()
        true = value_and_gradients(plain, exact, up)
        ours, theirs = (value_and_gradients(function, rounded, up) for function in (by_hand, plain))
        for found, other, expected in zip(ours, theirs, true, strict=True):
            assert found.dtype == torch.float32
            error, allowed = (float((each - expected).abs().max()) for each in (found, other))
            assert error <= allowed + 4 * torch.finfo(torch.float32).eps * float(expected.abs().max())


def test_angles_of_float32_go_with_rows_of_float64() -> None:
    """As in a model that is made exact: its angles are not."""
    cos, sin = angles(torch.float32)
    inputs = [strided_rows(), random(2, HEAD, seed=2)]
    up = random(POSITIONS, 2, HEADS, HEAD, seed=9)
    ours = value_and_gradients(lambda x, gains: norm_and_rotate(x, gains, cos, sin, EPS), inputs, up)
    exact = value_and_gradients(
        lambda x, gains: plain_norm_and_rotate(x, gains, cos.double(), sin.double(), EPS), inputs, up
    )
    for found, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def test_below_float32_the_plain_path_is_taken() -> None:
    """There torch's own norm works in float32 inside; the result has the precision of what came in."""
    x, gains = strided_rows(dtype=torch.float32).bfloat16(), random(2, HEAD, seed=2).bfloat16()
    cos, sin = angles(torch.float32)
    assert not use_manual_backward(x)
    assert use_manual_backward(x.float())
    assert use_manual_backward(x.double())
    assert not use_manual_backward(x.float().to("meta"))  # what is no CPU

    x.requires_grad_()
    normed = rms_norm(x, gains[0], EPS)
    assert normed.grad_fn is not None
    assert "_RMSNorm" not in normed.grad_fn.name()
    assert "_RMSNorm" in rms_norm(x.float(), gains[0].float(), EPS).grad_fn.name()
    assert torch.equal(normed, F.rms_norm(x, (HEAD,), gains[0], EPS))
    found = norm_and_rotate(x, gains, cos, sin, EPS)
    assert found.dtype == torch.bfloat16
    assert "_NormAndRotate" not in found.grad_fn.name()
    assert "_NormAndRotate" in norm_and_rotate(x.float(), gains.float(), cos, sin, EPS).grad_fn.name()
    # Rounded after the norm and after the turn, and nowhere between.
    normed = torch.stack([F.rms_norm(x.detach()[:, i], (HEAD,), gains[i], EPS) for i in range(2)], 1)
    torch.testing.assert_close(found.float(), turn(normed.float(), cos, sin), rtol=2**-8, atol=1e-6)


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [(), (5,), (2, 3, 4)], ids=str)
def test_rows_are_moved_there_and_their_gradients_back(tail: tuple[int, ...]) -> None:
    x = random(6, *tail)
    there = torch.tensor([4, 0, 5, 2, 1, 3])
    up = random(6, *tail, seed=9)
    plain = value_and_gradients(lambda x: x[there], [x], up)
    for back in (None, there.argsort()):
        ours = value_and_gradients(lambda x, back=back: take_rows(x, there, back), [x], up)
        for found, expected in zip(ours, plain, strict=True):
            assert torch.equal(found, expected)


def test_rows_that_are_not_taken_have_no_gradient() -> None:
    x, there, up = random(6, 5), torch.tensor([4, 0, 2]), random(3, 5, seed=9)
    ours = value_and_gradients(lambda x: take_rows(x, there), [x], up)
    plain = value_and_gradients(lambda x: x[there], [x], up)
    for found, expected in zip(ours, plain, strict=True):
        assert torch.equal(found, expected)
    none = value_and_gradients(lambda x: take_rows(x, there[:0]), [x], up[:0])
    assert torch.equal(none[1], torch.zeros_like(x))


def test_rows_that_only_fill_up_do_not_count() -> None:
    """To a wider place and back, as buckets are filled: row 2 stands there three times, and counts once."""
    x, there = random(4, 5), torch.tensor([3, 0, 2, 2, 2, 1])
    back, extra = torch.tensor([1, 5, 2, 0]), torch.tensor([3, 4])
    factors = random(6, 1, seed=3)
    up = random(4, 5, seed=9)

    def around(x: Tensor) -> Tensor:
        wide = take_rows(x, there, back) * factors
        return take_rows(wide, back, there, extra)

    ours = value_and_gradients(around, [x], up)
    plain = value_and_gradients(lambda x: (x[there] * factors)[back], [x], up)
    for found, expected in zip(ours, plain, strict=True):
        assert torch.equal(found, expected)
    # Backwards, nothing comes to the rows that fill up, not even what is infinite.
    wide = take_rows(x, there, back)
    wide.requires_grad_()
    take_rows(wide, back, there, extra).backward(torch.full((4, 5), torch.inf, dtype=torch.float64))
    assert torch.equal(wide.grad[extra], torch.zeros(2, 5, dtype=torch.float64))
    assert wide.grad[back].isinf().all()


def test_rows_without_gradients_are_only_moved() -> None:
    x, there = random(6, 5), torch.tensor([4, 0, 2])
    assert take_rows(x, there).grad_fn is None
    with torch.no_grad():
        moved = take_rows(x.requires_grad_(), there)
    assert not moved.requires_grad
    assert torch.equal(moved, x[there])
