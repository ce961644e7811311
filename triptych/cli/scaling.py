"""The verbs of scaling laws: plan a grid, do its runs, fit a law to them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triptych.cli.args import positive, two_numbers, whole_number
from triptych.cli.command import Command, one_of
from triptych.errors import UserError
from triptych.utils.units import human_number

_LAWS = ["best", "joint", "additive", "noise"]


def _describe_fit(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Fit a scaling law to a table of runs, say how far to trust it, and what it advises.

  joint      L = E + (A N^(-a/b) + B/D)^b     the paper's
  additive   L = E + A N^-a + B D^-b          Chinchilla's
  noise      L = E + A S^-a + B Bv^-b         of virtual steps and batch (columns S and Bv)

FILE is .csv, .tsv, .json or .jsonl, with a row for each run: N (parameters without embeddings), D (tokens), loss and,
if you have it, C (its FLOPs; without, 6 N a token; with C, D may be left out and is C / 6 N). A tenth of the runs is
held out in each of --rounds fits to resampled runs: their errors choose between the laws, their spread makes the
intervals.

examples:
  triptych fit studies/scaling/records.jsonl --budget 1e14 --figure fit.png
  triptych fit runs.csv --columns N=params,loss=val_loss --unit 1e9
  triptych fit runs.csv --save fit.json && triptych plan --budget 1e21 --law fit.json"""
    parser.add_argument("runs", metavar="FILE", type=Path)
    parser.add_argument(
        "--law", default="best", **one_of(_LAWS), help="which (default: the better of joint and additive)"
    )
    parser.add_argument("--columns", metavar="N=NAME,..", help="what N, D, loss and C are called in the file")
    parser.add_argument("--unit", type=positive, default=1.0, help="of N and D, as 1e9 for billions (default: 1)")
    parser.add_argument("--skip-diverged", action="store_true", help="leave runs without a finite loss out")
    parser.add_argument(
        "--drop-worst", type=whole_number, default=0, metavar="K", help="leave the K highest losses out"
    )
    parser.add_argument(
        "--rounds", type=whole_number, default=20, metavar="K", help="fits to resampled runs (default: 20)"
    )
    parser.add_argument("--huber", type=positive, default=1e-3, help="errors of log L beyond it count linearly (1e-3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--budget", type=positive, action="append", metavar="FLOPS", help="what is best for it; repeatable"
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the fit, .png, .pdf or .svg")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the fit, for `triptych plan --law FILE`")
    parser.add_argument("--json", action="store_true", help="print JSON for programs, as --save writes it")


def _run_fit(args: argparse.Namespace) -> None:
    import json

    import numpy as np

    from triptych.data.shards import write_atomically
    from triptych.scaling.figures import draw_fit
    from triptych.scaling.fit import compare, fit
    from triptych.scaling.law import ADDITIVE, JOINT, NOISE, form_named
    from triptych.scaling.optimal import SIX_N, FlopsPerToken
    from triptych.scaling.report import Best, as_json, best_for, comparison_line
    from triptych.scaling.runs import read_runs

    if args.figure and (args.figure.suffix not in (".png", ".pdf", ".svg") or not args.figure.parent.is_dir()):
        raise UserError(f"--figure must be a .png, .pdf or .svg in a folder that is there, got {args.figure}.")
    if args.save and not args.save.parent.is_dir():
        raise UserError(f"--save must be a file in a folder that is there, got {args.save}.")
    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}.")
    if args.law == "noise" and args.budget:
        raise UserError("--budget needs a law of N and D: the one of noise says nothing of it.")
    if args.rounds < 2:
        raise UserError(f"--rounds must be at least 2, got {args.rounds}: intervals are made of them.")
    forms = [JOINT, ADDITIVE] if args.law == "best" else [form_named(args.law)]
    names = forms[0].columns
    runs = read_runs(
        args.runs,
        names,
        called=_pairs(args.columns),
        unit=args.unit,
        skip_diverged=args.skip_diverged,
        drop_worst=args.drop_worst,
    )
    fits = [fit(form, runs, rounds=args.rounds, huber=args.huber, seed=args.seed) for form in forms]
    comparison = compare(*fits) if len(fits) == 2 else None
    chosen = comparison.better if comparison else fits[0]
    per_token, most = None, 0.0
    best: list[Best] = []
    budgets: list[float] = []
    if chosen.law.form is not NOISE:
        sizes, tokens = runs.columns
        per_token = FlopsPerToken.of(runs)
        most = float((per_token(sizes) * tokens).max())
        budgets = args.budget or [float(f"{most * factor:.1g}") for factor in (1, 10, 100)]
        best = [each for each in (best_for(chosen.law, chosen.laws, budget, per_token) for budget in budgets) if each]
    content = json.dumps(as_json(fits, comparison, chosen, per_token, best), indent=2, allow_nan=False)
    if args.save:
        write_atomically(args.save, (content + "\n").encode())
    if args.json:
        print(content)
        if args.figure:
            draw_fit(chosen, per_token or SIX_N, args.figure)
        return
    columns = ", ".join(
        f"{name} {human_number(np.min(column))} to {human_number(np.max(column))}"
        for name, column in zip(names, runs.columns)
    )
    print(f"{args.runs}: {len(runs)} runs, {columns}, loss {runs.loss.min():.4g} to {runs.loss.max():.4g}\n")
    print(f"{'law':10} {'':26} {'R2':>8} {'MRE':>7}   {'held out:':>9} {'R2':>8} {'MRE':>7}")
    for each in fits:
        print(
            f"{each.law.form.name:10} {each.law.form.formula:26} {each.r2:8.4f} {each.mre:7.2%}   {'':9} "
            f"{each.held_out_r2:8.4f} {each.held_out_mre:7.2%}"
        )
    if comparison:
        print(comparison_line(comparison))
    _print_law(chosen)
    if per_token is not None:
        _print_best(best, is_counted=runs.flops is not None, most=most)
        for budget in budgets:
            if all(each.flops != budget for each in best):
                print(f"  {budget:8.3g}   no size is best by this law")
    if args.figure:
        draw_fit(chosen, per_token or SIX_N, args.figure)
        print(f"\ndrew {args.figure}", file=sys.stderr)


def _pairs(text: str | None) -> dict[str, str]:
    found = {}
    for part in text.split(",") if text else []:
        name, equals, theirs = part.partition("=")
        if not equals or not theirs:
            raise UserError(
                f"--columns takes NAME=THEIRS with commas between, as N=params,loss=val_loss; got {part!r}."
            )
        found[name.strip()] = theirs.strip()
    return found


def _print_law(fit: Any) -> None:
    from triptych.scaling.fit import LEVEL

    form = fit.law.form
    unit = ", N and D in billions" if form.unit != 1 else ""
    print(f"\n{form.name}: L = {form.formula}{unit}, {LEVEL:.0%} intervals of {len(fit.rounds)} rounds")
    for (name, value), (low, high) in zip(fit.law.coefficients.items(), fit.intervals.values()):
        reach = f"{low:.4g} to {high:.4g}" if low == low else "not decided by these runs"
        print(f"  {name:4} {value:10.4g}   {reach}")
    if form.unit != 1:
        print("  for N and D one by one, A is {:.4g} and B {:.4g}".format(*fit.law.one_by_one))


def interval_text(low: float, high: float) -> str:
    return f"({human_number(low)} to {human_number(high)})" if low == low else "(not decided)"


def _print_best(best: list[Any], *, is_counted: bool, most: float) -> None:
    how = "the FLOPs of these runs" if is_counted else "6 N FLOPs a token"
    print(f"\nbest for a budget, with {how}:")
    print(f"  {'FLOPs':>8}   {'N':>22}   {'D':>22}   {'D/N':>6}   {'loss':>20}")
    for each in best:
        ends = {name: interval_text(low, high) for name, (low, high) in each.intervals.items()}
        far = "" if each.flops <= 10 * most else f"   {each.flops / most:,.0f} x the largest run: far out"
        print(
            f"  {each.flops:8.3g}   {human_number(each.N):>6} {ends['N']:>15}   {human_number(each.D):>6} {ends['D']:>15}   "
            f"{each.D / each.N:6.3g}   {each.loss:5.3f} {ends['loss']:>14}{far}"
        )


# -- a grid -----------------------------------------------------------------------------------------------------------


def _describe_grid(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Plan an isoFLOP grid: for each of several budgets, models of one aspect from too small to too large, each trained on the
tokens that the budget leaves. Hyperparameters and batch sizes follow from the family's base. Prints what it comes to;
with --out it is written down for `triptych sweep`, and --commands prints the command of every run instead.

RECIPE names the family: aspect_8 (default) or any of the paper's for width 128 x layers, family for CPU-sized models.

examples:
  triptych plan grid                                                        as in the paper: 24 budgets, 5e18 to 1e22
  triptych plan grid --gpu h100 --mfu 0.4 --price-per-hour 2.5
  triptych plan grid family --low 1e11 --high 2e13 --budgets 9 --out runs/grid
  triptych sweep runs/grid                                                  on as many machines as you like
  triptych fit runs/grid/records.jsonl"""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="of the family (default: aspect_8)")
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields of all runs that are to differ")
    parser.add_argument("--low", type=positive, default=5e18, metavar="FLOPS", help="smallest budget (default: 5e18)")
    parser.add_argument("--high", type=positive, default=1e22, metavar="FLOPS", help="largest (default: 1e22)")
    parser.add_argument(
        "--budgets", type=whole_number, default=24, metavar="K", help="both ends among them (default: 24)"
    )
    parser.add_argument("--sizes", type=whole_number, default=11, metavar="K", help="per budget, at most (default: 11)")
    parser.add_argument("--tokens-per-parameter", type=two_numbers, metavar="LOW,HIGH", help="default: 1,2000")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the grid there")
    parser.add_argument("--commands", action="store_true", help="print a command for each run, and nothing else")
    parser.add_argument("--gpu", metavar="NAME", help="say how long it takes on these, e.g. h100; cpu for this machine")
    parser.add_argument("--mfu", type=positive, default=0.4, metavar="SHARE", help="of the peak that is reached")
    parser.add_argument("--price-per-hour", type=positive, metavar="DOLLARS", help="of one GPU")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def _run_grid(args: argparse.Namespace) -> None:
    import json
    import shlex
    from dataclasses import asdict

    from triptych.scaling.family import family_for
    from triptych.scaling.grid import TOKENS_PER_PARAMETER, budgets_between, isoflop_grid
    from triptych.scaling.queue import check_run, planned, write_grid

    if args.out is None and args.commands:
        raise UserError("--commands needs --out FOLDER: where the runs are to lie.")
    family = family_for(*recipe_and_changes(args))
    cells = isoflop_grid(
        family.members,
        family.vocabulary,
        family.lengths,
        budgets_between(args.low, args.high, args.budgets),
        tokens_per_parameter=args.tokens_per_parameter or TOKENS_PER_PARAMETER,
        most_sizes=args.sizes,
    )
    runs = [planned(cell) for cell in cells]
    if args.out is not None:
        check_run(cells[0].config)
        write_grid(args.out, runs)
    if args.commands:
        for run in runs:
            print(shlex.join(["triptych", *run.command(args.out)]))
        return
    hours = _hours(args, sum(run.C for run in runs))
    if args.json:
        total = {"runs": len(runs), "flops": sum(run.C for run in runs), "tokens": sum(run.D for run in runs)}
        print(json.dumps({"total": total | hours, "runs": [asdict(run) for run in runs]}, indent=2))
        return
    print(f"isoFLOPs, {family}\n")
    print(f"{'FLOPs':>9}   {'runs':>4}   {'N':>16}   {'D':>16}   {'D/N':>13}   {'batch':>11}   {'steps':>15}")
    for budget in sorted({run.budget for run in runs}):
        row = [cell for cell in cells if cell.budget == budget]
        ratios = [cell.tokens_per_parameter for cell in row]
        batches = [cell.config.loader.global_batch for cell in row]
        columns = (
            (_ends([cell.N for cell in row]), 16), (_ends([cell.D for cell in row]), 16), (_ends(ratios), 13),
            (_ends(batches), 11), (_ends([cell.config.num_steps for cell in row]), 15),
        )  # fmt: skip
        print(f"{budget:9.3g}   {len(row):4}   " + "   ".join(f"{text:>{width}}" for text, width in columns))
    print(
        f"\n{len(runs)} runs, {sum(run.C for run in runs):.3g} FLOPs, {human_number(sum(run.D for run in runs))} tokens; "
        f"the largest run has {max(run.C for run in runs):.3g} FLOPs"
    )
    if hours:
        cost = "" if hours.get("cost") is None else f", ${hours['cost']:,.0f}"
        print(f"{hours['hours']:,.3g} hours of one {args.gpu} at {args.mfu:.0%} of its peak{cost}")
    if args.out is not None:
        print(f"written to {args.out}; begin or join it with: triptych sweep {args.out}")


def recipe_and_changes(args: argparse.Namespace) -> tuple[str, list[str]]:
    """`plan --budget 1e21 complementary_masks=true`: the first word may be a change already."""
    if args.recipe is None or "=" in args.recipe:
        return "aspect_8", [*([args.recipe] if args.recipe else []), *args.changes]
    return args.recipe, args.changes


def _ends(values: Sequence[float]) -> str:
    return f"{human_number(min(values))} to {human_number(max(values))}"


def _hours(args: argparse.Namespace, flops: float) -> dict[str, Any]:
    from triptych.plan.estimate import machine_named

    if args.gpu is None:
        if args.price_per_hour is not None:
            raise UserError("--price-per-hour needs --gpu NAME.")
        return {}
    if not 0 < args.mfu <= 1:
        raise UserError(f"--mfu is a share of the peak, above 0 and at most 1, got {args.mfu:g}.")
    hours = flops / (machine_named(args.gpu, 1).peak * args.mfu) / 3600
    return {"hours": hours, "cost": None if args.price_per_hour is None else hours * args.price_per_hour}


# -- its runs ----------------------------------------------------------------------------------------------------------


def _describe_sweep(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Take runs of a planned grid, one after the other, until none is left. Start it as often as you like, here and on other
machines that share the folder: every run is done once. A run that was stopped goes on from its last checkpoint.

examples:
  triptych plan grid family --low 1e11 --high 2e13 --budgets 9 --out runs/grid
  triptych sweep runs/grid
  triptych sweep /shared/grid --device cuda --nproc 8       every run on the 8 GPUs of this machine
  triptych fit runs/grid/records.jsonl --skip-diverged"""
    parser.add_argument("grid", metavar="FOLDER", type=Path)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--nproc", metavar="N", type=whole_number, help="train each run in N processes on this machine")


def _run_sweep(args: argparse.Namespace) -> None:
    from functools import partial

    from triptych.scaling.sweep import sweep
    from triptych.utils.trials import TrialRecords

    options = ["--device", args.device, *(["--nproc", str(args.nproc)] if args.nproc is not None else [])]
    found = sweep(args.grid, options, partial(print, flush=True))
    if found.failed:
        key, why = next(iter(found.failed.items()))
        raise UserError(
            f"{found.num_done} of {found.num_runs} runs are done, {len(found.failed)} ended without a result; "
            f"{key}: {why}."
        )
    if found.num_done < found.num_runs:
        others = "; ".join(TrialRecords(args.grid).workers) or "others"
        print(f"{found.num_done} of {found.num_runs} runs are done, the rest is claimed by {others}")
        return
    print(f"all {found.num_runs} runs are done: triptych fit {args.grid / 'records.jsonl'}")


COMMANDS = {
    "fit": Command("a scaling law of your runs, with intervals, and what it advises", _describe_fit, _run_fit),
    "plan grid": Command("an isoFLOP grid: its runs, what it costs, the commands", _describe_grid, _run_grid),
    "sweep": Command(
        "do the runs of a planned grid, together with whoever else does",
        _describe_sweep,
        _run_sweep,
        "stopped; what is recorded is kept, and the same command goes on.",
    ),
}
