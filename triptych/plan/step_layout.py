"""How the sequences of a step are arranged in rows, micro-batches and ranks."""

from dataclasses import dataclass

import numpy as np

from triptych.data.pack import RowLayout
from triptych.plan.lengths import BatchSample


@dataclass(frozen=True)
class StepLayout:
    """One step over all ranks. Counts are means over the sampled batches; micro-batch sizes are the largest ones."""

    sequences: int
    tokens: float
    positions: float
    """Positions in all rows, including padding and empty rows."""
    context: float
    """Length of the sequence that a token attends to, averaged over tokens."""
    filled_rows: float
    """Rows that hold at least one sequence."""
    total_rows: float
    """All rows, including the empty ones that give every rank the same number."""
    micro_batches: int
    micro_batch_rows: int
    """Rows per rank in the largest micro-batch."""
    row_length: int
    max_fill: float
    """Largest share of real tokens among the positions of a micro-batch on one rank."""
    has_mask: bool
    """Whether attention needs a mask: a row holds several sequences, or padding."""


def lay_out_step(batches: BatchSample, layout: RowLayout, seq_len: int, ranks: int) -> StepLayout:
    """Arrange each sampled batch as the loader would for this number of ranks."""
    arranged = [(lengths, layout.arrange(lengths, seq_len, ranks)) for lengths in batches.lengths]
    micro_batches = [placement for _, placements in arranged for placement in placements]
    largest = max(micro_batches, key=lambda placement: placement.num_rows * placement.width)
    tokens, steps = sum(int(lengths.sum()) for lengths in batches.lengths), len(arranged)
    most_tokens = max(
        np.bincount(placement.rows % ranks, weights=lengths[placement.slots]).max(initial=0)
        for lengths, placements in arranged
        for placement in placements
    )
    return StepLayout(
        sequences=len(batches.lengths[0]),
        tokens=tokens / steps,
        positions=sum(placement.num_rows * placement.width for placement in micro_batches) / steps,
        context=sum(float(np.square(lengths.astype(np.float64)).sum()) for lengths in batches.lengths) / tokens,
        filled_rows=sum(len(np.unique(placement.rows)) for placement in micro_batches) / steps,
        total_rows=sum(placement.num_rows for placement in micro_batches) / steps,
        micro_batches=max(len(placements) for _, placements in arranged),
        micro_batch_rows=largest.num_rows // ranks,
        row_length=largest.width,
        max_fill=float(most_tokens) / (largest.num_rows // ranks * largest.width),
        # A row with one full-length sequence, or none, needs no mask.
        has_mask=any(
            bool((lengths[placement.slots] < placement.width).any())
            for lengths, placements in arranged
            for placement in placements
        ),
    )
