"""Text tokenizers: a byte-level BPE trained here, and OpenAI's cl100k_base.

Both encode the UTF-8 bytes of the text without normalization, so decoding returns exactly the encoded text, white space
and line breaks included. Neither has special tokens, which belong to the unified vocabulary: a text that contains
"<|mask|>" is plain text. Token sequences that are not valid UTF-8, which a model can generate, decode to U+FFFD.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import tiktoken
from tiktoken.load import read_file_cached
from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders, models, pre_tokenizers, trainers

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.base import Tokenizer, hash_arrays, read_spec, write_spec
from triptych.tokenizers.split_text import PIECE_CHARS, split_text
from triptych.utils.json_files import read_json
from triptych.vocab import Modality


def load_text_tokenizer(folder: Path) -> Tokenizer[str]:
    """Load a saved `ByteBPE` or `Tiktoken`."""
    folder = Path(folder)
    kinds: dict[str, type[ByteBPE] | type[Tiktoken]] = {ByteBPE.kind: ByteBPE, Tiktoken.kind: Tiktoken}
    return kinds[read_spec(folder, list(kinds))["kind"]].load(folder)


def _encodable(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts, after checking that each can be encoded as UTF-8."""
    if isinstance(texts, str):
        raise UserError("expected a list of texts, got one string; put it into a list.")
    for index, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"text {index} holds the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
                'which is half a character; clean it with text.encode("utf-8", "replace").decode().'
            ) from None
        yield text


def _encode_pieces(texts: Iterable[str], encode: Callable[[list[str]], list[list[int]]]) -> list[np.ndarray]:
    """The ids of every text, encoded in pieces and a bounded number of characters at a time."""
    rows: list[list[np.ndarray]] = []
    pieces: list[str] = []
    owners: list[int] = []
    size = 0

    def flush() -> None:
        for owner, ids in zip(owners, encode(pieces) if pieces else []):
            rows[owner].append(np.array(ids, dtype=np.int32))
        pieces.clear()
        owners.clear()

    for text in _encodable(texts):
        rows.append([])
        for piece in split_text(text):
            if size + len(piece) > PIECE_CHARS:
                flush()
                size = 0
            pieces.append(piece)
            owners.append(len(rows) - 1)
            size += len(piece)
    flush()
    return [row[0] if len(row) == 1 else np.concatenate(row) for row in rows]


def _check_range(ids: Sequence[np.ndarray], size: int) -> None:
    for row in ids:
        if len(row) and not 0 <= np.min(row) <= np.max(row) < size:
            raise UserError(f"text token ids must be in [0, {size}), got {np.min(row)} to {np.max(row)}.")


@final
class ByteBPE:
    """Byte-level byte-pair encoding, with GPT-2's split into words.

    `merges` define the vocabulary: ids 0-255 are the bytes in the order of `alphabet`, each merge adds the next id.
    Bytes are written as GPT-2's printable characters ("Ġ" is a space), so the saved file is readable.
    """

    kind = "byte-bpe"
    modality = Modality.TEXT

    def __init__(self, merges: Sequence[tuple[str, str]]):
        vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        for left, right in merges:
            if left not in vocab or right not in vocab:
                raise CheckpointError(f"the BPE merge {left!r} + {right!r} uses a token that no earlier merge makes.")
            vocab.setdefault(left + right, len(vocab))  # two merges may spell the same token
        self.merges = [(left, right) for left, right in merges]
        self._pipeline = Pipeline(models.BPE(vocab=vocab, merges=self.merges))
        self._pipeline.pre_tokenizer = _split_words()
        self._pipeline.decoder = decoders.ByteLevel()

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "ByteBPE":
        """Learn merges from texts, in any order. Stops early when no pair of tokens occurs twice."""
        if vocab_size < 256:
            raise UserError(f"vocab_size must be at least 256, one id per byte; got {vocab_size}.")
        pipeline = Pipeline(models.BPE())
        pipeline.pre_tokenizer = _split_words()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[],
            show_progress=False,
        )
        pipeline.train_from_iterator((piece for text in _encodable(texts) for piece in split_text(text)), trainer)
        trained = cls([(left, right) for left, right in json.loads(pipeline.to_str())["model"]["merges"]])
        assert trained._pipeline.get_vocab() == pipeline.get_vocab()  # the ids follow from the merges
        return trained

    @property
    def vocab_size(self) -> int:
        return self._pipeline.get_vocab_size()

    @cached_property
    def fingerprint(self) -> str:
        return hash_arrays({"kind": self.kind, "merges": self.merges}, {})

    def encode(self, items: Sequence[str]) -> list[np.ndarray]:
        # Without offsets, which nobody needs: a third of the memory.
        return _encode_pieces(items, lambda pieces: [row.ids for row in self._pipeline.encode_batch_fast(pieces)])

    def decode(self, ids: Sequence[np.ndarray]) -> list[str]:
        _check_range(ids, self.vocab_size)
        return self._pipeline.decode_batch([[int(i) for i in row] for row in ids], skip_special_tokens=False)

    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        write_spec(folder, self.kind, vocab_size=self.vocab_size, fingerprint=self.fingerprint)
        (folder / "bpe.json").write_text(json.dumps({"merges": self.merges}, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "ByteBPE":
        read_spec(folder, [cls.kind])
        path = folder / "bpe.json"
        try:
            merges = read_json(path)["merges"]
            return cls([(str(left), str(right)) for left, right in merges])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not a saved byte-level BPE ({error}).") from error


def _split_words() -> pre_tokenizers.PreTokenizer:
    """GPT-2's split, without a prefix space, which decoding could not distinguish from a space of the text."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


_CL100K_FILE = "cl100k_base.tiktoken"
_CL100K_URL = f"https://openaipublic.blob.core.windows.net/encodings/{_CL100K_FILE}"
_CL100K_CACHED = hashlib.sha1(_CL100K_URL.encode()).hexdigest()  # how tiktoken names the file in TIKTOKEN_CACHE_DIR
_CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_CL100K_SIZE = 100_277
# The split of cl100k_base into words, part of its definition: another split gives other ids.
_CL100K_SPLIT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


@final
class Tiktoken:
    """cl100k_base. Its 100,277 ids are 100,256 pieces of text, then OpenAI's special tokens with unused ids between.

    Encoding never gives ids above the pieces; decoding drops them.
    """

    kind = "tiktoken"
    modality = Modality.TEXT

    def __init__(self, ranks_file: bytes, *, vocab_size: int = _CL100K_SIZE, sha256: str = _CL100K_SHA256):
        """`ranks_file` is the content of a .tiktoken file: lines of base64 bytes and their rank."""
        actual = hashlib.sha256(ranks_file).hexdigest()
        if actual != sha256:
            raise CheckpointError(
                f"the tiktoken ranks have SHA-256 {actual[:12]}…, expected {sha256[:12]}…: damaged or another encoding."
            )
        self.vocab_size, self._ranks_file, self._sha256 = vocab_size, ranks_file, sha256
        ranks = _parse_ranks(ranks_file)
        self._num_pieces = len(ranks)
        if not 256 <= self._num_pieces <= vocab_size:
            raise CheckpointError(f"expected 256 to {vocab_size} tiktoken ranks, got {self._num_pieces}.")
        # Without special tokens, no text can be encoded as one.
        self._encoding = tiktoken.Encoding(
            "cl100k_base", pat_str=_CL100K_SPLIT, mergeable_ranks=ranks, special_tokens={}
        )

    @classmethod
    def from_pretrained(cls, source: str | Path = "cl100k_base") -> "Tiktoken":
        """Load a ranks file, or one in a folder (such as TIKTOKEN_CACHE_DIR), or download "cl100k_base"."""
        if source == "cl100k_base":
            try:
                return cls(read_file_cached(_CL100K_URL, _CL100K_SHA256))  # looks into TIKTOKEN_CACHE_DIR first
            except (OSError, ValueError) as error:  # `requests` raises one of the two
                raise UserError(
                    f"cl100k_base cannot be downloaded ({type(error).__name__}). Pass the path of a local "
                    f"{_CL100K_FILE}, or put that file into $TIKTOKEN_CACHE_DIR as {_CL100K_CACHED}."
                ) from error
        path = Path(source)
        candidates = [path / _CL100K_FILE, path / _CL100K_CACHED] if path.is_dir() else [path]
        for candidate in candidates:
            if candidate.is_file():
                return cls(candidate.read_bytes())
        raise CheckpointError(f"no tiktoken ranks found: {' and '.join(map(str, candidates))} do not exist.")

    @cached_property
    def fingerprint(self) -> str:
        config = {"kind": self.kind, "vocab_size": self.vocab_size, "ranks": self._sha256, "split": _CL100K_SPLIT}
        return hash_arrays(config, {})

    def encode(self, items: Sequence[str]) -> list[np.ndarray]:
        return _encode_pieces(items, lambda pieces: list(map(self._encoding.encode_ordinary, pieces)))

    def decode(self, ids: Sequence[np.ndarray]) -> list[str]:
        _check_range(ids, self.vocab_size)
        pieces = ([int(i) for i in row if i < self._num_pieces] for row in ids)
        return [self._encoding.decode_bytes(row).decode("utf-8", errors="replace") for row in pieces]

    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        write_spec(
            folder, self.kind, vocab_size=self.vocab_size, ranks_sha256=self._sha256, fingerprint=self.fingerprint
        )
        (folder / _CL100K_FILE).write_bytes(self._ranks_file)

    @classmethod
    def load(cls, folder: Path) -> "Tiktoken":
        spec = read_spec(folder, [cls.kind])
        try:
            ranks_file = (folder / _CL100K_FILE).read_bytes()
            return cls(ranks_file, vocab_size=int(spec["vocab_size"]), sha256=str(spec["ranks_sha256"]))
        except (OSError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder} is not a saved tiktoken encoding ({error!r}).") from error


def _parse_ranks(ranks_file: bytes) -> dict[bytes, int]:
    try:
        pairs = (line.split() for line in ranks_file.splitlines() if line)
        ranks = {base64.b64decode(piece, validate=True): int(rank) for piece, rank in pairs}
    except (ValueError, binascii.Error) as error:
        raise CheckpointError(f"the tiktoken ranks are not lines of base64 and a number ({error}).") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or not all(bytes([byte]) in ranks for byte in range(256)):
        raise CheckpointError("the tiktoken ranks must count up from 0 and cover all 256 bytes.")
    return ranks
