"""Forward passes whose result for a row does not depend on the other rows of the batch, bit for bit.

A matrix product of few rows uses a different kernel, which rounds differently. So inputs are padded to a minimum number
of rows.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from triptych.utils.threads import map_in_threads
from triptych.vocab import Modality, Vocabulary

# B rows, T positions, n query positions, D hidden dimensions, V logits of a modality

MAX_TOKENS_PER_PASS = 16_384
_CHUNK_BYTES = 128 * 2**20  # logits computed in one matrix product
_PIECE_BYTES = 8 * 2**20  # logits handed out together: few enough to stay in a cache
_MIN_PIECE_BYTES = 2**20  # fewer are not shared among threads
_TOKENS_PER_THREAD = 128  # of fewer, matrix products are slower


class Network(Protocol):
    """What generation needs of a model. Several threads may call it at once."""

    vocabulary: Vocabulary

    def hidden_states(self, tokens: Tensor, positions: Tensor, *, query_idx: Tensor) -> Tensor:
        """Hidden states [n, D] of the query positions, which index the flattened B x T."""

    def logits(self, hidden_nD: Tensor, modality: Modality, *, out: Tensor) -> Tensor:
        """[n, V], written to `out` or to new memory."""


def hidden_states(network: Network, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
    """[n, D] hidden states of the positions `where` [B, T], row by row."""
    groups = [slice(*bounds) for bounds in pairwise(_row_bounds(*tokens_BT.shape))]
    states = map_in_threads(
        lambda rows: _hidden_states(network, tokens_BT[rows], where_BT[rows]), groups, tokens_BT.device
    )
    return states[0] if len(states) == 1 else torch.cat(states)


def _row_bounds(count: int, length: int) -> list[int]:
    """Where to divide `count` rows among threads: a thread that gets less of its core takes fewer of the parts."""
    num_threads = torch.get_num_threads()
    num_parts = min(count, 2 * num_threads, count * length // _TOKENS_PER_THREAD)
    num_parts = 1 if num_threads == 1 or num_parts < num_threads else num_parts // num_threads * num_threads
    return [count * part // num_parts for part in range(num_parts + 1)]


def _hidden_states(network: Network, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
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

    def for_each_piece(
        self, use: Callable[[slice, list[Tensor]], None], modality: Modality, *hidden_nD: Tensor
    ) -> None:
        """Call use(rows, logits): a slice of the n rows, and their logits [., V] for each of the given hidden states.

        Several threads make these calls, so one may write only to places of its own rows. It may overwrite the logits,
        which are valid until it returns.
        """
        width, count = self.network.vocabulary.num_logits(modality), len(hidden_nD[0])
        chunk = max(min_rows(), _CHUNK_BYTES // (4 * width))
        for start in range(0, count, chunk):
            logits = [
                self._logits(modality, number, hidden[start : start + chunk], min(chunk, max(count, min_rows())))
                for number, hidden in enumerate(hidden_nD)
            ]
            stop = start + len(logits[0])

            def use_piece(rows: slice, start: int = start, logits: list[Tensor] = logits) -> None:
                use(rows, [part[rows.start - start : rows.stop - start] for part in logits])

            device = hidden_nD[0].device
            num_threads = torch.get_num_threads() if device.type == "cpu" else 1
            map_in_threads(use_piece, _pieces(start, stop, 4 * width, num_threads), device)

    def _logits(self, modality: Modality, number: int, hidden_nD: Tensor, max_rows: int) -> Tensor:
        padded = _pad_rows(hidden_nD, min_rows())
        buffer = self._buffers.get((modality, number))
        if buffer is None or len(buffer) < max_rows:
            width = self.network.vocabulary.num_logits(modality)
            self._buffers[modality, number] = buffer = padded.new_empty(max_rows, width)
        return self.network.logits(padded, modality, out=buffer[: len(padded)])[: len(hidden_nD)]


def _pieces(start: int, stop: int, row_bytes: int, num_threads: int) -> list[slice]:
    """Slices of rows that are few enough to stay in a cache, and if they are many, one for every thread at least."""
    per_thread = -(-(stop - start) // num_threads)
    size = max(1, min(_PIECE_BYTES // row_bytes, max(per_thread, _MIN_PIECE_BYTES // row_bytes)))
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]


def min_rows() -> int:
    """Rows a matrix product needs for each row to round as in a larger one. With two threads, 12 were enough."""
    return 8 * max(2, torch.get_num_threads())


def _pad_rows(rows: Tensor, num_rows: int) -> Tensor:
    """At least `num_rows` rows; missing ones are copies of the first."""
    missing = num_rows - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])])
