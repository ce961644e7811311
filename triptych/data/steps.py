"""Training steps: the configuration of the loader, and step k of one rank as a pure function of k."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from triptych.data.mix import Mixture, OnePass, Picks
from triptych.data.pack import Packed, Placement, RowLayout, check_at_least
from triptych.data.sequences import NO_OPEN_ENDS, PAIR_SPECIALS, OpenEnds, SequenceSource
from triptych.data.types import Batch
from triptych.errors import UserError
from triptych.utils.arguments import check_fields
from triptych.vocab import NOT_A_MODALITY, Modality, Task, Vocabulary

_SOURCE_SHIFT = 40  # a sample id is the number of the dataset, then 40 bits of index
_MIN_SEQ_LEN = 8
_MOST = {"seq_len": 2**24, "global_batch": 2**24, "num_workers": 1024, "prefetch": 65_536}
MaskTextEos = Literal["packed", "all", "none"]


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Mixture, order and layout of the training data."""

    seq_len: int
    """Maximum positions of a sequence. Packed text has exactly this many, unless a whole shard has fewer."""
    global_batch: int
    """Sequences per step, over all ranks and micro-batches."""
    layout: RowLayout = field(default_factory=Packed)
    """How the sequences of a step are arranged in rows and micro-batches; has no effect on which they are."""
    task_weights: Mapping[str, float] = field(default_factory=lambda: {task.label: 1.0 for task in Task})
    """Mixture weights of the tasks, by sequences, normalised. A task with a weight needs a dataset."""
    dataset_weights: Mapping[str, float] = field(default_factory=dict)
    """Mixture weights of datasets within their task, by name. A task without any is split by number of sequences."""
    p_subsample: float = 0.05
    """Probability that a packed text is replaced by a random window of itself (0.05 in the paper)."""
    document_attention: bool = False
    """Whether each document is a sequence and attends only to itself. By default documents are concatenated and cut
    every seq_len, and attend to their neighbours (as in the paper). With it a document counts as one sequence in
    the mixture, in the batch and in the mean of the loss."""
    mask_text_eos: MaskTextEos = "packed"
    """Sequences whose text EOS may be masked: text-only ("packed"), all ("all") or none ("none")."""
    open_ends: OpenEnds = NO_OPEN_ENDS
    """Variable-length training: some texts and audio clips are filled up with EOS (see `data.sequences`)."""
    held_out: float = 0.0
    """Share of the sequences of every dataset, chosen by a hash of their content, that is never trained on; without
    validation_data, it is validated on. Needs document_attention for text."""
    unique_sequences: int | None = None
    """Train on this many different sequences only, in the shares of the mixture, over and over; None for all data.
    Needs document_attention for text."""
    seed: int = 0
    """Seed of shuffling, text windows and EOS fill."""
    num_workers: int = 0
    """Worker processes that prefetch steps; 0 uses a thread. Workers import the main script, so it needs
    `if __name__ == "__main__":`."""
    prefetch: int = 2
    """Steps that each worker, or the thread, prepares ahead; as many again may be in transit from each worker. Without
    workers, 0 turns prefetching off."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least(_MIN_SEQ_LEN, seq_len=self.seq_len)
        check_at_least(1, global_batch=self.global_batch)
        check_at_least(0, num_workers=self.num_workers, prefetch=self.prefetch, seed=self.seed)
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise UserError(f"{name} must be at most {most:,}, got {getattr(self, name):,}.")
        if not isinstance(self.layout, RowLayout):
            raise UserError(f"layout must be Padded(), Packed() or Grouped(), got {self.layout!r}.")
        if self.seed >= 2**63:
            raise UserError(f"seed must be below 2**63, got {self.seed}.")
        if self.num_workers and not self.prefetch:
            raise UserError("prefetch must be at least 1 when there are workers; try prefetch=2.")
        if not 0 <= self.p_subsample <= 1:
            raise UserError(f"p_subsample must be between 0 and 1, got {self.p_subsample!r}.")
        if not 0 <= self.held_out < 1:
            raise UserError(f"held_out must be at least 0 and below 1, got {self.held_out!r}.")
        if self.unique_sequences is not None:
            check_at_least(1, unique_sequences=self.unique_sequences)
        if self.mask_text_eos not in ("packed", "all", "none"):
            raise UserError(f"mask_text_eos must be 'packed', 'all' or 'none', got {self.mask_text_eos!r}.")
        if self.open_ends.probability and max(self.open_ends.text, self.open_ends.audio) + PAIR_SPECIALS > self.seq_len:
            raise UserError(f"open_ends must leave room for {PAIR_SPECIALS} special tokens in seq_len={self.seq_len}.")
        if isinstance(self.layout, Packed) and (self.layout.row_length or self.seq_len) < self.seq_len:
            raise UserError(f"row_length={self.layout.row_length} must be at least seq_len={self.seq_len}.")


@dataclass(frozen=True)
class Step:
    """The batches of one rank for one optimizer step, and totals over all ranks."""

    index: int
    """Number of the step, from 0."""
    micro_batches: list[Batch]
    """Every rank has the same number, of the same shapes. Rows and whole micro-batches may be empty."""
    num_sequences: int
    """Sequences in the global batch: the divisor of a mean over all ranks and micro-batches."""
    num_tokens: int
    """Positions in the global batch that are not padding."""
    num_positions: int
    """Positions in the global batch, padding included."""


class StepBuilder:
    """Computes step k of one rank from k. Picklable, for worker processes."""

    def __init__(
        self,
        sources: Sequence[SequenceSource],
        stream: Mixture | OnePass,
        config: LoaderConfig,
        vocabulary: Vocabulary,
        rank: int,
        world_size: int,
    ):
        self.sources, self.stream, self.config = list(sources), stream, config
        self.rank, self.world_size = rank, world_size
        self._pad = vocabulary.pad
        self._modality = vocabulary.modality_table.copy()
        self._modality[self._pad] = NOT_A_MODALITY
        self._maskable = _maskable_tables(vocabulary, config.mask_text_eos)
        self._ends = [vocabulary.eos(modality) for modality in (Modality.TEXT, Modality.AUDIO)]
        self._count = np.arange(config.seq_len, dtype=np.int32)

    def __call__(self, index: int) -> Step:
        first = index * self.config.global_batch
        stop = first + self.config.global_batch
        picks = self.stream[np.arange(first, stop if self.stream.length is None else min(stop, self.stream.length))]
        lengths = self._lengths(picks)
        placements = self.config.layout.arrange(lengths, self.config.seq_len, self.world_size)
        return Step(
            index,
            [self._fill(placement, picks, lengths) for placement in placements],
            num_sequences=len(lengths),
            num_tokens=int(lengths.sum()),
            num_positions=sum(placement.num_rows * placement.width for placement in placements),
        )

    def survey(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The source and the length of each of the first `count` sequences of the stream."""
        picks = self.stream[np.arange(count)]
        return picks.sources, self._lengths(picks)

    def _lengths(self, picks: Picks) -> np.ndarray:
        lengths = np.empty(len(picks.sources), np.int64)
        for number in np.unique(picks.sources):
            mine = picks.sources == number
            lengths[mine] = self.sources[number].lengths(picks.indices[mine], picks.epochs[mine])
        return lengths

    def _fill(self, placement: Placement, picks: Picks, lengths: np.ndarray) -> Batch:
        """Read this rank's sequences into one micro-batch."""
        mine = np.flatnonzero(placement.rows % self.world_size == self.rank)
        mine = mine[np.lexsort((placement.columns[mine], placement.rows[mine]))]
        slots, rows, columns = placement.slots[mine], placement.rows[mine] // self.world_size, placement.columns[mine]
        numbers, indices, epochs = picks.sources[slots], picks.indices[slots], picks.epochs[slots]

        shape = (placement.num_rows // self.world_size, placement.width)
        tokens = np.full(shape, self._pad, np.int32)
        positions, segment_ids, maskable = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
        given: list[tuple[int, slice]] = []
        spans = zip(rows.tolist(), columns.tolist(), lengths[slots].tolist())
        sequences = zip(numbers.tolist(), indices.tolist(), epochs.tolist())
        for segment, ((row, column, length), (number, index, epoch)) in enumerate(zip(spans, sequences), start=1):
            here = slice(column, column + length)
            source, out = self.sources[number], tokens[row, here]
            num_given = source.write(index, epoch, out)
            positions[row, here] = self._count[:length]
            segment_ids[row, here] = segment
            maskable[row, here] = self._maskable[source.task][out]
            if num_given:
                given.append((row, slice(column, column + num_given)))
        if self.config.open_ends.probability:  # every EOS of a fill may be masked
            for eos in self._ends:
                is_eos = tokens == eos
                repeated = is_eos[:, 1:] & is_eos[:, :-1]
                maskable[:, 1:] |= repeated
                maskable[:, :-1] |= repeated
        for row, before_response in given:
            maskable[row, before_response] = False
        return Batch(
            tokens=tokens,
            positions=positions,
            segment_ids=segment_ids,
            modality_ids=self._modality[tokens],
            maskable=maskable,
            sample_ids=(numbers << _SOURCE_SHIFT) | indices,
            epochs=epochs.astype(np.int32),
            slots=slots.astype(np.int32),
            tasks=np.array([self.sources[number].task for number in numbers], np.uint8),
        )


def _maskable_tables(vocabulary: Vocabulary, mask_text_eos: MaskTextEos) -> dict[Task, np.ndarray]:
    """For each task, whether each id may be masked: data always, text EOS by choice, other specials never."""
    data = np.zeros(vocabulary.size, bool)
    for modality in Modality:
        ids = vocabulary.data_ids(modality)
        data[ids.start : ids.stop] = True
    tables = {}
    for task in Task:
        tables[task] = data.copy()
        is_eos_masked = mask_text_eos == "all" or (mask_text_eos == "packed" and task == Task.TEXT)
        tables[task][vocabulary.eos(Modality.TEXT)] = is_eos_masked
    return tables


def sample_names(folders: Sequence[str], sample_ids: np.ndarray) -> list[str]:
    """The origin of the sequences of a batch, as FOLDER#NUMBER."""
    return [f"{folders[int(id) >> _SOURCE_SHIFT]}#{int(id) & ((1 << _SOURCE_SHIFT) - 1)}" for id in sample_ids]
