"""`triptych study NAME`: run a study, or redraw it from its records."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_int
from triptych.cli.command import STUDY, Command
from triptych.errors import UserError, did_you_mean

# Name -> module, question, and minutes of one CPU core with the default options: from the records in studies/, or
# estimated. Modules are imported on use, because they load torch.
STUDIES = {
    "coordinates": ("coordinates", "do activations and their updates keep their scale in wider and deeper models?", 2),
    "lr-transfer": (
        "lr_transfer",
        "is the best learning rate of the proxy also the best for wider and deeper models?",
        70,
    ),
    "batch-size": (
        "batch_size",
        "up to which batch size does the batch-size rule keep the final loss constant?",
        55,
    ),
    "search": ("search", "which learning rate, betas, epsilon and weight decay are best for the proxy?", 60),
    "modules": ("modules", "how much do separate hyperparameters for each kind of weight gain?", 130),
    "scaling": ("scaling", "how large a model, on how many tokens, is compute-optimal?", 250),
    "critical-batch": (
        "critical_batch",
        "how does the critical batch size grow with the size of the model and the number of tokens?",
        70,
    ),
    "text-scaling": ("text_scaling", "what is compute-optimal for text alone, without the batch-size rule?", 45),
    "runtime": ("runtime", "how do throughput and FLOP efficiency depend on the batch of a rank and the ranks?", 2),
    "parameters": ("parameters", "which share of the parameters is in the blocks, by size and vocabulary?", 0.1),
    "gamma": ("gamma", "how fast should the batch size grow with the number of tokens?", 50),
    "mixture": ("mixture", "how do the losses depend on the mixture, is there synergy, and which mixture is best?", 25),
    "anti-masking": ("anti_masking", "do complementary masks help at equal compute, and do they lower variance?", 25),
    "schedules": (
        "schedules",
        "which masking schedule gives the best likelihood, images and speech, and with which guidance scale?",
        55,
    ),
    "inference": (
        "inference",
        "which steps, guidance scale, temperature and top-p are best for a model, by modality?",
        25,
    ),
}


def study_of(name: str) -> Any:
    """The study of this name."""
    from importlib import import_module

    if name not in STUDIES:
        raise UserError(f"unknown study {name!r}.{did_you_mean(name, list(STUDIES))}")
    return import_module(f"triptych.studies.{STUDIES[name][0]}").STUDY


class _Unfinished(UserError):
    """All that this process could do is done, but not the study."""

    exit_code = 1


def _describe(name: str, parser: argparse.ArgumentParser) -> None:
    _, question, minutes = STUDIES[name]
    parser.description = f"""\
{question[0].upper()}{question[1:]}

Runs many small models and appends one record per run to FOLDER/records.jsonl. The figure, FOLDER/figure.png, and the
findings are made from the records alone. Recorded runs are not repeated, so the same command resumes an interrupted
study. Several processes with the same --out share the runs, also on other machines that share the folder; the last one
to end prints the findings, and the others end with exit code 1.

With the default options it takes about {minutes} minutes of one CPU core: measured if studies/ has the study, otherwise
estimated. Before it starts, it times a few steps and prints how many runs there are to do, and about how long they take
on this machine.

examples:
  triptych scenes make data/scenes
  triptych study {name} --out runs/{name}
  triptych study {name} --out runs/{name} --plot-only
  triptych study {name} --out runs/{name} --recipe own --data data/mine        at your own scale, on your own data"""
    study_of(name).add_arguments(parser)
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="recipe of the base run, a name or a Python file (default: the small proxy of this study)",
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="tokenized data to train on, as `data=` of `triptych train` (default: that of the recipe)",
    )
    parser.add_argument(
        "--validation-data",
        metavar="FOLDER",
        help="tokenized data to validate on (default: FOLDER/validation beside FOLDER/train, or 5 %% of --data)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="folder of the records, figure and findings"
    )
    parser.add_argument("--plot-only", action="store_true", help="run nothing: draw the figure from the records")
    parser.add_argument(
        "--threads",
        type=positive_int,
        default=1,
        metavar="N",
        help="CPU threads of this process (default: 1; several processes are faster)",
    )
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields of the base run to change in all runs")


def _run(name: str, args: argparse.Namespace) -> None:
    import torch

    from triptych.studies.base import base_run, join, open_data, read_study
    from triptych.studies.duration import estimate_duration
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.utils.trials import TrialRecords

    study, is_finished = study_of(name), True
    if args.plot_only:
        saved = read_study(args.out)["study"]
        if saved != name:
            raise UserError(f"{args.out} holds the study {saved!r}: draw it with `triptych study {saved}`.")
    else:
        torch.set_num_threads(args.threads)
        config = base_run(study, args.recipe, args.data, args.validation_data, args.changes)
        study.check(config)
        bundle = open_data(config) if study.needs_data else TokenizerBundle.load(config.tokenizers)
        join(args.out, name, config, study.fixed_options(args))
        if runs := study.missing_runs(args, config, bundle):
            print(estimate_duration(runs, bundle), flush=True)
        is_finished = study.run(args, config, bundle)
    records = list(TrialRecords(args.out))
    if not records:
        raise UserError(f"{args.out} has no records yet.")
    minutes = sum(record.get("seconds", 0) for record in records) / 60
    print(f"{len(records)} records in {args.out}, {minutes:,.1f} minutes of one process")
    if not is_finished:
        others = "; ".join(TrialRecords(args.out).workers) or "other processes"
        raise _Unfinished(
            f"the study is not finished: the other runs are claimed by {others}, and the last process to end prints "
            "the findings. If none is running any more, run the same command again in a minute."
        )
    for line in [*study.findings(records), *study.answers(args, records)]:
        print(f"  {line}")
    study.draw(records, args.out / "figure.png")
    print(f"wrote {args.out / 'figure.png'}")


COMMANDS = {
    f"study {name}": Command(
        f"{question} ({minutes} min)",
        partial(_describe, name),
        partial(_run, name),
        group=STUDY,
        when_stopped="stopped; finished runs are recorded, and the same command resumes the study.",
    )
    for name, (_, question, minutes) in STUDIES.items()
}
