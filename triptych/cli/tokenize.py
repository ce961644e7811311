"""`triptych tokenize`: from files to a dataset of tokens."""

import argparse
from typing import Any

from triptych.cli.args import MOST_PROCESSES, whole_number
from triptych.cli.command import DATA, Command, num_cpus, one_of

_DESCRIPTION = """\
Turn text, captioned images or transcribed speech into a dataset of token shards, ready for `triptych train`.

examples:
  text      triptych tokenize books/*.jsonl.zst --out data/books
            triptych tokenize notes.txt --per-line --out data/notes
  questions triptych tokenize questions.jsonl --out data/questions      rows with prompt, response, and maybe image
  images    triptych tokenize photos/ --out data/photos
            triptych tokenize "cc12m-{00000..01242}.tar" --out data/cc12m --image-transform paper --views 2
  speech    triptych tokenize LibriSpeech/train-clean-100 --out data/libri
            triptych tokenize manifest.jsonl --out data/calls --max-seconds 20 --too-long skip

formats, detected by file names and first rows, in this order:
"""

_RESULT = """\
what is written:
  OUT/shard-00000.safetensors ...  token ids, with a checksum for every sample
  OUT/manifest.json                what they are; written last, so a folder that has it is complete
  OUT/bad.jsonl                    samples that were left out, with the reasons

Run the same command again to resume after a stop or crash. The result is the same to the byte with any number of
workers. Look at it with `triptych data show OUT`.
"""


def _describe(parser: argparse.ArgumentParser) -> None:
    from triptych.data.sources import FORMATS
    from triptych.vocab import Task

    parser.description = _DESCRIPTION + "\n".join(f"  {format.name:12} {format.looks_for}" for format in FORMATS)
    parser.epilog = _RESULT
    parser.usage = "triptych tokenize INPUT [INPUT ...] --out OUT [options]"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="file, folder, or pattern with * ? or {00..99}")
    parser.add_argument("--out", required=True, metavar="OUT", help="folder of the dataset")
    parser.add_argument(
        "--tokenizers",
        default="scenes",
        metavar="NAME",
        help="folder of saved tokenizers, or the name of built-in ones (default: %(default)s)",
    )

    reading = parser.add_argument_group("how to read the input")
    reading.add_argument("--format", **one_of([format.name for format in FORMATS]), help="default: detect")
    reading.add_argument("--task", **one_of([task.label for task in Task]), help="default: detect")
    reading.add_argument("--text-key", metavar="KEY", help="column or field of the text (default: text, caption, ...)")
    reading.add_argument("--prompt-key", metavar="KEY", help="column or field of a prompt that is given, not predicted")
    reading.add_argument("--media-key", metavar="KEY", help="column or field of the image or audio, or of its path")
    reading.add_argument("--per-line", action="store_true", help="every line of a .txt file is a document")

    images = parser.add_argument_group("images")
    images.add_argument(
        "--image-transform",
        **one_of(["pad", "paper"]),
        default="pad",
        help="pad: the whole image on white; paper: with even odds that or a random crop (default: %(default)s)",
    )
    images.add_argument("--views", type=int, default=1, metavar="N", help="store N random versions of every image")
    images.add_argument("--seed", type=int, default=0, help="of the random crops (default: %(default)s)")

    audio = parser.add_argument_group("audio")
    audio.add_argument("--max-seconds", type=float, default=30.0, metavar="S", help="default: %(default)g")
    audio.add_argument(
        "--too-long",
        choices=["cut", "skip"],
        default="cut",
        help="cut longer recordings, as the paper does, or leave them out (default: %(default)s)",
    )

    work = parser.add_argument_group("work")
    work.add_argument(
        "--workers",
        type=whole_number(0, MOST_PROCESSES),
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
        help="stop if more samples are bad; 10 are always allowed, except with 0 (default: %(default)s)",
    )
    work.add_argument("--overwrite", action="store_true", help="start over, whatever dataset is in OUT")


def _run(args: argparse.Namespace) -> None:
    from triptych.data.tokenize import tokenize

    options = {name: value for name, value in vars(args).items() if name != "quiet"}
    manifest = tokenize(**options)
    kind = manifest.task.lower().replace("_", "-")
    print(f"{args.out}: {manifest.num_samples:,} {kind} samples, {manifest.num_tokens:,} tokens")
    for line in _media_lines(manifest.task, manifest.settings):
        print(f"  {line}")


def _media_lines(task: str, settings: dict[str, Any]) -> list[str]:
    """How images were transformed, or what became of long recordings."""
    if task == "IMAGE_TEXT" and settings["image_transform"] == "pad":
        return ["images: whole, padded with white to a square; the same in every epoch (--image-transform pad)"]
    if task == "IMAGE_TEXT":
        views = settings["views"]
        number = "1 random version" if views == 1 else f"{views} random versions"
        return [
            f"images: {number} of each, a crop or the whole image, with even odds; the same in every epoch "
            f"(--image-transform paper --views {views})"
        ]
    if task == "AUDIO_TEXT":
        fate = "cut" if settings["too_long"] == "cut" else "left out"
        return [f"audio: recordings above {settings['max_seconds']:g} s are {fate} (--too-long {settings['too_long']})"]
    return []


COMMANDS = {
    "tokenize": Command(
        "turn text, images or speech into a dataset",
        _describe,
        _run,
        DATA,
        when_stopped="stopped; run the same command again to resume.",
    )
}
