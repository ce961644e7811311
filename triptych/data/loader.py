"""From data sets to training steps: global batches, the same on any number of ranks, from any step on.

    mix        which sequences are in step k         on every rank, for the whole global batch
    sequences  how long they are                     the same, without reading tokens
    pack       where they stand                      the same, from the lengths
    loader     tokens, segments, what may be masked  only what this rank owns is read
    grain      makes the next steps ahead of time, in a thread or in processes

Step k is a pure function of the data sets, the configuration and k. To resume is to continue at a number.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from triptych.data.mix import Mixture, OnePass, Picks, random_bits, source_weights
from triptych.data.pack import Layout, Packed, Placement
from triptych.data.sequences import Documents, PackedText, Pairs, SequenceSource
from triptych.data.shards import TokenDataset
from triptych.data.types import Batch
from triptych.errors import DataError, UserError
from triptych.vocab import NOT_A_MODALITY, Modality, Task, Vocabulary

_ORDER_VERSION = 1  # raise it when the same seed gives other batches: older states are then refused
_SOURCE_SHIFT = 40  # a sample id is the source's number above 40 bits of index
_MIN_SEQ_LEN = 8
MaskTextEos = Literal["packed", "all", "none"]


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What is trained on, in which order and in which shape."""

    seq_len: int
    """Most positions of a sequence; text rows have exactly this many."""
    global_batch: int
    """Sequences per step, over all ranks and micro-batches."""
    layout: Layout = field(default_factory=Packed)
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
    seed: int = 0
    """Decides the order of everything."""
    num_workers: int = 0
    """Processes that make steps ahead; 0 makes them in a thread."""
    prefetch: int = 2
    """Steps kept ready by each worker, or by the thread; without workers, 0 makes each step when it is asked for."""

    def __post_init__(self) -> None:
        for name, least in (
            ("seq_len", _MIN_SEQ_LEN),
            ("global_batch", 1),
            ("num_workers", 0),
            ("prefetch", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UserError(f"{name} must be an integer of at least {least}, got {value!r}.")
        if self.num_workers and not self.prefetch:
            raise UserError("prefetch must be at least 1 when there are workers; try prefetch=2.")
        if not 0 <= self.p_subsample <= 1:
            raise UserError(f"p_subsample must lie between 0 and 1, got {self.p_subsample!r}.")
        if self.mask_text_eos not in ("packed", "all", "none"):
            raise UserError(f"mask_text_eos must be 'packed', 'all' or 'none', got {self.mask_text_eos!r}.")
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

    @property
    def padding_fraction(self) -> float:
        return 1.0 - self.num_tokens / self.num_positions


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
        datasets: Sequence[TokenDataset],
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
        vocabulary = _common_vocabulary(datasets)
        seeds = [None if one_pass else int(random_bits(config.seed, number)[0]) for number in range(len(datasets))]
        sources = [_source(dataset, config, seed) for dataset, seed in zip(datasets, seeds)]
        stream = OnePass([len(source) for source in sources]) if one_pass else _mixture(datasets, sources, config)
        if stream.length is not None:
            steps_in_pass = -(-stream.length // config.global_batch)
            num_steps = steps_in_pass if num_steps is None else min(num_steps, steps_in_pass)
        self.config, self.num_steps = config, num_steps
        self.fingerprint = _fingerprint(datasets, config) | {"one_pass": one_pass}
        self._builder = StepBuilder(sources, stream, config, vocabulary, rank, world_size)
        self._step = start_step
        self._ahead = _Ahead()
        weakref.finalize(self, self._ahead.close)

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if self.num_steps is not None and self._step >= self.num_steps:
            self.close()
            raise StopIteration
        if not self._ahead.is_running:
            self._ahead.start(self._builder, self._step, self.num_steps)
        step = self._ahead.next()
        assert step.index == self._step
        self._step += 1
        return step

    def close(self) -> None:
        """Stop making steps ahead. Iterating again starts it again, at the next step."""
        self._ahead.close()

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
        differences = _differences(state["fingerprint"], self.fingerprint)
        if differences and not force:
            raise DataError(
                f"these are not the batches of the saved run: {'; '.join(differences)}. "
                "Go back to what it used, start a new run, or force it."
            )
        self.close()
        self._step = int(state["step"])


# -- what a loader is made of -----------------------------------------------------------------------------------------


def _source(dataset: TokenDataset, config: LoaderConfig, seed: int | None) -> SequenceSource:
    if dataset.task != Task.TEXT:
        return Pairs(dataset, config.seq_len)
    if config.document_attention:
        return Documents(dataset, config.seq_len)
    return PackedText(dataset, config.seq_len, seed, config.p_subsample)


def _mixture(datasets: Sequence[TokenDataset], sources: Sequence[SequenceSource], config: LoaderConfig) -> Mixture:
    names, tasks = [dataset.manifest.name for dataset in datasets], [dataset.task for dataset in datasets]
    sizes = [len(source) for source in sources]
    return Mixture(sizes, source_weights(names, tasks, sizes, config.task_weights, config.dataset_weights), config.seed)


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


def _fingerprint(datasets: Sequence[TokenDataset], config: LoaderConfig) -> dict[str, Any]:
    """Everything that decides what the steps hold, by name; not how they are laid out, dealt or made."""
    content: dict[str, Any] = {"order_version": _ORDER_VERSION}
    for name in ("seed", "seq_len", "global_batch", "p_subsample", "document_attention", "mask_text_eos"):
        content[name] = getattr(config, name)
    content |= {f"task_weights[{name}]": float(weight) for name, weight in config.task_weights.items()}
    content |= {f"dataset_weights[{name}]": float(weight) for name, weight in config.dataset_weights.items()}
    for number, dataset in enumerate(datasets):
        manifest = dataset.manifest
        content |= {f"datasets[{number}].vocabulary.{name}": size for name, size in manifest.vocabulary.items()}
        content |= {f"datasets[{number}].tokenizers.{name}": made_by for name, made_by in manifest.tokenizers.items()}
        content[f"datasets[{number}].content"] = manifest.fingerprint
    return content


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One clause for everything that is not as it was."""

    def shown(value: object) -> str:
        return f"{value[:12]}..." if isinstance(value, str) and len(value) > 16 else repr(value)

    names = [*old, *(name for name in new if name not in old)]
    changed = [name for name in names if old.get(name) != new.get(name)]
    return [f"{name} was {shown(old.get(name))}, is {shown(new.get(name))}" for name in changed]


# -- making steps ahead of time ---------------------------------------------------------------------------------------


class _Ahead:
    """Steps from a number on, in order, made ahead of time in a thread or in worker processes, by grain."""

    def __init__(self) -> None:
        self._iterator: Any = None
        self._num_workers = 0

    @property
    def is_running(self) -> bool:
        return self._iterator is not None

    def start(self, builder: StepBuilder, first: int, stop: int | None) -> None:
        grain, config = _import_grain(), builder.config
        self._num_workers = config.num_workers
        numbers = grain.MapDataset.range(first, sys.maxsize if stop is None else stop)
        if self._num_workers:
            inside = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            outside = grain.MultiprocessingOptions(config.num_workers, per_worker_buffer_size=config.prefetch)
            steps = numbers.map(_AsBytes(builder)).to_iter_dataset(inside).mp_prefetch(outside, _prepare_worker)
        else:
            inside = grain.ReadOptions(num_threads=min(1, config.prefetch), prefetch_buffer_size=config.prefetch)
            steps = numbers.map(builder).to_iter_dataset(inside)
        self._iterator = iter(steps)

    def next(self) -> Step:
        try:
            element = next(self._iterator)
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError) and "terminated unexpectedly" in str(error):
                raise RuntimeError(
                    f"a loader worker died ({error}). If memory ran out, use fewer workers or a smaller prefetch; "
                    "if the exit code is -7, /dev/shm is too small for the steps or a shard was cut short."
                ) from error
            raise
        return pickle.loads(element.data) if self._num_workers else element

    def close(self) -> None:
        """Let go of the iterator at once: grain's own clean-up at interpreter exit comes too late and complains."""
        if self._iterator is not None:
            iterator, self._iterator = self._iterator, None
            iterator.close()


@dataclass(frozen=True)
class _AsBytes:
    """A step as one array of bytes, which grain hands over in shared memory.

    Only a name then goes through the pipe. A worker that is killed in the middle of a longer message leaves its reader
    waiting for the rest for ever.
    """

    builder: StepBuilder

    def __call__(self, index: int) -> np.ndarray:
        return np.frombuffer(pickle.dumps(self.builder(index), protocol=5), np.uint8)


def _prepare_worker(index: int, count: int) -> None:
    """A worker lives as long as its parent, which alone decides what a signal to the whole group means."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)

    def follow_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()


def _import_grain() -> Any:
    """grain, without its warning that JAX's profiler is missing."""
    from absl import logging as absl_logging

    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        import grain
    finally:
        absl_logging.set_verbosity(verbosity)
    return grain
