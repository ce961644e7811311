"""The model on rows of a batch, each rounded as it would be in any other batch.

Below some number of rows a matrix product takes another path, in other rounding. So there are never fewer.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from triptych.vocab import Modality, Vocabulary

# B rows, T positions, n of the positions that are asked for, V columns of a softmax

MOST_TOKENS = 16_384  # positions of one forward pass
_CHUNK_BYTES = 128 * 2**20  # of logits that are computed at once
_PIECE_BYTES = 8 * 2**20  # of those that are worked on at once


class Network(Protocol):
    """What generation needs of a model."""

    vocabulary: Vocabulary

    def __call__(self, tokens: Tensor, positions: Tensor, *, query_idx: Tensor) -> Any:
        """Hidden states [n, D] of those of the B x T positions that are asked for."""

    def logits(self, hidden_nD: Tensor, modality: Modality, *, out: Tensor) -> Tensor:
        """[n, V], which may or may not be in `out`."""


def hidden_states(network: Network, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
    """[n, D] of the positions `where` [B, T], row after row."""
    length = tokens_BT.shape[1]
    filled = _filled_up(tokens_BT, -(-least_rows() // length))
    positions = torch.arange(length, device=tokens_BT.device).expand_as(filled)
    query_idx = where_BT.flatten().nonzero()[:, 0]
    return network(filled, positions, query_idx=_filled_up(query_idx, least_rows()))[: len(query_idx)]


class Columns:
    """Logits of hidden rows, a few megabytes at a time: never all that are asked for.

    They are computed for as many rows at once as a matrix product likes, into memory that is used again and again (to
    get it anew from the system costs time), and handed out in pieces that stay in a cache.
    """

    def __init__(self, network: Network):
        self.network = network
        self._buffers: dict[tuple[Modality, int], Tensor] = {}

    def pieces(self, modality: Modality, *hidden_nD: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Which of the rows, and their logits [., V] of each of the hidden states; these are there until the next."""
        columns, count = self.network.vocabulary.data_size(modality) + 2, len(hidden_nD[0])
        chunk, piece = (max(least_rows(), size // (4 * columns)) for size in (_CHUNK_BYTES, _PIECE_BYTES))
        for start in range(0, count, chunk):
            found = [
                self._logits(modality, number, hidden[start : start + chunk], min(chunk, max(count, least_rows())))
                for number, hidden in enumerate(hidden_nD)
            ]
            for first in range(0, len(found[0]), piece):
                rows = slice(first, first + piece)
                yield slice(start + first, start + first + len(found[0][rows])), [each[rows] for each in found]

    def _logits(self, modality: Modality, number: int, hidden_nD: Tensor, most: int) -> Tensor:
        filled = _filled_up(hidden_nD, least_rows())
        buffer = self._buffers.get((modality, number))
        if buffer is None or len(buffer) < most:
            size = self.network.vocabulary.data_size(modality) + 2
            self._buffers[modality, number] = buffer = filled.new_empty(most, size)
        return self.network.logits(filled, modality, out=buffer[: len(filled)])[: len(hidden_nD)]


def least_rows() -> int:
    """Of a matrix product, for every row to be rounded as in a larger one. With two threads 12 were enough."""
    return 8 * max(2, torch.get_num_threads())


def _filled_up(rows: Tensor, least: int) -> Tensor:
    """At least so many rows, the missing ones copies of the first."""
    missing = least - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])])
