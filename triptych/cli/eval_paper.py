"""`triptych eval paper`: the metrics of the paper's table in one go."""

import argparse
from typing import Any

from triptych.cli.args import positive_int
from triptych.cli.command import USE, Command
from triptych.cli.eval_common import STOPPED, add_positional_model, add_run, check_run, run
from triptych.cli.eval_suites import add_audio, add_image, add_text, audio_settings, image_settings, text_settings
from triptych.cli.generate import add_sampling, sampling_arguments


def _describe_paper(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
The metrics of the paper's table: language tasks, image generation and GenEval, speech. The data are sub-folders of
--data; what is not there is listed at the end, and the rest is computed.

  text/             a file NAME.jsonl for each of the ten tasks (`triptych eval text --help`)
  cc12m/            images with captions                     train-images/   the same, of the training data
  librispeech-pc/   recordings with transcripts              train-audio/    the same, of the training data

Results are kept in --out, for `triptych eval report` and `triptych eval compare`. Stopped by Ctrl-C, the same command
resumes.

examples:
  triptych eval paper runs/mine --data data/paper
  triptych eval paper models/mine --data data/paper --num-samples 10000 --features inception dinov2=models/dinov2 \\
      --detector models/mask2former --clip models/clip --aesthetics models/audiobox --fad clap=models/clap-audio"""
    add_positional_model(parser)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="with the sub-folders above")
    parser.add_argument("--num-samples", type=positive_int, metavar="N", help="images, and clips, of each data set")
    add_text(parser)
    add_image(parser)
    add_audio(parser)
    add_run(parser)
    add_sampling(parser, "sampling of images and speech (default: the model's preset)")


def _run_paper(args: argparse.Namespace) -> None:
    sampling = sampling_arguments(args)
    check_run(args)
    from triptych.eval.paper_suite import paper_jobs

    size: dict[str, Any] = {} if args.num_samples is None else {"num_samples": args.num_samples}
    options = {
        "text": text_settings(args),
        "image": {**image_settings(args), **size, "sampling": sampling},
        "audio": {**audio_settings(args), **size, "speech_sampling": sampling},
    }
    jobs, missing = paper_jobs(args.data, options)
    run(args, jobs, missing)


COMMANDS = {
    "eval paper": Command(
        "all metrics of the paper's table", _describe_paper, _run_paper, group=USE, when_stopped=STOPPED
    )
}
