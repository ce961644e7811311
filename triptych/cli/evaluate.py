"""`triptych eval`: scores of a model in every direction, and what tokenizers preserve."""

import argparse
import sys
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_int
from triptych.cli.command import DATA, USE, Command, add_device, add_json, add_model, one_of, write_json
from triptych.cli.generate import add_sampling, sampling_arguments
from triptych.errors import UserError

EXAM_MEASURES = ["text-to-image", "caption", "answer", "transcribe", "text-to-speech", "unusual-inputs"]
_WORK = Path("out/exam")  # of a stopped evaluation without --json


def _add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--split", **one_of(["train", "validation", "test"]), default="test", help="default: test")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# -- scenes -----------------------------------------------------------------------------------------------------------


def _describe_scenes(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Evaluate a model on scenes of the toy dataset that were not in its training data. Prints a table of scores.

Stopped by Ctrl-C, it prints the scores so far; the same command resumes.

examples:
  triptych eval scenes --json out/scenes.json
  triptych eval scenes --model runs/scenes --split validation --images 60 --speech 20
  triptych eval scenes --preset fast
  triptych eval scenes --only text-to-image --guidance-scale 4 --steps 16"""
    add_model(parser)
    _add_split(parser)
    parser.add_argument(
        "--images", type=positive_int, default=600, metavar="N", help="samples with images (default: 600)"
    )
    parser.add_argument(
        "--speech", type=positive_int, default=200, metavar="N", help="samples with speech (default: 200)"
    )
    parser.add_argument("--only", **one_of(EXAM_MEASURES), action="append", help="only this direction; may be repeated")
    parser.add_argument(
        "--voices",
        type=Path,
        metavar="FOLDER",
        help="voices of reference speech, from `triptych scenes voices` (default: the built-in ones)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="keeps results of single samples until the evaluation is complete (default: next to the --json file, "
        f"else {_WORK})",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    add_device(parser)
    add_json(parser)
    add_sampling(parser, "sampling (default: the model's preset); all but --preset need --only")


def _run_scenes(args: argparse.Namespace) -> None:
    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}.")
    sampling = sampling_arguments(args)
    preset = sampling.pop("preset", None)
    if sampling and not args.only:
        raise UserError("sampling options other than --preset differ by direction: add --only DIRECTION.")
    from triptych.hub.source import check_source

    check_source(args.model)
    from triptych.scenes.exam import evaluate

    directions = args.only or EXAM_MEASURES
    to_file = args.json not in (None, "-")
    result = evaluate(
        args.model,
        device=args.device,
        directions=directions,
        num_images=args.images,
        num_speech=args.speech,
        split=args.split,
        seed=args.seed,
        preset=preset,
        sampling=dict.fromkeys(directions, sampling),
        voices=args.voices,
        work=args.work or (Path(args.json).with_suffix(".exam") if to_file else _WORK),
        progress=_progress,
    )
    if args.json != "-":
        print(result.table)
    if args.json is not None:
        write_json(result.as_json, args.json)


# -- elbo -------------------------------------------------------------------------------------------------------------


def _describe_elbo(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
The negative ELBO of a model on data: nats per token of every modality, joint ("image") and conditional
("image|text"), with 95 % intervals, and bits per byte of text. Needs no judge.

examples:
  triptych eval elbo runs/mine                          on the validation data of the run
  triptych eval elbo models/mine --data data/photos data/notes --sequences 1000"""
    parser.add_argument("model", metavar="MODEL", help="built-in name, folder of a saved model or of a run")
    parser.add_argument("--data", nargs="+", metavar="FOLDER", help="datasets (default: validation data of the run)")
    parser.add_argument("--sequences", type=positive_int, default=256, metavar="N", help="of each dataset (256)")
    parser.add_argument("--draws", type=positive_int, default=4, metavar="N", help="masks per sequence (4)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    add_device(parser)
    add_json(parser)


def _run_elbo(args: argparse.Namespace) -> None:
    from triptych.hub.source import check_source, is_run

    check_source(args.model)
    if args.data is None and not is_run(Path(args.model)):
        raise UserError(f"{args.model} is not a run, so it has no validation data: add --data FOLDER ...")
    from triptych.data.shards import find_dataset_folders
    from triptych.hub.pipeline import Pipeline
    from triptych.training.elbo import evaluate_elbo
    from triptych.training.setup import read_run_config

    options: dict[str, Any] = {}
    folders = find_dataset_folders(args.data or [])
    if args.data is None:
        config = read_run_config(Path(args.model))
        if not config.validation_folders:
            raise UserError(f"the run {args.model} has no validation data: add --data FOLDER ...")
        folders = config.validation_folders
        options = {"loader": config.loader, "held_out": not config.validation_data}
    pipe = Pipeline.from_pretrained(args.model, device=args.device)
    settings = {"sequences": args.sequences, "draws": args.draws, "seed": args.seed}
    result = evaluate_elbo(pipe.model, pipe.bundle, folders, device=pipe.device, **settings, **options)
    if args.json != "-":
        print(f"{'':16} {'nats per token':>18}   {'bits per byte':>16}   tokens")
        for name, value in result.terms.items():
            bits = result.bits_per_byte.get(name)
            shown = "" if bits is None else f"{bits[0]:.3f} ± {bits[1]:.3f}"
            print(f"{name:16} {value.nats_per_token:10.3f} ± {value.margin:.3f}   {shown:>16}   {value.tokens:,}")
    if args.json is not None:
        terms = {name: value.as_json for name, value in result.terms.items()}
        for name, (value_in_bits, margin) in result.bits_per_byte.items():
            terms[name] |= {"bits_per_byte": value_in_bits, "bits_per_byte_margin": margin}
        write_json({"model": str(args.model), "data": list(folders), **settings, "terms": terms}, args.json)


# -- tokenizers -------------------------------------------------------------------------------------------------------


def _describe_tokenizers(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Measure what tokenizers preserve of the toy dataset: images by PSNR and the judge, speech by Whisper and DNSMOS.

example:
  triptych eval tokenizers --json out/tokenizers.json --sheet out/tokenizers.png"""
    parser.add_argument(
        "--tokenizers", default="scenes", metavar="TOKENIZERS", help="built-in name or folder (default: %(default)s)"
    )
    _add_split(parser)
    parser.add_argument("--images", type=positive_int, default=300, metavar="N", help="default: %(default)s")
    parser.add_argument("--speech", type=int, default=100, metavar="N", help="0 skips speech (default: %(default)s)")
    parser.add_argument(
        "--voices",
        type=Path,
        metavar="FOLDER",
        help="folder of voices; --speech sentences in each (default: the built-in ones)",
    )
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="write a .png of originals above reconstructions")
    add_json(parser)


def _run_tokenizers(args: argparse.Namespace) -> None:
    if args.speech < 0:
        raise UserError(f"--speech must not be negative, got {args.speech}.")
    if args.sheet is not None and args.sheet.suffix.lower() != ".png":
        raise UserError(f"--sheet must be a .png file, got {str(args.sheet)!r}.")
    from triptych.scenes.exam_samples import Voices, world_with_images_of
    from triptych.scenes.tokenizer_report import evaluate_tokenizers, scenes_sheet
    from triptych.tokenizers.bundle import TokenizerBundle

    bundle = TokenizerBundle.load(args.tokenizers)
    world, voices = world_with_images_of(bundle.image.resolution), Voices.find(args.voices)
    progress = _progress if args.json == "-" else lambda line: print(line, flush=True)
    results = evaluate_tokenizers(bundle, args.images, args.speech, args.split, world, voices.folder, progress)
    if args.sheet is not None:
        args.sheet.parent.mkdir(parents=True, exist_ok=True)
        scenes_sheet(bundle, args.split, world=world).save(args.sheet)
    if args.json is not None:
        write_json(results, args.json)


COMMANDS = {
    "eval scenes": Command(
        "score a model in every direction",
        _describe_scenes,
        _run_scenes,
        group=USE,
        when_stopped="stopped; the same command resumes.",
    ),
    "eval elbo": Command("negative ELBO of a model on any data", _describe_elbo, _run_elbo, group=USE),
    "eval tokenizers": Command("measure what tokenizers preserve", _describe_tokenizers, _run_tokenizers, group=DATA),
}
