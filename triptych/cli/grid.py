"""`triptych plan grid`: plan an isoFLOP grid."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.args import float_range, grid_size, positive_float
from triptych.cli.command import PLAN, Command, add_json, write_json
from triptych.cli.plan_budget import recipe_and_changes
from triptych.cli.run_settings import family_settings, family_text
from triptych.errors import UserError
from triptych.utils.units import human_number, rough_duration

if TYPE_CHECKING:
    from triptych.training.config import RunConfig


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Plan an isoFLOP grid: for each of several budgets, models of one aspect ratio from too small to too large, each trained
on as many tokens as the budget allows. Hyperparameters and batch sizes are scaled from the model that was tuned. Prints
a summary with the hours of each run and of all of them; --out writes the grid to a folder for `triptych sweep`, and
--commands prints one command per run instead.

RECIPE selects the model family: aspect_8 (default) or another recipe of the paper for models of width 128 x layers,
proxy for CPU-sized models on the toy dataset.

examples:
  triptych plan grid                                    the paper's grid: 24 budgets from 5e18 to 1e22 FLOPs
  triptych plan grid --gpu h100 --mfu 0.4 --price-per-hour 2.5
  triptych plan grid transfer.per_module=paper          with the paper's multipliers per module
  triptych plan grid proxy --low 1e11 --high 2e13 --budgets 9 --out runs/grid
  triptych sweep runs/grid                              on any number of machines
  triptych fit runs/grid/records.jsonl"""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="recipe of the model family (default: aspect_8)")
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields to change in all runs")
    parser.add_argument(
        "--low", type=positive_float, default=5e18, metavar="FLOPS", help="smallest budget (default: 5e18)"
    )
    parser.add_argument(
        "--high", type=positive_float, default=1e22, metavar="FLOPS", help="largest budget (default: 1e22)"
    )
    parser.add_argument(
        "--budgets", type=grid_size, default=24, metavar="K", help="number of budgets, with both ends (default: 24)"
    )
    parser.add_argument(
        "--sizes", type=grid_size, default=11, metavar="K", help="largest number of models per budget (default: 11)"
    )
    parser.add_argument("--tokens-per-parameter", type=float_range, metavar="LOW,HIGH", help="default: 1,2000")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the grid to this folder")
    parser.add_argument("--commands", action="store_true", help="print one command per run, and nothing else")
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="hours are those of one such GPU, or of this machine with cpu (default: h100; cpu for the proxy)",
    )
    parser.add_argument(
        "--mfu",
        type=positive_float,
        default=0.4,
        metavar="SHARE",
        help="share of the peak that is reached (default: 0.4)",
    )
    parser.add_argument("--price-per-hour", type=positive_float, metavar="DOLLARS", help="price of one GPU")
    add_json(parser)


def _run(args: argparse.Namespace) -> None:
    import shlex
    from dataclasses import asdict

    from triptych.scaling.family import model_family
    from triptych.scaling.grid import TOKENS_PER_PARAMETER, budgets_between, isoflop_grid
    from triptych.scaling.queue import check_grid_data, grid_run, write_grid

    if args.out is None and args.commands:
        raise UserError("--commands needs --out FOLDER, where the runs are stored.")
    family = model_family(*recipe_and_changes(args))
    points = isoflop_grid(
        family.members,
        family.vocabulary,
        family.lengths,
        budgets_between(args.low, args.high, args.budgets),
        tokens_per_parameter=args.tokens_per_parameter or TOKENS_PER_PARAMETER,
        max_sizes=args.sizes,
    )
    speed = _speed(args, points[0].config)
    runs = [grid_run(point) for point in points]
    if args.out is not None:
        check_grid_data(points[0].config)
        write_grid(args.out, runs)
    if args.commands:
        for run in runs:
            print(shlex.join(["triptych", *run.command(args.out)]))
        return
    total_flops, total_tokens = sum(run.C for run in runs), sum(run.D for run in runs)
    hours = total_flops / speed.flops_per_second / 3600
    cost = None if args.price_per_hour is None else hours * args.price_per_hour
    if args.json is not None:
        total = {"runs": len(runs), "flops": total_flops, "tokens": total_tokens, "hours": hours, "cost": cost}
        machine = {"name": speed.machine, "mfu": args.mfu}
        listed = [{**asdict(run), "hours": run.C / speed.flops_per_second / 3600} for run in runs]
        settings = family_settings(family.members[0])
        write_json({"total": total, "machine": machine, **settings, "runs": listed}, args.json)
        return
    print(f"isoFLOP grid, {family}\n{family_text(family.members[0])}\n")
    print(
        f"{'FLOPs':>9}   {'runs':>4}   {'N':>16}   {'D':>16}   {'D/N':>13}   {'batch':>11}   {'steps':>15}   "
        f"{'time of a run':>13}"
    )
    for budget in sorted({run.budget for run in runs}):
        row = [point for point in points if point.budget == budget]
        ratios = [point.tokens_per_parameter for point in row]
        batches = [point.config.loader.global_batch for point in row]
        columns = (
            (_range([point.N for point in row]), 16), (_range([point.D for point in row]), 16), (_range(ratios), 13),
            (_range(batches), 11), (_range([point.config.num_steps for point in row]), 15),
        )  # fmt: skip
        time = rough_duration(budget / speed.flops_per_second)
        print(f"{budget:9.3g}   {len(row):4}   " + "   ".join(f"{text:>{width}}" for text, width in columns), end="")
        print(f"   {time:>13}")
    print(
        f"\n{len(runs)} runs, {total_flops:.3g} FLOPs, {human_number(total_tokens)} tokens; "
        f"the largest run has {max(run.C for run in runs):.3g} FLOPs"
    )
    print(
        f"{hours:,.{0 if hours >= 100 else 2}f} hours of one {speed.machine} at {args.mfu:.0%} of its peak"
        + ("" if cost is None else f", ${cost:,.0f}")
    )
    if args.out is not None:
        print(f"wrote {args.out}; start or join its runs with: triptych sweep {args.out}")


def _range(values: Sequence[float]) -> str:
    return f"{human_number(min(values))} to {human_number(max(values))}"


@dataclass(frozen=True)
class _Speed:
    machine: str
    flops_per_second: float


def _speed(args: argparse.Namespace, config: "RunConfig") -> _Speed:
    """The speed that hours are computed with: the paper's models are for GPUs, the proxy's for a CPU."""
    from triptych.plan.machines import CPU, find_machine
    from triptych.tokenizers.bundle import PAPER_TOKENIZERS
    from triptych.training.peak import products_dtype

    if args.gpu is None and args.price_per_hour is not None:
        raise UserError("--price-per-hour needs --gpu NAME.")
    if not 0 < args.mfu <= 1:
        raise UserError(f"--mfu is a share of the peak, above 0 and at most 1, got {args.mfu:g}.")
    name = args.gpu or ("h100" if config.tokenizers == PAPER_TOKENIZERS else CPU)
    machine = find_machine(name, 1, products_dtype(config.parallel.precision))
    return _Speed(machine.name, machine.peak * args.mfu)


COMMANDS = {"plan grid": Command("plan an isoFLOP grid: its runs, cost and commands", _describe, _run, group=PLAN)}
