"""From raw files to data sets: tokenize, data show, tokenizers make."""

import argparse

from triptych.cli.command import Command, num_cpus, one_of

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
    reading.add_argument("--format", **one_of([format.name for format in FORMATS]), help="default: find out")
    reading.add_argument("--task", **one_of([task.label for task in Task]), help="default: find out")
    reading.add_argument("--text-key", metavar="KEY", help="column or field of the text (default: text, caption, ...)")
    reading.add_argument("--media-key", metavar="KEY", help="column or field of the picture or sound, or of its path")
    reading.add_argument("--per-line", action="store_true", help="every line of a .txt file is a document")

    images = parser.add_argument_group("pictures")
    images.add_argument(
        "--image-transform",
        **one_of(["pad", "paper"]),
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
        default=min(8, num_cpus()),
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
    placement = {name: given.pop(name) for name in ("out", "workers", "max_bad", "overwrite")}
    settings = TokenizeSettings(**{**given, "inputs": tuple(args.inputs)})
    manifest = tokenize(settings, **placement, progress=Progress(Console(stderr=True)))
    kind = manifest.task.lower().replace("_", "-")
    print(f"{placement['out']}: {manifest.num_samples:,} {kind} samples, {manifest.num_tokens:,} tokens")


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
    parser.add_argument("--image-size", **one_of(["67M", "102M", "270M"]), default="270M", help="of the .ckpt (270M)")
    parser.add_argument("--resolution", type=int, default=256, metavar="PIXELS", help="default: %(default)s")
    parser.add_argument("--audio", metavar="SOURCE", help="folder or hub name")
    parser.add_argument("--codec", **one_of(["higgs", "dac"]), default="higgs", help="default: %(default)s")
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


# -- all of them ------------------------------------------------------------------------------------------------------

COMMANDS = {
    "tokenize": Command(
        "turn text, pictures or speech into a data set",
        _describe_tokenize,
        _run_tokenize,
        when_stopped="stopped; run the same command again to go on.",
    ),
    "data show": Command("look into a data set, and decode samples back to files", _describe_show, _run_show),
    "tokenizers make": Command("gather the paper's tokenizers in a folder", _describe_tokenizers, _run_tokenizers),
}
