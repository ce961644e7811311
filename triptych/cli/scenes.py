"""The embedded world: demo, scenes write, scenes fit, eval tokenizers."""

import argparse

from triptych.cli.command import Command, num_cpus, one_of
from triptych.errors import UserError, did_you_mean

# -- demo -------------------------------------------------------------------------------------------------------------


def _describe_demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The embedded model in every direction, on scenes it never saw, and a nano model as it learns: "
        "one page to look at and listen to."
    )
    parser.add_argument("--out", default="out/demo", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--model", default="scenes", help="embedded or saved model (default: %(default)s)")
    parser.add_argument(
        "--nano-steps", type=int, default=200, metavar="N", help="0 leaves the training out (default: %(default)s)"
    )


def _run_demo(args: argparse.Namespace) -> None:
    from pathlib import Path

    from rich.console import Console

    from triptych.scenes.demo import run_demo

    if args.nano_steps < 0:
        raise UserError(f"--nano-steps must not be negative, got {args.nano_steps}.")
    run_demo(Path(args.out), Console(), args.nano_steps, args.model)


# -- scenes -----------------------------------------------------------------------------------------------------------


def _describe_write(parser: argparse.ArgumentParser) -> None:
    from triptych.vocab import Task

    parser.description = """\
Write the embedded world as ordinary files: JSONL for text, WebDataset tars for pictures and speech.

examples:
  triptych scenes write raw                              1,000 training samples of each task
  triptych scenes write raw --split test --samples 200
  triptych tokenize "raw/train/image-text/*.tar" --out data/pictures

A run that was stopped goes on when the same command is run again."""
    parser.add_argument("folder", metavar="FOLDER", help="where to write; is made if need be")
    parser.add_argument("--split", **one_of(["train", "validation", "test"]), default="train", help="default: train")
    labels = [task.label for task in Task]
    parser.add_argument("--task", **one_of(labels), action="append", help="one task only; may be repeated")
    parser.add_argument("--samples", type=int, default=1000, metavar="N", help="of each task (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=min(8, num_cpus()), metavar="N", help="default: %(default)s")


def _run_write(args: argparse.Namespace) -> None:
    from pathlib import Path

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from triptych.scenes.write import write_scenes
    from triptych.vocab import Task

    if args.samples < 1 or args.seed < 0 or args.workers < 1:
        given = f"{args.samples}, {args.seed} and {args.workers}"
        raise UserError(f"--samples must be at least 1, --seed 0 and --workers 1, got {given}.")
    tasks = [task for task in Task if not args.task or task.label in args.task]
    columns = (TextColumn("writing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    files = write_scenes(Path(args.folder), args.split, tasks, args.samples, args.seed, args.workers)
    done_before = next(files)  # so that a folder that cannot be used is found before a bar is drawn
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(tasks) * args.samples, completed=done_before)
        for done in files:
            progress.advance(bar, done)
    for task in tasks:
        print(f"{args.folder}/{args.split}/{task.label}: {args.samples:,} samples")


def _describe_make(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Make the embedded world's data sets, ready for `triptych train scenes`: `scenes write` and `tokenize` in one go.

examples:
  triptych scenes make data/scenes                       20 minutes on two cores
  triptych scenes make data/scenes --pictures 120000     as the shipped model had in its last runs
  triptych scenes make data/scenes --text 500 --pictures 1000 --speech 300 --validation 50

A run that was stopped goes on when the same command is run again."""
    parser.add_argument("folder", metavar="FOLDER", help="where to write; is made if need be")
    parser.add_argument("--text", type=int, default=50_000, metavar="N", help="training texts (default: %(default)s)")
    parser.add_argument("--pictures", type=int, default=60_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--speech", type=int, default=24_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--validation", type=int, default=1000, metavar="N", help="of each (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=min(8, num_cpus()), metavar="N", help="default: %(default)s")


def _run_make(args: argparse.Namespace) -> None:
    from pathlib import Path

    from rich.console import Console

    from triptych.data.tokenize import Progress
    from triptych.scenes.make import make_scenes
    from triptych.vocab import Task

    numbers = {Task.TEXT: args.text, Task.IMAGE_TEXT: args.pictures, Task.AUDIO_TEXT: args.speech}
    if min(*numbers.values(), args.validation) < 1 or args.workers < 0:
        raise UserError("--text, --pictures, --speech and --validation must be at least 1, and --workers at least 0.")
    console = Console(stderr=True)
    make_scenes(
        Path(args.folder),
        numbers,
        args.validation,
        workers=args.workers,
        report=lambda line: console.print(line, highlight=False),
        progress=Progress(console),
    )
    print(f"{args.folder}: train it with `triptych train scenes`")


def _describe_fit(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Fit the embedded tokenizers anew on the training split: text in seconds, image and audio in up to an hour of one core.

example:
  triptych scenes fit --out my-tokenizers

With one PART only that part is written; the folder can be used once all three are there."""
    parts = ["text", "image", "audio"]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)} (default: all three)")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder of the bundle; is made if need be")


def _run_fit(args: argparse.Namespace) -> None:
    from pathlib import Path

    from triptych.scenes.fit import FITS, fit

    for part in args.parts:
        if part not in FITS:
            raise UserError(f"unknown part {part!r}.{did_you_mean(part, list(FITS))}")
    fit(Path(args.out), args.parts or list(FITS), report=lambda line: print(line, flush=True))


# -- eval -------------------------------------------------------------------------------------------------------------


def _describe_eval_tokenizers(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Measure what tokenizers keep of held-out scenes: pictures by PSNR and the judge, speech by Whisper and DNSMOS.

example:
  triptych eval tokenizers --json out/tokenizers.json"""
    parser.add_argument("--tokenizers", default="scenes", metavar="NAME", help="folder or name (default: %(default)s)")
    parser.add_argument("--split", **one_of(["train", "validation", "test"]), default="test", help="default: test")
    parser.add_argument("--pictures", type=int, default=300, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--sounds", type=int, default=100, metavar="N", help="0 leaves speech out (default: %(default)s)"
    )
    parser.add_argument("--sheet", metavar="FILE", help="write a picture of originals above round trips")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")


def _run_eval_tokenizers(args: argparse.Namespace) -> None:
    import json
    from pathlib import Path

    from triptych.scenes.tokenizer_report import check_tokenizers, contact_sheet
    from triptych.tokenizers.bundle import TokenizerBundle

    if args.pictures < 1 or args.sounds < 0:
        raise UserError(
            f"--pictures must be at least 1 and --sounds at least 0, got {args.pictures} and {args.sounds}."
        )
    if args.sheet and not args.sheet.lower().endswith(".png"):
        raise UserError(f"--sheet must be the name of a .png file, got {args.sheet!r}.")
    bundle = TokenizerBundle.load(args.tokenizers)
    results = check_tokenizers(bundle, args.pictures, args.sounds, args.split)
    if args.sheet:
        Path(args.sheet).parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(bundle, args.split).save(args.sheet)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


def _describe_eval_scenes(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Examine a model of the embedded world in every direction, on scenes it has never seen: a table, and JSON.

examples:
  triptych eval scenes --json out/scenes.json
  triptych eval scenes --model runs/scenes --split validation --pictures 60 --sounds 20
  triptych eval scenes --preset fast
  triptych eval scenes --only text-to-image --guidance-scale 4 --steps 16"""
    parser.add_argument("--model", default="scenes", help="embedded name, saved model or run (default: %(default)s)")
    parser.add_argument("--split", **one_of(["train", "validation", "test"]), default="test", help="default: test")
    parser.add_argument("--pictures", type=int, default=600, metavar="N", help="default: %(default)s")
    parser.add_argument("--sounds", type=int, default=200, metavar="N", help="default: %(default)s")
    directions = ["text-to-image", "image-to-text", "questions", "speech-to-text", "text-to-speech"]
    parser.add_argument("--only", **one_of(directions), action="append", help="one direction; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    parser.add_argument("--preset", help="how to sample: scenes, fast or paper (default: the model's own)")
    group = parser.add_argument_group("sampling, with --only (default: the preset's)")
    group.add_argument("--sampler")
    group.add_argument("--steps", dest="num_steps", type=int)
    group.add_argument("--temperature", type=float)
    group.add_argument("--top-p", type=float)
    group.add_argument("--guidance-scale", type=float)
    group.add_argument("--best-of", type=int, metavar="N")


def _run_eval_scenes(args: argparse.Namespace) -> None:
    import json
    import sys
    from pathlib import Path

    from triptych.hub.pipeline import Pipeline
    from triptych.scenes.exam import DIRECTIONS, examine
    from triptych.training.logging import environment

    if args.pictures < 1 or args.sounds < 1 or args.seed < 0:
        raise UserError("--pictures and --sounds must be at least 1, and --seed not negative.")
    names = ("sampler", "num_steps", "temperature", "top_p", "guidance_scale", "best_of")
    changed = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if changed and not args.only:
        raise UserError("how to sample can be changed for one direction at a time: add --only DIRECTION.")
    directions = args.only or DIRECTIONS
    if args.preset is not None:
        changed["preset"] = args.preset
    found = examine(
        Pipeline.from_pretrained(args.model),
        args.pictures,
        args.sounds,
        split=args.split,
        directions=directions,
        seed=args.seed,
        report=lambda line: print(line, file=sys.stderr, flush=True),
        settings=dict.fromkeys(directions, changed),
    )
    print(found.table)
    if args.json:
        results = {"model": args.model, "environment": environment(), "changed": changed, **found.as_json}
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


# -- all of them ------------------------------------------------------------------------------------------------------

COMMANDS = {
    "demo": Command("see and hear the embedded model in every direction", _describe_demo, _run_demo),
    "scenes write": Command(
        "write the embedded world as ordinary files",
        _describe_write,
        _run_write,
        when_stopped="stopped; run the same command again to go on.",
    ),
    "scenes make": Command(
        "make the embedded world's data sets, ready to train on",
        _describe_make,
        _run_make,
        when_stopped="stopped; run the same command again to go on.",
    ),
    "scenes fit": Command("fit the embedded tokenizers anew", _describe_fit, _run_fit),
    "eval scenes": Command("examine a model in every direction", _describe_eval_scenes, _run_eval_scenes),
    "eval tokenizers": Command("measure what tokenizers keep", _describe_eval_tokenizers, _run_eval_tokenizers),
}
