"""`triptych eval tokenizers`: what tokenizers and codecs preserve of images and audio."""

import argparse
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_float, positive_int, positive_ints, processes
from triptych.cli.command import DATA, Command, add_json, one_of, write_json
from triptych.cli.eval_common import STOPPED, add_split, given, progress
from triptych.errors import UserError

_TOY = ("images", "speech", "voices", "sheet")
_SETTINGS = [
    *("num_samples", "resolution", "fit", "features", "codebooks", "max_seconds", "text_key", "language", "whisper"),
    *("dnsmos", "aesthetics", "dataset"),
]
"""Fields of `CodecSettings` that are options."""


def _describe_tokenizers(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Measure what tokenizers preserve. With --data, of any images or recordings, by the paper's two tables: rFID, PSNR and
code use; PESQ, STOI, DNSMOS, word errors and Audiobox Aesthetics by number of codebooks. A codec is a built-in name, a
folder of tokenizers, or a folder or hub name of a codec of diffusers or transformers (MoVQ, DAC, EnCodec, Higgs, ...).
Without --data, of the toy dataset: images by PSNR and the judge, speech by Whisper and DNSMOS.

examples:
  triptych eval tokenizers --json out/tokenizers.json --sheet out/tokenizers.png
  triptych eval tokenizers --data photos/ --tokenizers scenes models/movq
  triptych eval tokenizers --data speech/ --tokenizers models/higgs models/dac --codebooks 4,8"""
    parser.add_argument(
        "--tokenizers",
        nargs="+",
        default=["scenes"],
        metavar="CODEC",
        help="built-in name, folder or hub name; several with --data (default: scenes)",
    )
    parser.add_argument("--data", nargs="+", metavar="DATA", help="files or folders of images or of recordings")
    parser.add_argument("--num-samples", type=positive_int, metavar="N", help="chosen at random (default: 1000)")
    parser.add_argument("--modality", **one_of(["image", "audio"]), help="of the data (default: by its files)")
    parser.add_argument("--dataset", metavar="NAME", help="of the data, in the results")
    group = parser.add_argument_group("images of --data")
    group.add_argument("--resolution", type=positive_int, metavar="N", help="pixels a side (the tokenizer's, or 256)")
    group.add_argument("--fit", **one_of(["crop", "pad"]), help="how images become square (default: crop)")
    group.add_argument("--features", nargs="+", metavar="NETWORK", help="of rFID: inception, dinov2=FOLDER")
    group = parser.add_argument_group("recordings of --data")
    group.add_argument("--codebooks", type=positive_ints, metavar="N,N", help="to decode from (default: all, and 4)")
    group.add_argument("--max-seconds", type=positive_float, metavar="S", help="longest recording (default: 30)")
    group.add_argument("--text-key", metavar="NAME", help="field of the transcript")
    group.add_argument("--language", metavar="CODE", help="of the transcripts (default: en)")
    group.add_argument("--whisper", metavar="MODEL", help="folder or name (default: the installed tiny.en)")
    group.add_argument("--aesthetics", metavar="MODEL", help="Audiobox Aesthetics: folder or hub name")
    group.add_argument("--no-dnsmos", dest="dnsmos", action="store_false", default=None, help="without DNSMOS")
    group = parser.add_argument_group("running, with --data")
    group.add_argument("--out", type=Path, metavar="FOLDER", help="of the results: FOLDER/tokenizers-NAME (out/eval)")
    group.add_argument("--nproc", type=processes, default=1, metavar="N", help="processes (default: 1)")
    group.add_argument("--seed", type=int, default=0, help="of the choice (default: 0)")
    group.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or mps (default: cpu)")
    group = parser.add_argument_group("toy dataset, without --data")
    add_split(group)
    group.add_argument("--images", type=positive_int, metavar="N", help="default: 300")
    group.add_argument("--speech", type=int, metavar="N", help="0 skips speech (default: 100)")
    group.add_argument(
        "--voices",
        type=Path,
        metavar="FOLDER",
        help="folder of voices; --speech sentences in each (default: the built-in ones)",
    )
    group.add_argument("--sheet", type=Path, metavar="FILE", help="write a .png of originals above reconstructions")
    add_json(parser)


def _run_tokenizers(args: argparse.Namespace) -> None:
    foreign = given(args, *((*_SETTINGS, "modality", "out") if args.data is None else _TOY))
    if foreign:
        option = {"dnsmos": "no-dnsmos"}.get(name := next(iter(foreign)), name).replace("_", "-")
        raise UserError(f"--{option} is for {'data of yours: add --data' if args.data is None else 'the toy dataset'}.")
    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}.")
    (_run_toy if args.data is None else _run_own)(args)


def _run_toy(args: argparse.Namespace) -> None:
    images, speech = args.images or 300, 100 if args.speech is None else args.speech
    if speech < 0:
        raise UserError(f"--speech must not be negative, got {speech}.")
    if len(args.tokenizers) > 1:
        raise UserError("several tokenizers are compared on data of yours: add --data.")
    if args.sheet is not None and args.sheet.suffix.lower() != ".png":
        raise UserError(f"--sheet must be a .png file, got {str(args.sheet)!r}.")
    from triptych.scenes.exam_samples import Voices, world_with_images_of
    from triptych.scenes.tokenizer_report import evaluate_tokenizers, scenes_sheet
    from triptych.tokenizers.bundle import TokenizerBundle

    bundle = TokenizerBundle.load(args.tokenizers[0])
    world, voices = world_with_images_of(bundle.image.resolution), Voices.find(args.voices)
    report = progress if args.json == "-" else lambda line: print(line, flush=True)
    results = evaluate_tokenizers(bundle, images, speech, args.split, world, voices.folder, report)
    if args.sheet is not None:
        args.sheet.parent.mkdir(parents=True, exist_ok=True)
        scenes_sheet(bundle, args.split, world=world).save(args.sheet)
    if args.json is not None:
        write_json(results, args.json)


def _run_own(args: argparse.Namespace) -> None:
    from triptych.eval.codecs.run import codec_table, guess_modality, run_codecs
    from triptych.eval.codecs.suite import CodecSettings
    from triptych.training.logging import environment
    from triptych.utils.device import resolve_device

    device = str(resolve_device(args.device))  # an unknown one is an error here, not for every codec
    modality: Any = args.modality or guess_modality(args.data)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given(args, *_SETTINGS).items()}
    settings = CodecSettings(
        codec=args.tokenizers[0], modality=modality, data=tuple(args.data), device=device, **values
    )
    results = run_codecs(
        args.tokenizers,
        settings,
        out=args.out,
        seed=args.seed,
        nproc=args.nproc,
        progress=progress,
        environment=environment(),
    )
    if not any(result.entries for result in results):
        for result in results:
            for line in result.not_measured:
                progress(line)
        reasons = [line.partition(": ")[2] for result in results for line in result.not_measured]
        raise UserError(f"no codec was measured. {reasons[0] if reasons else ''}")
    if args.json != "-":
        print(codec_table(results, modality))
    if args.json is not None:
        write_json([result.as_json for result in results], args.json)


COMMANDS = {
    "eval tokenizers": Command(
        "measure what tokenizers preserve", _describe_tokenizers, _run_tokenizers, group=DATA, when_stopped=STOPPED
    )
}
