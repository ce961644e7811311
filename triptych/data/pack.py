"""Sequence packing: the sequences of a step in rows, micro-batches and ranks.

A layout is computed from the lengths of the whole global batch, so all ranks agree without communication:

    Padded    one sequence per row of seq_len                                    as in the paper
    Packed    several sequences per row, by best fit; attention within segments  for GPUs
    Grouped   rows of similar length, each group padded to its longest           for CPUs
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from triptych.errors import UserError

# Chosen by `python bench/loader.py --rows`: longer rows pack tighter on one rank, and pad more on several.
DEFAULT_ROW_SEQUENCES = 3


@dataclass(frozen=True)
class Placement:
    """Positions of the sequences of one micro-batch, over all ranks. Rank r of w owns rows r, r + w, r + 2w, ..."""

    slots: np.ndarray
    """[n] index of each sequence in the global batch."""
    rows: np.ndarray
    """[n] row of each sequence."""
    columns: np.ndarray
    """[n] column of its first token."""
    num_rows: int
    """Number of rows over all ranks, a multiple of the number of ranks; a row may be empty."""
    width: int
    """Length of every row."""


def check_at_least(least: int, **values: int | None) -> None:
    """Refuse values that are not integers of at least `least`; None means unset."""
    for name, value in values.items():
        if value is not None and (not isinstance(value, int) or value < least):
            raise UserError(f"{name} must be an integer of at least {least}, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class Padded:
    """One sequence per row, every row of length seq_len, as in the paper."""

    micro_batch_rows: int | None = None
    """Maximum rows of a micro-batch on one rank; None for one micro-batch per step."""

    def __post_init__(self) -> None:
        check_at_least(1, micro_batch_rows=self.micro_batch_rows)

    def arrange(self, lengths: np.ndarray, seq_len: int, world_size: int) -> list[Placement]:
        rows = np.arange(len(lengths))
        return _split_rows(rows, np.zeros_like(rows), len(rows), seq_len, self.micro_batch_rows, world_size)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Sequences packed into rows of equal length, without cutting them: best fit, longest first.

    The rows are the same on any number of ranks. Longer rows have less padding but are distributed to the ranks in
    larger units: with fewer than about 20 rows per rank, the empty rows that equalise the ranks outweigh the gain.
    """

    row_length: int | None = None
    """Positions per row, at least seq_len; None for `DEFAULT_ROW_SEQUENCES` times seq_len."""
    micro_batch_rows: int | None = None
    """Maximum rows of a micro-batch on one rank; None for one micro-batch per step."""

    def __post_init__(self) -> None:
        check_at_least(1, row_length=self.row_length, micro_batch_rows=self.micro_batch_rows)

    def arrange(self, lengths: np.ndarray, seq_len: int, world_size: int) -> list[Placement]:
        row_length = self.row_length or DEFAULT_ROW_SEQUENCES * seq_len
        rows, columns = best_fit(lengths, row_length)
        num_rows = int(rows.max(initial=-1)) + 1
        return _split_rows(rows, columns, num_rows, row_length, self.micro_batch_rows, world_size)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """One sequence per row; rows are sorted by length and cut into micro-batches, each as wide as its longest row.

    The cuts minimise the cost of the step, where a micro-batch costs its positions plus `overhead`.
    """

    max_tokens: int = 16_384
    """Maximum positions of a micro-batch on one rank, if it has more than one row there."""
    overhead: int = 64
    """Cost of one more micro-batch, in positions."""

    def __post_init__(self) -> None:
        check_at_least(1, max_tokens=self.max_tokens)
        check_at_least(0, overhead=self.overhead)

    def arrange(self, lengths: np.ndarray, seq_len: int, world_size: int) -> list[Placement]:
        order = np.argsort(
            -lengths, kind="stable"
        )  # longest first, so that memory runs out in the first micro-batch or never
        cuts = self._cut(lengths[order], world_size)
        return [
            Placement(
                slots=order[start:stop],
                rows=np.arange(stop - start),
                columns=np.zeros(stop - start, np.int64),
                num_rows=-(-(stop - start) // world_size) * world_size,
                width=int(lengths[order[start]]),
            )
            for start, stop in pairwise(cuts)
        ]

    def _cut(self, widths: np.ndarray, world_size: int) -> list[int]:
        """Cuts of the decreasing widths with the least cost."""

        def cost(starts: np.ndarray, stop: int) -> np.ndarray:
            rows_per_rank = -(-(stop - starts) // world_size)
            positions = rows_per_rank * widths[starts]
            is_too_large = (positions > self.max_tokens) & (rows_per_rank > 1)
            return np.where(is_too_large, np.iinfo(np.int64).max // 2, positions + self.overhead)

        # No row of a group is shorter than its last one, which bounds the number of rows.
        return best_cuts(len(widths), cost, lambda stop: max(1, self.max_tokens // int(widths[stop - 1])) * world_size)


RowLayout = Padded | Packed | Grouped


def best_cuts(
    count: int,
    cost: Callable[[np.ndarray, int], np.ndarray],
    max_size: Callable[[int], int] = lambda stop: stop,
) -> list[int]:
    """Cuts of a list of `count` items with the least total cost, both ends included, by dynamic programming.

    `cost(starts, stop)` gives the costs of the groups from each of `starts` up to `stop`; `max_size(stop)` the maximum
    size of a group that ends at `stop`.
    """
    least, previous = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    for stop in range(1, count + 1):
        starts = np.arange(max(0, stop - max_size(stop)), stop)
        costs = least[starts] + cost(starts, stop)
        best = int(np.argmin(costs))
        least[stop], previous[stop] = costs[best], starts[best]
    cuts = [count]
    while cuts[-1] > 0:
        cuts.append(int(previous[cuts[-1]]))
    return cuts[::-1]


def best_fit(lengths: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and first column of every sequence: longest first, each into the fullest row that has room."""
    rows, columns = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    room: list[tuple[int, int]] = []  # (free positions, row), sorted
    num_rows = 0
    for slot in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[slot])
        at = bisect_left(room, (length, -1))
        if at < len(room):
            free, row = room.pop(at)
        else:
            free, row = row_length, num_rows
            num_rows += 1
        rows[slot], columns[slot] = row, row_length - free
        insort(room, (free - length, row))
    return rows, columns


def _split_rows(
    rows: np.ndarray, columns: np.ndarray, num_rows: int, width: int, micro_batch_rows: int | None, world_size: int
) -> list[Placement]:
    """Distribute rows of equal length to the ranks and cut them into micro-batches; only the last may be smaller."""
    rows_per_rank = -(-num_rows // world_size)
    step = micro_batch_rows or rows_per_rank
    placements = []
    for first in range(0, rows_per_rank, step):
        start, stop = first * world_size, min(first + step, rows_per_rank) * world_size
        slots = np.flatnonzero((start <= rows) & (rows < stop))
        placements.append(Placement(slots, rows[slots] - start, columns[slots], stop - start, width))
    return placements
