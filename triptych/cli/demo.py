"""`triptych demo`: the demo model in every direction, as an HTML page."""

import argparse
from pathlib import Path

from triptych.cli.command import USE, Command, add_device, add_model
from triptych.errors import UserError


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Show what one model can do: images from text, captions, answers, speech, transcripts, infilling. Then train a small
model for a minute. The result is an HTML page with images, audio players and a loss chart.

examples:
  triptych demo
  triptych demo --out /tmp/demo --nano-steps 0"""
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="FOLDER", help="default: %(default)s")
    add_model(parser)
    parser.add_argument(
        "--nano-steps",
        type=int,
        default=200,
        metavar="N",
        help="training steps of the small model; 0 skips the training (default: %(default)s)",
    )
    add_device(parser)


def _run(args: argparse.Namespace) -> None:
    if args.nano_steps < 0:
        raise UserError(f"--nano-steps must not be negative, got {args.nano_steps}.")
    from triptych.hub.source import check_source

    check_source(args.model)
    from rich.console import Console

    from triptych.scenes.demo import run_demo

    page = run_demo(args.out, Console(soft_wrap=True, quiet=args.quiet), args.nano_steps, args.model, args.device)
    if args.quiet:
        print(page)


COMMANDS = {"demo": Command("see and hear the demo model in every direction", _describe, _run, group=USE)}
