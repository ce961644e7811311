"""`triptych tokenizers make`: the paper's tokenizers in one folder."""

import argparse
from pathlib import Path

from triptych.cli.command import DATA, Command, one_of


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Collect the paper's tokenizers in one folder, for `triptych tokenize --tokenizers FOLDER`.

examples:
  triptych tokenizers make tokenizers/paper --text cl100k_base.tiktoken --image movqgan_270M.ckpt --audio higgs-v2/
  triptych tokenizers make text-only --text cl100k_base

A part can be added later: its ids are reserved, so datasets made now stay usable."""
    parser.add_argument("folder", metavar="FOLDER", help="where to write")
    parser.add_argument("--text", metavar="SOURCE", help="cl100k_base, a ranks file, or a folder with one")
    parser.add_argument("--image", metavar="SOURCE", help="original SBER-MoVQGAN .ckpt, or a diffusers folder")
    parser.add_argument("--image-size", **one_of(["67M", "102M", "270M"]), default="270M", help="of the .ckpt (270M)")
    parser.add_argument("--resolution", type=int, default=256, metavar="PIXELS", help="default: %(default)s")
    parser.add_argument("--audio", metavar="SOURCE", help="folder or hub name")
    parser.add_argument("--codec", **one_of(["higgs", "dac"]), default="higgs", help="default: %(default)s")
    parser.add_argument("--codebooks", type=int, default=4, metavar="K", help="the first K (default: %(default)s)")


def _run(args: argparse.Namespace) -> None:
    from triptych.tokenizers.paper import paper_bundle

    options = {name: value for name, value in vars(args).items() if name not in ("folder", "quiet")}
    bundle = paper_bundle(**options)
    bundle.save(Path(args.folder))
    parts = ", ".join(bundle.fingerprints)
    print(f"{args.folder}: {parts}; a vocabulary of {bundle.vocabulary.size:,} ids")


COMMANDS = {"tokenizers make": Command("collect the paper's tokenizers in a folder", _describe, _run, DATA)}
