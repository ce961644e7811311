"""Attention within segments equals dense attention under a mask; segments and buckets are consistent."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_fakes import CPU, LAYOUTS, attend_in_segments, dense_attention, random_qkv
from torch import Tensor

from triptych.data.pack import best_cuts
from triptych.model import segments as module
from triptych.model.segments import Segments, find_segments


@pytest.fixture(params=LAYOUTS.values(), ids=list(LAYOUTS))
def ids(request: pytest.FixtureRequest) -> np.ndarray:
    return request.param


def computed_positions(segments: Segments) -> np.ndarray:
    """[N] flat indices of the computed positions."""
    flat_index = torch.arange(segments.shape[0] * segments.shape[1]).view(segments.shape)
    return segments.gather(flat_index).numpy()


# -- segments ---------------------------------------------------------------------------------------------------------


def test_find_segments() -> None:
    segments = find_segments(np.array([[1, 1, 2, 0], [3, 3, 3, 3]]), CPU)
    assert (segments.shape, segments.lengths) == ((2, 4), (2, 1, 4))
    assert segments.index.tolist() == [0, 1, 2, 4, 5, 6, 7]
    separate = find_segments(np.array([[1, 2, 1]]), CPU)
    assert (separate.lengths, separate.index.tolist()) == ((2, 1), [0, 2, 1])
    # Batches of whole rows, or of padding only, need no index.
    for rows in ([[3, 3, 3, 3]], [[1, 1], [2, 2]], [[0, 0], [0, 0]]):
        segments = find_segments(np.array(rows), CPU)
        assert segments.are_rows
        assert segments.index is None
    # Positions are in order, but rows hold several sequences.
    packed = find_segments(np.array([[1, 1, 2], [1, 2, 2]]), CPU)
    assert (packed.lengths, packed.index, packed.are_rows) == ((2, 1, 1, 2), None, False)
    # An empty row is not computed.
    beside = find_segments(np.array([[1, 1], [0, 0], [2, 2]]), CPU)
    assert (beside.lengths, beside.index.tolist(), beside.are_rows) == ((2, 2), [0, 1, 4, 5], False)


def test_a_sequence_is_all_positions_of_a_row_with_one_id(ids: np.ndarray) -> None:
    segments = find_segments(ids, CPU)
    index = computed_positions(segments)
    flat_ids, rows = ids.reshape(-1), np.arange(ids.size) // ids.shape[1]
    is_same = (flat_ids[:, None] == flat_ids) & (rows[:, None] == rows)
    member = np.repeat(np.arange(len(segments.lengths)), segments.lengths)
    assert np.array_equal(member[:, None] == member, is_same[np.ix_(index, index)])
    expected = np.flatnonzero(flat_ids) if ids.any() else np.arange(ids.size)
    assert sorted(index) == expected.tolist()  # padding is left out, unless there is nothing else
    # Positions of a sequence keep their order.
    assert all((np.diff(part) > 0).all() for part in np.split(index, np.cumsum(segments.lengths)[:-1]))
    assert segments.cumulative_lengths.tolist() == [0, *np.cumsum(segments.lengths)]
    assert segments.cumulative_lengths.dtype == torch.int32


def test_gather_and_scatter(ids: np.ndarray) -> None:
    segments = find_segments(ids, CPU)
    values = torch.arange(ids.size * 3, dtype=torch.float64).view(*ids.shape, 3) + 1
    gathered = segments.gather(values)
    assert torch.equal(gathered, values.flatten(0, 1)[computed_positions(segments)])
    is_computed = torch.from_numpy(ids > 0) if ids.any() else torch.ones(ids.shape, dtype=torch.bool)
    assert torch.equal(segments.scatter(gathered), values * is_computed[..., None])
    query_idx = torch.from_numpy(np.random.default_rng(0).permutation(np.flatnonzero(is_computed.numpy())))
    assert torch.equal(gathered[segments.compact_index(query_idx)], values.flatten(0, 1)[query_idx])
    # The gradient of scatter is gather.
    gathered.requires_grad_()
    segments.scatter(gathered).backward(values)
    assert torch.equal(gathered.grad, segments.gather(values))


# -- attention --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequence lengths of all calls of torch's fused kernel."""
    lengths: list[int] = []
    kernel = F.scaled_dot_product_attention

    def recorded(q: Tensor, *others: Tensor, **settings: Tensor) -> Tensor:
        lengths.append(q.shape[2])
        return kernel(q, *others, **settings)

    monkeypatch.setattr(module.F, "scaled_dot_product_attention", recorded)
    return lengths


@pytest.mark.parametrize("max_unfused", [0, 6, 192])
@pytest.mark.parametrize("bucket_pairs", [0, 40, 6_000])
def test_attention_equals_dense_attention_under_a_mask(
    ids: np.ndarray, max_unfused: int, bucket_pairs: int, monkeypatch: pytest.MonkeyPatch, fused: list[int]
) -> None:
    """Values and gradients, with plain products, the fused kernel and both; with many buckets and with few."""
    monkeypatch.setattr(module, "MAX_UNFUSED_LENGTH", max_unfused)
    monkeypatch.setattr(module, "_BUCKET_PAIRS", bucket_pairs)
    ours, dense = (random_qkv(ids).requires_grad_() for _ in range(2))
    is_computed = torch.from_numpy(ids > 0 if ids.any() else ids == 0)
    segments = find_segments(ids, CPU)
    actual, expected = attend_in_segments(ours, segments), dense_attention(dense, ids) * is_computed[..., None]
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
    up = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    actual.backward(up)
    expected.backward(up)
    torch.testing.assert_close(ours.grad, dense.grad, atol=1e-10, rtol=1e-10)
    lengths = [ids.shape[1]] if segments.are_rows else [bucket.length for bucket in segments.buckets.parts]
    assert fused == [length for length in lengths if length > max_unfused]


def test_long_and_short_sequences_in_one_batch(fused: list[int]) -> None:
    """Lengths on both sides of the real limit of plain products."""
    lengths = [250, 3, 193, 192, 20, 191]
    ids = np.repeat(np.arange(1, 7), lengths)[None]
    ours, dense = (random_qkv(ids).requires_grad_() for _ in range(2))
    actual, expected = attend_in_segments(ours, find_segments(ids, CPU)), dense_attention(dense, ids)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
    actual.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, dense.grad, atol=1e-10, rtol=1e-10)
    assert min(fused) > 192
    assert max(fused) == 250


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_attention_in_other_precisions(ids: np.ndarray, dtype: torch.dtype, tolerance: float, fused: list[int]) -> None:
    qkv = random_qkv(ids).to(dtype)
    actual = attend_in_segments(qkv, find_segments(ids, CPU))
    expected = dense_attention(qkv.double(), ids) * torch.from_numpy(ids > 0 if ids.any() else ids == 0)[..., None]
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)
    assert bool(fused) == (dtype == torch.bfloat16)  # plain products are used in float32 only


def test_padding_within_buckets_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short sequence does not see the longer one in its bucket, even if that is infinite."""
    monkeypatch.setattr(module, "_BUCKET_PAIRS", 10**9)  # one bucket
    ids = np.array([[1] * 8 + [2] * 3])
    segments = find_segments(ids, CPU)
    assert len(segments.buckets.parts) == 1
    qkv = random_qkv(ids)
    before = attend_in_segments(qkv, segments)
    qkv[0, :8] = torch.inf
    assert torch.equal(attend_in_segments(qkv, segments)[0, 8:], before[0, 8:])


# -- buckets ----------------------------------------------------------------------------------------------------------


def all_cuts(count: int) -> Iterator[list[int]]:
    for bits in range(2 ** max(0, count - 1)):
        yield [0, *(i + 1 for i in range(count - 1) if bits >> i & 1), count]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_bounded", [False, True])
def test_best_cuts_have_the_lowest_cost_of_all_cuts(seed: int, is_bounded: bool) -> None:
    rng = np.random.default_rng(seed)
    for count in range(1, 9):
        costs = rng.integers(0, 100, (count + 1, count + 1))
        max_length = rng.integers(1, count + 1, count + 1) if is_bounded else np.arange(count + 1)

        def total(cuts: list[int], costs: np.ndarray = costs) -> int:
            return int(sum(costs[a, b] for a, b in pairwise(cuts)))

        actual = best_cuts(
            count,
            lambda starts, stop, costs=costs: costs[starts, stop],
            lambda stop, max_length=max_length: int(max_length[stop]),
        )
        allowed = [cuts for cuts in all_cuts(count) if all(b - a <= max_length[b] for a, b in pairwise(cuts))]
        assert actual in allowed
        assert total(actual) == min(map(total, allowed))
    assert best_cuts(0, lambda starts, stop: starts) == [0]


@pytest.mark.parametrize("bucket_pairs", [0, 40, 400, 6_000])
@pytest.mark.parametrize("seed", range(4))
def test_buckets_contain_every_position_once_at_the_lowest_cost(
    seed: int, bucket_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUCKET_PAIRS", bucket_pairs)
    lengths = np.random.default_rng(seed).integers(1, 30, 9)
    segments = Segments((1, int(lengths.sum())), tuple(lengths.tolist()), CPU)
    buckets = segments.buckets
    index, inverse = buckets.index.numpy(), buckets.inverse.numpy()
    padding = np.zeros(0, np.int64) if buckets.padding is None else buckets.padding.numpy()
    assert len(index) == sum(buckets.sizes)
    # `inverse` inverts `index`, and every other place is padding.
    assert np.array_equal(index[inverse], np.arange(lengths.sum()))
    assert sorted([*inverse, *padding]) == list(range(len(index)))

    member = np.repeat(np.arange(9), lengths)
    seen, cost, start = [], 0, 0
    for bucket, size in zip(buckets.parts, buckets.sizes):
        own = index[start : start + size].reshape(bucket.count, bucket.length)
        assert (member[own] == member[own[:, :1]]).all()  # one sequence per line
        ends = lengths[member[own[:, 0]]]
        assert ends.max() == bucket.length
        has_ended = np.arange(bucket.length) >= ends[:, None]
        assert np.array_equal(np.isin(np.arange(start, start + size), padding).reshape(own.shape), has_ended)
        assert (bucket.bias is None) == (not has_ended.any())
        if bucket.bias is not None:
            assert bucket.bias.shape == (bucket.count, 1, 1, bucket.length)
            assert np.array_equal(bucket.bias[:, 0, 0].numpy(), np.where(has_ended, -np.inf, 0.0))
        seen += member[own[:, 0]].tolist()
        cost += bucket.count * bucket.length * (bucket.length + module._POSITION_PAIRS) + bucket_pairs
        start += size
    assert sorted(seen) == list(range(9))

    def cost_of(cuts: list[int]) -> int:
        """Cost of cutting the lengths, sorted from longest to shortest; buckets of non-neighbours are never better."""
        widths = sorted(lengths.tolist(), reverse=True)
        return sum((b - a) * widths[a] * (widths[a] + module._POSITION_PAIRS) + bucket_pairs for a, b in pairwise(cuts))

    assert cost == min(map(cost_of, all_cuts(9)))
