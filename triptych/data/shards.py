"""Token shards: safetensors files that any tool can open, with a checksum per sample, and a manifest over them.

A data set is a folder of one task:

    manifest.json            what it is, from which tokenizers, and every shard with its SHA-256 and counts
    shard-00000.safetensors  tokens   uint16 or uint32 [n]  local ids, media first, then text, sample after sample
                             offsets  int64 [samples + 1]   where each sample starts in `tokens`
                             splits   int32 [samples]       how many of its tokens are media
                             crc32    uint32 [samples]      of the sample's bytes and split; checked on every read

Samples are read through a memory map, so opening a data set costs nothing and workers share the page cache.
"""

import hashlib
import itertools
import json
import mmap
import os
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import save as to_safetensors

from triptych.data.types import TokenSample
from triptych.errors import DataError
from triptych.vocab import Task, Vocabulary

MANIFEST = "manifest.json"
_DTYPES: dict[str, np.dtype] = {
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
_MAX_HEADER_BYTES = 1 << 20
_PATIENCE = (0.1, 0.5, 2.0)  # seconds before a shard that cannot be read is tried again


class UnreadableError(DataError):
    """A file that is not there or cannot be read now: another time it may."""


@dataclass(frozen=True)
class ShardInfo:
    """One line of the manifest."""

    file: str
    sha256: str
    samples: int
    tokens: int
    longest_media: int = 0
    """Most media tokens of a sample: whether a sequence length suffices can be told without opening the shard."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Describes a folder of shards. It is written last: a folder without one is unfinished."""

    name: str
    task: str
    vocabulary: dict[str, int]
    tokenizers: dict[str, str]
    """Fingerprint of the tokenizer of each modality in it."""
    shards: list[ShardInfo]
    bad_samples: int = 0
    created_by: str = ""
    settings: dict = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Changes when any sample of the data set changes."""
        content = [self.task, self.vocabulary, self.tokenizers, [asdict(shard) for shard in self.shards]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        content = {"format": "triptych-shards", "version": 1, "fingerprint": self.fingerprint, **asdict(self)}
        write_atomically(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        path = Path(folder) / MANIFEST
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} is not a finished data set: {MANIFEST} is missing. "
                "Make one with `triptych tokenize`, or run the same command again to finish it."
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read ({error}).") from error
        try:
            if content.pop("format") != "triptych-shards" or content.pop("version") != 1:
                raise KeyError("format")
            fingerprint = content.pop("fingerprint")
            manifest = cls(**{**content, "shards": [ShardInfo(**shard) for shard in content["shards"]]})
            _check_types(manifest)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is not a Triptych manifest of version 1 ({error!r}).") from error
        if manifest.fingerprint != fingerprint:
            raise DataError(f"{path} was edited: its fingerprint does not match its content. Tokenize again.")
        return manifest


def _check_types(manifest: Manifest) -> None:
    """Raise TypeError or KeyError for what only a damaged or hand-written manifest holds."""
    Task[manifest.task]
    texts = [manifest.name, manifest.created_by, *(shard.file for shard in manifest.shards)]
    counts = [manifest.bad_samples]
    counts += [n for shard in manifest.shards for n in (shard.samples, shard.tokens, shard.longest_media)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name is not a text")
    if not all(isinstance(count, int) and 0 <= count < 2**62 for count in counts):
        raise TypeError("a count is not a number that can be")
    if not isinstance(manifest.settings, dict) or not isinstance(manifest.tokenizers, dict):
        raise TypeError("settings and tokenizers must be objects")


def write_atomically(path: Path, content: bytes) -> None:
    """Write aside, flush to disk, then rename: a reader sees the old file or the whole new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_shard(path: Path, samples: Sequence[TokenSample], vocabulary: Vocabulary) -> ShardInfo:
    """Write samples as one shard, atomically."""
    widest = max(vocabulary.text, vocabulary.image, vocabulary.audio)
    dtype = np.dtype("<u2") if widest <= 2**16 else np.dtype("<u4")
    records = [np.concatenate([sample.media, sample.text]).astype(dtype) for sample in samples]
    offsets = np.zeros(len(records) + 1, dtype=np.int64)
    np.cumsum([len(record) for record in records], out=offsets[1:])
    splits = np.array([len(sample.media) for sample in samples], dtype=np.int32)
    content = to_safetensors(
        {
            "tokens": np.concatenate(records) if records else np.zeros(0, dtype),
            "offsets": offsets,
            "splits": splits,
            "crc32": np.array([_checksum(*pair) for pair in zip(records, splits)], dtype=np.uint32),
        }
    )
    write_atomically(path, content)
    longest = max((len(sample.media) for sample in samples), default=0)
    return ShardInfo(path.name, hashlib.sha256(content).hexdigest(), len(records), int(offsets[-1]), longest)


def _checksum(record: np.ndarray, split: int) -> int:
    """CRC-32 started from the split instead of 0: a changed split always changes it, as does a changed token."""
    return zlib.crc32(record.tobytes(), int(split))


class Shard:
    """Random access to the samples of one shard file."""

    def __init__(self, path: Path, task: Task):
        self.path, self.task = path, task
        arrays = _map_arrays(path)
        try:
            self.tokens, self.offsets = arrays["tokens"], arrays["offsets"]
            self.splits, self._crc32 = arrays["splits"], arrays["crc32"]
        except KeyError as error:
            raise DataError(f"{path} is not a token shard: it has no array {error}.") from error
        lengths = np.diff(self.offsets)
        consistent = (
            len(self.offsets) == len(self.splits) + 1 == len(self._crc32) + 1
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.tokens)
            and bool((self.splits >= 0).all() and (lengths >= self.splits).all())
        )
        if not consistent:
            raise DataError(f"{path} is damaged: its offsets do not fit its tokens. Tokenize again.")

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of every sample, without specials."""
        return np.diff(self.offsets)

    def __getitem__(self, index: int) -> TokenSample:
        start, stop = self.offsets[index], self.offsets[index + 1]
        record, split = self.tokens[start:stop], self.splits[index]
        if _checksum(record, split) != self._crc32[index]:
            raise DataError(
                f"{self.path}: sample {index} does not match its checksum; the file was damaged after it was written. "
                "Restore it from a copy or tokenize again."
            )
        return TokenSample(self.task, record[:split], record[split:])


class _OpenShards:
    """The shards that are open in this process, over all data sets: the least recently used is closed first.

    An open shard is a memory map and a file descriptor, of which a process may have about a thousand.
    """

    def __init__(self, most: int):
        self._most, self._lock = most, threading.Lock()
        self._shards: OrderedDict[tuple[int, int], Shard] = OrderedDict()

    def get(self, owner: int, number: int, open_: Callable[[], Shard]) -> Shard:
        with self._lock:
            shard = self._shards.pop((owner, number), None)
            if shard is None:
                shard = open_()
            self._shards[owner, number] = shard
            if len(self._shards) > self._most:
                self._shards.popitem(last=False)
            return shard


_OPEN_SHARDS = _OpenShards(most=256)
_owners = itertools.count()


def _with_patience(open_: Callable[[], Shard]) -> Shard:
    """Try again where a file cannot be read: shared file systems have bad moments. What is damaged stays so."""
    for wait in (*_PATIENCE, None):
        try:
            return open_()
        except UnreadableError:
            if wait is None:
                raise
            time.sleep(wait)
    raise AssertionError


class TokenDataset:
    """Random access to all samples of a folder of shards; shards are opened when they are used."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.manifest = Manifest.load(self.folder)
        self.task = Task[self.manifest.task]
        self.vocabulary = Vocabulary(**self.manifest.vocabulary)
        self._owner = next(_owners)
        self._starts = np.concatenate([[0], np.cumsum([info.samples for info in self.manifest.shards])])

    def __len__(self) -> int:
        return self.manifest.num_samples

    def __getstate__(self) -> dict:
        """Workers get the folder, not the lengths, which they can read themselves."""
        return {name: value for name, value in self.__dict__.items() if name != "lengths"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state | {"_owner": next(_owners)}

    def shard(self, number: int) -> Shard:
        return _OPEN_SHARDS.get(self._owner, number, lambda: self._open(number))

    def _open(self, number: int) -> Shard:
        info = self.manifest.shards[number]
        path = self.folder / info.file
        if path.parent != self.folder:
            raise DataError(f"{self.folder / MANIFEST} names a shard outside its folder: {info.file!r}.")
        shard = _with_patience(lambda: Shard(path, self.task))
        if len(shard) != info.samples or len(shard.tokens) != info.tokens:
            raise DataError(
                f"{path} does not fit {MANIFEST}: "
                f"it holds {len(shard)} samples and {len(shard.tokens)} tokens, not {info.samples} and {info.tokens}."
            )
        return shard

    def __getitem__(self, index: int) -> TokenSample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.shard(number)[index - int(self._starts[number])]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of every sample, without specials."""
        parts = [self.shard(number).lengths for number in range(len(self.manifest.shards))]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def verify(self) -> list[str]:
        """Read everything; one line for each file that does not match the manifest."""
        problems = []
        for number, info in enumerate(self.manifest.shards):
            path = self.folder / info.file
            try:
                with open(path, "rb") as file:
                    actual = hashlib.file_digest(file, "sha256").hexdigest()
                if actual != info.sha256:
                    problems.append(f"{path}: SHA-256 is {actual[:12]}..., the manifest says {info.sha256[:12]}...")
                else:
                    self.shard(number)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
            except DataError as error:
                problems.append(str(error))
        return problems


def _map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Memory-map the arrays of a safetensors file, trusting nothing in its header."""
    try:
        file_bytes = path.stat().st_size
        with open(path, "rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - 8):
                raise ValueError(f"header of {header_bytes} bytes")
            header = json.loads(file.read(header_bytes))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arrays: dict[str, np.ndarray] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype = _DTYPES[entry["dtype"]]
            (start, stop), shape = entry["data_offsets"], entry["shape"]
            if len(shape) != 1 or not 0 <= start <= stop or stop - start != shape[0] * dtype.itemsize:
                raise ValueError(f"array {name!r} does not fit its shape")
            if 8 + header_bytes + stop > file_bytes:
                raise ValueError("the file is cut short")
            arrays[name] = np.frombuffer(mapped, dtype, shape[0], 8 + header_bytes + start)
        return arrays
    except FileNotFoundError as error:
        raise UnreadableError(f"{path} is missing. Restore it from a copy or tokenize again.") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror}). Is the file system there?") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a readable token shard ({error}). Restore it from a copy or tokenize again."
        ) from error
