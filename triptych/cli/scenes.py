"""`triptych scenes`: the built-in toy dataset, as files or ready to train on, and its tokenizers."""

import argparse
from pathlib import Path

from triptych.cli.args import positive_int
from triptych.cli.command import DATA, Command, num_cpus, one_of
from triptych.errors import UserError, did_you_mean

_WHEN_STOPPED = "stopped; run the same command again to resume."

# -- write ------------------------------------------------------------------------------------------------------------


def _describe_write(parser: argparse.ArgumentParser) -> None:
    from triptych.vocab import Task

    parser.description = """\
Write the toy dataset as ordinary files: JSONL for text, WebDataset tars for images and speech.

examples:
  triptych scenes write raw                              1,000 training samples of each task
  triptych scenes write raw --split test --num-samples 200
  triptych tokenize "raw/train/image-text/*.tar" --out data/images

After a stop, the same command resumes."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to write; created if it does not exist")
    parser.add_argument("--split", **one_of(["train", "validation", "test"]), default="train", help="default: train")
    labels = [task.label for task in Task]
    parser.add_argument("--task", **one_of(labels), action="append", help="only this task; may be repeated")
    parser.add_argument(
        "--num-samples", type=positive_int, default=1000, metavar="N", help="samples of each task (default: 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--workers", type=positive_int, default=min(8, num_cpus()), metavar="N", help="processes (default: %(default)s)"
    )


def _run_write(args: argparse.Namespace) -> None:
    from triptych.vocab import Task

    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}.")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from triptych.scenes.write import write_scenes

    tasks = [task for task in Task if not args.task or task.label in args.task]
    columns = (TextColumn("writing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    files = write_scenes(args.folder, args.split, tasks, args.num_samples, args.seed, args.workers)
    num_existing = next(files)  # an unusable folder is an error before the progress bar appears
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(tasks) * args.num_samples, completed=num_existing)
        for num_written in files:
            progress.advance(bar, num_written)
    for task in tasks:
        print(f"{args.folder}/{args.split}/{task.label}: {args.num_samples:,} samples")


# -- make -------------------------------------------------------------------------------------------------------------


def _describe_make(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Make the toy dataset ready for `triptych train scenes`: `scenes write` and `tokenize` in one command.

examples:
  triptych scenes make data/scenes                       20 minutes on two cores
  triptych scenes make data/scenes --images 120000       as in the last runs of the demo model
  triptych scenes make data/scenes --text 500 --images 1000 --speech 300 --validation 50

After a stop, the same command resumes."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to write; created if it does not exist")
    for name, default, what in (
        ("text", 50_000, "training texts"),
        ("images", 60_000, "training images"),
        ("speech", 24_000, "training clips of speech"),
        ("validation", 1_000, "validation samples of each"),
    ):
        parser.add_argument(
            f"--{name}", type=positive_int, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--workers", type=int, default=min(8, num_cpus()), metavar="N", help="processes (default: %(default)s)"
    )


def _run_make(args: argparse.Namespace) -> None:
    from triptych.vocab import Task

    if args.workers < 0:
        raise UserError(f"--workers must not be negative, got {args.workers}.")
    from rich.console import Console

    from triptych.data.tokenize import Progress
    from triptych.scenes.make import make_scenes

    console = Console(stderr=True)
    make_scenes(
        args.folder,
        {Task.TEXT: args.text, Task.IMAGE_TEXT: args.images, Task.AUDIO_TEXT: args.speech},
        args.validation,
        workers=args.workers,
        report=lambda line: console.print(line, highlight=False),
        progress=Progress(console),
    )
    print(f"{args.folder}: train with `triptych train scenes`")


# -- fit --------------------------------------------------------------------------------------------------------------


def _describe_fit(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Train the demo tokenizers on the training split. Text takes seconds, image and audio up to an hour on one core.

example:
  triptych scenes fit --out my-tokenizers

With PARTs, only those are trained. The folder can be used as `--tokenizers` once it holds all three."""
    parser.add_argument("parts", nargs="*", metavar="PART", help="text, image, audio (default: all three)")
    parser.add_argument(
        "--out", required=True, metavar="FOLDER", type=Path, help="where to write; created if it does not exist"
    )


def _run_fit(args: argparse.Namespace) -> None:
    known = ["text", "image", "audio"]
    for part in args.parts:
        if part not in known:
            raise UserError(f"unknown part {part!r}.{did_you_mean(part, known)}")
    from triptych.scenes.fit import fit_tokenizers

    fit_tokenizers(args.out, args.parts or known, report=lambda line: print(line, flush=True))


COMMANDS = {
    "scenes make": Command(
        "make the toy dataset, ready to train on", _describe_make, _run_make, group=DATA, when_stopped=_WHEN_STOPPED
    ),
    "scenes write": Command(
        "write the toy dataset as ordinary files", _describe_write, _run_write, group=DATA, when_stopped=_WHEN_STOPPED
    ),
    "scenes fit": Command("train the demo tokenizers", _describe_fit, _run_fit, group=DATA),
}
