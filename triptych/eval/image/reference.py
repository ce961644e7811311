"""Features of reference images, computed once and kept in a cache.

    images = open_images("photos/")                      a folder, tars, Parquet files or a table
    features = reference_features(images, spec, ...)     [n, d], from the cache or computed into it

The cache has one folder per set of images, network and framing, by a hash of all that the features depend on:

    CACHE/HASH/chunk-00000.npz   features of 100 images, while they are being computed
    CACHE/HASH/features.npy      all features
    CACHE/HASH/complete.json     what they belong to; written last

A set of images is known by the names, sizes and times of its files; contents are not read, so this takes seconds for
a million files. For a table this is the table itself, not the images that it lists. A stopped computation resumes at
the chunk that it stopped in. A process that needs a folder while another one fills it waits, and uses its result.
"""

import hashlib
import io
import json
import os
import socket
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from PIL import Image

from triptych.data.sources import open_source
from triptych.data.sources.base import IMAGE_SUFFIXES, BadSample
from triptych.data.sources.tars import WEBDATASET, members, problem_of, read_member
from triptych.errors import DataError, UserError
from triptych.eval.frechet import Gaussian, check_features
from triptych.eval.image.features import FeatureExtractor, FeatureSpec
from triptych.eval.metrics import Judge
from triptych.eval.records import Progress
from triptych.tokenizers.pixels import resize_with_white_padding
from triptych.utils.files import files_below, write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.locks import AlreadyLocked, hold_lock, lock_file
from triptych.utils.media import read_image
from triptych.utils.workers import map_in_order, one_thread
from triptych.vocab import Task

_CHUNK = 100  # images per file while features are computed
_MAX_UNREADABLE = 0.01  # share of images
_LINE_SECONDS = 5.0
_FORMAT = 1
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)  # of a damaged file of the cache
Content = Path | bytes
T = TypeVar("T")


# -- images -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageSet:
    """Encoded images in a fixed order, before they are read."""

    label: str
    """Where they are, for people."""
    fingerprint: str
    """Changes when a file appears, disappears or changes its size or time."""
    read: Callable[[], Iterator[tuple[str, Content | BadSample]]]
    """Names and files or bytes; a `BadSample` in place of one that cannot be used."""
    size: int | None = None
    """Number of images, if it is known without reading them."""

    def __iter__(self) -> Iterator[tuple[str, Content | BadSample]]:
        return self.read()


def open_images(data: str | Path) -> ImageSet:
    """Images without regard to captions: all in a folder and the folders in it, or those of tars, Parquet, a table."""
    folder = Path(data)
    if folder.is_dir():
        skipped: list[OSError] = []
        files = [path for path in files_below(folder, skipped.append) if path.name.lower().endswith(IMAGE_SUFFIXES)]
        bad = [BadSample(str(each.filename), f"no access: {each.strerror}") for each in skipped]
        if files:
            listed = json.dumps([[str(file.relative_to(folder)), *_size_and_time(file)] for file in files])
            fingerprint = hashlib.sha256(listed.encode()).hexdigest()
            items: list[tuple[str, Content | BadSample]] = [(each.key, each) for each in bad]
            items += ((str(file), file) for file in files)
            return ImageSet(str(data), fingerprint, lambda: iter(items), len(items))
    try:
        # The fingerprint has the paths.
        source = open_source([full_path(data)], task=Task.IMAGE_TEXT)
    except DataError as error:
        if not Path(data).exists():
            raise
        first = str(error).splitlines()[0].rstrip(":. ")
        raise DataError(
            f"found no images in {data}: expected {', '.join(IMAGE_SUFFIXES)}, or captioned data ({first})."
        ) from error
    fingerprint = str(source.fingerprint()["sha256"])
    if all(part.format is WEBDATASET for part in source.parts):
        paths = [part.path for part in source.parts]
        return ImageSet(str(data), fingerprint, lambda: (item for path in paths for item in _tar_images(path)))

    def read() -> Iterator[tuple[str, Content | BadSample]]:
        known: set[str] = set()  # an image with several captions is one image
        for item in source:
            if isinstance(item, BadSample):
                yield item.key, item
            elif isinstance(item.media, bytes):
                yield item.key, item.media
            elif item.media is not None and item.media not in known:
                known.add(item.media)
                yield item.key, Path(item.media)

    return ImageSet(str(data), fingerprint, read)


def full_path(data: str | Path) -> str:
    """The same text for data that are given by a relative or an absolute path, which may have a pattern."""
    return str(data) if "://" in str(data) else str(Path(data).resolve())


def _size_and_time(file: Path) -> tuple[int, int]:
    """Of a file; -1 for one that cannot be read, such as a broken link. Reading it counts it as unreadable."""
    try:
        stat = file.stat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _tar_images(path: Path) -> Iterator[tuple[str, Content | BadSample]]:
    try:
        for _, stream, member in members(path):
            if not member.isreg() or not member.name.lower().endswith(IMAGE_SUFFIXES):
                continue
            name, problem = f"{path}:{member.name}", problem_of(member, member.size, is_media=True)
            yield name, BadSample(name, problem) if problem else read_member(stream, member)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        yield str(path), BadSample(str(path), f"rest of the file unreadable: {error}")


# -- framing ----------------------------------------------------------------------------------------------------------

FramingMode = Literal["pad", "crop", "original"]


@dataclass(frozen=True)
class Framing:
    """What is done to reference images before they are compared with generated ones, which are square.

    pad        the whole image in a square of `side` pixels, with white bars: as the tokenizers see training images
    crop       the middle of the image, resized to `side` pixels: usual for MS-COCO
    original   nothing
    """

    mode: FramingMode = "pad"
    side: int = 0
    """Pixels of generated images; of no matter for "original"."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(FramingMode):
            raise UserError(f"framing must be one of {', '.join(get_args(FramingMode))}, got {self.mode!r}.")

    def __call__(self, image: Image.Image) -> Image.Image:
        if self.mode == "pad":
            return resize_with_white_padding(image, self.side)
        if self.mode == "crop":
            shortest = min(image.size)
            left, top = (image.width - shortest) // 2, (image.height - shortest) // 2
            square = image.crop((left, top, left + shortest, top + shortest))
            return square.resize((self.side, self.side), Image.Resampling.BICUBIC)
        return image


# -- features ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReferenceFeatures:
    """Features of all images of a set that can be read."""

    features: np.ndarray
    """[n, d] float32; a memory map if they are in a cache."""
    gaussian: Gaussian
    judge: Judge
    num_unreadable: int
    label: str


def default_cache() -> Path:
    """$TRIPTYCH_CACHE/features, by default ~/.cache/triptych/features."""
    root = os.environ.get("TRIPTYCH_CACHE") or Path.home() / ".cache" / "triptych"
    return Path(root).expanduser() / "features"


def reference_features(
    images: ImageSet,
    spec: FeatureSpec,
    framing: Framing,
    *,
    cache: Path | None = None,
    device: str = "cpu",
    nproc: int = 1,
    progress: Progress = lambda line: None,
    extractor: FeatureExtractor | None = None,
) -> ReferenceFeatures:
    """The features of a set of images, from the cache if they are there.

    `extractor` is the network if it is loaded already. Up to 1 % of the images may be unreadable; they are left out
    and counted.
    """
    network = extractor or spec.load(device)
    judge = Judge(network.name, network.sha256)
    belongs_to = {
        "format": _FORMAT,
        "images": images.fingerprint,
        "network": asdict(judge),
        "framing": asdict(framing) if framing.mode != "original" else {"mode": "original"},
    }
    key = hashlib.sha256(json.dumps(belongs_to, sort_keys=True).encode()).hexdigest()[:16]
    folder = (cache or default_cache()) / key
    complete = _read_complete(folder)
    if complete is None:
        with _alone(folder, progress):
            complete = _read_complete(folder)  # another process may have finished it by now
            if complete is None:
                complete = _compute(folder, images, spec, framing, network, device, nproc, progress, belongs_to)
                _gaussian(folder, np.load(folder / "features.npy", mmap_mode="r"))  # kept, for those who wait
    else:
        progress(f"  reference features ({judge.name}): {complete['num_images']:,} images from the cache {folder}")
    features = np.load(folder / "features.npy", mmap_mode="r")
    return ReferenceFeatures(
        features, _gaussian(folder, features), judge, int(complete["num_unreadable"]), images.label
    )


@contextmanager
def _alone(folder: Path, progress: Progress) -> Iterator[None]:
    """Lets one process at a time fill a folder; others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    path, owner = folder / "lock", f"process {os.getpid()} on {socket.gethostname()}"
    try:
        file = hold_lock(path, owner)
    except AlreadyLocked as error:
        progress(f"  reference features: waiting for {error.owner or 'another process'}, which computes them")
        file = open(path, "a+")  # noqa: SIM115 (closed below)
        lock_file(file)
    except OSError:  # no locks on this file system
        yield
        return
    with closing(file):
        yield


def _read_complete(folder: Path) -> dict[str, Any] | None:
    try:
        complete = read_json(folder / "complete.json")
        features = np.load(folder / "features.npy", mmap_mode="r")
        return complete if len(features) == complete["num_images"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _gaussian(folder: Path, features: np.ndarray) -> Gaussian:
    """The Gaussian of the features; kept if it takes long to compute, that is if there are many."""
    n, d = features.shape
    if n <= d:
        return Gaussian.of_features(features)
    path = folder / "gaussian.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Gaussian(kept["mean"], kept["factor"], int(kept["n"]))
    except _UNREADABLE:
        gaussian = Gaussian.of_features(features)
        content = io.BytesIO()
        np.savez(content, mean=gaussian.mean, factor=gaussian.factor, n=n)
        write_atomically(path, content.getvalue())
        return gaussian


@dataclass(frozen=True)
class _Extract:
    """Builds, in a process of its own, the function that computes a chunk. Picklable without the network."""

    spec: FeatureSpec
    framing: Framing
    device: str
    network: FeatureExtractor | None = None

    def __call__(self) -> Callable[[list[tuple[str, Content | BadSample]]], tuple[np.ndarray, list[str]]]:
        network = self.network or self.spec.load(self.device)

        def extract(chunk: list[tuple[str, Content | BadSample]]) -> tuple[np.ndarray, list[str]]:
            images, problems = [], []
            for name, content in chunk:
                if isinstance(content, BadSample):
                    problems.append(f"{name}: {content.reason}")
                    continue
                try:
                    images.append(self.framing(read_image(content)))
                except DataError as error:
                    problems.append(f"{name}: {error}" if isinstance(content, bytes) else str(error))
            features = network(images)
            if not np.isfinite(features).all():
                raise DataError(f"{network.name} gives features that are not finite for images from {chunk[0][0]} on.")
            return features, problems

        return extract


def _compute(
    folder: Path,
    images: ImageSet,
    spec: FeatureSpec,
    framing: Framing,
    network: FeatureExtractor,
    device: str,
    nproc: int,
    progress: Progress,
    belongs_to: dict[str, Any],
) -> dict[str, Any]:
    title = f"  reference features ({network.name})"
    kept = {path.name for path in folder.glob("chunk-*.npz") if _read_chunk(path) is not None}
    if kept:
        progress(f"{title}: {len(kept) * _CHUNK:,} images kept from an earlier run")
    todo = [0]

    def missing() -> Iterator[list[tuple[str, Content | BadSample]]]:
        numbers.clear()
        for number, chunk in enumerate(_chunks(iter(images), _CHUNK)):
            todo[0] = number + 1
            if _chunk_name(number) not in kept:
                numbers.append(number)
                yield chunk

    numbers: list[int] = []
    workers = 0 if nproc == 1 else min(nproc, 999 if images.size is None else -(-images.size // _CHUNK))
    build = _Extract(spec, framing, device, network if workers == 0 else None)
    printed, done, num_bad = time.monotonic(), len(kept) * _CHUNK, 0
    with one_thread() if workers else nullcontext(), closing(map_in_order(build, missing(), workers)) as results:
        for index, (features, problems) in enumerate(results):
            _write_chunk(folder / _chunk_name(numbers[index]), features, problems)
            done, num_bad = done + len(features) + len(problems), num_bad + len(problems)
            if images.size is not None:
                _check_unreadable(images, problems, num_bad, images.size)
            if time.monotonic() - printed > _LINE_SECONDS:
                progress(f"{title}: {done:,}{'' if images.size is None else f' of {images.size:,}'}")
                printed = time.monotonic()
    chunks = [_read_chunk(folder / _chunk_name(number)) for number in range(todo[0])]
    read = [chunk for chunk in chunks if chunk is not None]
    assert len(read) == len(chunks), "a chunk disappeared while it was being used"
    problems = [problem for _, each in read for problem in each]
    features = np.concatenate([each for each, _ in read] or [np.zeros((0, network.dimension), np.float32)])
    _check_unreadable(images, problems, len(problems), len(features) + len(problems))
    if len(features) < 2:
        raise DataError(f"{images.label} has {len(features)} images that can be read; a reference needs at least 2.")
    if problems:
        progress(
            f"{title}: {len(problems)} of {len(features) + len(problems):,} images left out, such as {problems[0]}"
        )
    content = io.BytesIO()
    np.save(content, check_features(features))
    write_atomically(folder / "features.npy", content.getvalue())
    counts = {"num_images": len(features), "num_unreadable": len(problems), "unreadable": problems[:5]}
    complete = counts | belongs_to
    write_atomically(folder / "complete.json", (json.dumps(complete, indent=2) + "\n").encode())
    for path in folder.glob("chunk-*.npz"):
        path.unlink(missing_ok=True)
    progress(f"{title}: {len(features):,} images, kept in {folder}")
    return complete


def _check_unreadable(images: ImageSet, problems: Sequence[str], num_bad: int, total: int) -> None:
    if num_bad > _MAX_UNREADABLE * total and problems:
        raise DataError(
            f"{num_bad} of {total:,} images in {images.label} cannot be read, such as {problems[0].rstrip('.')}. "
            "Repair or remove them: they would be missing from the reference."
        )


def _chunks(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while chunk := list(islice(items, size)):
        yield chunk


def _chunk_name(number: int) -> str:
    return f"chunk-{number:05d}.npz"


def _write_chunk(path: Path, features: np.ndarray, problems: Sequence[str]) -> None:
    content = io.BytesIO()
    np.savez(content, features=features, problems=np.array(json.dumps(list(problems))))
    write_atomically(path, content.getvalue())


def _read_chunk(path: Path) -> tuple[np.ndarray, list[str]] | None:
    """None if the chunk is not there or damaged."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return content["features"], json.loads(str(content["problems"]))
    except _UNREADABLE:
        return None
