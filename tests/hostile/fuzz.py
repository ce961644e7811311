"""Damaged files for every reader: whatever a file holds, it is read or refused, in bounded time and memory.

As a program it is the long form of the tests: `python tests/hostile/fuzz.py --minutes 10`. Each reader runs in a
process of its own with a limit on its memory; a trial writes a damaged copy of a good file and reads it. A process that
stands still is killed and counted as a hang, and its file is kept.
"""

import argparse
import gzip
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import limited
import numpy as np
import pyarrow
import soundfile
import zstandard
from limited import ADDRESS_SPACE
from PIL import Image
from pyarrow import parquet

_CONTEXT = multiprocessing.get_context("forkserver")
_HANG_SECONDS = 60.0  # without a finished trial: far more than any takes, also on a busy machine
_KEPT = 20  # reported faults of a reader

# -- good files -------------------------------------------------------------------------------------------------------


def _png(kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def _audio(kind: str) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, np.sin(np.arange(4000) / 9).astype(np.float32) / 2, 8000, format=kind)
    return stream.getvalue()


_ROWS = [{"text": f"document {n} é", "more": [n, {"a": None}], "file_name": f"{n}.png"} for n in range(5)]
_JSONL = "\n".join(map(json.dumps, _ROWS)).encode()
_CSV = b'text,other\n"first, with a comma",1\nsecond,"two\nlines"\n"third ""quoted""",3\n'


def _tar(pax: bool = False) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT) as tar:
        for number in range(3):
            stem = f"{'long/' * 30 if number == 1 else ''}{number:04d}"
            for suffix, content in (("txt", b"a text"), ("json", b'{"caption": "x"}'), ("bin", bytes(100))):
                info = tarfile.TarInfo(f"{stem}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def _parquet(compression: str) -> bytes:
    stream = io.BytesIO()
    table = pyarrow.table(
        {
            "text": pyarrow.array([f"text {n % 7}" for n in range(200)]),
            "image": pyarrow.array([{"bytes": b"P" * 20, "path": "x.png"}] * 200),
            "more": pyarrow.array([[n] * (n % 3) for n in range(200)]),
        }
    )
    parquet.write_table(table, stream, compression=compression, row_group_size=90)
    return stream.getvalue()


def _dataset(folder: Path) -> None:
    """A dataset of two small shards."""
    from triptych.data.tokenize import tokenize

    (folder / "in.txt").write_text("\n".join(f"the cat {n}" for n in range(20)))
    tokenize(folder / "in.txt", folder / "good", per_line=True, samples_per_shard=10, progress=False)


# -- readers: a function of the damaged file --------------------------------------------------------------------------


def _read_source(path: Path) -> None:
    from triptych.data.sources import open_source

    for _ in open_source([str(path)]):
        pass


def _read_image(path: Path) -> None:
    from triptych.utils.media import read_image

    read_image(path, max_pixels=2**22)


def _read_audio(path: Path) -> None:
    from triptych.utils.media import read_audio

    read_audio(path, max_seconds=5, too_long="cut")


def _read_dataset(path: Path) -> None:
    from triptych.data.shards import TokenDataset

    dataset = TokenDataset(path.parent)
    for index in range(min(len(dataset), 50)):
        dataset[index]
    dataset.verify()


def _read_tokenizers(path: Path) -> None:
    from triptych.tokenizers.bundle import TokenizerBundle

    TokenizerBundle.load(path.parent if path.name == "vocab.json" else path.parent.parent).text.encode(["the cat"])


@dataclass(frozen=True)
class Target:
    """A reader, with the good files that it is tested on by their names."""

    read: Callable[[Path], None]
    files: dict[str, Callable[[], bytes]]
    prepare: Callable[[Path], None] | None = None
    """Makes a folder `good`, of which each trial damages one file."""


def _text_tokenizer(folder: Path) -> None:
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.tokenizers.text import ByteBPE
    from triptych.vocab import Vocabulary

    text = ByteBPE.train(["the cat sat on the mat"] * 3, 270)
    TokenizerBundle(Vocabulary(text=text.vocab_size, image=16, audio=16), text=text).save(folder / "good")


TARGETS: dict[str, Target] = {
    "jsonl": Target(_read_source, {"a.jsonl": lambda: _JSONL, "a.jsonl.gz": lambda: gzip.compress(_JSONL)}),
    "zst": Target(_read_source, {"a.jsonl.zst": lambda: zstandard.compress(_JSONL)}),
    "manifest": Target(
        _read_source, {"a.json": lambda: b'{"audio_filepath": "a.wav", "duration": 1.5, "text": "x"}\n' * 3}
    ),
    "csv": Target(_read_source, {"a.csv": lambda: _CSV, "a.tsv": lambda: _CSV.replace(b",", b"\t")}),
    "txt": Target(_read_source, {"a.txt": lambda: b"one\ntwo\n", "a.txt.gz": lambda: gzip.compress(b"one\ntwo\n")}),
    "tar": Target(
        _read_source, {"a.tar": _tar, "b.tar": lambda: _tar(True), "a.tar.gz": lambda: gzip.compress(_tar())}
    ),
    "parquet": Target(_read_source, {f"{each}.parquet": lambda each=each: _parquet(each) for each in ("zstd", "none")}),
    "image": Target(
        _read_image,
        {f"a.{kind.lower()}": lambda kind=kind: _png(kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")},
    ),
    "audio": Target(
        _read_audio, {f"a.{kind.lower()}": lambda kind=kind: _audio(kind) for kind in ("WAV", "FLAC", "OGG", "MP3")}
    ),
    "dataset": Target(_read_dataset, {}, _dataset),
    "tokenizers": Target(_read_tokenizers, {}, _text_tokenizer),
}

# -- damage -----------------------------------------------------------------------------------------------------------

_INTERESTING = [
    b"\xff" * 4,
    bytes(4),
    b"\x7f\xff\xff\xff",
    b"\x80" * 10,
    b"[" * 2000,
    b'{"a":' * 500,
    b"1" * 5000,
    b"\n",
]
_INTERESTING += [
    b'"',
    b"-1",
    b"1e999",
    b"null",
    b"NaN",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x99\x82",
    b"../",
    b"\x1b[31m",
    b",",
]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A copy with one to four changes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(data) + 1)
        length = min(rng.choice((1, 2, 4, 8, 64, 512)), len(data) - place)
        match rng.randrange(7):
            case 0 if data:
                data[place - 1] ^= 1 << rng.randrange(8)
            case 1:
                data[place : place + length] = rng.randbytes(length)
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = data[place : place + length] * rng.choice((1, 2, 100))
            case 4:
                del data[place:]
            case 5:
                word = rng.choice(_INTERESTING)
                data[place : place + (len(word) if rng.random() < 0.5 else 0)] = word
            case _:
                other = rng.randrange(len(data) + 1)
                data[place : place + length] = data[other : other + length]
    return bytes(data)


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the trials of one reader."""

    tried: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    """Tracebacks, crashes and hangs."""
    peak: int = 0


def fuzz(name: str, seconds: float, seed: int, keep: Path, most: int = 10**9) -> Tally:
    """Damage and read for some seconds, in processes of their own."""
    tally, end = Tally(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and tally.tried < most and len(tally.faults) < _KEPT:
        with tempfile.TemporaryDirectory() as work:
            counts = _CONTEXT.Array("q", 3)  # trials, refusals, peak
            process = _CONTEXT.Process(target=_trials, args=(name, left, seed, most - tally.tried, Path(work), counts))
            process.start()
            before, since = -1, time.monotonic()
            while process.is_alive():
                if counts[0] != before:
                    before, since = counts[0], time.monotonic()
                elif time.monotonic() - since > _HANG_SECONDS:
                    process.kill()
                    tally.faults.append(f"{name}: hang in trial {before} of seed {seed}")
                process.join(0.05)
            tally.tried, tally.refused = tally.tried + counts[0], tally.refused + counts[1]
            tally.peak = max(tally.peak, counts[2])
            reported = Path(work, "faults.txt")
            if reported.exists():
                tally.faults += reported.read_text().splitlines()
            if process.exitcode not in (0, -9):  # -9 is the hang above
                tally.faults.append(f"{name}: ended with code {process.exitcode} in trial {before} of seed {seed}")
            if process.exitcode or reported.exists():
                shutil.copytree(work, keep / f"{name}-{seed}", dirs_exist_ok=True)
        seed += 1
    return tally


def _trials(name: str, seconds: float, seed: int, most: int, work: Path, counts: Any) -> None:
    from triptych.errors import UserError

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    target, rng = TARGETS[name], random.Random(seed)
    files = {each: make() for each, make in target.files.items()}
    if target.prepare is not None:
        target.prepare(work)
        files = {str(p.relative_to(work)): p.read_bytes() for p in sorted((work / "good").rglob("*")) if p.is_file()}
    end = time.monotonic() + seconds
    while counts[0] < most and time.monotonic() < end:
        which = rng.choice(sorted(files))
        path = work / which
        content = damaged(files[which], rng)
        path.write_bytes(content)
        try:
            target.read(path)
        except UserError as error:
            counts[1] += 1
            if "\n" in str(error) and "Looked for" not in str(error):
                _report(work, f"{name}: an error of several lines: {str(error)[:200]!r}", which, content)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{name} {which}: {type(error).__name__}: {str(error)[:100]!r} in {where.filename}:{where.lineno}"
            _report(work, line, which, content)
        path.write_bytes(files[which])
        counts[0] += 1
        counts[2] = limited.peak_of(os.getpid())


def _report(work: Path, line: str, which: str, content: bytes) -> None:
    with open(work / "faults.txt", "a") as file:
        file.write(" ".join(line.split()) + "\n")
    (work / f"fault-{Path(which).name}").write_bytes(content)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=TARGETS, action="append")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="folder for files that made a fault")
    args = parser.parse_args(words)
    args.keep.mkdir(parents=True, exist_ok=True)
    names, faults = args.only or list(TARGETS), 0
    print(f"{'reader':12} {'tried':>8} {'refused':>8} {'faults':>7} {'peak MB':>8}")
    for name in names:
        tally = fuzz(name, 60 * args.minutes / len(names), args.seed, args.keep)
        faults += len(tally.faults)
        row = f"{tally.tried:8,} {tally.refused:8,} {len(tally.faults):7} {tally.peak / 1e6:8.0f}"
        print(f"{name:12} {row}", *tally.faults[:5], sep="\n  " if tally.faults else "", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
