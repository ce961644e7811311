"""`triptych calibrate`: let a saved model know what usual inputs look like."""

import argparse
import sys
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_float, positive_int
from triptych.cli.command import USE, Command, add_device, add_json, write_json
from triptych.errors import UserError


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Measure validation data with a saved model, and store the distributions in its config.json. From then on, texts, images
and audio that are unlike these data get their result with a warning and a score. The data are files that `triptych
tokenize` reads (not token shards), each INPUT of one task; the model should not have been trained on them.

examples:
  triptych calibrate models/mine validation/photos
  triptych calibrate models/mine val-texts.jsonl "val-images-{00..03}.tar" LibriSpeech/dev-clean
  triptych scenes write raw --split validation && triptych calibrate models/scenes raw/validation/*/"""
    parser.usage = "triptych calibrate MODEL INPUT [INPUT ...] [options]"
    parser.add_argument("model", metavar="MODEL", help="folder of a saved model; made by `triptych export`")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="file, folder, or pattern with * ? or {00..99}")
    parser.add_argument(
        "--num-samples", "-n", type=positive_int, default=1000, metavar="N", help="of each INPUT (default: 1000)"
    )
    parser.add_argument(
        "--false-alarm-rate",
        type=positive_float,
        default=0.005,
        metavar="X",
        help="share of usual inputs that get a warning (default: 0.005)",
    )
    parser.add_argument("--text-key", metavar="KEY", help="column or field of the text (default: text, caption, ...)")
    parser.add_argument("--media-key", metavar="KEY", help="column or field of the image or audio, or of its path")
    parser.add_argument("--per-line", action="store_true", help="every line of a .txt file is a document")
    add_device(parser)
    add_json(parser)


def _run(args: argparse.Namespace) -> None:
    from triptych.hub.source import BUILTIN_MODELS, check_source, hub_name, is_run

    folder = Path(args.model)
    if args.model in BUILTIN_MODELS or (not folder.exists() and hub_name(args.model)):
        raise UserError(f"calibration is stored in a model's folder, and {args.model!r} is the name of a model.")
    check_source(args.model)
    if is_run(folder):
        raise UserError(
            f"{args.model} is a run, whose weights may change: calibrate the model that is exported from it."
        )
    from triptych.data.sources import ReadOptions
    from triptych.hub.calibrate import calibrate
    from triptych.hub.format import store_input_checks
    from triptych.hub.pipeline import Pipeline

    pipe = Pipeline.from_pretrained(folder, device=args.device)
    checks = calibrate(
        pipe,
        args.inputs,
        num_samples=args.num_samples,
        false_alarm_rate=args.false_alarm_rate,
        options=ReadOptions(text_key=args.text_key, media_key=args.media_key, per_line=args.per_line),
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    store_input_checks(folder, checks)
    if args.json is not None:
        write_json(checks.as_json, args.json)
    if args.json != "-":
        _print(checks)


def _print(checks: Any) -> None:
    print(f"{'input':16} {'n':>6}  {'measured':20} {'1 %':>9} {'median':>9} {'99 %':>9}")
    for kind, distribution in checks.distributions.items():
        for number, (part, quantiles) in enumerate(distribution.parts.items()):
            cells = " ".join("        -" if value is None else f"{value:9.3f}" for value in quantiles)
            print(f"{kind if not number else '':16} {distribution.n if not number else '':>6}  {part:20} {cells}")
    print(f"scores above {checks.threshold:g} get a warning")


COMMANDS = {
    "calibrate": Command("let a model recognise inputs that are unlike its data", _describe, _run, USE),
}
