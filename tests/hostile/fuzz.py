"""Damaged files for every reader: whatever a file holds, it is read or refused, in bounded time and memory.

As a program it is the long form of the tests: `python tests/hostile/fuzz.py --minutes 10`. Each reader runs in a
process of its own with a limit on its memory; a trial writes a damaged copy of a good file and reads it. A process that
stands still is killed and counted as a hang, and its file is kept. Some trials go through the command line. The last
long run is in bench/results/fuzz.json and docs/faults.md: `--json bench/results/fuzz.json --docs docs/faults.md`.
"""

import argparse
import contextlib
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
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

from triptych.utils.terminal import printable

_TESTS = Path(__file__).parents[1]
for _folder in (_TESTS / "training", _TESTS.parent / "bench"):  # fakes of a run, tables
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

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


def _good(path: Path) -> Path:
    """The folder of good files that a damaged one is in."""
    return next(folder for folder in path.parents if folder.name == "good")


def _read_tokenizers(path: Path) -> None:
    from triptych.tokenizers.bundle import TokenizerBundle

    TokenizerBundle.load(_good(path)).text.encode(["the cat"])


def _read_image_tokenizer(path: Path) -> None:
    from triptych.tokenizers.image import load_image_tokenizer

    tokenizer = load_image_tokenizer(_good(path))
    ids = tokenizer.encode([Image.new("RGB", (20, 30), "red")])
    tokenizer.decode(ids)


def _read_audio_tokenizer(path: Path) -> None:
    from triptych.tokenizers.audio import load_audio_tokenizer
    from triptych.utils.media import Audio

    tokenizer = load_audio_tokenizer(_good(path))
    tokenizer.decode(tokenizer.encode([Audio(np.sin(np.arange(4000) / 9).astype(np.float32), 16_000)]))


def _read_model(path: Path) -> None:
    from triptych.hub.format import read_model

    warnings.simplefilter("ignore")
    saved = read_model(_good(path))
    saved.bundle.text.encode(["the cat"])


def _read_checkpoint(path: Path) -> None:
    from triptych.hub.pipeline import Pipeline

    warnings.simplefilter("ignore")
    for each in (_good(path) / "checkpoints").iterdir():
        if each.name.startswith("bad-"):  # set aside by the trial before
            shutil.rmtree(each)
    Pipeline.from_pretrained(_good(path), device="cpu", check_inputs=False)


def _read_records(path: Path) -> None:
    from triptych.training.logging import read_records

    warnings.simplefilter("ignore")
    read_records(path)


def _read_grid(path: Path) -> None:
    from triptych.scaling.queue import read_grid

    for run in read_grid(path.parent):
        run.command(path.parent)


@dataclass(frozen=True)
class Target:
    """A reader, with the good files that it is tested on by their names."""

    read: Callable[[Path], None]
    files: dict[str, Callable[[], bytes]]
    prepare: Callable[[Path], None] | None = None
    """Makes a folder `good`, of which each trial damages one file."""
    words: Callable[[Path], list[str | Path]] | None = None
    """A command line that reads the damaged file."""
    forge: Callable[[Path], None] = lambda path: None
    """Makes the checksums of `good` those of the damaged file, as an attacker would: other checks must hold."""


def _bundle() -> Any:
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig
    from triptych.tokenizers.text import ByteBPE
    from triptych.vocab import Vocabulary

    text = ByteBPE.train(["the cat sat on the mat"] * 3, 270)
    image = PatchVQ.untrained(PatchVQConfig(resolution=16, patch=8, codes=12))
    return TokenizerBundle(Vocabulary(text=text.vocab_size, image=12, audio=16), text=text, image=image)


def _tokenizers(folder: Path) -> None:
    _bundle().save(folder / "good")


def _built_in(name: str, part: str) -> Callable[[Path], None]:
    def copy(folder: Path) -> None:
        from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS

        shutil.copytree(BUILTIN_TOKENIZERS[name] / part, folder / "good")

    return copy


def _model(folder: Path) -> None:
    from triptych.hub.pipeline import Limits, Pipeline
    from triptych.model.transformer import ModelConfig, Transformer, initialise

    bundle = _bundle()
    model = Transformer(ModelConfig(num_layers=2, width=16, num_heads=2, d_ff=24), bundle.vocabulary)
    initialise(model, 0)
    limits = Limits(seq_len=64, text_slot=16, audio_slot=None)
    Pipeline(model, bundle, limits, card="# a model").save_pretrained(folder / "good")


def _forge_model(path: Path) -> None:
    from triptych.hub.integrity import read_raw_config, write_checksums

    with contextlib.suppress(OSError, ValueError):  # the configuration itself is damaged
        write_checksums(_good(path), read_raw_config(_good(path)))


def _run(folder: Path) -> None:
    """A run of some steps."""
    from train_fakes import make_world, run_it, tiny_run

    run_it(tiny_run(make_world(folder / "world")), folder / "good")


def _forge_checkpoint(path: Path) -> None:
    from triptych.utils.checksums import sha256

    if path.parent.name.startswith("step-") and path.name != "manifest.json":
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["sha256"][path.name] = sha256(path)
        (path.parent / "manifest.json").write_text(json.dumps(manifest))


def _records() -> bytes:
    from triptych.utils.json_lines import to_line

    events = [{"kind": "step", "step": n, "loss": 2.5, "config": {"recipe": "nano"}} for n in range(20)]
    return "".join(map(to_line, events)).encode()


def _grid(folder: Path) -> None:
    from triptych.scaling.queue import GridRun, write_grid

    keys = (f"1e+11 FLOPs 64 x 2 seed {seed}" for seed in range(3))
    write_grid(folder / "good", [GridRun(key, "nano", ("seed=1",), 1e11, 10, 1e6, 6e7, 100) for key in keys])


def _tokenize(path: Path) -> list[str | Path]:
    out = path.parent / "out"
    return ["tokenize", path, "--out", out, "--overwrite", "--workers", "0", "--quiet", "--max-bad", "1"]


def _verify(path: Path) -> list[str | Path]:
    return ["verify", _good(path)]


TARGETS: dict[str, Target] = {
    "jsonl": Target(
        _read_source, {"a.jsonl": lambda: _JSONL, "a.jsonl.gz": lambda: gzip.compress(_JSONL)}, words=_tokenize
    ),
    "zst": Target(_read_source, {"a.jsonl.zst": lambda: zstandard.compress(_JSONL)}, words=_tokenize),
    "manifest": Target(
        _read_source, {"a.json": lambda: b'{"audio_filepath": "a.wav", "duration": 1.5, "text": "x"}\n' * 3}
    ),
    "csv": Target(_read_source, {"a.csv": lambda: _CSV, "a.tsv": lambda: _CSV.replace(b",", b"\t")}, words=_tokenize),
    "txt": Target(_read_source, {"a.txt": lambda: b"one\ntwo\n", "a.txt.gz": lambda: gzip.compress(b"one\ntwo\n")}),
    "tar": Target(
        _read_source,
        {"a.tar": _tar, "b.tar": lambda: _tar(True), "a.tar.gz": lambda: gzip.compress(_tar())},
        words=_tokenize,
    ),
    "parquet": Target(
        _read_source,
        {f"{each}.parquet": lambda each=each: _parquet(each) for each in ("zstd", "none")},
        words=_tokenize,
    ),
    "image": Target(
        _read_image,
        {f"a.{kind.lower()}": lambda kind=kind: _png(kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")},
        words=lambda path: ["generate", "caption", path, "--steps", "1", "--num-tokens", "2", "--quiet"],
    ),
    "audio": Target(
        _read_audio, {f"a.{kind.lower()}": lambda kind=kind: _audio(kind) for kind in ("WAV", "FLAC", "OGG", "MP3")}
    ),
    "dataset": Target(_read_dataset, {}, _dataset, words=_verify),
    "tokenizers": Target(_read_tokenizers, {}, _tokenizers, words=_verify),
    "patch-vq": Target(_read_image_tokenizer, {}, _built_in("scenes-full", "image")),
    "movq": Target(_read_image_tokenizer, {}, _built_in("scenes", "image")),
    "mel-rvq": Target(_read_audio_tokenizer, {}, _built_in("scenes", "audio")),
    "model": Target(_read_model, {}, _model, words=_verify, forge=_forge_model),
    "checkpoint": Target(_read_checkpoint, {}, _run, words=_verify, forge=_forge_checkpoint),
    "records.jsonl": Target(_read_records, {"records.jsonl": _records}),
    "grid.json": Target(_read_grid, {}, _grid),
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

KINDS = ("tracebacks", "hangs", "wrong exit codes", "unclear errors")


@dataclass
class Tally:
    """What became of the trials of one reader."""

    tried: int = 0
    commands: int = 0
    """Trials through the command line, in a process each."""
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    """A line for each."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How many of each of `KINDS`."""
    peak: int = 0

    def add(self, kind: str, line: str) -> None:
        self.kinds[kind] += 1
        self.faults.append(line)

    def __add__(self, other: "Tally") -> "Tally":
        counts = (self.tried + other.tried, self.commands + other.commands, self.refused + other.refused)
        return Tally(*counts, self.faults + other.faults, self.kinds + other.kinds, max(self.peak, other.peak))

    def row(self, name: str) -> dict[str, Any]:
        """A line of the summary."""
        counts = {"target": name, "trials": self.tried, "by command": self.commands, "refused": self.refused}
        return counts | {kind: self.kinds[kind] for kind in KINDS} | {"peak MB": round(self.peak / 1e6)}


class Files:
    """The good files of a target in a folder, of which one at a time is damaged."""

    def __init__(self, name: str, seed: int, work: Path):
        self.target, self.work, self.rng = TARGETS[name], work, random.Random(seed)
        made = {each: make() for each, make in self.target.files.items()}
        for each, content in made.items():
            (work / each).write_bytes(content)
        if self.target.prepare is not None:
            self.target.prepare(work)
            good = sorted((work / "good").rglob("*"))
            made = {str(path.relative_to(work)): path.read_bytes() for path in good if path.is_file()}
        self.good = made

    @contextmanager
    def one_damaged(self) -> Iterator[tuple[Path, bytes]]:
        """A damaged file and its content, for a while."""
        which = self.rng.choice(sorted(self.good))
        path, content = self.work / which, damaged(self.good[which], self.rng)
        path.write_bytes(content)
        if self.rng.random() < 0.7:
            self.target.forge(path)
        try:
            yield path, content
        finally:
            for each, before in self.good.items():  # what reads it may set files aside
                if each == which or not (self.work / each).exists() or self.target.prepare is not None:
                    (self.work / each).parent.mkdir(parents=True, exist_ok=True)
                    (self.work / each).write_bytes(before)


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
                    tally.add("hangs", f"{name}: hang in trial {before} of seed {seed}")
                process.join(0.05)
            tally.tried, tally.refused = tally.tried + counts[0], tally.refused + counts[1]
            tally.peak = max(tally.peak, counts[2])
            reported = Path(work, "faults.txt")
            for line in reported.read_text().splitlines() if reported.exists() else []:
                tally.add(*line.split("\t", 1))
            if process.exitcode not in (0, -9):  # -9 is the hang above
                line = f"{name}: ended with code {process.exitcode} in trial {before} of seed {seed}"
                tally.add("wrong exit codes", line)
            if process.exitcode or reported.exists():
                shutil.copytree(work, keep / f"{name}-{seed}", dirs_exist_ok=True)
        seed += 1
    return tally


def fuzz_commands(name: str, seconds: float, seed: int, keep: Path, most: int = 10**9) -> Tally:
    """The same through the command line: exit codes, and errors of one line."""
    tally, end = Tally(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as work:
        files = Files(name, seed, Path(work))
        words = files.target.words
        while words is not None and time.monotonic() < end and tally.tried < most and len(tally.faults) < _KEPT:
            with files.one_damaged() as (path, content):
                outcome = limited.run(words(path), seconds=_HANG_SECONDS)
            tally.tried, tally.commands = tally.tried + 1, tally.commands + 1
            tally.refused += outcome.code != 0
            tally.peak = max(tally.peak, outcome.peak)
            if kind := _kind_of(outcome):
                where = f"code {outcome.code} of the command in trial {tally.tried}"
                tally.add(kind, f"{name} {path.name}: {where}: {' '.join(outcome.err.split())[-300:]}")
                (keep / f"command-{name}-{path.name}").write_bytes(content)
    return tally


def _kind_of(outcome: limited.Outcome) -> str:
    """What is wrong with the end of a command, one of `KINDS`; nothing if it is as documented."""
    if outcome.hung:
        return "hangs"
    if "Traceback" in outcome.err:
        return "tracebacks"
    if outcome.fault:
        return "wrong exit codes"
    errors = [line for line in outcome.err.splitlines() if line.startswith("triptych: error: ")]
    is_clear = len(errors) == (outcome.code != 0) and printable(outcome.err) == outcome.err
    return "" if is_clear else "unclear errors"


def _trials(name: str, seconds: float, seed: int, most: int, work: Path, counts: Any) -> None:
    from triptych.errors import UserError

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    files = Files(name, seed, work)
    end = time.monotonic() + seconds
    while counts[0] < most and time.monotonic() < end:
        with files.one_damaged() as (path, content):
            try:
                files.target.read(path)
            except UserError as error:
                counts[1] += 1
                if "\n" in str(error) and "Looked for" not in str(error):
                    line = f"{name}: an error of several lines: {str(error)[:200]!r}"
                    _report(work, "unclear errors", line, path.name, content)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                line = f"{type(error).__name__}: {str(error)[:100]!r} in {where.filename}:{where.lineno}"
                _report(work, "tracebacks", f"{name} {path.name}: {line}", path.name, content)
        counts[0] += 1
        counts[2] = limited.peak_of(os.getpid())


def _report(work: Path, kind: str, line: str, name: str, content: bytes) -> None:
    with open(work / "faults.txt", "a") as file:
        file.write(f"{kind}\t{' '.join(line.split())}\n")
    (work / f"fault-{name}").write_bytes(content)


# -- the long form ----------------------------------------------------------------------------------------------------

_COMMAND_SHARE = 0.25  # of the time


def report(rows: Sequence[dict[str, Any]], minutes: float) -> str:
    """The part of the documentation."""
    from measure import markdown_table

    if not rows:
        return ""
    counted = [name for name in rows[0] if name not in ("target", "peak MB")]
    total = {"target": "all", **{name: sum(row[name] for row in rows) for name in counted}}
    table = markdown_table([*rows, {**total, "peak MB": max(row["peak MB"] for row in rows)}])
    return f"`--minutes {minutes:g}`:\n\n{table}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=TARGETS, action="append")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="folder for files that made a fault")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--docs", type=Path, help="the page to write the table to")
    args = parser.parse_args(words)
    from measure import save_results, write_section

    args.keep.mkdir(parents=True, exist_ok=True)
    names, rows = args.only or list(TARGETS), []
    print(f"{'reader':14} {'tried':>8} {'refused':>8} {'faults':>7} {'peak MB':>8}")
    for name in names:
        seconds = 60 * args.minutes / len(names)
        share = _COMMAND_SHARE if TARGETS[name].words else 0.0
        tally = fuzz(name, (1 - share) * seconds, args.seed, args.keep)
        tally = tally + fuzz_commands(name, share * seconds, args.seed, args.keep)
        rows.append(tally.row(name))
        row = f"{tally.tried:8,} {tally.refused:8,} {len(tally.faults):7} {tally.peak / 1e6:8.0f}"
        print(f"{name:14} {row}", *tally.faults[:5], sep="\n  " if tally.faults else "", flush=True)
    save_results(args, minutes=args.minutes, seed=args.seed, targets=rows)
    if args.docs:
        write_section(args.docs, "fuzz", report(rows, args.minutes))
    return int(any(row[kind] for row in rows for kind in KINDS))


if __name__ == "__main__":
    sys.exit(main())
