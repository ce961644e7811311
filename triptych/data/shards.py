"""Token shards: safetensors files, readable by any tool, with a checksum per sample and a manifest.

A dataset is a folder of one task:

    manifest.json            task, vocabulary, tokenizers, and the SHA-256 and counts of every shard
    shard-00000.safetensors  tokens   uint16 or uint32 [n]  local ids, media first, then text, sample after sample
                             offsets  int64 [samples + 1]   start of each sample in `tokens`
                             splits   int32 [samples]       number of media tokens of each sample
                             crc32    uint32 [samples]      of the sample's bytes, split and prompt; checked on reads
                             prompts  int32 [samples]       text tokens that are given, never predicted; only if any

The tokens of a sample are read when it is needed: opening a dataset is cheap, and workers share the page cache.
"""

import hashlib
import itertools
import json
import os
import struct
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save as to_safetensors

from triptych.data.types import TokenSample
from triptych.errors import DataError
from triptych.utils.arguments import checked
from triptych.utils.checksums import sha256
from triptych.utils.files import files_below, with_retries, write_atomically
from triptych.utils.json_files import parse_json, read_json
from triptych.vocab import Modality, Task, Vocabulary

MANIFEST = "manifest.json"
_DTYPES: dict[str, np.dtype] = {
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
_ARRAYS = {
    "tokens": (_DTYPES["U16"], _DTYPES["U32"]),
    "offsets": (_DTYPES["I64"],),
    "splits": (_DTYPES["I32"],),
    "crc32": (_DTYPES["U32"],),
    "prompts": (_DTYPES["I32"],),
}
_MAX_HEADER_BYTES = 1 << 20
_BLOCK = 4096  # samples whose ids are checked at once


class UnreadableError(DataError):
    """A file that is missing or cannot be read at the moment; it may be readable later."""


@dataclass(frozen=True)
class ShardInfo:
    """The entry of one shard in the manifest."""

    file: str
    sha256: str
    samples: int
    tokens: int
    longest_media: int = 0
    """Most media tokens of a sample: shows whether a sequence length suffices without opening the shard."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a folder of shards. It is written last: a folder without a manifest is unfinished."""

    name: str
    task: str
    """Name of a `Task`."""
    vocabulary: dict[str, int]
    """Fields of a `Vocabulary`."""
    tokenizers: dict[str, str]
    """Fingerprint of the tokenizer of each modality in the dataset."""
    shards: list[ShardInfo]
    bad_samples: int = 0
    """Number of samples that were left out."""
    created_by: str = ""
    """Program and version."""
    settings: dict = field(default_factory=dict)
    """Configuration of the run that made the dataset."""
    longest_prompted: int = 0
    """Most tokens of a sample with a prompt, media included: a sequence must have room for all of it. 0: no prompts."""

    @property
    def num_samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Changes when any sample of the dataset changes."""
        content = [self.task, self.vocabulary, self.tokenizers, [asdict(shard) for shard in self.shards]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        content = {"format": "triptych-shards", "version": 1, "fingerprint": self.fingerprint, **asdict(self)}
        if not self.longest_prompted:
            del content["longest_prompted"]
        write_atomically(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        path = Path(folder) / MANIFEST
        try:
            content = read_json(path)
        except FileNotFoundError as error:
            raise DataError(
                f"{folder} is not a finished dataset: {MANIFEST} is missing. "
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
    """Raise TypeError or KeyError for values that only a damaged or hand-written manifest has."""
    Task[manifest.task]
    Vocabulary(**manifest.vocabulary)
    texts = [manifest.name, manifest.created_by, *(shard.file for shard in manifest.shards)]
    counts = [manifest.bad_samples, manifest.longest_prompted]
    counts += [n for shard in manifest.shards for n in (shard.samples, shard.tokens, shard.longest_media)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name is not a string")
    if not all(isinstance(count, int) and 0 <= count < 2**62 for count in counts):
        raise TypeError("a count is not a plausible number")
    if not isinstance(manifest.settings, dict) or not isinstance(manifest.tokenizers, dict):
        raise TypeError("settings and tokenizers must be objects")


def write_shard(path: Path, samples: Sequence[TokenSample], vocabulary: Vocabulary) -> ShardInfo:
    """Write samples as one shard, atomically."""
    widest = max(vocabulary.text, vocabulary.image, vocabulary.audio)
    dtype = np.dtype("<u2") if widest <= 2**16 else np.dtype("<u4")
    records = [np.concatenate([sample.media, sample.text]).astype(dtype) for sample in samples]
    offsets = np.zeros(len(records) + 1, dtype=np.int64)
    np.cumsum([len(record) for record in records], out=offsets[1:])
    splits = np.array([len(sample.media) for sample in samples], dtype=np.int32)
    prompts = np.array([sample.prompt for sample in samples], dtype=np.int32)
    checksums = [_checksum(*parts) for parts in zip(records, splits, prompts)]
    arrays = {
        "tokens": np.concatenate(records) if records else np.zeros(0, dtype),
        "offsets": offsets,
        "splits": splits,
        "crc32": np.array(checksums, dtype=np.uint32),
    }
    content = to_safetensors(arrays | ({"prompts": prompts} if prompts.any() else {}))
    write_atomically(path, content)
    longest = max((len(sample.media) for sample in samples), default=0)
    return ShardInfo(path.name, hashlib.sha256(content).hexdigest(), len(records), int(offsets[-1]), longest)


def _checksum(record: np.ndarray, split: int, prompt: int) -> int:
    """CRC-32 that starts from the split and the prompt instead of 0, so that it detects a change of these, too."""
    start = int(split) if not prompt else zlib.crc32(int(prompt).to_bytes(4, "little"), int(split))
    return zlib.crc32(record.tobytes(), start)


class Shard:
    """Random access to the samples of one shard file. With a vocabulary, ids beyond their modality's are refused."""

    def __init__(self, path: Path, task: Task, vocabulary: Vocabulary | None = None):
        self.path, self.task = path, task
        self._num_text = self._num_media = 2**32
        if vocabulary is not None:
            self._num_text = vocabulary.text
            self._num_media = 0 if task.partner is None else vocabulary.data_size(task.partner)
        self._file = _ArrayFile(path)
        arrays = self._file.arrays
        try:
            self.num_tokens, self._read_tokens = arrays["tokens"].count, self._file.reader("tokens")
            self.offsets = self._file.read("offsets")
            self.splits, self._crc32 = self._file.read("splits"), self._file.read("crc32")
            self.prompts = self._file.read("prompts") if "prompts" in arrays else np.zeros(len(self.splits), np.int32)
        except KeyError as error:
            raise DataError(f"{path} is not a token shard: it has no array {error}.") from error
        for name, array in arrays.items():
            if array.dtype not in _ARRAYS.get(name, (array.dtype,)):
                raise DataError(f"{path} is not a token shard: its array {name!r} has the dtype {array.dtype}.")
        lengths = np.diff(self.offsets)
        consistent = (
            len(self.offsets) == len(self.splits) + 1 == len(self._crc32) + 1 == len(self.prompts) + 1
            and self.offsets[0] == 0
            and self.offsets[-1] == self.num_tokens
            and bool((self.splits >= 0).all() and (lengths >= self.splits).all())
            and bool((self.prompts >= 0).all() and (lengths - self.splits >= self.prompts).all())
        )
        if not consistent:
            raise DataError(f"{path} is damaged: its offsets do not match its tokens. Tokenize again.")

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of every sample, without specials."""
        return np.diff(self.offsets)

    @property
    def tokens(self) -> np.ndarray:
        """All tokens, read from the file."""
        return self._file.read("tokens")

    @property
    def checksums(self) -> np.ndarray:
        """CRC-32 of every sample."""
        return self._crc32

    def __getitem__(self, index: int) -> TokenSample:
        record = self._read_tokens(self.offsets.item(index), self.offsets.item(index + 1))
        split, prompt = self.splits[index], self.prompts.item(index)
        if _checksum(record, split, prompt) != self._crc32[index]:
            raise DataError(
                f"{self.path}: sample {index} does not match its checksum; the file was damaged after it was written. "
                "Restore it from a copy or tokenize again."
            )
        media, text = record[:split], record[split:]
        self._check_ids(media, text)
        return TokenSample(self.task, media, text, prompt)

    def check_all_ids(self) -> None:
        """Raise an error if any id of the shard is beyond its modality's."""
        for start in range(0, len(self), _BLOCK):
            stop = min(start + _BLOCK, len(self))
            first, last = self.offsets.item(start), self.offsets.item(stop)
            ends = np.repeat(
                self.offsets[start:stop] + self.splits[start:stop], np.diff(self.offsets[start : stop + 1])
            )
            is_media = np.arange(first, last) < ends
            tokens = self._read_tokens(first, last)
            self._check_ids(tokens[is_media], tokens[~is_media])

    def _check_ids(self, media: np.ndarray, text: np.ndarray) -> None:
        """Larger ids would fall into the range of another modality."""
        for ids, count, modality in (
            (media, self._num_media, self.task.partner),
            (text, self._num_text, Modality.TEXT),
        ):
            if len(ids) and ids.max() >= count:
                what = "media" if modality is None else modality.name.lower()
                raise DataError(
                    f"{self.path} has the {what} id {ids.max()}, but its vocabulary has {count} of them. The file was "
                    "not written by Triptych, or its manifest is of other tokenizers: tokenize again."
                )


class _OpenShards:
    """LRU cache of the shards that are open in this process, over all datasets.

    An open shard holds a file descriptor, of which a process may have about a thousand, and 24 bytes per sample.
    """

    def __init__(self, max_open: int):
        self._max_open, self._lock = max_open, threading.Lock()
        self._shards: OrderedDict[tuple[int, int], Shard] = OrderedDict()

    def get(self, owner: int, number: int, open_: Callable[[], Shard]) -> Shard:
        with self._lock:
            shard = self._shards.pop((owner, number), None)
            if shard is None:
                shard = open_()
            self._shards[owner, number] = shard
            if len(self._shards) > self._max_open:
                self._shards.popitem(last=False)
            return shard


_OPEN_SHARDS = _OpenShards(max_open=256)
_owners = itertools.count()


class TokenDataset:
    """Random access to all samples of a folder of shards. A shard is opened on first use.

    dataset = TokenDataset("data/photos")
    sample = dataset[0]  # sample.media and sample.text are arrays of token ids
    """

    @checked
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
        """Worker processes read the lengths themselves."""
        return {name: value for name, value in self.__dict__.items() if name != "lengths"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state | {"_owner": next(_owners)}

    def shard(self, number: int) -> Shard:
        return _OPEN_SHARDS.get(self._owner, number, lambda: self._open(number))

    def _open(self, number: int) -> Shard:
        info, path = self.manifest.shards[number], self._path_of(number)
        shard = with_retries(lambda: Shard(path, self.task, self.vocabulary), UnreadableError)
        if len(shard) != info.samples or shard.num_tokens != info.tokens:
            raise DataError(
                f"{path} does not match {MANIFEST}: "
                f"it holds {len(shard)} samples and {shard.num_tokens} tokens, not {info.samples} and {info.tokens}."
            )
        longest = int(shard.lengths[shard.prompts > 0].max(initial=0)) if shard.prompts.any() else 0
        if longest > self.manifest.longest_prompted:
            raise DataError(
                f"{path} does not match {MANIFEST}: it has prompts with responses of {longest} tokens, not "
                f"{self.manifest.longest_prompted}."
            )
        return shard

    def _path_of(self, number: int) -> Path:
        """The file of a shard, which is one of the folder itself."""
        name = self.manifest.shards[number].file
        path = self.folder / name
        if path.parent != self.folder:
            raise DataError(f"{self.folder / MANIFEST} names a shard outside its folder: {name!r}.")
        if path.is_symlink():
            raise DataError(f"{path} is a link. A shard is a file of its dataset: copy it here, or link the folder.")
        return path

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
        """Read every file; returns one line for each that does not match the manifest."""
        problems = []
        for number, info in enumerate(self.manifest.shards):
            try:
                path = self._path_of(number)
                actual = sha256(path)
                if actual != info.sha256:
                    problems.append(f"{path}: SHA-256 is {actual[:12]}..., the manifest says {info.sha256[:12]}...")
                else:
                    self.shard(number).check_all_ids()
            except OSError as error:
                problems.append(f"{error.filename or info.file}: {error.strerror}")
            except DataError as error:
                problems.append(str(error))
        return problems


def dataset_names(datasets: Sequence[TokenDataset]) -> list[str]:
    """The names that weights refer to: those of the manifests; PARENT/NAME for datasets of equal names."""
    names = [dataset.manifest.name for dataset in datasets]
    for depth in range(2, 2 + max((len(dataset.folder.resolve().parts) for dataset in datasets), default=0)):
        repeated = {name for name in names if names.count(name) > 1}
        for number, dataset in enumerate(datasets):
            if names[number] in repeated:
                names[number] = "/".join(dataset.folder.resolve().parts[-depth:])
    return names


def find_dataset_folders(folders: Sequence[str]) -> tuple[str, ...]:
    """The folders of datasets; for a folder that is none, those of the datasets below it, if there are any."""
    datasets: list[str] = []
    for folder in folders:
        if (Path(folder) / MANIFEST).exists():
            datasets.append(folder)
            continue
        files = files_below(Path(folder)) if Path(folder).is_dir() else []
        below = [path.parent for path in files if path.name == MANIFEST and _is_manifest(path)]
        for plan in (path for path in files if path.name == "plan.json"):
            if not (plan.parent / MANIFEST).exists() and (plan.parent / "journal.jsonl").exists():
                raise DataError(
                    f"{plan.parent} is not a finished dataset; run its `triptych tokenize` command again, or delete it."
                )
        datasets += map(str, below) if below else [folder]
    return tuple(dict.fromkeys(datasets))


def _is_manifest(path: Path) -> bool:
    """Whether this is the manifest of a dataset; checkpoints have files of the same name."""
    try:
        return read_json(path).get("format") == "triptych-shards"
    except (OSError, ValueError, AttributeError):
        return False


@dataclass(frozen=True)
class _Array:
    """Where an array lies in a file."""

    dtype: np.dtype
    count: int
    start: int
    """Byte of the file."""


class _ArrayFile:
    """The arrays of a safetensors file, every number of whose header was checked.

    They are read by system calls, not through a memory map: a map of a file that is truncated or fails later kills the
    process by SIGBUS, without a word.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would wait for its writer
            weakref.finalize(self, os.close, self._handle)
            self.arrays = _read_header(self._handle)
        except FileNotFoundError as error:
            raise UnreadableError(f"{path} is missing. Restore it from a copy or tokenize again.") from error
        except OSError as error:
            raise _unreadable(path, error) from error
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path} is not a readable token shard ({error}). Restore it from a copy or tokenize again."
            ) from error

    def read(self, name: str) -> np.ndarray:
        """A whole array."""
        return self.reader(name)(0, self.arrays[name].count)

    def reader(self, name: str) -> Callable[[int, int], np.ndarray]:
        """A function that reads the values of an array from a number to another."""
        array, handle, read_bytes = self.arrays[name], self._handle, os.pread
        dtype, size, start, from_bytes = array.dtype, array.dtype.itemsize, array.start, np.frombuffer

        def read(first: int, last: int) -> np.ndarray:
            num_bytes = (last - first) * size
            try:
                content = read_bytes(handle, num_bytes, start + first * size)
            except OSError:
                content = b""
            if len(content) != num_bytes:
                content = self._read_again(num_bytes, start + first * size)
            return from_bytes(content, dtype)

        return read

    def _read_again(self, num_bytes: int, start: int) -> bytes:
        """For reads of more than two GB, which take several calls, and for those that failed."""
        parts: list[bytes] = []
        while (missing := num_bytes - sum(map(len, parts))) > 0:
            try:
                part = with_retries(partial(os.pread, self._handle, missing, start + num_bytes - missing), OSError)
            except OSError as error:
                raise _unreadable(self.path, error) from error
            if not part:
                raise DataError(
                    f"{self.path} was truncated after it was opened. Restore it from a copy or tokenize again."
                )
            parts.append(part)
        return b"".join(parts)


def _unreadable(path: Path, error: OSError) -> UnreadableError:
    return UnreadableError(f"{path} cannot be read ({error.strerror}). Is the file system mounted?")


def _read_header(handle: int) -> dict[str, _Array]:
    """Where the arrays of a safetensors file lie."""
    file_bytes = os.fstat(handle).st_size
    (header_bytes,) = struct.unpack("<Q", os.pread(handle, 8, 0))
    if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - 8):
        raise ValueError(f"header of {header_bytes} bytes")
    header = parse_json(os.pread(handle, header_bytes, 8))
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _DTYPES[entry["dtype"]]
        (start, stop), shape = entry["data_offsets"], entry["shape"]
        if len(shape) != 1 or not 0 <= start <= stop or stop - start != shape[0] * dtype.itemsize:
            raise ValueError(f"array {name!r} does not match its shape")
        if 8 + header_bytes + stop > file_bytes:
            raise ValueError("the file is truncated")
        arrays[name] = _Array(dtype, shape[0], 8 + header_bytes + start)
    return arrays
