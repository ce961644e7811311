"""`triptych train`: train a model by a recipe, or resume a run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.args import positive_float, positive_int, processes, whole_number
from triptych.cli.command import TRAIN, Command, add_device
from triptych.errors import UserError

if TYPE_CHECKING:
    from triptych.training.config import RunConfig


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Train a model by a recipe, or resume a run that was stopped: the same command continues it.

examples:
  triptych scenes make data/scenes --text 500 --images 1000 --speech 300 --validation 50     a little data first
  triptych train nano                                   a minute on a laptop, to see the loss fall
  triptych train scenes --out runs/scenes               the demo model, some hours on two cores
  triptych train own data=data/photos,data/notes --out runs/mine         on your data (docs/your-data.md)
  triptych train own data=data/photos --hours 2         size and schedule by a scaling law
  triptych train my_recipe.py                           by a recipe of your own: a file that defines recipe()
  triptych train --resume runs/mine                     continue a run without typing its settings again
  triptych train scenes optimizer.lr=2e-3 num_steps=5000 model.width=256
  triptych train scenes norm=sequence corrupt.schedule=cosine loader.task_weights.text=0.3

recipes: own (your data); scenes, scenes_full, nano (built-in toy dataset, for a CPU; they read data/scenes, made by
`triptych scenes make data/scenes`); paper_base, paper_3b, aspect_N (N layers of width 128 N); proxy (the small model
on which hyperparameters are tuned).

Several processes train one sharded model (docs/distributed.md):
  triptych train scenes --nproc 2
  triptych train paper_3b --nproc 8 --nnodes 32 --rdzv-endpoint node0:29500 --device cuda data=...     (on every node)

The run folder holds records.jsonl, config.json and checkpoints/. Ctrl-C saves a checkpoint before it stops.
exit codes: 0 done, 1 crashed, 2 wrong argument or configuration, 3 data, 4 checkpoint, 5 diverged, 75 stopped by
SIGTERM, SIGUSR1 or SIGHUP after saving (run the same command again), 130 stopped by Ctrl-C."""
    parser.usage = "triptych train RECIPE [KEY=VALUE ...] [options]\n       triptych train --resume RUN [options]"
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a name, or a Python file that defines recipe()")
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields of the recipe to change")
    parser.add_argument("--out", metavar="RUN", type=Path, help="folder of the run (default: runs/RECIPE)")
    parser.add_argument("--resume", metavar="RUN", type=Path, help="continue this run with its own configuration")
    size = parser.add_argument_group("size by a scaling law, for the recipe own")
    size.add_argument("--hours", metavar="H", type=positive_float, help="choose model, batch and steps for this time")
    size.add_argument("--budget", metavar="FLOPS", type=positive_float, help="the same for a number of FLOPs")
    size.add_argument("--gpus", metavar="N", type=positive_int, help="with --hours: only show the choice for N GPUs")
    size.add_argument("--gpu", metavar="NAME", help="of this kind: h100 (default), h200, a100, b200, l40s, rtx4090")
    size.add_argument("--mfu", metavar="SHARE", type=float, help="share of their peak that is reached (default: 0.4)")
    size.add_argument("--law", metavar="FILE", type=Path, help="law by `triptych fit --save` (default: a built-in one)")
    parser.add_argument("--stop-after", metavar="STEP", type=positive_int, help="save and stop at this step")
    parser.add_argument("--print-config", action="store_true", help="print the complete configuration as JSON and stop")
    parser.add_argument("--force", action="store_true", help="resume although the configuration or the data changed")
    add_device(parser)
    group = parser.add_argument_group("several processes")
    group.add_argument("--nproc", metavar="N", type=processes, help="processes on this machine")
    group.add_argument("--nnodes", metavar="N", type=whole_number(1, 65_536), default=1, help="machines (default: 1)")
    group.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="with --nnodes: address of the rendezvous, the same on all machines",
    )
    group.add_argument("--max-restarts", metavar="N", type=int, default=3, help="after a crash (default: 3)")


def _run(args: argparse.Namespace) -> None:
    source, changes, out = _source(args)
    if args.print_config:
        import json

        from triptych.utils.config import to_json

        print(json.dumps(to_json(_config(source, changes)), indent=2))
        return
    if args.hours is not None or args.budget is not None:
        from triptych.cli.train_budget import train_for

        train_for(args, source, changes, lambda: _launch(args))
        return
    for name in ("law", "gpus", "gpu", "mfu"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} chooses a size for --hours or --budget.")
    if args.nproc is None:
        for name, default in (("nnodes", 1), ("rdzv_endpoint", None)):
            if getattr(args, name) != default:
                raise UserError(f"--{name.replace('_', '-')} needs --nproc N: processes on this machine.")
    else:
        from triptych.training.setup import need_data
        from triptych.utils.device import resolve_device

        need_data(_config(source, changes))
        resolve_device(args.device)  # here, so that one process reports it
        _launch(args)
        return
    from triptych.training.run import train

    train(
        source,
        changes,
        out=out,
        device=args.device,
        stop_after=args.stop_after,
        force=args.force,
        quiet=args.quiet,
    )


def _source(args: argparse.Namespace) -> "tuple[str | RunConfig, list[str], Path | None]":
    """The recipe, or the saved configuration with --resume; the changes; the folder of the run."""
    if args.resume is None:
        if args.recipe is None:
            raise UserError("name a recipe, or --resume RUN. Recipes: own, scenes, nano (`triptych train --help`).")
        return args.recipe, args.changes, args.out
    if args.out is not None:
        raise UserError("--resume continues the run in its own folder; leave out --out.")
    from triptych.training.setup import read_run_config

    changes = [*([args.recipe] if args.recipe is not None else []), *args.changes]
    return read_run_config(args.resume), changes, args.resume


def _config(source: "str | RunConfig", changes: list[str]) -> "RunConfig":
    from triptych.recipes import configure
    from triptych.utils.config import override

    return configure(source, changes) if isinstance(source, str) else override(source, changes)


def _launch(args: argparse.Namespace) -> None:
    """The same command in several processes."""
    from triptych.training.launch import launch

    run = args.resume or args.out or Path("runs") / Path(args.recipe).stem
    code = launch(_of_one_rank(args), args.nproc, args.max_restarts, args.nnodes, args.rdzv_endpoint, run)
    if code:
        raise SystemExit(code)


def _of_one_rank(args: argparse.Namespace) -> list[str]:
    """The same command for one of the processes."""
    words = ["train", *([args.recipe] if args.recipe is not None else []), *args.changes, "--device", args.device]
    named = ("resume", "out", "stop_after", "hours", "budget", "law")
    for option, value in ((f"--{name.replace('_', '-')}", getattr(args, name)) for name in named):
        words += [option, str(value)] if value is not None else []
    return words + [option for option, is_set in (("--force", args.force), ("--quiet", args.quiet)) if is_set]


COMMANDS = {"train": Command("train a model by a recipe, or resume a run", _describe, _run, TRAIN)}
