"""Forward passes whose result for a row does not depend on the other rows of the batch, bit for bit.

A matrix product of few rows uses a different kernel, which rounds differently. So inputs are padded to a minimum number
of rows.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from triptych.vocab import Modality, Vocabulary

# B rows, T positions, n query positions, D hidden dimensions, V logits of a modality

MAX_TOKENS_PER_PASS = 16_384
_CHUNK_BYTES = 128 * 2**20  # logits computed in one matrix product
_PIECE_BYTES = 8 * 2**20  # logits handed out together: few enough to stay in a cache


class Network(Protocol):
    """What generation needs of a model."""

    vocabulary: Vocabulary

    def hidden_states(self, tokens: Tensor, positions: Tensor, *, query_idx: Tensor) -> Tensor:
        """Hidden states [n, D] of the query positions, which index the flattened B x T."""

    def logits(self, hidden_nD: Tensor, modality: Modality, *, out: Tensor) -> Tensor:
        """[n, V], written to `out` or to new memory."""


def hidden_states(network: Network, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
    """[n, D] hidden states of the positions `where` [B, T], row by row."""
    length = tokens_BT.shape[1]
    padded = _pad_rows(tokens_BT, -(-min_rows() // length))
    positions = torch.arange(length, device=tokens_BT.device).expand_as(padded)
    query_idx = where_BT.flatten().nonzero()[:, 0]
    return network.hidden_states(padded, positions, query_idx=_pad_rows(query_idx, min_rows()))[: len(query_idx)]


class LogitsReader:
    """Logits of hidden states, a few megabytes at a time, so that they never exist all at once.

    Each matrix product fills a large reused buffer (new memory from the system costs time), which is read in small
    pieces.
    """

    def __init__(self, network: Network):
        self.network = network
        self._buffers: dict[tuple[Modality, int], Tensor] = {}

    def pieces(self, modality: Modality, *hidden_nD: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield (rows, logits): a slice of the n rows, and their logits [., V] for each of the given hidden states.

        The logits are valid until the next iteration.
        """
        width, count = self.network.vocabulary.num_logits(modality), len(hidden_nD[0])
        chunk, piece = (max(min_rows(), size // (4 * width)) for size in (_CHUNK_BYTES, _PIECE_BYTES))
        for start in range(0, count, chunk):
            logits = [
                self._logits(modality, number, hidden[start : start + chunk], min(chunk, max(count, min_rows())))
                for number, hidden in enumerate(hidden_nD)
            ]
            for first in range(0, len(logits[0]), piece):
                rows = slice(first, first + piece)
                yield slice(start + first, start + first + len(logits[0][rows])), [part[rows] for part in logits]

    def _logits(self, modality: Modality, number: int, hidden_nD: Tensor, max_rows: int) -> Tensor:
        padded = _pad_rows(hidden_nD, min_rows())
        buffer = self._buffers.get((modality, number))
        if buffer is None or len(buffer) < max_rows:
            width = self.network.vocabulary.num_logits(modality)
            self._buffers[modality, number] = buffer = padded.new_empty(max_rows, width)
        return self.network.logits(padded, modality, out=buffer[: len(padded)])[: len(hidden_nD)]


def min_rows() -> int:
    """Rows a matrix product needs for each row to round as in a larger one. With two threads, 12 were enough."""
    return 8 * max(2, torch.get_num_threads())


def _pad_rows(rows: Tensor, num_rows: int) -> Tensor:
    """At least `num_rows` rows; missing ones are copies of the first."""
    missing = num_rows - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])])
