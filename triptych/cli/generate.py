"""`triptych generate`: text, images and audio from one model, in any direction."""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_float, positive_int, whole_number
from triptych.cli.command import USE, Command, add_device, add_json, add_model, one_of, write_json
from triptych.cli.info import list_voices, list_words
from triptych.cli.results import SUFFIXES, deliver, targets_of
from triptych.cli.unusual import printed_warnings
from triptych.errors import UserError, did_you_mean
from triptych.hub.directions import DIRECTIONS, GAP, Direction, direction_named
from triptych.sample.names import MOST_CANDIDATES, MOST_STEPS, PRESET_NAMES, SAMPLER_NAMES

_BATCH = 16  # results that are generated together and written before the next ones
_MAX_TEXT_BYTES = 1 << 20  # of a text on standard input, far more than a model takes
_MOST_SAMPLES = 1_000_000  # of one call: each has a file with a name of its own
_SAMPLING = ("preset", "sampler", "num_steps", "temperature", "top_p", "guidance_scale", "best_of")


def _describe(parser: argparse.ArgumentParser) -> None:
    rows = "\n".join(f"  {each.name:16} {each.usage:34} {each.summary}" for each in DIRECTIONS.values())
    parser.description = f"""\
Generate in any direction with one model. A - as INPUT reads standard input.

{rows}

examples:
  triptych generate text-to-image "two cats left of a red heart" --out cats.png
  triptych generate caption cats.png
  triptych generate answer cats.png "how many cats are there?"
  triptych generate text-to-speech "a picture of three foxes" --out foxes.wav
  triptych generate text-to-speech "a dog" --voice emma --model models/mine
  triptych generate transcribe foxes.wav
  triptych generate infill-image cats.png "two cats and a star" --box 0,0,32,64 --out other.png
  triptych generate infill-text "a picture of {GAP} red {GAP}" cats.png
  triptych generate text-to-image "a cat" -n 100 --out cats/cat.png --sampler remdm --sampler-option eta=0.1"""
    parser.usage = "triptych generate DIRECTION INPUT [INPUT] [options]"
    # Not required here, for --list-words and --list-voices.
    parser.add_argument("direction", metavar="DIRECTION", nargs="?", help="one of the names above")
    parser.add_argument("inputs", metavar="INPUT", nargs="*", help="text in quotes, file of an image or audio, or -")
    add_model(parser)
    parser.add_argument("--list-words", action="store_true", help="list the words that texts may have, and stop")
    parser.add_argument("--list-voices", action="store_true", help="list the voices of --voice, and stop")
    parser.add_argument(
        "--no-check", action="store_true", help="no warnings about inputs that are unlike the training data"
    )
    parser.add_argument("--out", metavar="FILE", help="where to write; - is standard output; several are numbered")
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument(
        "--num-samples",
        "-n",
        type=whole_number(1, _MOST_SAMPLES),
        default=1,
        metavar="N",
        help="with seeds SEED, SEED + 1, ...",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--box", metavar="L,T,R,B", help="infill-image: rectangle in pixels")
    parser.add_argument(
        "--repaint",
        **one_of(["codes", "box", "all"]),
        default="codes",
        help="infill-image: which pixels are new: those of all codes that the box touches, of the box, or all",
    )
    parser.add_argument("--interval", metavar="FROM,TO", help="infill-audio: in seconds")
    parser.add_argument(
        "--seconds", type=positive_float, metavar="S", help="duration of speech (default: the model chooses)"
    )
    parser.add_argument("--voice", metavar="NAME", help="voice of speech (default: the model chooses)")
    parser.add_argument(
        "--num-tokens", type=positive_int, metavar="N", help="length of a text (default: the model chooses)"
    )
    add_device(parser)
    parser.add_argument(
        "--dtype", **one_of(["float32", "bfloat16", "float16"]), default="float32", help="default: float32"
    )
    add_json(parser)
    add_sampling(parser, "sampling (default: the model's preset for what is generated)")


def add_sampling(parser: argparse.ArgumentParser, title: str) -> None:
    """Options that change how a model is sampled."""
    group = parser.add_argument_group(title)
    group.add_argument("--preset", metavar="NAME", help=f"values of all of these: {', '.join(PRESET_NAMES)}")
    group.add_argument("--sampler", metavar="NAME", help=", ".join(SAMPLER_NAMES))
    group.add_argument(
        "--sampler-option", action="append", default=[], metavar="KEY=VALUE", help="of the sampler; may be repeated"
    )
    group.add_argument(
        "--steps",
        "--num-steps",
        dest="num_steps",
        type=whole_number(1, MOST_STEPS),
        metavar="N",
        help="sampler steps (default: one per token)",
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--guidance-scale", type=float, metavar="S", help="classifier-free guidance; 1 is off")
    group.add_argument(
        "--best-of",
        type=whole_number(1, MOST_CANDIDATES),
        metavar="N",
        help="generate N, return the one the model ranks first",
    )


def sampling_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of `add_sampling` say, checked; the arguments of `Pipeline` methods."""
    given = {name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None}
    options = dict(map(_option, args.sampler_option))
    if options:
        if args.sampler is None:
            raise UserError("--sampler-option needs --sampler NAME: options belong to one sampler.")
        given["options"] = options
    for name, value, known in (("sampler", args.sampler, SAMPLER_NAMES), ("preset", args.preset, PRESET_NAMES)):
        if value is not None and value not in known:
            raise UserError(f"unknown {name} {value!r}.{did_you_mean(value, known)}")
    if given:
        from triptych.sample.config import SamplingConfig

        SamplingConfig(**{name: value for name, value in given.items() if name != "preset"})
    return given


def _option(word: str) -> tuple[str, Any]:
    """ "eta=0.1" -> ("eta", 0.1)"""
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise UserError(f"--sampler-option must be KEY=VALUE, got {word!r}.")
    for kind in (int, float):
        try:
            return name, kind(text)
        except ValueError:
            continue
    return name, text


# -- running ----------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> None:
    if args.list_words or args.list_voices:
        (list_words if args.list_words else list_voices)(args.model)
        return
    if not args.direction:
        raise UserError("the following arguments are required: DIRECTION, INPUT (see `triptych generate --help`)")
    direction = direction_named(args.direction)
    arguments, is_checked = _arguments(direction, args), sampling_arguments(args)
    targets = targets_of(direction, args)
    from triptych.hub.source import check_source

    check_source(args.model)
    from triptych.hub.pipeline import Pipeline

    pipe = Pipeline.from_pretrained(args.model, device=args.device, dtype=args.dtype, check_inputs=not args.no_check)
    if direction.name == "infill-image" and args.repaint == "codes":
        box = pipe.repainted_box(arguments["image"].size, arguments["box"])
        if box != tuple(arguments["box"]):
            shown = ",".join(map(str, box))
            print(f"repaints the pixels {shown}: whole image codes (--repaint box keeps the rest)", file=sys.stderr)
    results = []
    with printed_warnings() as warned:
        for number, result in enumerate(_results(pipe, direction, arguments, is_checked, args)):
            parts = result if len(direction.outputs) > 1 else (result,)
            record: dict[str, Any] = {"seed": args.seed + number}
            for kind, part in zip(direction.outputs, parts):
                record |= deliver(kind, part, targets(number), direction, args, number)
            results.append(record | ({"warnings": list(warned.values())} if warned else {}))
            if args.num_samples > _BATCH and (number + 1) % _BATCH == 0:
                print(f"{number + 1} of {args.num_samples}", file=sys.stderr)
    if args.json is not None:
        write_json(results, args.json)


def _results(
    pipe: Any, direction: Direction, arguments: dict[str, Any], sampling: dict[str, Any], args: argparse.Namespace
) -> Iterator[Any]:
    """The results one after the other, generated a batch at a time."""
    method = getattr(pipe, direction.method)
    takes_lists = direction.region is None and direction.name != "infill-text" and len(direction.outputs) == 1
    first = direction.inputs[0].name
    for start in range(0, args.num_samples, _BATCH):
        count = min(_BATCH, args.num_samples - start)
        if takes_lists:
            yield from method(**{**arguments, first: [arguments[first]] * count}, seed=args.seed + start, **sampling)
        else:
            for number in range(start, start + count):
                yield method(**arguments, seed=args.seed + number, **sampling)


def _arguments(direction: Direction, args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the method. Everything that can be wrong without a model is found here."""
    required = sum(each.required for each in direction.inputs)
    if not required <= len(args.inputs) <= len(direction.inputs):
        count = f"{len(args.inputs)} input{'s' * (len(args.inputs) != 1)}"
        hint = " Put texts in quotes." if len(args.inputs) > len(direction.inputs) else ""
        raise UserError(f"`generate {direction.name}` takes {direction.usage.partition(' ->')[0]}, got {count}.{hint}")
    if args.inputs.count("-") > 1:
        raise UserError("standard input (-) can be read once.")
    if not 0 <= args.seed <= 2**64 - args.num_samples:
        raise UserError(f"--seed must lie between 0 and 2^64 - 1, got {args.seed}.")
    arguments: dict[str, Any] = {}
    for each, word in zip(direction.inputs, args.inputs):
        kinds = each.kinds
        if len(kinds) > 1:
            kinds = ("audio",) if Path(word).suffix.lower() in (*SUFFIXES["audio"], ".mp3") else ("image",)
        arguments[kinds[0] if len(each.kinds) > 1 else each.name] = _read(kinds[0], word, direction, each.name)
    if direction.name == "infill-image":
        from triptych.hub.boxes import check_box

        box = _numbers(args.box, 4, "--box", "LEFT,TOP,RIGHT,BOTTOM in pixels", int)
        arguments |= {"box": check_box(box, arguments["image"].size), "repaint": args.repaint}
    elif direction.name == "infill-audio":
        arguments["interval"] = _numbers(args.interval, 2, "--interval", "FROM,TO in seconds", float)
    for name, option in (("seconds", "--seconds"), ("voice", "--voice"), ("num_tokens", "--num-tokens")):
        if getattr(args, name) is not None:
            if name not in direction.options:
                raise UserError(f"`generate {direction.name}` takes no {option}.")
            arguments[name] = getattr(args, name)
    for name in ("box", "interval"):
        if getattr(args, name) is not None and direction.region != name:
            raise UserError(f"`generate {direction.name}` takes no --{name}.")
    return arguments


def _read(kind: str, word: str, direction: Direction, name: str) -> Any:
    """A text, image or audio that a word of the command line stands for."""
    if kind == "text":
        text = _stdin_text() if word == "-" else word
        if not text.strip() and direction.name != "complete":
            raise UserError(f"expected a {name}, got an empty one.")
        if direction.name == "infill-text" and GAP not in text:
            raise UserError(f"expected a text with gaps, written {GAP}, got {text!r}.")
        return text
    from triptych.utils.media import MAX_INPUT_BYTES, load_audio, load_image

    source = _stdin(MAX_INPUT_BYTES) if word == "-" else word
    return load_image(source) if kind == "image" else load_audio(source)


def _stdin_text() -> str:
    try:
        return _stdin(_MAX_TEXT_BYTES).decode().rstrip("\n")
    except UnicodeDecodeError:
        raise UserError("expected a text in UTF-8 on standard input.") from None


def _stdin(limit: int) -> bytes:
    content = sys.stdin.buffer.read(limit + 1)
    if len(content) > limit:
        raise UserError(f"expected at most {limit >> 20} MiB on standard input.")
    return content


def _numbers(text: str | None, count: int, option: str, form: str, kind: type) -> tuple[Any, ...]:
    if text is None:
        raise UserError(f"this needs {option}: {form}.")
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise UserError(f"{option} must be {form}, got {text!r}.")
    return numbers


COMMANDS = {
    "generate": Command(
        "text, images and audio from one model, in any direction",
        _describe,
        _run,
        USE,
        when_stopped="stopped; what was written is kept.",
    )
}
