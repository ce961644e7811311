"""`triptych data show`: what datasets hold."""

import argparse

from triptych.cli.args import positive_int
from triptych.cli.command import DATA, Command


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Show what datasets hold: sizes, lengths, and some decoded samples.

examples:
  triptych data show data/photos
  triptych data show data/                        all datasets below a folder
  triptych data show data/photos --render out -n 8"""
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a dataset, or a folder with several")
    parser.add_argument(
        "--num-samples", "-n", type=positive_int, default=4, metavar="N", help="samples to show (default: %(default)s)"
    )
    parser.add_argument("--render", metavar="DIR", help="write these samples there as .txt, .png and .wav files")
    parser.add_argument("--tokenizers", metavar="NAME", help="default: those the dataset was made with")


def _run(args: argparse.Namespace) -> None:
    from rich.console import Console

    from triptych.data.show import find_datasets, names_of, render, show

    datasets = find_datasets(args.folders)
    show(datasets, Console(), examples=args.num_samples, tokenizers=args.tokenizers)
    if args.render:
        written = [
            path
            for data, name in zip(datasets, names_of(datasets))
            for path in render(data, args.render, name=name, count=args.num_samples, tokenizers=args.tokenizers)
        ]
        print(f"wrote {len(written)} files to {args.render}")


COMMANDS = {"data show": Command("show what a dataset holds, decode samples to files", _describe, _run, DATA)}
