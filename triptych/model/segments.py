"""Sequences that share the rows of a batch, and attention within each sequence.

A batch is R rows of T positions; a row holds one or more sequences, and padding. The network computes only the N real
positions, one sequence after another. A dense attention mask would compute every pair of positions of a row and discard
most of them. Instead, on a CPU, sequences of similar length are grouped into buckets, padded to the longest of their
bucket and attended to as a batch. On a GPU torch's variable-length kernel does the same without padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.data.pack import best_cuts
from triptych.model.fused import take_rows, use_manual_backward

# R rows, T positions per row, N computed positions, S sequences, H heads, h head width
# G sequences of a bucket, L length of its longest one, M positions of all buckets, padding included

MAX_UNFUSED_LENGTH = 192
"""On a CPU, sequences up to this length use plain matrix products, which are faster there than the fused kernel."""

_BUCKET_PAIRS = 6_000  # cost of one more bucket, in pairs of positions: measured with 4 heads of 48
_POSITION_PAIRS = 20  # cost of one more position, in pairs


@dataclass(frozen=True, eq=False)
class Segments:
    """The sequences of a batch: which of the R x T positions are computed, and in which order."""

    shape: tuple[int, int]
    """R and T."""
    lengths: tuple[int, ...]
    """[S] length of every sequence, in the order of computation."""
    device: torch.device
    index: Tensor | None = None
    """[N] flat indices of the computed positions, in the order of computation; None for all, row after row."""
    groups: tuple[tuple[int, int], ...] = ()
    """(count, length) of groups of consecutive sequences of equal length, if attention is to treat each group as a
    batch of its own; see `grouped_rows`."""

    @property
    def are_rows(self) -> bool:
        """Whether every row is exactly one sequence."""
        return self.index is None and len(self.lengths) == self.shape[0]

    def gather(self, values_RT: Tensor) -> Tensor:
        """[R, T, ...] -> [N, ...]: the values of the computed positions."""
        flat = values_RT.flatten(0, 1)
        return flat if self.index is None else flat.index_select(0, self.index)

    def scatter(self, values_ND: Tensor) -> Tensor:
        """[N, D] -> [R, T, D]: the inverse of `gather`; zero at positions that are not computed."""
        if self.index is not None:
            empty = values_ND.new_zeros(self.shape[0] * self.shape[1], values_ND.shape[1])
            values_ND = empty.index_copy(0, self.index, values_ND)
        return values_ND.view(*self.shape, -1)

    def compact_index(self, flat_index_n: Tensor) -> Tensor:
        """[n] indices into the R x T positions -> [n] indices into the N computed positions."""
        if self.index is None:
            return flat_index_n
        compact = torch.full((self.shape[0] * self.shape[1],), -1, device=self.index.device)
        compact[self.index] = torch.arange(len(self.index), device=self.index.device)
        return compact[flat_index_n]

    @cached_property
    def buckets(self) -> "Buckets":
        return _fill_buckets(self.lengths, self.device)

    @cached_property
    def cumulative_lengths(self) -> Tensor:
        """[S + 1] int32: 0, then the end of each sequence."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return torch.from_numpy(ends).to(self.device)


def whole_rows(rows: int, length: int, device: torch.device) -> Segments:
    """Every row is one sequence without padding."""
    return Segments((rows, length), (length,) * rows, device)


def grouped_rows(groups: Sequence[tuple[int, int]], device: torch.device) -> Segments:
    """One row that holds several batches of (count, length), one after another.

    Attention treats every batch as if it were alone, so that its result is the same to the last bit.
    """
    lengths = tuple(length for count, length in groups for _ in range(count))
    return Segments((1, sum(lengths)), lengths, device, groups=tuple(groups))


def find_segments(segment_ids_RT: np.ndarray, device: torch.device) -> Segments:
    """Segments of a batch from its ids: positions of a row with the same id are one sequence, and 0 is padding.

    On a GPU padding is computed too, as one more sequence per row: tensor sizes that change from step to step cost
    more there than a few extra positions.
    """
    rows, length = segment_ids_RT.shape
    keeps_padding = device.type == "cuda" or not segment_ids_RT.any()
    if (segment_ids_RT == segment_ids_RT[:, :1]).all() and (keeps_padding or segment_ids_RT[:, 0].all()):
        return whole_rows(rows, length, device)
    ids = segment_ids_RT.astype(np.int64)
    # Padding sorts behind the other sequences of its row, so that packed rows need no reordering.
    keys = (np.arange(rows)[:, None] * (int(ids.max()) + 2) + np.where(ids == 0, int(ids.max()) + 1, ids)).reshape(-1)
    computed = np.arange(rows * length) if keeps_padding else np.flatnonzero(ids.reshape(-1))
    order = computed[np.argsort(keys[computed], kind="stable")]
    lengths = np.unique(keys[order], return_counts=True)[1]
    is_in_order = len(order) == rows * length and bool((np.diff(order) == 1).all())
    index = None if is_in_order else torch.from_numpy(order).to(device)
    return Segments((rows, length), tuple(lengths.tolist()), device, index)


def attend(qk_N2Hh: Tensor, v_NHh: Tensor, segments: Segments) -> Tensor:
    """[N, H h]: bidirectional attention of every position over its own sequence."""
    if segments.are_rows:
        return _attend_batch(qk_N2Hh, v_NHh, *segments.shape, None)
    if segments.groups:
        sizes = [count * length for count, length in segments.groups]
        batches = zip(qk_N2Hh.split(sizes), v_NHh.split(sizes), segments.groups)
        return torch.cat([_attend_batch(qk, v, count, length, None) for qk, v, (count, length) in batches])
    if v_NHh.device.type == "cuda" and v_NHh.dtype in (torch.float16, torch.bfloat16):
        return _varlen(qk_N2Hh, v_NHh, segments)
    buckets = segments.buckets
    qks, vs = (take_rows(x, buckets.index, buckets.inverse).split(buckets.sizes) for x in (qk_N2Hh, v_NHh))
    mixed = [_attend_batch(qk, v, b.count, b.length, b.bias) for qk, v, b in zip(qks, vs, buckets.parts)]
    return take_rows(torch.cat(mixed), buckets.inverse, buckets.index, buckets.padding)


def _varlen(qk_N2Hh: Tensor, v_NHh: Tensor, segments: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    max_length = segments.shape[1]  # an upper bound: the exact maximum changes from step to step, and recompiles
    ends = segments.cumulative_lengths
    mixed_NHh = varlen_attn(qk_N2Hh[:, 0], qk_N2Hh[:, 1], v_NHh, ends, ends, max_length, max_length)
    assert isinstance(mixed_NHh, Tensor)  # a tuple only if auxiliary outputs are requested
    return mixed_NHh.flatten(1)


# -- buckets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length, attended to as one batch."""

    count: int
    """G, the number of sequences."""
    length: int
    """L, the length they are padded to."""
    bias: Tensor | None
    """[G, 1, 1, L] added to the attention scores: -inf behind the end of a sequence; None if no sequence is padded."""


@dataclass(frozen=True)
class Buckets:
    """All buckets of a batch, and the order of positions in them."""

    parts: tuple[Bucket, ...]
    index: Tensor
    """[M] computed position at every place of the buckets; a sequence is padded with its last position."""
    inverse: Tensor
    """[N] place of every computed position in the buckets."""
    padding: Tensor | None
    """Places among the M that are padding; None if there are none."""

    @property
    def sizes(self) -> list[int]:
        return [bucket.count * bucket.length for bucket in self.parts]


def _fill_buckets(lengths: Sequence[int], device: torch.device) -> Buckets:
    """The partition into buckets with the lowest estimated cost."""
    sizes = np.array(lengths)
    order = np.argsort(-sizes, kind="stable")
    longest_first = sizes[order]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])[order]

    def cost(firsts: np.ndarray, end: int) -> np.ndarray:
        """Cost of one bucket of the sequences first..end, for every first."""
        longest = longest_first[firsts]
        return (end - firsts) * longest * (longest + _POSITION_PAIRS) + _BUCKET_PAIRS

    parts, indices, is_padding = [], [], []
    cuts = best_cuts(len(sizes), cost)
    for first, end in pairwise(cuts):
        length, own_length = int(longest_first[first]), longest_first[first:end, None]
        column = np.arange(length)[None]
        indices.append((starts[first:end, None] + np.minimum(column, own_length - 1)).reshape(-1))
        has_ended = column >= own_length
        is_padding.append(has_ended.reshape(-1))
        bias = None
        if has_ended.any():
            bias = torch.from_numpy(np.where(has_ended, -np.inf, 0.0).astype(np.float32))[:, None, None].to(device)
        parts.append(Bucket(end - first, length, bias))
    index, padding = np.concatenate(indices), np.flatnonzero(np.concatenate(is_padding))
    real = np.flatnonzero(~np.concatenate(is_padding))
    inverse = np.empty(int(sizes.sum()), np.int64)
    inverse[index[real]] = real
    return Buckets(
        tuple(parts),
        torch.from_numpy(index).to(device),
        torch.from_numpy(inverse).to(device),
        torch.from_numpy(padding).to(device) if len(padding) else None,
    )


# -- a batch of sequences padded to one length ------------------------------------------------------------------------


def _attend_batch(qk: Tensor, v: Tensor, count: int, length: int, bias: Tensor | None) -> Tensor:
    """Attention output [G L, H h] from queries and keys [G L, 2, H, h] and values [G L, H, h]."""
    q_GHLh, k_GHLh, v_GHLh = (x.unflatten(0, (count, length)).transpose(1, 2) for x in (*qk.unbind(1), v))
    if length <= MAX_UNFUSED_LENGTH and use_manual_backward(v):
        mixed = _UnfusedAttention.apply(q_GHLh, k_GHLh, v_GHLh, bias)
    else:
        bias = None if bias is None else bias.to(v.dtype)
        mixed = F.scaled_dot_product_attention(q_GHLh, k_GHLh, v_GHLh, attn_mask=bias)
    return mixed.transpose(1, 2).reshape(count * length, -1)


class _UnfusedAttention(torch.autograd.Function):
    """softmax(q k' / sqrt(h) + bias) v by plain matrix products; the softmax is saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        count, heads, length, width = ctx.shape = q.shape
        q, k, v = (x.reshape(count * heads, length, width) for x in (q, k, v))
        if bias is None:
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(width**-0.5)
        else:
            per_head = bias[:, :, 0].to(q.dtype).expand(count, heads, length).reshape(count * heads, 1, length)
            scores = torch.baddbmm(per_head, q, k.transpose(1, 2), alpha=width**-0.5)
        weights = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return torch.bmm(weights, v).view(ctx.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        grad = upstream[0].reshape(q.shape)
        grad_v = torch.bmm(weights.transpose(1, 2), grad)
        grad_weights = torch.bmm(grad, v.transpose(1, 2))
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_scores.mul_(q.shape[-1] ** -0.5)
        grad_q, grad_k = torch.bmm(grad_scores, k), torch.bmm(grad_scores.transpose(1, 2), q)
        return grad_q.view(ctx.shape), grad_k.view(ctx.shape), grad_v.view(ctx.shape), None
