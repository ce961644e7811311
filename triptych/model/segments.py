"""Who sees whom: sequences that share rows of a batch, and attention within each of them alone.

A batch is R rows of T positions; a row holds sequences one behind another, and padding. What is computed are the real
positions only, sequence after sequence (N of R x T). A dense mask would have attention compute every pair of a row and
throw most away; here, on a CPU, sequences of similar length are attended to side by side, a bucket at a time, each
filled up to the longest of its bucket. On a GPU it is torch's kernel for sequences of many lengths.
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

# R rows, T positions in a row, N positions that are computed, S sequences, H heads, h head width
# G sequences of a bucket, L positions of its longest, M positions of all buckets together

_BUCKET_PAIRS = 6_000  # pairs of positions that take as long as one more bucket: measured with 4 heads of 48
_POSITION_PAIRS = 20  # pairs that take as long as one more position
_SMALL = 192  # up to this length, plain products on a CPU are faster than its fused kernel


@dataclass(frozen=True, eq=False)
class Segments:
    """The sequences of a batch."""

    shape: tuple[int, int]
    """R and T."""
    lengths: tuple[int, ...]
    """[S] of the sequences, in the order in which they are computed."""
    device: torch.device
    places: Tensor | None = None
    """[N] which of the R x T positions are computed, in this order; None for all, row after row."""

    @property
    def are_rows(self) -> bool:
        """Whether every sequence is a whole row."""
        return self.places is None and len(self.lengths) == self.shape[0]

    def pick(self, values_RT: Tensor) -> Tensor:
        """[N] of the computed positions."""
        flat = values_RT.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def number(self, positions_n: Tensor) -> Tensor:
        """[n] where among the computed ones these of the R x T positions are."""
        if self.places is None:
            return positions_n
        numbers = torch.full((self.shape[0] * self.shape[1],), -1, device=self.places.device)
        numbers[self.places] = torch.arange(len(self.places), device=self.places.device)
        return numbers[positions_n]

    def spread(self, computed_ND: Tensor) -> Tensor:
        """[R, T, D], zero where nothing was computed."""
        if self.places is not None:
            empty = computed_ND.new_zeros(self.shape[0] * self.shape[1], computed_ND.shape[1])
            computed_ND = empty.index_copy(0, self.places, computed_ND)
        return computed_ND.view(*self.shape, -1)

    @cached_property
    def buckets(self) -> "Buckets":
        return _fill_buckets(self.lengths, self.device)

    @cached_property
    def ends(self) -> Tensor:
        """[S + 1] int32: 0, then where each sequence ends."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return torch.from_numpy(ends).to(self.device)


def whole_rows(rows: int, length: int, device: torch.device) -> Segments:
    return Segments((rows, length), (length,) * rows, device)


def find_segments(segment_ids_RT: np.ndarray, device: torch.device) -> Segments:
    """Positions of a row see each other if they have the same number; 0 is padding.

    On a GPU padding is computed too, as a sequence of its own that nobody asks for: sizes that differ from step to
    step cost more there than a few positions.
    """
    rows, length = segment_ids_RT.shape
    keeps_padding = device.type == "cuda" or not segment_ids_RT.any()
    if (segment_ids_RT == segment_ids_RT[:, :1]).all() and (keeps_padding or segment_ids_RT[:, 0].all()):
        return whole_rows(rows, length, device)
    ids = segment_ids_RT.astype(np.int64)
    # Padding behind all others of its row, so that packed rows are in order as they are.
    keys = (np.arange(rows)[:, None] * (int(ids.max()) + 2) + np.where(ids == 0, int(ids.max()) + 1, ids)).reshape(-1)
    kept = np.arange(rows * length) if keeps_padding else np.flatnonzero(ids.reshape(-1))
    order = kept[np.argsort(keys[kept], kind="stable")]
    lengths = np.unique(keys[order], return_counts=True)[1]
    is_in_order = len(order) == rows * length and bool((np.diff(order) == 1).all())
    places = None if is_in_order else torch.from_numpy(order).to(device)
    return Segments((rows, length), tuple(lengths.tolist()), device, places)


def attend(qk_N2Hh: Tensor, v_NHh: Tensor, segments: Segments) -> Tensor:
    """[N, H h]: every position mixes the values of its own sequence, by its query and their keys."""
    if segments.are_rows:
        return _side_by_side(qk_N2Hh, v_NHh, *segments.shape, None)
    if v_NHh.device.type == "cuda" and v_NHh.dtype in (torch.float16, torch.bfloat16):
        return _varlen(qk_N2Hh, v_NHh, segments)
    buckets = segments.buckets
    qks, vs = (take_rows(x, buckets.there, buckets.back).split(buckets.sizes) for x in (qk_N2Hh, v_NHh))
    mixed = [_side_by_side(qk, v, b.count, b.length, b.bias) for qk, v, b in zip(qks, vs, buckets.parts)]
    return take_rows(torch.cat(mixed), buckets.back, buckets.there, buckets.extra)


def _varlen(qk_N2Hh: Tensor, v_NHh: Tensor, segments: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    longest = segments.shape[1]  # at most: the exact one would differ from step to step, and be compiled for each time
    ends = segments.ends
    mixed_NHh = varlen_attn(qk_N2Hh[:, 0], qk_N2Hh[:, 1], v_NHh, ends, ends, longest, longest)
    assert isinstance(mixed_NHh, Tensor)  # nothing else was asked for
    return mixed_NHh.flatten(1)


# -- buckets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    count: int
    """G"""
    length: int
    """L"""
    bias: Tensor | None
    """[G, 1, 1, L] what is added to scores: -inf where a sequence has ended; None if all are equally long."""


@dataclass(frozen=True)
class Buckets:
    """Sequences of similar length side by side."""

    parts: tuple[Bucket, ...]
    there: Tensor
    """[M] which computed position stands where; a sequence is filled up with its last one."""
    back: Tensor
    """[N] where each computed position stands."""
    extra: Tensor | None
    """Of the M, those that only fill up."""

    @property
    def sizes(self) -> list[int]:
        return [bucket.count * bucket.length for bucket in self.parts]


def _fill_buckets(lengths: Sequence[int], device: torch.device) -> Buckets:
    sizes = np.array(lengths)
    order = np.argsort(-sizes, kind="stable")
    longest_first = sizes[order]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])[order]

    def cost(begins: np.ndarray, end: int) -> np.ndarray:
        widest = longest_first[begins]
        return (end - begins) * widest * (widest + _POSITION_PAIRS) + _BUCKET_PAIRS

    parts, there, is_extra = [], [], []
    cuts = best_cuts(len(sizes), cost)
    for begin, end in pairwise(cuts):
        length, own = int(longest_first[begin]), longest_first[begin:end, None]
        column = np.arange(length)[None]
        there.append((starts[begin:end, None] + np.minimum(column, own - 1)).reshape(-1))
        has_ended = column >= own
        is_extra.append(has_ended.reshape(-1))
        bias = None
        if has_ended.any():
            bias = torch.from_numpy(np.where(has_ended, -np.inf, 0.0).astype(np.float32))[:, None, None].to(device)
        parts.append(Bucket(end - begin, length, bias))
    taken, extra = np.concatenate(there), np.flatnonzero(np.concatenate(is_extra))
    counts = np.flatnonzero(~np.concatenate(is_extra))
    back = np.empty(int(sizes.sum()), np.int64)
    back[taken[counts]] = counts
    return Buckets(
        tuple(parts),
        torch.from_numpy(taken).to(device),
        torch.from_numpy(back).to(device),
        torch.from_numpy(extra).to(device) if len(extra) else None,
    )


# -- sequences of equal length ----------------------------------------------------------------------------------------


def _side_by_side(qk: Tensor, v: Tensor, count: int, length: int, bias: Tensor | None) -> Tensor:
    """[G L, H h] of queries and keys [G L, 2, H, h] and values [G L, H, h]."""
    q_GHLh, k_GHLh, v_GHLh = (x.unflatten(0, (count, length)).transpose(1, 2) for x in (*qk.unbind(1), v))
    if length <= _SMALL and use_manual_backward(v):
        mixed = _SmallAttention.apply(q_GHLh, k_GHLh, v_GHLh, bias)
    else:
        bias = None if bias is None else bias.to(v.dtype)
        mixed = F.scaled_dot_product_attention(q_GHLh, k_GHLh, v_GHLh, attn_mask=bias)
    return mixed.transpose(1, 2).reshape(count * length, -1)


class _SmallAttention(torch.autograd.Function):
    """softmax(q k' / sqrt(h) + bias) v by plain products, keeping the softmax."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        count, heads, length, width = ctx.shape = q.shape
        q, k, v = (x.reshape(count * heads, length, width) for x in (q, k, v))
        if bias is None:
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(width**-0.5)
        else:
            every = bias[:, :, 0].to(q.dtype).expand(count, heads, length).reshape(count * heads, 1, length)
            scores = torch.baddbmm(every, q, k.transpose(1, 2), alpha=width**-0.5)
        share = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, share)
        return torch.bmm(share, v).view(ctx.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, share = ctx.saved_tensors
        up = upstream[0].reshape(q.shape)
        of_v = torch.bmm(share.transpose(1, 2), up)
        of_share = torch.bmm(up, v.transpose(1, 2))
        of_scores = torch._softmax_backward_data(of_share, share, -1, share.dtype).mul_(q.shape[-1] ** -0.5)
        of_q, of_k = torch.bmm(of_scores, k), torch.bmm(of_scores.transpose(1, 2), q)
        return of_q.view(ctx.shape), of_k.view(ctx.shape), of_v.view(ctx.shape), None
