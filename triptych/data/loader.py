"""From data sets to training steps: global batches, the same on any number of ranks, from any step on.

    mix        which sequences are in step k         on every rank, for the whole global batch
    sequences  how long they are                     the same, without reading tokens
    pack       where they stand                      the same, from the lengths
    loader     tokens, segments, what may be masked  only what this rank owns is read
    ahead      all of this for the next steps, in a thread or in processes

Step k is a pure function of the data sets, the configuration and k. To resume is to continue at a number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from triptych.data.mix import Mixture, OnePass, Picks, source_weights
from triptych.data.pack import Packed, Placement, RowLayout, check_at_least
from triptych.data.prefetch import Prefetcher
from triptych.data.sequences import (
    NO_OPEN_ENDS,
    PAIR_SPECIALS,
    Documents,
    OpenEnds,
    PackedText,
    Pairs,
    SequenceSource,
)
from triptych.data.shards import TokenDataset
from triptych.data.types import Batch
from triptych.errors import DataError, UserError
from triptych.utils.rng import random_bits
from triptych.vocab import NOT_A_MODALITY, Modality, Task, Vocabulary

_ORDER_VERSION = 1  # raise it when the same seed gives other batches: older states are then refused
_SOURCE_SHIFT = 40  # a sample id is the source's number above 40 bits of index
_MIN_SEQ_LEN = 8
MaskTextEos = Literal["packed", "all", "none"]


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What is trained on, in which order and in which shape."""

    seq_len: int
    """Most positions of a sequence; text rows have exactly this many, unless a whole shard has fewer."""
    global_batch: int
    """Sequences per step, over all ranks and micro-batches."""
    layout: RowLayout = field(default_factory=Packed)
    """How the sequences of a step are laid out in rows and micro-batches; does not change which they are."""
    task_weights: Mapping[str, float] = field(default_factory=lambda: {task.label: 1.0 for task in Task})
    """Share of the sequences of each task, normalised; a task with a weight needs data."""
    dataset_weights: Mapping[str, float] = field(default_factory=dict)
    """Share of each data set within its task, by name; by number of sequences where a task has none named."""
    p_subsample: float = 0.05
    """Probability that a text row is a random window of itself (the paper's 0.05)."""
    document_attention: bool = False
    """Whether each document is a sequence of its own instead of sharing a row with others (the paper's way).
    A document then weighs as much as a row did: in the mixture, in the batch and in the mean of the loss."""
    mask_text_eos: MaskTextEos = "packed"
    """Where the EOS of a text may be masked: in text-only sequences ("packed"), in all sequences ("all") or in none."""
    open_ends: OpenEnds = NO_OPEN_ENDS
    """Ends of texts and sounds that are filled up with EOS, all of which may then be masked: teaches lengths."""
    seed: int = 0
    """Decides the order of everything."""
    num_workers: int = 0
    """Processes that make steps ahead; 0 makes them in a thread. They import the script that was started anew, so it
    must keep its work under `if __name__ == "__main__"`."""
    prefetch: int = 2
    """Steps kept ready by each worker (as many again may be on their way), or by the thread; without workers, 0 makes
    each step when it is asked for."""

    def __post_init__(self) -> None:
        check_at_least(_MIN_SEQ_LEN, seq_len=self.seq_len)
        check_at_least(1, global_batch=self.global_batch)
        check_at_least(0, num_workers=self.num_workers, prefetch=self.prefetch, seed=self.seed)
        if not isinstance(self.layout, RowLayout):
            raise UserError(f"layout must be Padded(), Packed() or Grouped(), got {self.layout!r}.")
        if self.seed >= 2**63:
            raise UserError(f"seed must be below 2**63, got {self.seed}.")
        if self.num_workers and not self.prefetch:
            raise UserError("prefetch must be at least 1 when there are workers; try prefetch=2.")
        if not 0 <= self.p_subsample <= 1:
            raise UserError(f"p_subsample must lie between 0 and 1, got {self.p_subsample!r}.")
        if self.mask_text_eos not in ("packed", "all", "none"):
            raise UserError(f"mask_text_eos must be 'packed', 'all' or 'none', got {self.mask_text_eos!r}.")
        if self.open_ends.probability and max(self.open_ends.text, self.open_ends.audio) + PAIR_SPECIALS > self.seq_len:
            raise UserError(f"open ends must leave room for {PAIR_SPECIALS} special tokens in seq_len={self.seq_len}.")
        if isinstance(self.layout, Packed) and (self.layout.row_length or self.seq_len) < self.seq_len:
            raise UserError(f"row_length={self.layout.row_length} must be at least seq_len={self.seq_len}.")


@dataclass(frozen=True)
class Step:
    """What one rank computes in one optimizer step, and what it must know about the others."""

    index: int
    """Number of the step, from 0."""
    micro_batches: list[Batch]
    """This rank's part; every rank has as many, of the same shapes. Rows and whole micro-batches may be empty."""
    num_sequences: int
    """Sequences in the global batch: what a mean over all ranks and micro-batches divides by."""
    num_tokens: int
    """Positions in the global batch that are not padding."""
    num_positions: int
    """Positions in the global batch, padding included."""


class StepBuilder:
    """Step k of one rank as a function of k. Picklable, so that workers can have their own."""

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

    def _lengths(self, picks: Picks) -> np.ndarray:
        lengths = np.empty(len(picks.sources), np.int64)
        for number in np.unique(picks.sources):
            mine = picks.sources == number
            lengths[mine] = self.sources[number].lengths(picks.indices[mine], picks.epochs[mine])
        return lengths

    def _fill(self, placement: Placement, picks: Picks, lengths: np.ndarray) -> Batch:
        """Read this rank's sequences into their places."""
        mine = np.flatnonzero(placement.rows % self.world_size == self.rank)
        mine = mine[np.lexsort((placement.columns[mine], placement.rows[mine]))]
        slots, rows, columns = placement.slots[mine], placement.rows[mine] // self.world_size, placement.columns[mine]
        numbers, indices, epochs = picks.sources[slots], picks.indices[slots], picks.epochs[slots]

        shape = (placement.num_rows // self.world_size, placement.width)
        tokens = np.full(shape, self._pad, np.int32)
        positions, segment_ids, maskable = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
        places = zip(rows.tolist(), columns.tolist(), lengths[slots].tolist())
        sequences = zip(numbers.tolist(), indices.tolist(), epochs.tolist())
        for segment, ((row, column, length), (number, index, epoch)) in enumerate(zip(places, sequences), start=1):
            here = slice(column, column + length)
            source, out = self.sources[number], tokens[row, here]
            source.write(index, epoch, out)
            positions[row, here] = self._count[:length]
            segment_ids[row, here] = segment
            maskable[row, here] = self._maskable[source.task][out]
        if self.config.open_ends.probability:
            for eos in self._ends:
                is_eos = tokens == eos
                repeated = is_eos[:, 1:] & is_eos[:, :-1]
                maskable[:, 1:] |= repeated
                maskable[:, :-1] |= repeated
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
    """For each task, which ids diffusion may mask: data always, the end of a text by choice, other specials never."""
    data = np.zeros(vocabulary.size, bool)
    for modality in Modality:
        ids = vocabulary.data_ids(modality)
        data[ids.start : ids.stop] = True
    tables = {}
    for task in Task:
        tables[task] = data.copy()
        masked = mask_text_eos == "all" or (mask_text_eos == "packed" and task == Task.TEXT)
        tables[task][vocabulary.eos(Modality.TEXT)] = masked
    return tables


def sample_names(folders: Sequence[str], sample_ids: np.ndarray) -> list[str]:
    """Where the samples of a batch come from, as FOLDER#NUMBER."""
    return [f"{folders[int(id) >> _SOURCE_SHIFT]}#{int(id) & ((1 << _SOURCE_SHIFT) - 1)}" for id in sample_ids]


class Loader:
    """An iterator over the steps of one rank, forever or until `num_steps`. Close it, or use it in a `with`.

        with Loader(datasets, config, rank, world_size) as loader:
            loader.restore(state)
            for step in loader:
                ...
                state = loader.state()  # continues behind this step

    With `one_pass` every sequence of the data sets comes once, in order, unshuffled, and the last step may be smaller:
    for evaluation. The number of ranks, the layout and the workers may change between two runs that resume each
    other; what the steps hold may not.
    """

    def __init__(
        self,
        datasets: Sequence[TokenDataset | str | Path],
        config: LoaderConfig,
        rank: int = 0,
        world_size: int = 1,
        *,
        start_step: int = 0,
        num_steps: int | None = None,
        one_pass: bool = False,
    ):
        if not 0 <= rank < world_size:
            raise UserError(f"rank must lie in [0, world_size={world_size}), got {rank}.")
        if start_step < 0 or (num_steps is not None and num_steps < 0):
            raise UserError(f"start_step and num_steps must not be negative, got {start_step} and {num_steps}.")
        opened = [item if isinstance(item, TokenDataset) else TokenDataset(item) for item in datasets]
        vocabulary = _common_vocabulary(opened)
        seeds = [None if one_pass else int(random_bits(config.seed, number)[0]) for number in range(len(opened))]
        sources = [_source(dataset, config, seed) for dataset, seed in zip(opened, seeds)]
        sizes = [len(source) for source in sources]
        shares = None if one_pass else _shares(opened, sizes, config)
        stream = OnePass(sizes) if shares is None else Mixture(sizes, shares, config.seed)
        if stream.length is not None:
            steps_in_pass = -(-stream.length // config.global_batch)
            num_steps = steps_in_pass if num_steps is None else min(num_steps, steps_in_pass)
        self.config, self.num_steps = config, num_steps
        self.fingerprint = _fingerprint(opened, shares, config)
        self._builder = StepBuilder(sources, stream, config, vocabulary, rank, world_size)
        self._step = start_step
        self._ahead: Prefetcher[Step] | None = None

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if self.num_steps is not None and self._step >= self.num_steps:
            self.close()
            raise StopIteration
        if self._ahead is None:
            workers, prefetch = self.config.num_workers, self.config.prefetch
            self._ahead = Prefetcher(self._builder, self._step, self.num_steps, workers, prefetch)
        try:
            step = next(self._ahead)
        except BaseException:
            self.close()
            raise
        assert step.index == self._step
        self._step += 1
        return step

    def close(self) -> None:
        """Stop making steps ahead. Iterating again starts it again, at the next step."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- resume -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What to save to continue behind the last step that was returned. Plain JSON."""
        return {"step": self._step, "fingerprint": self.fingerprint}

    def restore(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Continue from a saved state; refused, unless forced, if the steps would not be those of that run."""
        step, fingerprint = state.get("step"), state.get("fingerprint")
        if not isinstance(step, int) or step < 0 or not isinstance(fingerprint, Mapping):
            raise DataError(f"this is not a state of a loader: {str(dict(state))[:100]}.")
        differences = _differences(fingerprint, self.fingerprint)
        if differences and not force:
            raise DataError(
                f"these are not the batches of the saved run: {'; '.join(differences)}. "
                "Go back to what it used, start a new run, or force it."
            )
        self.close()
        self._step = step


# -- what a loader is made of -----------------------------------------------------------------------------------------


def _source(dataset: TokenDataset, config: LoaderConfig, seed: int | None) -> SequenceSource:
    if dataset.task != Task.TEXT:
        return Pairs(dataset, config.seq_len, seed, config.open_ends)
    if config.document_attention:
        return Documents(dataset, config.seq_len, seed, config.open_ends)
    return PackedText(dataset, config.seq_len, seed, config.p_subsample)


def _shares(datasets: Sequence[TokenDataset], sizes: Sequence[int], config: LoaderConfig) -> list[float]:
    names, tasks = [dataset.manifest.name for dataset in datasets], [dataset.task for dataset in datasets]
    return source_weights(names, tasks, sizes, config.task_weights, config.dataset_weights)


def _common_vocabulary(datasets: Sequence[TokenDataset]) -> Vocabulary:
    """The vocabulary of all data sets, after checking that their ids mean the same."""
    if not datasets:
        raise UserError("a loader needs at least one data set.")
    first = datasets[0]
    tokenizers: dict[str, tuple[str, TokenDataset]] = {}
    for dataset in datasets:
        if dataset.vocabulary != first.vocabulary:
            raise DataError(
                f"{dataset.folder} and {first.folder} have different vocabularies, {dataset.vocabulary} and "
                f"{first.vocabulary}. Tokenize both with the same tokenizers."
            )
        for modality, fingerprint in dataset.manifest.tokenizers.items():
            known, owner = tokenizers.setdefault(modality, (fingerprint, dataset))
            if known != fingerprint:
                raise DataError(
                    f"{dataset.folder} and {owner.folder} were made with different {modality} tokenizers. "
                    "Tokenize both with the same."
                )
    return first.vocabulary


def _fingerprint(
    datasets: Sequence[TokenDataset], shares: Sequence[float] | None, config: LoaderConfig
) -> dict[str, Any]:
    """Everything that decides what the steps hold, by name; not how they are laid out, dealt or made."""
    content: dict[str, Any] = {"order_version": _ORDER_VERSION, "one_pass": shares is None}
    for name in ("seed", "seq_len", "global_batch", "p_subsample", "document_attention", "mask_text_eos"):
        content[name] = getattr(config, name)
    if config.open_ends.probability:
        content["open_ends"] = asdict(config.open_ends)
    for number, dataset in enumerate(datasets):
        manifest = dataset.manifest
        parts = {"content": manifest.fingerprint, "share": None if shares is None else round(shares[number], 9)}
        parts |= {f"vocabulary.{name}": size for name, size in manifest.vocabulary.items()}
        parts |= {f"tokenizers.{name}": made_by for name, made_by in manifest.tokenizers.items()}
        content |= {f"datasets[{number}].{name}": value for name, value in parts.items()}
    return content


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One clause for everything that is not as it was."""

    def shown(value: object) -> str:
        return f"{value[:12]}..." if isinstance(value, str) and len(value) > 16 else repr(value)

    names = [*old, *(name for name in new if name not in old)]
    changed = [name for name in names if old.get(name) != new.get(name)]
    return [f"{name} was {shown(old.get(name))}, is {shown(new.get(name))}" for name in changed]
