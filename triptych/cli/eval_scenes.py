"""`triptych eval scenes`: scores of a model in every direction, on the toy dataset with its exact judge."""

import argparse
from pathlib import Path

from triptych.cli.args import positive_int
from triptych.cli.command import USE, Command, add_device, add_json, one_of, write_json
from triptych.cli.eval_common import OUT_HELP, STOPPED, add_split, progress
from triptych.cli.generate import add_sampling, sampling_arguments
from triptych.errors import UserError

EXAM_MEASURES = ["text-to-image", "caption", "answer", "transcribe", "text-to-speech", "unusual-inputs"]
_WORK = Path("out/exam")  # of a stopped evaluation without --json
_DEFAULT = "scenes"


def _describe_scenes(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Evaluate a model on scenes of the toy dataset that were not in its training data. Prints a table of scores, and keeps
them for `triptych eval report` and `triptych eval compare`.

Stopped by Ctrl-C, it prints the scores so far; the same command resumes.

examples:
  triptych eval scenes --json out/scenes.json
  triptych eval scenes runs/scenes --split validation --images 60 --speech 20
  triptych eval scenes --preset fast
  triptych eval scenes --only text-to-image --guidance-scale 4 --steps 16"""
    parser.usage = "triptych eval scenes [MODEL] [options]"
    parser.add_argument("positional_model", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"built-in name, folder of a saved model or of a run, or hf://OWNER/NAME (default: {_DEFAULT})",
    )
    add_split(parser)
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
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=OUT_HELP)
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

    model = _chosen_model(args)
    check_source(model)
    from triptych.scenes.exam import evaluate

    directions = args.only or EXAM_MEASURES
    to_file = args.json not in (None, "-")
    result = evaluate(
        model,
        device=args.device,
        directions=directions,
        num_images=args.images,
        num_speech=args.speech,
        split=args.split,
        seed=args.seed,
        preset=preset,
        sampling=dict.fromkeys(directions, sampling),
        voices=args.voices,
        out=args.out or "auto",
        work=args.work or (Path(args.json).with_suffix(".exam") if to_file else _WORK),
        progress=progress,
    )
    if args.json != "-":
        print(result.table)
    if args.json is not None:
        write_json(result.as_json, args.json)


def _chosen_model(args: argparse.Namespace) -> str:
    """MODEL, --model MODEL, or the default; two different ones are a mistake."""
    model: str = args.model or args.positional_model or _DEFAULT
    if args.positional_model not in (None, model):
        raise UserError(f"name one model: MODEL is {args.positional_model!r}, --model is {args.model!r}.")
    return model


COMMANDS = {
    "eval scenes": Command(
        "score a model in every direction", _describe_scenes, _run_scenes, group=USE, when_stopped=STOPPED
    )
}
