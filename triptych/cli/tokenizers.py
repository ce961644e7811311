"""`triptych tokenizers`: fit tokenizers to files, or collect given ones in a folder."""

import argparse
from pathlib import Path

from triptych.cli.args import positive_int
from triptych.cli.command import DATA, Command, add_json, one_of, write_json


def _describe_make(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Collect tokenizers in one folder, for `triptych tokenize --tokenizers FOLDER`: the paper's, or any saved ones.

examples:
  triptych tokenizers make tokenizers/paper --text cl100k_base.tiktoken --image movqgan_270M.ckpt --audio higgs-v2/
  triptych tokenizers make text-only --text cl100k_base
  triptych tokenizers make mixed --text tokenizers/mine/text --audio bosonai/higgs-audio-v2-tokenizer

A part can be added later: its ids are reserved, so datasets made now stay usable."""
    parser.add_argument("folder", metavar="FOLDER", help="where to write")
    parser.add_argument("--text", metavar="SOURCE", help="cl100k_base, a ranks file, or a folder with one")
    parser.add_argument("--image", metavar="SOURCE", help="original SBER-MoVQGAN .ckpt, or a diffusers folder")
    parser.add_argument("--image-size", **one_of(["67M", "102M", "270M"]), default="270M", help="of the .ckpt (270M)")
    parser.add_argument("--resolution", type=int, default=256, metavar="PIXELS", help="default: %(default)s")
    parser.add_argument("--audio", metavar="SOURCE", help="folder or hub name")
    parser.add_argument("--codec", **one_of(["higgs", "dac"]), default="higgs", help="default: %(default)s")
    parser.add_argument("--codebooks", type=int, default=4, metavar="K", help="the first K (default: %(default)s)")
    parser.epilog = "A source may also be the folder of a saved tokenizer, such as tokenizers/mine/text."


def _run_make(args: argparse.Namespace) -> None:
    from triptych.tokenizers.paper import paper_bundle

    options = {name: value for name, value in vars(args).items() if name not in ("folder", "quiet")}
    bundle = paper_bundle(**options)
    bundle.save(Path(args.folder))
    parts = ", ".join(bundle.fingerprints)
    print(f"{args.folder}: {parts}; a vocabulary of {bundle.vocabulary.size:,} ids")


def _describe_fit(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Fit tokenizers to your files: a byte-level BPE to all texts, codes of patches or a small MoVQ to images, residual codes
of mel spectra to audio. Inputs are what `triptych tokenize` reads, several kinds at once.

examples:
  triptych tokenizers fit notes/ photos/ calls/ --out tokenizers/mine
  triptych tokenizers fit photos/ --out tokenizers/photos --resolution 128 --factor 8 --image-steps 10000

Sizes that are not given are chosen by the data. The report is about samples that were held out; it is printed, and
written to OUT/report. After a stop, the same command resumes. To mix the result with others: `tokenizers make`."""
    parser.usage = "triptych tokenizers fit INPUT [INPUT ...] --out OUT [options]"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="file, folder, or pattern with * ? or {00..99}")
    parser.add_argument("--out", required=True, type=Path, metavar="OUT", help="folder of the tokenizers")
    parser.add_argument("--vocab-size", type=positive_int, metavar="N", help="ids of the text tokenizer")
    parser.add_argument("--resolution", type=positive_int, metavar="PIXELS", help="width and height of images")
    parser.add_argument("--factor", type=positive_int, metavar="PIXELS", help="pixels per code: 4, 8, 16 or 32")
    parser.add_argument(
        "--image-kind",
        **one_of(["patch-vq", "movq"]),
        help="patch-vq: k-means on patches, for drawings, in seconds; movq: a network, for photographs",
    )
    parser.add_argument("--image-codes", type=positive_int, metavar="N", help="size of the image codebook")
    parser.add_argument("--image-steps", type=positive_int, default=3000, metavar="N", help="of a movq (%(default)s)")
    parser.add_argument(
        "--codebooks",
        type=positive_int,
        default=2,
        metavar="K",
        help="of audio, 25 tokens/s each (%(default)s)",
    )
    parser.add_argument("--audio-codes", type=positive_int, metavar="N", help="size of each audio codebook")
    parser.add_argument("--audio-steps", type=int, default=1000, metavar="N", help="default: %(default)s")
    parser.add_argument("--text-key", metavar="KEY", help="column or field of the text")
    parser.add_argument("--prompt-key", metavar="KEY", help="column or field of a prompt before the text")
    parser.add_argument("--media-key", metavar="KEY", help="column or field of the image or audio")
    parser.add_argument("--per-line", action="store_true", help="every line of a .txt file is a document")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever tokenizers are in OUT")
    add_json(parser)


def _run_fit(args: argparse.Namespace) -> None:
    import sys

    from triptych.data.fit import fit_tokenizers
    from triptych.eval.codecs.fitted import write_report

    def report(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr)

    options = {name: value for name, value in vars(args).items() if name not in ("inputs", "out", "quiet", "json")}
    fitted = fit_tokenizers(args.inputs, args.out, report=report, **options)
    samples = fitted.samples
    result = write_report(
        args.out,
        fitted.bundle,
        texts=samples.held_out_texts,
        images=samples.held_out_images,
        clips=samples.held_out_clips,
        report=report,
    )
    if args.json:
        write_json(result, args.json)
    else:
        print(f"{args.out}: {', '.join(result)}; a vocabulary of {fitted.bundle.vocabulary.size:,} ids")


COMMANDS = {
    "tokenizers fit": Command(
        "fit tokenizers to your files",
        _describe_fit,
        _run_fit,
        DATA,
        when_stopped="stopped; run the same command again to resume.",
    ),
    "tokenizers make": Command("collect tokenizers in a folder", _describe_make, _run_make, DATA),
}
