"""Where the results of `triptych generate` go: numbered files, standard output, and what `--json` says of them."""

import argparse
import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triptych.cli.command import check_path_free
from triptych.errors import UserError
from triptych.hub.directions import Direction
from triptych.utils.terminal import printable

SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".webp"),
    "audio": (".wav", ".flac", ".ogg"),
    "text": (".txt",),
}
"""Of the files that are written, by kind; the first is the default."""

Targets = Callable[[int], Path | None]
"""Number of a result -> its file, or None for standard output."""


def targets_of(direction: Direction, args: argparse.Namespace) -> Targets:
    """The files of the results; names that cannot be written are refused."""
    kind, count = direction.output, args.num_samples
    if args.out == "-":
        if args.json == "-" and kind != "text":
            raise UserError("--out - and --json both write to standard output; give one of them a file.")
        if count > 1 and kind != "text":
            raise UserError("--out - writes one result; use --out FILE with --num-samples.")
        return lambda number: None
    if args.out is None:
        return (lambda number: None) if kind == "text" else _free_names(direction.name, SUFFIXES[kind][0], count)
    out = Path(args.out)
    suffixes = SUFFIXES[kind]
    if (
        out.name in ("", "..")
        or args.out.endswith("/")
        or out.is_dir()
        or (out.suffix and out.suffix.lower() not in suffixes)
    ):
        raise UserError(f"`generate {direction.name}` writes {', '.join(suffixes)}, got --out {args.out!r}.")
    out = out if out.suffix else out.with_name(out.name + suffixes[0])
    if kind == "text" or count == 1:
        check_path_free(out, force=args.force)
        return lambda number: out
    paths = [out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(count)]
    for path in paths:
        check_path_free(path, force=args.force)
    return lambda number: paths[number]


def _free_names(stem: str, suffix: str, count: int) -> Targets:
    """Names in the working folder that no file has yet."""
    free = (path for i in itertools.count() if not (path := Path(f"{stem}{f'-{i}' if i else ''}{suffix}")).exists())
    paths = list(itertools.islice(free, count))
    return lambda number: paths[number]


def deliver(
    kind: str, part: Any, target: Path | None, direction: Direction, args: argparse.Namespace, number: int
) -> dict[str, Any]:
    """Print a text, write a file and print its name; returns what `--json` says of it."""
    prints = args.json != "-"
    if kind == "text":
        if kind == direction.output and target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "w" if number == 0 else "a") as file:
                file.write(f"{part}\n")
        elif prints:
            # Beside media on standard output, a text goes to standard error.
            stream = sys.stderr if args.out == "-" and direction.output != "text" else sys.stdout
            print(printable(part) if stream.isatty() else part, file=stream, flush=True)
        return {"text": part}
    if target is None:
        sys.stdout.buffer.write(_bytes_of(part))
        sys.stdout.buffer.flush()
        return {}
    target.parent.mkdir(parents=True, exist_ok=True)
    part.save(target)
    if prints:
        print(target, flush=True)
    return {kind: str(target)}


def _bytes_of(part: Any) -> bytes:
    buffer = io.BytesIO()
    if hasattr(part, "samples"):
        import soundfile

        soundfile.write(buffer, part.samples, part.sample_rate, format="WAV")
    else:
        part.save(buffer, format="PNG")
    return buffer.getvalue()
