"""`triptych eval elbo`: the likelihood of data under a model; needs no judge."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.cli.args import positive_int
from triptych.cli.command import USE, Command, add_device, add_json, write_json
from triptych.cli.eval_common import OUT_HELP, add_positional_model
from triptych.errors import UserError

if TYPE_CHECKING:
    from triptych.hub.pipeline import Pipeline
    from triptych.training.elbo import Elbo

_KINDS: dict[str, Any] = {"image": "image", "audio": "audio"}  # of the predicted side, which comes first


def _describe_elbo(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
The negative ELBO of a model on data: nats per token of every modality, joint ("image") and conditional
("image|text"), with 95 % intervals, and bits per byte of text. Needs no judge.

examples:
  triptych eval elbo runs/mine                          on the validation data of the run
  triptych eval elbo models/mine --data data/photos data/notes --sequences 1000"""
    add_positional_model(parser)
    parser.add_argument("--data", nargs="+", metavar="FOLDER", help="datasets (default: validation data of the run)")
    parser.add_argument("--sequences", type=positive_int, default=256, metavar="N", help="of each dataset (256)")
    parser.add_argument("--draws", type=positive_int, default=4, metavar="N", help="masks per sequence (4)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=OUT_HELP)
    add_device(parser)
    add_json(parser)


def _run_elbo(args: argparse.Namespace) -> None:
    from triptych.hub.source import check_source, is_run

    check_source(args.model)
    if args.data is None and not is_run(Path(args.model)):
        raise UserError(f"{args.model} is not a run, so it has no validation data: add --data FOLDER ...")
    from triptych.data.shards import find_dataset_folders
    from triptych.hub.pipeline import Pipeline
    from triptych.training.elbo import evaluate_elbo
    from triptych.training.setup import read_run_config

    options: dict[str, Any] = {}
    folders = find_dataset_folders(args.data or [])
    if args.data is None:
        config = read_run_config(Path(args.model))
        if not config.validation_folders:
            raise UserError(f"the run {args.model} has no validation data: add --data FOLDER ...")
        folders = config.validation_folders
        options = {"loader": config.loader, "held_out": not config.validation_data}
    pipe = Pipeline.from_pretrained(args.model, device=args.device)
    settings = {"sequences": args.sequences, "draws": args.draws, "seed": args.seed}
    result = evaluate_elbo(pipe.model, pipe.bundle, folders, device=pipe.device, **settings, **options)
    _keep(args, pipe, result, folders)
    if args.json != "-":
        print(f"{'':16} {'nats per token':>18}   {'bits per byte':>16}   tokens")
        for name, value in result.terms.items():
            bits = result.bits_per_byte.get(name)
            shown = "" if bits is None else f"{bits[0]:.3f} ± {bits[1]:.3f}"
            print(f"{name:16} {value.nats_per_token:10.3f} ± {value.margin:.3f}   {shown:>16}   {value.tokens:,}")
    if args.json is not None:
        terms = {name: value.as_json for name, value in result.terms.items()}
        for name, (value_in_bits, margin) in result.bits_per_byte.items():
            terms[name] |= {"bits_per_byte": value_in_bits, "bits_per_byte_margin": margin}
        write_json({"model": str(args.model), "data": list(folders), **settings, "terms": terms}, args.json)


def _keep(args: argparse.Namespace, pipe: "Pipeline", result: "Elbo", folders: Sequence[Any]) -> None:
    """Store the terms as results, for reports and comparisons."""
    from triptych.data.shards import TokenDataset
    from triptych.eval.compare import TOKENIZERS
    from triptych.eval.metrics import Metric, Result
    from triptych.eval.results import Entry, ModelInfo, now, result_folder
    from triptych.eval.scores import Score
    from triptych.training.logging import environment

    def made(metric: Metric, value: float, margin: float, settings: dict[str, Any]) -> Result:
        return Result(metric, Score(value, value - margin, value + margin, args.sequences), settings)

    info = ModelInfo.of(pipe, args.model)
    shared = {
        "data": ", ".join(Path(folder).name for folder in folders),
        "sequences": args.sequences,
        "draws": args.draws,
    }
    # Nats per token compare for the same tokens only; bits per byte for other tokenizers too.
    tokens = {
        "datasets": [TokenDataset(folder).manifest.fingerprint for folder in folders],
        TOKENIZERS: dict(info.tokenizers),
    }
    results = []
    for name, value in result.terms.items():
        metric = Metric(f"elbo/{name}", f"negative ELBO, {name}, nats per token", _KINDS.get(name[:5], "text"), False)
        results.append(made(metric, value.nats_per_token, value.margin, shared | tokens))
    for name, (bits, margin) in result.bits_per_byte.items():
        metric = Metric(f"bits_per_byte/{name}", f"negative ELBO, {name}, bits per byte", "text", False)
        results.append(made(metric, bits, margin, shared))
    seen, when = environment(), now()
    result_folder(args.out, info).add(*(Entry("elbo", each, info, args.seed, seen, when) for each in results))


COMMANDS = {"eval elbo": Command("negative ELBO of a model on any data", _describe_elbo, _run_elbo, group=USE)}
