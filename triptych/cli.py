"""The command line. A verb is two functions: one describes its arguments, one runs it.

Both import what they need themselves and nothing heavy is imported here, so that `triptych --help` answers at once.
To add a verb, write its two functions and add a line to VERBS.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import triptych
from triptych.errors import UserError, did_you_mean

_HELP = ("-h", "--help", "help")
_PREEMPTED, _INTERRUPTED = 75, 130  # exit codes after SIGTERM and Ctrl-C


@dataclass(frozen=True)
class Verb:
    summary: str
    """One line for the overview."""
    describe: Callable[[argparse.ArgumentParser], None]
    """Adds the description and the arguments."""
    run: Callable[[argparse.Namespace], None]
    when_stopped: str = "stopped."
    """What to say after Ctrl-C or SIGTERM."""


def _one_of(known: list[str]) -> dict[str, Any]:
    """What `choices` of argparse does, but an unknown name is answered with the nearest known one."""

    def parse(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown name {name!r}.{did_you_mean(name, known)}")
        return name

    return {"type": parse, "metavar": "{" + ",".join(known) + "}"}


def _cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- tokenize ---------------------------------------------------------------------------------------------------------

_TOKENIZE = """\
Turn text, captioned pictures or transcribed speech into a data set of token shards.

examples:
  text      triptych tokenize books/*.jsonl.zst --out data/books
            triptych tokenize notes.txt --per-line --out data/notes
  pictures  triptych tokenize photos/ --out data/photos
            triptych tokenize "cc12m-{00000..01242}.tar" --out data/cc12m --image-transform paper --views 2
  speech    triptych tokenize LibriSpeech/train-clean-100 --out data/libri
            triptych tokenize manifest.jsonl --out data/calls --max-seconds 20 --too-long cut

formats, found out by names and first rows, in this order:
"""

_TOKENIZE_RESULT = """\
what comes out:
  OUT/shard-00000.safetensors ...  token ids, with a checksum for every sample
  OUT/manifest.json                what they are; written last, so a folder that has it is complete
  OUT/bad.jsonl                    samples that had to be left out, with the reasons

A run that was stopped or killed goes on when the same command is run again. The result is the same to the byte,
with any number of workers. Look at it with `triptych data show OUT`.
"""


def _describe_tokenize(parser: argparse.ArgumentParser) -> None:
    from triptych.data.sources import FORMATS
    from triptych.vocab import Task

    parser.description = _TOKENIZE + "\n".join(f"  {format.name:12} {format.looks_for}" for format in FORMATS)
    parser.epilog = _TOKENIZE_RESULT
    parser.usage = "triptych tokenize INPUT [INPUT ...] --out OUT [options]"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="file, folder, or pattern with * ? or {00..99}")
    parser.add_argument("--out", required=True, help="folder for the data set; is made if need be")
    parser.add_argument(
        "--tokenizers",
        default="scenes",
        metavar="NAME",
        help="folder of saved tokenizers, or the name of embedded ones (default: %(default)s)",
    )

    reading = parser.add_argument_group("how to read the input")
    reading.add_argument("--format", **_one_of([format.name for format in FORMATS]), help="default: find out")
    reading.add_argument("--task", **_one_of([task.label for task in Task]), help="default: find out")
    reading.add_argument("--text-key", metavar="KEY", help="column or field of the text (default: text, caption, ...)")
    reading.add_argument("--media-key", metavar="KEY", help="column or field of the picture or sound, or of its path")
    reading.add_argument("--per-line", action="store_true", help="every line of a .txt file is a document")

    images = parser.add_argument_group("pictures")
    images.add_argument(
        "--image-transform",
        **_one_of(["pad", "paper"]),
        default="pad",
        help="pad: the whole picture on white; paper: with even odds that or a random crop (default: %(default)s)",
    )
    images.add_argument("--views", type=int, default=1, metavar="N", help="store N random versions of every picture")
    images.add_argument("--seed", type=int, default=0, help="of the random crops (default: %(default)s)")

    sounds = parser.add_argument_group("sounds")
    sounds.add_argument("--max-seconds", type=float, default=30.0, metavar="S", help="default: %(default)g")
    sounds.add_argument(
        "--too-long", choices=["skip", "cut"], default="skip", help="longer ones (default: %(default)s)"
    )

    work = parser.add_argument_group("work")
    work.add_argument(
        "--workers",
        type=int,
        default=min(8, _cpus()),
        metavar="N",
        help="processes; 0 works in this one (default: %(default)s)",
    )
    work.add_argument("--samples-per-shard", type=int, default=4096, metavar="N", help="default: %(default)s")
    work.add_argument(
        "--max-bad",
        type=float,
        default=0.01,
        metavar="FRACTION",
        help="stop when more samples than this are bad; 10 always may be, unless it is 0 (default: %(default)s)",
    )
    work.add_argument("--overwrite", action="store_true", help="begin anew, whatever data set is in OUT")


def _run_tokenize(args: argparse.Namespace) -> None:
    from rich.console import Console

    from triptych.data.tokenize import Progress, TokenizeSettings, tokenize

    given = vars(args)
    apart = {name: given.pop(name) for name in ("out", "workers", "max_bad", "overwrite")}
    settings = TokenizeSettings(**{**given, "inputs": tuple(args.inputs)})
    manifest = tokenize(settings, **apart, progress=Progress(Console(stderr=True)))
    kind = manifest.task.lower().replace("_", "-")
    print(f"{apart['out']}: {manifest.num_samples:,} {kind} samples, {manifest.num_tokens:,} tokens")


# -- data -------------------------------------------------------------------------------------------------------------


def _describe_show(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Show what data sets hold: sizes, lengths, and some samples decoded.

examples:
  triptych data show data/photos
  triptych data show data/                        all data sets below a folder
  triptych data show data/photos --render out -n 8"""
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a data set, or a folder with several")
    parser.add_argument("-n", type=int, default=4, metavar="N", help="number of examples (default: %(default)s)")
    parser.add_argument("--render", metavar="DIR", help="write the examples there as .txt, .png and .wav files")
    parser.add_argument("--tokenizers", metavar="NAME", help="default: where they were when the data set was made")


def _run_show(args: argparse.Namespace) -> None:
    from rich.console import Console

    from triptych.data.show import find_datasets, names_of, render, show

    datasets = find_datasets(args.folders)
    show(datasets, Console(), examples=args.n, tokenizers=args.tokenizers)
    if args.render:
        written = [
            path
            for data, name in zip(datasets, names_of(datasets))
            for path in render(data, args.render, name=name, count=args.n, tokenizers=args.tokenizers)
        ]
        print(f"wrote {len(written)} files to {args.render}")


def _describe_verify(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare every shard with the SHA-256 in its manifest. Exit code 3 if one is damaged or missing."
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a data set, or a folder with several")


def _run_verify(args: argparse.Namespace) -> None:
    from rich.console import Console

    from triptych.data.show import find_datasets, verify

    verify(find_datasets(args.folders), Console())


# -- tokenizers -------------------------------------------------------------------------------------------------------


def _describe_tokenizers(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Gather the paper's tokenizers in one folder, for `triptych tokenize --tokenizers FOLDER`.

examples:
  triptych tokenizers make paper --text cl100k_base.tiktoken --image movqgan_270M.ckpt --audio higgs-audio-v2-tokenizer/
  triptych tokenizers make text-only --text cl100k_base

A part that is not given can be added later; its ids are kept free, so that data made now stays usable."""
    parser.add_argument("folder", metavar="FOLDER", help="where to write; is made if need be")
    parser.add_argument("--text", metavar="SOURCE", help="cl100k_base, a ranks file, or a folder with one")
    parser.add_argument("--image", metavar="SOURCE", help="original SBER-MoVQGAN .ckpt, or a folder of diffusers")
    parser.add_argument("--image-size", **_one_of(["67M", "102M", "270M"]), default="270M", help="of the .ckpt (270M)")
    parser.add_argument("--resolution", type=int, default=256, metavar="PIXELS", help="default: %(default)s")
    parser.add_argument("--audio", metavar="SOURCE", help="folder or hub name")
    parser.add_argument("--codec", **_one_of(["higgs", "dac"]), default="higgs", help="default: %(default)s")
    parser.add_argument("--codebooks", type=int, default=4, metavar="K", help="the first K (default: %(default)s)")


def _run_tokenizers(args: argparse.Namespace) -> None:
    from pathlib import Path

    from triptych.tokenizers.paper import paper_bundle

    given = vars(args)
    folder = Path(given.pop("folder"))
    bundle = paper_bundle(**given)
    bundle.save(folder)
    parts = ", ".join(bundle.fingerprints)
    print(f"{folder}: {parts}; a vocabulary of {bundle.vocabulary.size:,} ids")


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
    parser.add_argument("--split", **_one_of(["train", "validation", "test"]), default="train", help="default: train")
    labels = [task.label for task in Task]
    parser.add_argument("--task", **_one_of(labels), action="append", help="one task only; may be repeated")
    parser.add_argument("--samples", type=int, default=1000, metavar="N", help="of each task (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=min(8, _cpus()), metavar="N", help="default: %(default)s")


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
    parser.add_argument("--split", **_one_of(["train", "validation", "test"]), default="test", help="default: test")
    parser.add_argument("--pictures", type=int, default=300, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--sounds", type=int, default=100, metavar="N", help="0 leaves speech out (default: %(default)s)"
    )
    parser.add_argument("--sheet", metavar="FILE", help="write a picture of originals above round trips")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")


def _run_eval_tokenizers(args: argparse.Namespace) -> None:
    import json
    from pathlib import Path

    from triptych.eval.tokenizers import check_tokenizers, contact_sheet
    from triptych.tokenizers.bundle import TokenizerBundle

    if args.pictures < 1 or args.sounds < 0:
        raise UserError(
            f"--pictures must be at least 1 and --sounds at least 0, got {args.pictures} and {args.sounds}."
        )
    bundle = TokenizerBundle.load(args.tokenizers)
    results = check_tokenizers(bundle, args.pictures, args.sounds, args.split)
    if args.sheet:
        Path(args.sheet).parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(bundle, args.split).save(args.sheet)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


# -- demo -------------------------------------------------------------------------------------------------------------


def _describe_demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the embedded world and what its tokenizers keep of it, as one page to look at and listen to."
    )
    parser.add_argument("--out", default="out/demo", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--sentences", type=int, default=6, metavar="N", help="default: %(default)s")


def _run_demo(args: argparse.Namespace) -> None:
    from pathlib import Path

    from rich.console import Console

    from triptych.demo import run_demo

    if args.sentences < 1:
        raise UserError(f"--sentences must be at least 1, got {args.sentences}.")
    run_demo(Path(args.out), args.sentences, Console())


# -- all verbs --------------------------------------------------------------------------------------------------------

VERBS = {
    "demo": Verb("see and hear the embedded world", _describe_demo, _run_demo),
    "tokenize": Verb(
        "turn text, pictures or speech into a data set",
        _describe_tokenize,
        _run_tokenize,
        when_stopped="stopped; run the same command again to go on.",
    ),
    "data show": Verb("look into a data set, and decode samples back to files", _describe_show, _run_show),
    "data verify": Verb("check a data set for damage", _describe_verify, _run_verify),
    "tokenizers make": Verb("gather the paper's tokenizers in a folder", _describe_tokenizers, _run_tokenizers),
    "scenes write": Verb("write the embedded world as ordinary files", _describe_write, _run_write),
    "scenes fit": Verb("fit the embedded tokenizers anew", _describe_fit, _run_fit),
    "eval tokenizers": Verb("measure what tokenizers keep", _describe_eval_tokenizers, _run_eval_tokenizers),
}


def _overview() -> str:
    verbs = "\n".join(f"  triptych {name:16} {verb.summary}" for name, verb in VERBS.items())
    return f"""\
Triptych: one masked-diffusion model for text, images and audio.

{verbs}

start with:
  triptych demo                                  one sentence as text, picture and speech
  triptych tokenize photos/ --out data/photos    pictures with captions (cat.png + cat.txt)
  triptych data show data/photos                 see what came out

`triptych VERB --help` explains a verb, with examples. `triptych --version` prints the version."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and the nearest thing that would be right."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        known = [option for action in self._actions for option in action.option_strings]
        # Before argparse looks: it would complain first that --out is missing where --ouput was given.
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                raise UserError(f"unknown option {name}.{did_you_mean(name, known)}")
        args, extra = self.parse_known_args(words)
        if extra:
            raise UserError(f"unexpected argument {extra[0]!r}.{did_you_mean(extra[0], known)}")
        return args


def _choose(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The verb that the words begin with, and the words behind it."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in VERBS:
            return name, words[length:]
    members = [name for name in VERBS if name.startswith(f"{words[0]} ")]
    if members and words[1:2] and words[1] in _HELP:
        raise SystemExit(print("\n".join(f"triptych {name:16} {VERBS[name].summary}" for name in members)))
    if members and len(words) == 1:
        raise UserError(f"`triptych {words[0]}` needs a second word: {' or '.join(members)}.")
    if members:
        raise UserError(f"unknown verb {' '.join(words[:2])!r}.{did_you_mean(' '.join(words[:2]), members)}")
    raise UserError(f"unknown verb {words[0]!r}.{did_you_mean(words[0], list(VERBS))}")


def parse(words: Sequence[str]) -> tuple[Verb, argparse.Namespace]:
    """What a command line asks for."""
    name, rest = _choose(words)
    verb = VERBS[name]
    parser = _Parser(
        f"triptych {name}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.describe(parser)
    return verb, parser.parse(rest)


class _Terminated(BaseException):
    """SIGTERM, as an exception: like Ctrl-C it must pass through everything that catches errors."""


def _raise_terminated(*_: Any) -> NoReturn:
    raise _Terminated


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    verb = None
    try:
        if not words or words in (["-h"], ["--help"], ["help"]):
            print(_overview())
            return 0
        if words[0] == "help":  # `triptych help tokenize`
            words = [*words[1:], "--help"]
        if words[0] in ("-V", "--version"):
            print(f"triptych {triptych.__version__}")
            return 0
        verb, args = parse(words)
        verb.run(args)
        sys.stdout.flush()
        return 0
    except UserError as error:
        print(f"triptych: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Who read our output has had enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A folder that cannot be made, a file that cannot be written: what the user named, or a full disk.
        where = f": {error.filename}" if error.filename else ""
        print(f"triptych: error: {error.strerror or error}{where}", file=sys.stderr)
        return UserError.exit_code
    except (KeyboardInterrupt, _Terminated) as stop:
        print(f"triptych: {verb.when_stopped if verb else 'stopped.'}", file=sys.stderr)
        return _PREEMPTED if isinstance(stop, _Terminated) else _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
