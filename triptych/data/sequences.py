"""What a sequence is: token samples of one data set, with the special tokens around them.

    PackedText   [TASK BOS d1 EOS BOS d2 EOS BOS part of d3]     documents one after another, cut every seq_len
    Documents    [TASK BOS d1 EOS]                               every document its own sequence
    Pairs        [TASK BOS_m media EOS_m BOS text EOS]           an image or a sound, and its text

The end of a sound or a text may be open: then its EOS is repeated up to a fixed number of positions. A model that has
to predict those learns how long things are: at position i it gives EOS the probability that all has been said by then.

Each is a source with random access: how long its sequences are is known without reading a token, and a sequence is
written straight into its place in the batch.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from triptych.data.shards import Shard, TokenDataset
from triptych.errors import DataError, UserError
from triptych.utils.rng import DataStream, random_bits
from triptych.vocab import Modality, Task

RETRY_SECONDS = (0.1, 0.5, 2.0)  # pauses before a shard that cannot be opened is given up
BLOCK = 1024  # neighbouring documents that are shuffled among themselves
PAIR_SPECIALS = 5  # TASK, BOS and EOS of the media, BOS and EOS of the text
_CACHED_BLOCKS = 256
_CACHED_SHARDS = 64


@dataclass(frozen=True, kw_only=True)
class OpenEnds:
    """How often, and how far, ends are filled up with EOS. What does not leave room for two EOS stays as it is."""

    probability: float = 0.0
    """Of an end being open; drawn for the sound and the text of a pair independently."""
    text: int = 0
    """Positions from the first token of a text to the end of its fill."""
    audio: int = 0
    """The same for a sound. Pictures have one size and need none."""
    audio_share: float = 1.0
    """What the probability is multiplied by for sounds, whose fill is long."""

    def __post_init__(self) -> None:
        if not (0 <= self.probability <= 1 and 0 <= self.audio_share <= 1) or min(self.text, self.audio) < 0:
            raise UserError(
                f"open ends need a probability between 0 and 1 and lengths that are not negative, got {self}."
            )

    def fill(self, lengths: np.ndarray, room: int, probability: float, *key: int | np.ndarray) -> np.ndarray:
        """How many EOS stand behind each: as many as fill the room if the end is open, otherwise one."""
        is_open = random_bits(*key) < probability * 2.0**64
        return np.where(is_open & (lengths + 2 <= room), room - lengths, 1)


NO_OPEN_ENDS = OpenEnds()


class SequenceSource(Protocol):
    """Random access to the sequences of one data set."""

    task: Task

    def __len__(self) -> int: ...

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """int64 [n]: positions of each sequence, from the index of the shards alone."""

    def write(self, index: int, epoch: int, out: np.ndarray) -> None:
        """Write the sequence's ids of the unified vocabulary into `out`, int32 of exactly its length."""


def open_shard(dataset: TokenDataset, number: int) -> Shard:
    """`dataset.shard(number)`, tried again a few times when the file system fails."""
    for pause in RETRY_SECONDS:
        try:
            return dataset.shard(number)
        except DataError as error:
            if not isinstance(error.__cause__, OSError):
                raise
        time.sleep(pause)
    return dataset.shard(number)


class PackedText:
    """Documents in shuffled order, each between BOS and EOS, cut into rows of exactly seq_len that start with TASK.

    A shard's documents form a ring: its last row is filled up from its first document, so that nothing is lost and
    nothing padded. How many rows a shard has follows from the counts in the manifest; no file is opened for it.
    Documents are shuffled within blocks of 1,024 neighbours, anew in every epoch. Finding the document at a position
    then takes one block's lengths instead of a whole shard's, and rows remain cheap in any order.

    With probability `p_subsample` a row is only a random window of itself, of random length (the paper's table of
    data hyperparameters). With `seed=None` documents stand in order, and the last row of a shard is short, not filled.
    """

    task = Task.TEXT

    def __init__(self, dataset: TokenDataset, seq_len: int, seed: int | None, p_subsample: float = 0.0):
        self.dataset, self.seed, self.p_subsample = dataset, seed, p_subsample
        self._body = seq_len - 1
        self._ring_lengths = np.array([info.tokens + 2 * info.samples for info in dataset.manifest.shards], np.int64)
        self._starts = _starts(-(-self._ring_lengths // self._body))
        self._specials = _text_specials(dataset)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict:
        """Workers make their own cache."""
        return {name: value for name, value in self.__dict__.items() if name != "_block"}

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        return 1 + self._windows(indices, epochs)[1]

    def write(self, index: int, epoch: int, out: np.ndarray) -> None:
        shard, row = _locate(self._starts, index)
        # A full row starts at its beginning; only the few windows need their random numbers again.
        skipped = 0 if len(out) > self._body else int(self._windows(np.array([index]), np.array([epoch]))[0][0])
        out[0], bos, eos = self._specials
        at = 1
        for text, skip in self._documents(int(shard), epoch, int(row) * self._body + skipped):
            at += _write_document(out[at:], text, skip, bos, eos)
            if at == len(out):
                return

    def _windows(self, indices: np.ndarray, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is kept of each row: how many tokens are skipped, and how many are taken."""
        shards, rows = _locate(self._starts, indices)
        ring = self._ring_lengths[shards]
        if self.seed is None:
            return np.zeros_like(rows), np.minimum(self._body, ring - rows * self._body)
        full = np.minimum(self._body, ring)  # never twice around the ring: a row must not repeat itself
        chance = random_bits(self.seed, DataStream.CHANCE, epochs, indices)
        # Two tokens at least, so that a window is never a lone BOS, which would leave nothing to mask.
        shorter = np.minimum(full, 2 + _below(full - 1, self.seed, DataStream.LENGTH, epochs, indices))
        taken = np.where(chance < self.p_subsample * 2.0**64, shorter, full)
        return _below(full - taken + 1, self.seed, DataStream.START, epochs, indices), taken

    def _documents(self, shard: int, epoch: int, position: int) -> Iterator[tuple[np.ndarray, int]]:
        """The documents around the ring from `position` on, and how much of the first one lies before it."""
        opened = open_shard(self.dataset, shard)
        while True:
            position %= int(self._ring_lengths[shard])
            block = int(np.searchsorted(_block_starts(opened), position, side="right")) - 1
            documents, starts = self._block(shard, epoch, block)
            for place in range(bisect_right(starts, position) - 1, len(documents)):
                text = opened[documents[place]].text
                yield text, position - starts[place]
                position = starts[place] + len(text) + 2

    @cached_property
    def _block(self) -> Callable[[int, int, int], tuple[list[int], list[int]]]:
        return lru_cache(_CACHED_BLOCKS)(self._order_block)

    def _order_block(self, shard: int, epoch: int, block: int) -> tuple[list[int], list[int]]:
        """The documents of a block in this epoch's order, and where each starts on the shard's ring."""
        opened = open_shard(self.dataset, shard)
        documents = np.arange(block * BLOCK, min((block + 1) * BLOCK, len(opened)))
        if self.seed is not None:
            keys = random_bits(self.seed, DataStream.DOCUMENT_ORDER, epoch, shard, documents)
            documents = documents[np.argsort(keys, kind="stable")]
        lengths = opened.offsets[documents + 1] - opened.offsets[documents] + 2
        return documents.tolist(), (_block_starts(opened)[block] + _starts(lengths)[:-1]).tolist()


class Documents:
    """Every document is a sequence of its own, so that documents cannot attend to each other.

    What is too long for seq_len is cut into as few pieces as possible, of equal length: no piece is a lone EOS.
    Empty documents are left out: they have nothing to mask. Only a document in one piece can have an open end.
    """

    task = Task.TEXT

    def __init__(
        self, dataset: TokenDataset, seq_len: int, seed: int | None = None, open_ends: OpenEnds = NO_OPEN_ENDS
    ):
        self.dataset, self._body = dataset, seq_len - 1
        self.seed, self.open_ends = seed, open_ends
        shards = range(len(dataset.manifest.shards))
        self._starts = _starts([int(self._pieces(number).sum()) for number in shards])
        self._specials = _text_specials(dataset)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict:
        """Workers make their own cache."""
        return {name: value for name, value in self.__dict__.items() if name != "_piece_starts"}

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        lengths = np.empty(len(indices), np.int64)
        for shard, mine, within in _by_shard(self._starts, indices):
            document, begin, end = self._find(shard, within)
            lengths[mine] = 1 + end - begin
            if self.seed is not None and self.open_ends.probability:
                offsets = open_shard(self.dataset, shard).offsets
                texts = offsets[document + 1] - offsets[document]
                ends, key = self.open_ends, (self.seed, DataStream.OPEN_TEXT, epochs[mine], indices[mine])
                fill = ends.fill(texts, min(ends.text, self._body - 1), ends.probability, *key)
                lengths[mine] += np.where(end - begin == texts + 2, fill - 1, 0)
        return lengths

    def write(self, index: int, epoch: int, out: np.ndarray) -> None:
        shard, piece = _locate(self._starts, index)
        document, begin, _ = self._find(int(shard), piece)
        out[0], bos, eos = self._specials
        text = open_shard(self.dataset, int(shard))[int(document)].text
        written = _write_document(out[1:], text, int(begin), bos, eos)
        out[1 + written :] = eos

    def _pieces(self, shard: int) -> np.ndarray:
        """How many pieces each document of a shard is cut into."""
        lengths = open_shard(self.dataset, shard).lengths
        return np.where(lengths > 0, -(-(lengths + 2) // self._body), 0)

    @cached_property
    def _piece_starts(self) -> Callable[[int], np.ndarray]:
        return lru_cache(_CACHED_SHARDS)(lambda shard: _starts(self._pieces(shard)))

    def _find(self, shard: int, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The document a piece is from, and between which of its wrapped tokens it lies."""
        starts = self._piece_starts(shard)
        document, number = _locate(starts, piece)
        offsets = open_shard(self.dataset, shard).offsets
        wrapped, parts = offsets[document + 1] - offsets[document] + 2, starts[document + 1] - starts[document]
        return document, number * wrapped // parts, (number + 1) * wrapped // parts


class Pairs:
    """An image or a sound with its text. Text that does not fit is cut before its EOS; media are never cut."""

    def __init__(
        self, dataset: TokenDataset, seq_len: int, seed: int | None = None, open_ends: OpenEnds = NO_OPEN_ENDS
    ):
        partner = dataset.task.partner
        assert partner is not None
        self.dataset, self.task, self._seq_len = dataset, dataset.task, seq_len
        self.seed, self.open_ends = seed, open_ends
        self._starts = _starts([info.samples for info in dataset.manifest.shards])
        vocabulary = dataset.vocabulary
        self._head = np.array([vocabulary.task(self.task), vocabulary.bos(partner)], np.int32)
        self._between = np.array([vocabulary.eos(partner), vocabulary.bos(Modality.TEXT)], np.int32)
        self._eos = vocabulary.eos(Modality.TEXT)
        self._media_start = np.int32(vocabulary.data_ids(partner).start)
        self._check_media_fits()

    def _check_media_fits(self) -> None:
        for number, info in enumerate(self.dataset.manifest.shards):
            if info.longest_media + PAIR_SPECIALS > self._seq_len:
                splits = open_shard(self.dataset, number).splits
                worst = int(splits.argmax())
                raise DataError(
                    f"{self.dataset.folder / info.file}: sample {worst} has {splits[worst]} media tokens, which with "
                    f"{PAIR_SPECIALS} special tokens do not fit seq_len={self._seq_len}. "
                    f"Use seq_len={splits[worst] + PAIR_SPECIALS} or more, or tokenize shorter media."
                )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        lengths = np.empty(len(indices), np.int64)
        for shard, mine, within in _by_shard(self._starts, indices):
            opened = open_shard(self.dataset, shard)
            media = opened.splits[within]
            text = opened.offsets[within + 1] - opened.offsets[within] - media
            media_fill, text_fill = self._fills(media, text, indices[mine], epochs[mine])
            lengths[mine] = media + media_fill + text + text_fill
        return np.minimum(lengths + PAIR_SPECIALS - 2, self._seq_len)

    def _fills(
        self, media: np.ndarray, text: np.ndarray, indices: np.ndarray, epochs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How many EOS stand behind the media and behind the text; what would not fit seq_len is not filled."""
        ones = np.ones_like(media)
        if self.seed is None or not self.open_ends.probability:
            return ones, ones
        ends, key = self.open_ends, (epochs, indices)
        media_fill = ones
        if self.task == Task.AUDIO_TEXT:
            chance = ends.probability * ends.audio_share
            media_fill = ends.fill(media, ends.audio, chance, self.seed, DataStream.OPEN_MEDIA, *key)
        text_fill = ends.fill(text, ends.text, ends.probability, self.seed, DataStream.OPEN_TEXT, *key)
        fits = media + media_fill + text + text_fill + PAIR_SPECIALS - 2 <= self._seq_len
        return np.where(fits, media_fill, 1), np.where(fits, text_fill, 1)

    def write(self, index: int, epoch: int, out: np.ndarray) -> None:
        shard, within = _locate(self._starts, index)
        sample = open_shard(self.dataset, int(shard))[int(within)]
        media, text = sample.media, sample.text
        media_fill, _ = self._fills(*(np.array([n]) for n in (len(media), len(text), index, epoch)))
        media_end = 2 + len(media)
        text_start = media_end + int(media_fill[0]) + 1
        text_end = min(text_start + len(text), len(out) - 1)
        out[:2] = self._head
        np.add(media, self._media_start, out=out[2:media_end])
        out[media_end : text_start - 1] = self._between[0]
        out[text_start - 1] = self._between[1]
        out[text_start:text_end] = text[: text_end - text_start]
        out[text_end:] = self._eos


def _text_specials(dataset: TokenDataset) -> tuple[int, int, int]:
    """TASK, BOS and EOS of a text."""
    vocabulary = dataset.vocabulary
    return vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT), vocabulary.eos(Modality.TEXT)


def _write_document(out: np.ndarray, text: np.ndarray, skip: int, bos: int, eos: int) -> int:
    """Write [BOS text EOS] from its token number `skip` on, as far as `out` reaches; how many that were."""
    written = min(len(out), len(text) + 2 - skip)
    begin, end = max(skip - 1, 0), min(skip + written - 1, len(text))
    at = begin + 1 - skip
    out[at : at + end - begin] = text[begin:end]  # the text range starts at 0: local ids are global ids
    if skip == 0:
        out[0] = bos
    if skip + written == len(text) + 2:
        out[written - 1] = eos
    return written


def _starts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """[n + 1]: where each of several stretches begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])


def _block_starts(shard: Shard) -> np.ndarray:
    """Where each block of documents begins on the shard's ring."""
    first = np.arange(0, len(shard), BLOCK)
    return shard.offsets[first] + 2 * first


def _locate(starts: np.ndarray, index: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """In which stretch an index lies, and where in it."""
    stretch = np.searchsorted(starts, index, side="right") - 1
    return stretch, index - starts[stretch]


def _by_shard(starts: np.ndarray, indices: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For every shard that is asked for: its number, which of the indices are its own, and where they are in it."""
    shards, within = _locate(starts, indices)
    for shard in np.unique(shards).tolist():
        mine = np.flatnonzero(shards == shard)
        yield shard, mine, within[mine]


def _below(size: np.ndarray, *key: int | np.ndarray) -> np.ndarray:
    """A random integer from 0 up to but not including `size` (0 for an empty range)."""
    return (random_bits(*key) % np.maximum(size, 1).astype(np.uint64)).astype(np.int64)
