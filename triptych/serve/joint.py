"""Forward passes of several requests as one.

All positions of all requests share the matrix products of a pass. Attention takes the sequences of one length at a
time. So every request gets what it would get alone, to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from triptych.model.segments import grouped_rows
from triptych.model.transformer import Transformer

# R rows, T positions per row, n queried positions, D width


@dataclass(frozen=True)
class ForwardPass:
    """The forward pass that one request waits for: the arguments of `Transformer.hidden_states`."""

    tokens: Tensor
    """[R, T] int64."""
    positions: Tensor
    """[R, T] int64."""
    query_idx: Tensor
    """[n] int64, indices into the flattened R x T positions."""

    @property
    def num_tokens(self) -> int:
        return self.tokens.numel()

    @property
    def length(self) -> int:
        return self.tokens.shape[1]


def run_jointly(model: Transformer, passes: Sequence[ForwardPass]) -> list[Tensor]:
    """Hidden states [n, D] of every pass."""
    if len(passes) == 1:
        (only,) = passes
        return [model.hidden_states(only.tokens, only.positions, query_idx=only.query_idx)]
    order = sorted(range(len(passes)), key=lambda i: passes[i].length)
    in_order = [passes[i] for i in order]
    groups = [
        (sum(len(each.tokens) for each in members), length)
        for length, members in groupby(in_order, key=lambda each: each.length)
    ]
    starts = torch.tensor([0, *(each.num_tokens for each in in_order)]).cumsum(0).tolist()
    hidden_nD = model.hidden_states(
        torch.cat([each.tokens.flatten() for each in in_order])[None],
        torch.cat([each.positions.flatten() for each in in_order])[None],
        grouped_rows(groups, in_order[0].tokens.device),
        query_idx=torch.cat([each.query_idx + start for each, start in zip(in_order, starts)]),
    )
    parts = hidden_nD.split([len(each.query_idx) for each in in_order])
    return [part for _, part in sorted(zip(order, parts), key=lambda pair: pair[0])]
