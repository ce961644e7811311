"""The verbs that run studies."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from triptych.cli.command import Command
from triptych.errors import UserError

# By name: the module, and the question it answers. Modules are imported when they are asked for: they load torch.
STUDIES = {
    "coordinates": ("coordinates", "do activations and their updates keep their size in wider and deeper models?"),
    "lr-transfer": ("lr_transfer", "is the best learning rate of a small model that of wider and deeper ones?"),
    "batch-size": ("batch_size", "does a run end at the same loss whatever its batch size, and up to which?"),
    "search": ("search", "which learning rate, betas, epsilon and weight decay suit the base?"),
    "modules": ("modules", "what is it worth that every kind of weight has its own values?"),
    "scaling": ("scaling", "how large a model, on how many tokens, is best for a budget of compute?"),
    "gamma": ("gamma", "of more tokens, how many should lower the noise and how many lengthen the way?"),
}


def _study(name: str) -> Any:
    from importlib import import_module

    return import_module(f"triptych.studies.{STUDIES[name][0]}").STUDY


def _describe(name: str, parser: argparse.ArgumentParser) -> None:
    parser.description = f"""\
{STUDIES[name][1]}

Many small runs, kept as records in FOLDER/records.jsonl; FOLDER/figure.png and the findings are made from the records
alone. What is recorded is not run again, so an interrupted study goes on. Started several times with the same --out,
here or on other machines that share the folder, it is done together.

examples:
  triptych scenes make data/scenes
  triptych study {name} --out runs/{name}
  triptych study {name} --out runs/{name} --only-draw"""
    from triptych.cli.args import whole_number

    _study(name).describe(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="of records, figure and findings")
    parser.add_argument("--only-draw", action="store_true", help="run nothing: draw what is recorded")
    parser.add_argument(
        "--threads", type=whole_number, default=1, help="of this process (default: 1; more processes are faster)"
    )
    parser.add_argument(
        "changes", metavar="KEY=VALUE", nargs="*", help="fields of the family's base that are to differ"
    )


def _run(name: str, args: argparse.Namespace) -> None:
    import torch

    from triptych.recipes.proxy import check
    from triptych.studies.base import about, join
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training.config import override
    from triptych.training.setup import check_data
    from triptych.utils.trials import TrialRecords

    study, is_whole = _study(name), True
    if args.only_draw:
        kept = about(args.out)["study"]
        if kept != name:
            raise UserError(f"{args.out} holds a study of {kept!r}: draw it with `triptych study {kept}`.")
    else:
        torch.set_num_threads(args.threads)
        config = override(study.base(), args.changes)
        check(config)
        bundle = TokenizerBundle.load(config.tokenizers)
        check_data(config, bundle)
        join(args.out, name, config, study.fixed(args))
        is_whole = study.run(args, config, bundle)
    records = list(TrialRecords(args.out))
    if not records:
        raise UserError(f"{args.out} has no records yet.")
    cost = sum(record.get("seconds", 0) for record in records) / 60
    print(f"{len(records)} records in {args.out}, {cost:,.1f} minutes of one process")
    if not is_whole:
        others = TrialRecords(args.out).workers
        print(f"the rest is claimed by {'; '.join(others) or 'others'}: the last one to end tells what was found")
        print("if there is none any more, run the same command again in a minute")
        return
    for line in study.findings(records):
        print(f"  {line}")
    study.draw(records, args.out / "figure.png")
    print(f"drew {args.out / 'figure.png'}")


COMMANDS = {
    f"study {name}": Command(
        question,
        partial(_describe, name),
        partial(_run, name),
        "stopped; what is recorded is kept, the same command goes on.",
    )
    for name, (_, question) in STUDIES.items()
}
