"""`triptych export`: a run's newest weights as a saved model."""

import argparse
from pathlib import Path

from triptych.cli.command import USE, Command, one_of
from triptych.errors import UserError, did_you_mean


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Write the newest checkpoint of a run as a model that `Pipeline.from_pretrained` loads: weights, tokenizers, card.

examples:
  triptych export runs/scenes --out models/scenes
  triptych export runs/mine --out models/mine --dtype float16 --license cc-by-4.0"""
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder of the model")
    parser.add_argument(
        "--dtype",
        **one_of(["float32", "float16", "bfloat16"]),
        default="float32",
        help="of the weights (default: float32)",
    )
    parser.add_argument("--license", metavar="ID", help="of the weights, for the card: an SPDX identifier or a name")
    parser.add_argument(
        "--builtin-tokenizers",
        metavar="NAME",
        help="refer to built-in tokenizers by name instead of copying the run's (for models of this package)",
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is in the folder")


def _run(args: argparse.Namespace) -> None:
    from triptych.hub.source import CONFIG, is_run

    if not is_run(args.run):
        runs = [str(path.parent) for path in Path("runs").glob("*/checkpoints")]
        hint = did_you_mean(str(args.run), runs) if runs else " `triptych train RECIPE --out RUN` makes one."
        raise UserError(f"{args.run} is not the folder of a run.{hint}")
    if is_run(args.out):
        raise UserError(f"{args.out} is the folder of a run; choose another --out.")
    if (args.out / CONFIG).exists() and not args.force:
        raise UserError(f"{args.out} holds a model; use --force to replace it, or another --out.")
    from triptych.hub.export import model_of_run
    from triptych.hub.format import write_model
    from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS

    if args.builtin_tokenizers is not None and args.builtin_tokenizers not in BUILTIN_TOKENIZERS:
        hint = did_you_mean(args.builtin_tokenizers, list(BUILTIN_TOKENIZERS))
        raise UserError(f"there are no built-in tokenizers {args.builtin_tokenizers!r}.{hint}")
    saved = model_of_run(args.run, license=args.license)
    if args.builtin_tokenizers is not None and saved.bundle.folder != BUILTIN_TOKENIZERS[args.builtin_tokenizers]:
        raise UserError(f"the run was trained with other tokenizers than the built-in {args.builtin_tokenizers!r}.")
    write_model(args.out, saved, dtype=args.dtype, builtin_tokenizers=args.builtin_tokenizers)
    print(args.out)


COMMANDS = {"export": Command("write a run's newest weights as a saved model", _describe, _run, USE)}
