"""Token shards: safetensors files, readable by any tool, with a checksum per sample and a manifest.

A dataset is a folder of one task:

    manifest.json            task, vocabulary, tokenizers, and the SHA-256 and counts of every shard
    shard-00000.safetensors  tokens   uint16 or uint32 [n]  local ids, media first, then text, sample after sample
                             offsets  int64 [samples + 1]   start of each sample in `tokens`
                             splits   int32 [samples]       number of media tokens of each sample
                             crc32    uint32 [samples]      of the sample's bytes, split and prompt; checked on reads
                             prompts  int32 [samples]       text tokens that are given, never predicted; only if any

Samples are read through a memory map, so opening a dataset is cheap and workers share the page cache.
"""

import hashlib
import itertools
import json
import mmap
import struct
import threading
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
from triptych.utils.files import with_retries, write_atomically
from triptych.vocab import Task, Vocabulary

MANIFEST = "manifest.json"
_DTYPES: dict[str, np.dtype] = {
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
_MAX_HEADER_BYTES = 1 << 20


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
            content = json.loads(path.read_text())
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
    """Random access to the samples of one shard file."""

    def __init__(self, path: Path, task: Task):
        self.path, self.task = path, task
        arrays = _map_arrays(path)
        try:
            self.tokens, self.offsets = arrays["tokens"], arrays["offsets"]
            self.splits, self._crc32 = arrays["splits"], arrays["crc32"]
            self.prompts = arrays["prompts"] if "prompts" in arrays else np.zeros(len(self.splits), np.int32)
        except KeyError as error:
            raise DataError(f"{path} is not a token shard: it has no array {error}.") from error
        lengths = np.diff(self.offsets)
        consistent = (
            len(self.offsets) == len(self.splits) + 1 == len(self._crc32) + 1 == len(self.prompts) + 1
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.tokens)
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
    def checksums(self) -> np.ndarray:
        """CRC-32 of every sample."""
        return self._crc32

    def __getitem__(self, index: int) -> TokenSample:
        start, stop = self.offsets[index], self.offsets[index + 1]
        record, split, prompt = self.tokens[start:stop], self.splits[index], int(self.prompts[index])
        if _checksum(record, split, prompt) != self._crc32[index]:
            raise DataError(
                f"{self.path}: sample {index} does not match its checksum; the file was damaged after it was written. "
                "Restore it from a copy or tokenize again."
            )
        return TokenSample(self.task, record[:split], record[split:], prompt)


class _OpenShards:
    """LRU cache of the shards that are open in this process, over all datasets.

    An open shard holds a memory map and a file descriptor, of which a process may have about a thousand.
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
        info = self.manifest.shards[number]
        path = self.folder / info.file
        if path.parent != self.folder:
            raise DataError(f"{self.folder / MANIFEST} names a shard outside its folder: {info.file!r}.")
        shard = with_retries(lambda: Shard(path, self.task), UnreadableError)
        if len(shard) != info.samples or len(shard.tokens) != info.tokens:
            raise DataError(
                f"{path} does not match {MANIFEST}: "
                f"it holds {len(shard)} samples and {len(shard.tokens)} tokens, not {info.samples} and {info.tokens}."
            )
        longest = int(shard.lengths[shard.prompts > 0].max(initial=0)) if shard.prompts.any() else 0
        if longest > self.manifest.longest_prompted:
            raise DataError(
                f"{path} does not match {MANIFEST}: it has prompts with responses of {longest} tokens, not "
                f"{self.manifest.longest_prompted}."
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
        """Read every file; returns one line for each that does not match the manifest."""
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
        below = sorted(path.parent for path in Path(folder).rglob(MANIFEST) if _is_manifest(path))
        for plan in sorted(Path(folder).rglob("plan.json")):
            if not (plan.parent / MANIFEST).exists() and (plan.parent / "journal.jsonl").exists():
                raise DataError(
                    f"{plan.parent} is not a finished dataset; run its `triptych tokenize` command again, or delete it."
                )
        datasets += map(str, below) if below else [folder]
    return tuple(dict.fromkeys(datasets))


def _is_manifest(path: Path) -> bool:
    """Whether this is the manifest of a dataset; checkpoints have files of the same name."""
    try:
        return json.loads(path.read_text()).get("format") == "triptych-shards"
    except (OSError, ValueError, AttributeError):
        return False


def _map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Memory-map the arrays of a safetensors file, after checking every number of its header."""
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
                raise ValueError(f"array {name!r} does not match its shape")
            if 8 + header_bytes + stop > file_bytes:
                raise ValueError("the file is truncated")
            arrays[name] = np.frombuffer(mapped, dtype, shape[0], 8 + header_bytes + start)
        return arrays
    except FileNotFoundError as error:
        raise UnreadableError(f"{path} is missing. Restore it from a copy or tokenize again.") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror}). Is the file system mounted?") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a readable token shard ({error}). Restore it from a copy or tokenize again."
        ) from error
