"""Segments and attention on a GPU, tested without one: shapes, arguments, and the choice of kernel."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_fakes import CPU, HEAD, HEADS, LAYOUTS, attend_in_segments, dense_attention, random_ids, random_qkv
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from triptych.model import segments as module
from triptych.model.segments import Segments, attend, find_segments, whole_rows


@pytest.fixture(params=LAYOUTS.values(), ids=list(LAYOUTS))
def ids(request: pytest.FixtureRequest) -> np.ndarray:
    return request.param


def on_gpu(ids: np.ndarray) -> Segments:
    """Segments as for a GPU, with tensors that stay on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "to", lambda tensor, device: tensor)
        return replace(find_segments(ids, torch.device("cuda")), device=CPU)


def test_a_gpu_computes_padding_as_one_more_sequence() -> None:
    segments = on_gpu(np.array([[1, 1, 2, 2, 2, 0], [3, 3, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0]]))
    assert (segments.lengths, segments.index) == ((2, 3, 1, 3, 3, 6), None)  # packed rows need no reordering
    assert segments.cumulative_lengths.tolist() == [0, 2, 5, 6, 9, 12, 18]
    assert on_gpu(np.array([[1, 1], [0, 0], [2, 2]])).are_rows
    separate = on_gpu(np.array([[0, 1, 2, 1]]))
    assert (separate.lengths, separate.index.tolist()) == ((2, 1, 1), [1, 3, 2, 0])


def test_computed_padding_does_not_change_other_positions(ids: np.ndarray) -> None:
    segments = on_gpu(ids)
    assert sum(segments.lengths) == ids.size
    qkv = random_qkv(ids)
    is_real = torch.from_numpy(ids > 0)
    actual = attend_in_segments(qkv, segments)
    torch.testing.assert_close(actual[is_real], dense_attention(qkv, ids)[is_real], atol=1e-10, rtol=1e-10)
    assert actual.isfinite().all()


def plain_varlen(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, ends_k: Tensor, max_q: int, max_k: int) -> Tensor:
    """The documented behaviour of torch's variable-length kernel, one sequence after another."""
    assert torch.equal(ends, ends_k)
    assert max_q == max_k >= int(ends.diff().max())
    parts = [x.split(ends.diff().tolist()) for x in (q, k, v)]
    return torch.cat(
        [
            F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in part)).transpose(0, 1)
            for part in zip(*parts, strict=True)
        ]
    )


def test_arguments_of_the_variable_length_kernel(ids: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen)
    segments = on_gpu(ids)
    ours, dense = (random_qkv(ids).requires_grad_() for _ in range(2))
    computed = segments.gather(ours)
    actual = segments.scatter(module._varlen(computed[:, :2], computed[:, 2], segments))
    expected = dense_attention(dense, ids)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
    actual.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, dense.grad, atol=1e-10, rtol=1e-10)


def test_shapes_of_the_variable_length_kernel() -> None:
    """On fake tensors: the kernel and its backward pass exist, with these arguments, shapes and dtypes."""
    segments = on_gpu(random_ids(0))
    count = sum(segments.lengths)
    with FakeTensorMode(allow_non_fake_inputs=True):
        qkv = torch.randn(count, 3, HEADS, HEAD, dtype=torch.bfloat16, requires_grad=True)
        actual = module._varlen(qkv[:, :2], qkv[:, 2], segments)
        assert (actual.shape, actual.dtype) == ((count, HEADS * HEAD), torch.bfloat16)
        actual.sum().backward()
        assert qkv.grad is not None
        assert (qkv.grad.shape, qkv.grad.dtype) == (qkv.shape, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_when_the_variable_length_kernel_is_used(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 16-bit dtypes, the only ones it supports, and not for whole rows. Tensors are fake."""
    calls: list[str] = []

    def recorder(name: str) -> Callable[..., Tensor]:
        def call(first: Tensor, *_: object) -> Tensor:
            calls.append(name)
            return first

        return call

    for name in ("_varlen", "_attend_batch", "take_rows"):
        monkeypatch.setattr(module, name, recorder(name))
    device, ids = torch.device("cuda:0"), np.array([[1, 1, 2, 2]])
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        qk = torch.empty(4, 2, HEADS, HEAD, dtype=dtype, device=device)
        v = torch.empty(4, HEADS, HEAD, dtype=dtype, device=device)
        attend(qk, v, whole_rows(1, 4, device))
        assert calls == ["_attend_batch"]
        calls.clear()
        segments = find_segments(ids, device)
        monkeypatch.setattr(Segments, "buckets", on_gpu(ids).buckets)
        attend(qk, v, segments)
    buckets = ["take_rows", "take_rows", "_attend_batch", "take_rows"]
    assert calls == (buckets if dtype == torch.float32 else ["_varlen"])
