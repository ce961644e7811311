"""`triptych eval text`, `image`, `audio`: a model on benchmarks and on data of the user."""

import argparse
from typing import Any

from triptych.cli.args import positive_float, positive_int
from triptych.cli.command import USE, Command, one_of
from triptych.cli.eval_common import STOPPED, add_positional_model, add_run, check_run, given, run
from triptych.cli.generate import add_sampling, sampling_arguments

_SHARED = """\
Results are kept in --out, for `triptych eval report` and `triptych eval compare`. Stopped by Ctrl-C, the same command
resumes. A metric whose data, weights or package is missing is listed at the end; the others are computed."""


# -- text -------------------------------------------------------------------------------------------------------------


def _describe_text(parser: argparse.ArgumentParser) -> None:
    parser.description = f"""\
Accuracy on the ten language tasks of the paper, as LM Evaluation Harness (lm-eval) asks and scores them. Answers are
scored by their log-likelihood, estimated with random masks. The data comes from the hub, or from --data: a folder
with a file NAME.jsonl for each task.

{_SHARED}

examples:
  triptych eval text runs/mine --data data/tasks --limit 200
  triptych eval text models/mine --tasks arc_easy piqa --mc-num 64 --nproc 2"""
    add_positional_model(parser)
    parser.add_argument("--data", metavar="FOLDER", help="a JSONL file for each task (default: from the hub)")
    add_text(parser)
    add_run(parser)


def add_text(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("language tasks")
    group.add_argument("--tasks", nargs="+", metavar="TASK", help="names of tasks (default: all ten)")
    group.add_argument(
        "--limit", type=positive_int, metavar="N", help="questions of each task, or of each part of MMLU and BBH (all)"
    )
    group.add_argument("--num-fewshot", type=int, metavar="N", help="examples in the prompt (default: lm-eval's)")
    group.add_argument("--mc-num", type=positive_int, metavar="N", help="random masks for each answer (default: 128)")
    group.add_argument("--batch-size", type=positive_int, metavar="N", help="masked texts in a forward pass")
    group.add_argument(
        "--masks", **one_of(["common", "independent"]), help="of the answers of a question (default: common)"
    )
    group.add_argument(
        "--no-controlled",
        dest="controlled",
        action="store_false",
        default=None,
        help="the estimator of LLaDA's code, which has more noise",
    )
    group.add_argument("--exact-up-to", type=int, metavar="N", help="tokens of answers that all masks are used for")
    group.add_argument(
        "--end", **one_of(["none", "given", "scored"]), help="what follows an answer: nothing, or EOS (default: none)"
    )
    group.add_argument("--block-length", type=positive_int, metavar="N", help="tokens masked at a time, BBH (32)")
    group.add_argument("--tokens-per-step", type=positive_int, metavar="N", help="filled in a forward pass, BBH (1)")
    group.add_argument(
        "--text-guidance", dest="text_guidance", type=float, metavar="S", help="guidance scale of texts (1 is off)"
    )


def text_settings(args: argparse.Namespace) -> dict[str, Any]:
    names = ("limit", "num_fewshot", "mc_num", "batch_size", "masks", "exact_up_to", "controlled", "end")
    values = given(args, *names, "block_length", "tokens_per_step")
    if args.tasks is not None:
        values["tasks"] = tuple(args.tasks)
    if args.text_guidance is not None:
        values["guidance_scale"] = args.text_guidance
    return values


def _run_text(args: argparse.Namespace) -> None:
    check_run(args)
    from triptych.eval.run_suites import Job
    from triptych.eval.suites import settings_of

    run(args, [Job("text", settings_of("text", text_settings(args) | given(args, "data")))])


# -- images -----------------------------------------------------------------------------------------------------------


def _describe_image(parser: argparse.ArgumentParser) -> None:
    parser.description = f"""\
Images from captions, against reference images: FID, KID, precision and recall, by Inception-v3 and DINOv2; CLIP score;
GenEval with an object detector. Statistics of the reference images are computed once and kept.

{_SHARED}

examples:
  triptych eval image runs/mine --data data/cc12m --num-samples 10000
  triptych eval image models/mine --data photos/ --features inception dinov2=models/dinov2-large --steps 64
  triptych eval image models/mine --detector models/mask2former --clip models/clip --geneval prompts.jsonl"""
    add_positional_model(parser)
    parser.add_argument(
        "--data", metavar="DATA", help="reference images with captions: a folder, tars, Parquet, a table, or .npz"
    )
    parser.add_argument("--prompts", metavar="FILE", help="prompts, one per line, instead of captions")
    parser.add_argument("--num-samples", type=positive_int, metavar="N", help="images (default: at most 10,000)")
    parser.add_argument("--keep-images", metavar="FOLDER", help="keep all generated images")
    parser.add_argument("--cache", metavar="FOLDER", help="features of reference images (~/.cache/triptych/features)")
    add_image(parser)
    add_run(parser)
    add_sampling(parser, "sampling (default: the model's preset)")


def add_image(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judges of images")
    group.add_argument(
        "--features", nargs="+", metavar="NETWORK", help="inception, dinov2=FOLDER, clip=FOLDER (default: inception)"
    )
    group.add_argument(
        "--framing", **one_of(["pad", "crop", "original"]), help="how references become square (default: pad)"
    )
    group.add_argument("--extrapolate", action="store_true", default=None, help="also FID of infinitely many samples")
    group.add_argument("--clip", metavar="MODEL", help="CLIP, for the CLIP score and colours: folder or hub name")
    group.add_argument("--detector", metavar="MODEL", help="object detector for GenEval: folder or hub name")
    group.add_argument("--geneval", metavar="FILE", help="prompts of GenEval (default: official), or none")
    group.add_argument("--images-per-prompt", type=positive_int, metavar="N", help="in GenEval (default: 4)")


def image_settings(args: argparse.Namespace) -> dict[str, Any]:
    values = given(args, "framing", "extrapolate", "clip", "detector", "images_per_prompt")
    if args.features is not None:
        values["features"] = tuple(args.features)
    if args.geneval is not None:
        values["geneval"] = None if args.geneval == "none" else args.geneval
    return values


def _run_image(args: argparse.Namespace) -> None:
    sampling = sampling_arguments(args)
    check_run(args)
    from triptych.eval.run_suites import Job
    from triptych.eval.suites import settings_of

    values = image_settings(args) | given(args, "data", "prompts", "num_samples", "keep_images", "cache")
    run(args, [Job("image", settings_of("image", {**values, "sampling": sampling}))])


# -- audio ------------------------------------------------------------------------------------------------------------


def _describe_audio(parser: argparse.ArgumentParser) -> None:
    parser.description = f"""\
Speech from transcripts, against recordings: word errors by Whisper, FAD, DNSMOS, Audiobox Aesthetics; and transcripts
of the recordings. The recordings themselves, and their reconstructions by the tokenizer, are measured as well.

{_SHARED}

examples:
  triptych eval audio runs/mine --data data/librispeech --num-samples 500
  triptych eval audio models/mine --data test-clean.json --whisper models/whisper --fad whisper clap=models/clap"""
    add_positional_model(parser)
    parser.add_argument(
        "--data", nargs="+", required=True, metavar="DATA", help="recordings with transcripts: folders, tars, manifests"
    )
    parser.add_argument("--num-samples", type=positive_int, metavar="N", help="clips, chosen at random (default: 1000)")
    parser.add_argument("--text-key", metavar="NAME", help="field of the transcript")
    parser.add_argument(
        "--dataset", metavar="NAME", help="of the data, in the results (default: the name of its files)"
    )
    add_audio(parser)
    add_run(parser)
    add_sampling(parser, "sampling of speech (default: the model's preset)")


def add_audio(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speech, and its judges")
    group.add_argument(
        "--only", **one_of(["text-to-speech", "transcribe"]), action="append", help="only this direction"
    )
    group.add_argument("--durations", **one_of(["reference", "model"]), help="who chooses them (default: reference)")
    group.add_argument("--max-seconds", type=positive_float, metavar="S", help="longest clip (default: 30)")
    group.add_argument("--language", metavar="CODE", help="of the transcripts (default: en)")
    group.add_argument("--whisper", metavar="MODEL", help="folder or name (default: the installed tiny.en)")
    group.add_argument(
        "--fad", nargs="+", metavar="NETWORK", help="whisper, clap=FOLDER, encoder=FOLDER (default: whisper)"
    )
    group.add_argument("--aesthetics", metavar="MODEL", help="Audiobox Aesthetics: folder or hub name")
    group.add_argument("--no-dnsmos", dest="dnsmos", action="store_false", default=None, help="without DNSMOS")
    group.add_argument(
        "--no-floors", dest="floors", action="store_false", default=None, help="do not measure the recordings"
    )


def audio_settings(args: argparse.Namespace) -> dict[str, Any]:
    values = given(args, "durations", "max_seconds", "language", "whisper", "aesthetics", "dnsmos", "floors")
    if args.fad is not None:
        values["fad"] = tuple(args.fad)
    if args.only is not None:
        values["directions"] = tuple(args.only)
    return values


def _run_audio(args: argparse.Namespace) -> None:
    sampling = sampling_arguments(args)
    check_run(args)
    from triptych.eval.run_suites import Job
    from triptych.eval.suites import settings_of

    values = audio_settings(args) | given(args, "num_samples", "text_key", "dataset") | {"data": tuple(args.data)}
    run(args, [Job("audio", settings_of("audio", {**values, "speech_sampling": sampling}))])


COMMANDS = {
    "eval text": Command("language tasks of lm-eval", _describe_text, _run_text, group=USE, when_stopped=STOPPED),
    "eval image": Command(
        "FID, KID, GenEval, CLIP score", _describe_image, _run_image, group=USE, when_stopped=STOPPED
    ),
    "eval audio": Command("word errors, FAD, DNSMOS", _describe_audio, _run_audio, group=USE, when_stopped=STOPPED),
}
