"""Training sequences: the samples of one dataset with special tokens around them.

    PackedText   [TASK BOS d1 EOS BOS d2 EOS BOS part of d3]     documents concatenated, cut every seq_len
    Documents    [TASK BOS d1 EOS]                               one document per sequence
    Pairs        [TASK BOS_m media EOS_m BOS text EOS]           an image or audio clip, and its text

Each class gives random access: the lengths of its sequences are known without reading tokens, and a sequence is
written directly into its row of the batch.

Variable-length training (`OpenEnds`): a masked-diffusion model fills a canvas of fixed length, so it has to learn where
texts and audio clips end. In a fraction of the samples the EOS of a text or clip is repeated up to a fixed length (its
end is open), and all of these EOS may be masked. The model that predicts them learns the distribution of lengths: at
position i it gives EOS the probability that the item has ended by i (docs/decisions/0008-open-ends.md).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from triptych.data.shards import Shard, TokenDataset
from triptych.errors import DataError, UserError
from triptych.utils.arguments import check_fields
from triptych.utils.rng import DataStream, random_bits
from triptych.vocab import Modality, Task

BLOCK = 1024  # documents are shuffled within blocks of this many neighbours
DOCUMENT_SPECIALS = 3  # TASK, BOS, EOS
PAIR_SPECIALS = 5  # TASK, BOS and EOS of the media, BOS and EOS of the text
_CACHED_BLOCKS = 256
_CACHED_SHARDS = 64


@dataclass(frozen=True, kw_only=True)
class OpenEnds:
    """Variable-length training by EOS fill: how often, and up to which length. Items that leave room for fewer than
    two EOS are not filled. Images have a fixed size and are never filled."""

    probability: float = 0.0
    """Probability that a text or audio clip is filled up; drawn independently for the two parts of a pair."""
    text: int = 0
    """Length of a filled text, EOS included."""
    audio: int = 0
    """Length of a filled audio clip in tokens, EOS included."""
    audio_share: float = 1.0
    """Factor on the probability for audio clips, whose fill is long."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (0 <= self.probability <= 1 and 0 <= self.audio_share <= 1) or min(self.text, self.audio) < 0:
            raise UserError(
                f"open_ends needs probabilities between 0 and 1 and lengths that are not negative, got {self}."
            )

    def fill(self, lengths: np.ndarray, room: int, probability: float, *key: int | np.ndarray) -> np.ndarray:
        """Number of EOS after each item of these lengths: up to `room` positions if its end is open, otherwise one."""
        is_open = random_bits(*key) < probability * 2.0**64
        return np.where(is_open & (lengths + 2 <= room), room - lengths, 1)


NO_OPEN_ENDS = OpenEnds()


class SequenceSource(Protocol):
    """Random access to the sequences of one dataset. They may depend on the epoch."""

    task: Task

    def __len__(self) -> int: ...

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """int64 [n]: length of each sequence, without reading its tokens."""

    def write(self, index: int, epoch: int, out: np.ndarray) -> int:
        """Write the sequence as ids of the unified vocabulary into `out`, int32 of exactly its length.

        Returns how many of its first positions are given, never predicted: media and prompt, before a response.
        """


class PackedText:
    """Shuffled documents, each between BOS and EOS, concatenated and cut into rows of exactly seq_len, TASK first.

    A shard's documents form a ring: its last row continues with its first document, so that nothing is lost or padded.
    The number of rows of a shard follows from the counts in the manifest; no file is opened for it. Documents are
    shuffled within blocks of 1,024 neighbours, differently in every epoch. Finding the document at a position then
    takes the lengths of one block instead of a whole shard, so random access to rows is cheap.

    With probability `p_subsample` a row is replaced by a random window of itself, of random length (the paper's data
    hyperparameters). With `seed=None` documents are in order, and the last row of a shard is short.
    """

    task = Task.TEXT

    def __init__(self, dataset: TokenDataset, seq_len: int, seed: int | None, p_subsample: float = 0.0):
        if dataset.manifest.longest_prompted:
            raise UserError(
                f"{dataset.folder} has prompts, which need loader.document_attention=true: packed rows are predicted "
                "whole."
            )
        self.dataset, self.seed, self.p_subsample = dataset, seed, p_subsample
        self._body = seq_len - 1
        self._ring_lengths = np.array([info.tokens + 2 * info.samples for info in dataset.manifest.shards], np.int64)
        self._starts = _starts(-(-self._ring_lengths // self._body))
        self._specials = _text_specials(dataset)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict:
        """Worker processes build their own cache."""
        return {name: value for name, value in self.__dict__.items() if name != "_block"}

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        return 1 + self._windows(indices, epochs)[1]

    def write(self, index: int, epoch: int, out: np.ndarray) -> int:
        shard, row = _locate(self._starts, index)
        # A full row starts at its first token; only windows need their random start again.
        skipped = 0 if len(out) > self._body else int(self._windows(np.array([index]), np.array([epoch]))[0][0])
        out[0], bos, eos = self._specials
        at = 1
        for text, skip in self._documents(int(shard), epoch, int(row) * self._body + skipped):
            at += _write_document(out[at:], text, skip, bos, eos)
            if at == len(out):
                break
        return 0

    def _windows(self, indices: np.ndarray, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The window of each row: number of tokens skipped, and number of tokens taken."""
        shards, rows = _locate(self._starts, indices)
        ring = self._ring_lengths[shards]
        if self.seed is None:
            return np.zeros_like(rows), np.minimum(self._body, ring - rows * self._body)
        full = np.minimum(self._body, ring)  # a row must not repeat a token of a short ring
        chance = random_bits(self.seed, DataStream.CHANCE, epochs, indices)
        # At least two tokens: a window of BOS alone would have nothing to mask.
        shorter = np.minimum(full, 2 + _below(full - 1, self.seed, DataStream.LENGTH, epochs, indices))
        taken = np.where(chance < self.p_subsample * 2.0**64, shorter, full)
        return _below(full - taken + 1, self.seed, DataStream.START, epochs, indices), taken

    def _documents(self, shard: int, epoch: int, position: int) -> Iterator[tuple[np.ndarray, int]]:
        """The documents of the ring from `position` on, each with the number of its tokens before that position."""
        opened = self.dataset.shard(shard)
        while True:
            position %= int(self._ring_lengths[shard])
            block = int(np.searchsorted(_block_starts(opened), position, side="right")) - 1
            documents, starts = self._block(shard, epoch, block)
            for number in range(bisect_right(starts, position) - 1, len(documents)):
                text = opened[documents[number]].text
                yield text, position - starts[number]
                position = starts[number] + len(text) + 2

    @cached_property
    def _block(self) -> Callable[[int, int, int], tuple[list[int], list[int]]]:
        return lru_cache(_CACHED_BLOCKS)(self._order_block)

    def _order_block(self, shard: int, epoch: int, block: int) -> tuple[list[int], list[int]]:
        """The documents of a block in this epoch's order, and their start positions on the shard's ring."""
        opened = self.dataset.shard(shard)
        documents = np.arange(block * BLOCK, min((block + 1) * BLOCK, len(opened)))
        if self.seed is not None:
            keys = random_bits(self.seed, DataStream.DOCUMENT_ORDER, epoch, shard, documents)
            documents = documents[np.argsort(keys, kind="stable")]
        lengths = opened.offsets[documents + 1] - opened.offsets[documents] + 2
        return documents.tolist(), (_block_starts(opened)[block] + _starts(lengths)[:-1]).tolist()


class Documents:
    """Document attention: every document is a sequence, so documents cannot attend to each other.

    A document too long for seq_len is cut into the fewest pieces of equal length, so that no piece is a lone EOS. Empty
    documents are left out, because they have nothing to mask. Only a document in one piece can have an open end.
    """

    task = Task.TEXT

    def __init__(
        self, dataset: TokenDataset, seq_len: int, seed: int | None = None, open_ends: OpenEnds = NO_OPEN_ENDS
    ):
        _check_room_for_prompts(dataset, seq_len, DOCUMENT_SPECIALS)
        self.dataset, self._body = dataset, seq_len - 1
        self.seed, self.open_ends = seed, open_ends
        shards = range(len(dataset.manifest.shards))
        self._starts = _starts([int(self._pieces(number).sum()) for number in shards])
        self._specials = _text_specials(dataset)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict:
        """Worker processes build their own cache."""
        return {name: value for name, value in self.__dict__.items() if name != "_piece_starts"}

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        lengths = np.empty(len(indices), np.int64)
        for shard, mine, within in _by_shard(self._starts, indices):
            document, start, stop = self._find(shard, within)
            lengths[mine] = 1 + stop - start
            if self.seed is not None and self.open_ends.probability:
                offsets = self.dataset.shard(shard).offsets
                texts = offsets[document + 1] - offsets[document]
                ends, key = self.open_ends, (self.seed, DataStream.OPEN_TEXT, epochs[mine], indices[mine])
                fill = ends.fill(texts, min(ends.text, self._body - 1), ends.probability, *key)
                lengths[mine] += np.where(stop - start == texts + 2, fill - 1, 0)
        return lengths

    def write(self, index: int, epoch: int, out: np.ndarray) -> int:
        shard, piece = _locate(self._starts, index)
        document, start, _ = self._find(int(shard), piece)
        out[0], bos, eos = self._specials
        sample = self.dataset.shard(int(shard))[int(document)]
        written = _write_document(out[1:], sample.text, int(start), bos, eos)
        out[1 + written :] = eos
        return 2 + sample.prompt if sample.prompt else 0  # TASK and BOS come before the prompt

    def content_keys(self) -> np.ndarray:
        """uint64 [n]: equal for pieces with the same number of equal documents."""
        keys = [np.zeros(0, np.uint64)]
        for shard in range(len(self.dataset.manifest.shards)):
            document, piece = _locate(
                self._piece_starts(shard), np.arange(self._starts[shard + 1] - self._starts[shard])
            )
            checksums = self.dataset.shard(shard).checksums[document].astype(np.uint64)
            keys.append(checksums << np.uint64(32) | piece.astype(np.uint64))
        return np.concatenate(keys)

    def _pieces(self, shard: int) -> np.ndarray:
        """Number of pieces of each document of a shard."""
        lengths = self.dataset.shard(shard).lengths
        return np.where(lengths > 0, -(-(lengths + 2) // self._body), 0)

    @cached_property
    def _piece_starts(self) -> Callable[[int], np.ndarray]:
        return lru_cache(_CACHED_SHARDS)(lambda shard: _starts(self._pieces(shard)))

    def _find(self, shard: int, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The document of a piece, and the range of its tokens, BOS and EOS included, that the piece covers."""
        starts = self._piece_starts(shard)
        document, number = _locate(starts, piece)
        offsets = self.dataset.shard(shard).offsets
        wrapped, parts = offsets[document + 1] - offsets[document] + 2, starts[document + 1] - starts[document]
        return document, number * wrapped // parts, (number + 1) * wrapped // parts


class Pairs:
    """An image or audio clip with its text. Text that does not fit is cut before its EOS; media are never cut."""

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
        _check_room_for_prompts(dataset, seq_len, PAIR_SPECIALS)

    def _check_media_fits(self) -> None:
        for number, info in enumerate(self.dataset.manifest.shards):
            if info.longest_media + PAIR_SPECIALS > self._seq_len:
                splits = self.dataset.shard(number).splits
                worst = int(splits.argmax())
                raise DataError(
                    f"{self.dataset.folder / info.file}: sample {worst} has {splits[worst]} media tokens, which with "
                    f"{PAIR_SPECIALS} special tokens do not fit seq_len={self._seq_len}. "
                    f"Use loader.seq_len={splits[worst] + PAIR_SPECIALS} or more, or tokenize shorter media."
                )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        lengths = np.empty(len(indices), np.int64)
        for shard, mine, within in _by_shard(self._starts, indices):
            opened = self.dataset.shard(shard)
            media = opened.splits[within]
            text = opened.offsets[within + 1] - opened.offsets[within] - media
            prompts = opened.prompts[within]
            media_fill, text_fill = self._fills(media, text, prompts, indices[mine], epochs[mine])
            lengths[mine] = media + media_fill + text + text_fill
        return np.minimum(lengths + PAIR_SPECIALS - 2, self._seq_len)

    def content_keys(self) -> np.ndarray:
        """uint64 [n]: equal for equal samples, and for the views of one image, which are neighbours."""
        views = max(1, int(self.dataset.manifest.settings.get("views", 1)))
        keys = [np.zeros(0, np.uint64)]
        for number in range(len(self.dataset.manifest.shards)):
            checksums = self.dataset.shard(number).checksums
            keys.append(checksums[np.arange(len(checksums)) // views * views].astype(np.uint64))
        return np.concatenate(keys)

    def _fills(
        self, media: np.ndarray, text: np.ndarray, prompts: np.ndarray, indices: np.ndarray, epochs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Number of EOS after the media and after the text; a sequence that would exceed seq_len is not filled.

        Media before a prompt are given, and so is their end.
        """
        ones = np.ones_like(media)
        if self.seed is None or not self.open_ends.probability:
            return ones, ones
        ends, key = self.open_ends, (epochs, indices)
        media_fill = ones
        if self.task == Task.AUDIO_TEXT:
            chance = ends.probability * ends.audio_share
            media_fill = ends.fill(media, ends.audio, chance, self.seed, DataStream.OPEN_MEDIA, *key)
            media_fill = np.where(prompts > 0, 1, media_fill)
        text_fill = ends.fill(text, ends.text, ends.probability, self.seed, DataStream.OPEN_TEXT, *key)
        fits = media + media_fill + text + text_fill + PAIR_SPECIALS - 2 <= self._seq_len
        return np.where(fits, media_fill, 1), np.where(fits, text_fill, 1)

    def write(self, index: int, epoch: int, out: np.ndarray) -> int:
        shard, within = _locate(self._starts, index)
        sample = self.dataset.shard(int(shard))[int(within)]
        media, text = sample.media, sample.text
        media_fill, _ = self._fills(*(np.array([n]) for n in (len(media), len(text), sample.prompt, index, epoch)))
        media_end = 2 + len(media)
        text_start = media_end + int(media_fill[0]) + 1
        text_end = min(text_start + len(text), len(out) - 1)
        out[:2] = self._head
        np.add(media, self._media_start, out=out[2:media_end])
        out[media_end : text_start - 1] = self._between[0]
        out[text_start - 1] = self._between[1]
        out[text_start:text_end] = text[: text_end - text_start]
        out[text_end:] = self._eos
        return text_start + sample.prompt if sample.prompt else 0


class Subset:
    """The sequences of a source that are held out, or all others, in its order."""

    def __init__(self, source: SequenceSource, held: np.ndarray, *, held_out: bool):
        """`held` are the numbers of the sequences that are held out, ascending."""
        self.source, self.task, self._held, self._held_out = source, source.task, held, held_out
        self._length = len(held) if held_out else len(source) - len(held)
        self._others_before = held - np.arange(len(held))

    def __len__(self) -> int:
        return self._length

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """Numbers in the source; those that are not held out are counted around the others, to save memory."""
        if self._held_out:
            return self._held[indices]
        return indices + np.searchsorted(self._others_before, indices, side="right")

    def lengths(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        return self.source.lengths(self.numbers(indices), epochs)

    def write(self, index: int, epoch: int, out: np.ndarray) -> int:
        return self.source.write(int(self.numbers(np.array([index]))[0]), epoch, out)


def split_by_content(source: Documents | Pairs, share: float, *, held_out: bool) -> Subset:
    """The sequences that are held out, or all others.

    Equal sequences, and views of one image, are on the same side, in every dataset and every run. At least one is held
    out.
    """
    keys = random_bits(DataStream.HELD_OUT, source.content_keys())
    limit = max(share * 2.0**64, float(keys.min(initial=2**64 - 1)))
    subset = Subset(source, np.flatnonzero(keys <= limit), held_out=held_out)
    if not 0 < len(subset) < max(2, len(keys)):
        raise DataError(
            f"{source.dataset.folder} has {len(np.unique(keys))} different sequences, too few to hold some out for "
            "validation. Add data, or set loader.held_out=0."
        )
    return subset


def _check_room_for_prompts(dataset: TokenDataset, seq_len: int, specials: int) -> None:
    needed = dataset.manifest.longest_prompted + specials
    if dataset.manifest.longest_prompted and needed > seq_len:
        raise UserError(
            f"{dataset.folder} has a prompt and response of {needed} tokens in all, and they must not be cut: set "
            f"loader.seq_len={needed}."
        )


def _text_specials(dataset: TokenDataset) -> tuple[int, int, int]:
    """The ids of TASK, BOS and EOS of a text."""
    vocabulary = dataset.vocabulary
    return vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT), vocabulary.eos(Modality.TEXT)


def _write_document(out: np.ndarray, text: np.ndarray, skip: int, bos: int, eos: int) -> int:
    """Write [BOS text EOS] from its token number `skip` on, as far as `out` reaches; returns the number of tokens."""
    written = min(len(out), len(text) + 2 - skip)
    start, stop = max(skip - 1, 0), min(skip + written - 1, len(text))
    at = start + 1 - skip
    out[at : at + stop - start] = text[start:stop]  # the text range starts at 0: local ids are global ids
    if skip == 0:
        out[0] = bos
    if skip + written == len(text) + 2:
        out[written - 1] = eos
    return written


def _starts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """[n + 1]: start of each of n consecutive ranges, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])


def _block_starts(shard: Shard) -> np.ndarray:
    """Start of each block of documents on the shard's ring."""
    first = np.arange(0, len(shard), BLOCK)
    return shard.offsets[first] + 2 * first


def _locate(starts: np.ndarray, index: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """The range that contains an index, and the index within it."""
    number = np.searchsorted(starts, index, side="right") - 1
    return number, index - starts[number]


def _by_shard(starts: np.ndarray, indices: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For every shard with some of the indices: its number, which indices they are, and the samples within it."""
    shards, within = _locate(starts, indices)
    for shard in np.unique(shards).tolist():
        mine = np.flatnonzero(shards == shard)
        yield shard, mine, within[mine]


def _below(size: np.ndarray, *key: int | np.ndarray) -> np.ndarray:
    """A random integer in [0, size), or 0 for an empty range."""
    return (random_bits(*key) % np.maximum(size, 1).astype(np.uint64)).astype(np.int64)
