"""`triptych fit`: fit a scaling law to a table of runs."""

import argparse
import sys
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_float, positive_int
from triptych.cli.command import PLAN, Command, add_json, one_of, write_json
from triptych.errors import UserError
from triptych.utils.units import human_number

_LAWS = ["best", "joint", "additive", "noise", "plateau"]
_ROUNDS, _PLATEAU_ROUNDS = 20, 200


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Fit a scaling law to a table of runs, with confidence intervals, and print the compute-optimal model for a budget.

  joint      L = E + (A N^(-a/b) + B/D)^b     the paper's law
  additive   L = E + A N^-a + B D^-b          Chinchilla's law
  noise      L = E + A S^-a + B Bv^-b         virtual steps and virtual batch (columns S and Bv)
  plateau    L = c + log(1 + (S0 / S)^q)      the critical number of steps, S0 = s N^nu D^xi (columns steps, D and N)

FILE is .csv, .tsv, .json or .jsonl with one row per run: N (non-embedding parameters), D (tokens), loss and optionally
C (FLOPs of the run). Without C, training takes 6 N FLOPs per token; with C, D may be missing and is C / 6 N. Each of
--rounds fits holds out a tenth of the runs and resamples the rest: the held-out errors choose between the laws, and the
spread of the fits gives the intervals.

The plateau law is for runs with hyperparameters scaled to the batch size: for each N and D, runs with batch sizes from
small to large, so with many steps to few. It needs the columns steps and D; without N, all runs have one size. It
prints the critical number of steps S_crit, below which exp(loss) is more than --delta above its plateau, and the
critical batch B_crit = D / S_crit in tokens, for each N and D, and the exponents of both.

examples:
  triptych fit studies/scaling/records.jsonl --budget 1e14 --figure fit.png
  triptych fit runs.csv --columns N=params,loss=val_loss --unit 1e9
  triptych fit runs.csv --save fit.json && triptych plan --budget 1e21 --law fit.json
  triptych fit batch_sizes.csv --law plateau --delta 0.05 --figure plateau.png"""
    parser.add_argument("runs", metavar="FILE", type=Path, help="table of runs")
    parser.add_argument(
        "--law", default="best", **one_of(_LAWS), help="law to fit (default: the better of joint and additive)"
    )
    parser.add_argument("--columns", metavar="N=NAME,..", help="names of the columns for N, D, loss and C in the file")
    parser.add_argument(
        "--unit", type=positive_float, default=1.0, metavar="X", help="unit of N and D, 1e9 for billions (default: 1)"
    )
    parser.add_argument("--skip-diverged", action="store_true", help="leave out runs without a finite loss")
    parser.add_argument(
        "--drop-worst", type=positive_int, default=0, metavar="K", help="leave out the K highest losses"
    )
    parser.add_argument(
        "--rounds",
        type=positive_int,
        metavar="K",
        help=f"number of fits to resampled runs (default: {_ROUNDS}, for plateau {_PLATEAU_ROUNDS})",
    )
    parser.add_argument(
        "--delta",
        type=positive_float,
        metavar="X",
        help="with plateau: rise of exp(loss) that defines the critical number of steps (default: 0.01)",
    )
    parser.add_argument(
        "--huber",
        type=positive_float,
        metavar="X",
        help="relative errors above X count linearly (default: 0.001)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the resampling (default: 0)")
    parser.add_argument(
        "--budget",
        type=positive_float,
        action="append",
        metavar="FLOPS",
        help="print the compute-optimal model for this budget; repeatable",
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the fit to a .png, .pdf or .svg")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the fit for `triptych plan --law FILE`")
    add_json(parser)


def _check(args: argparse.Namespace) -> None:
    if args.figure and (args.figure.suffix not in (".png", ".pdf", ".svg") or not args.figure.parent.is_dir()):
        raise UserError(f"--figure must be a .png, .pdf or .svg in an existing folder, got {args.figure}.")
    if args.save and not args.save.parent.is_dir():
        raise UserError(f"--save must be a file in an existing folder, got {args.save}.")
    if args.seed < 0:
        raise UserError(f"--seed must not be negative, got {args.seed}.")
    if args.law == "noise" and args.budget:
        raise UserError("--budget needs a law of N and D, which the noise law is not.")
    if args.rounds is not None and args.rounds < 2:
        raise UserError(f"--rounds must be at least 2 for the intervals, got {args.rounds}.")
    if args.law != "plateau":
        if args.delta is not None:
            raise UserError("--delta belongs to --law plateau.")
        return
    for name in ("budget", "save", "drop_worst", "huber"):
        if getattr(args, name):
            raise UserError(f"--{name.replace('_', '-')} cannot be combined with --law plateau.")
    if args.delta is not None and args.delta >= 1:
        raise UserError(f"--delta is a fraction below 1, got {args.delta:g}.")


def _run(args: argparse.Namespace) -> None:
    _check(args)
    if args.law == "plateau":
        _run_plateau(args)
    else:
        _run_law(args)


def _run_plateau(args: argparse.Namespace) -> None:
    from triptych.scaling.plateau import fit_plateau_law, read_sweeps
    from triptych.scaling.plateau_figures import draw_plateau
    from triptych.scaling.plateau_report import law_lines, plateau_json, sweep_lines

    delta = args.delta or 0.01
    sweeps = read_sweeps(
        args.runs, called=_column_names(args.columns), unit=args.unit, skip_diverged=args.skip_diverged
    )
    fitted = fit_plateau_law(sweeps, resamples=args.rounds or _PLATEAU_ROUNDS, seed=args.seed)
    if args.figure:
        draw_plateau(fitted, delta, args.figure)
        print(f"wrote {args.figure}", file=sys.stderr)
    if args.json is not None:
        write_json(plateau_json(fitted, delta), args.json)
        return
    print(
        f"{args.runs}: {len(sweeps)} runs in {sweeps.count} sweeps over the number of steps, loss "
        f"{sweeps.loss.min():.4g} to {sweeps.loss.max():.4g}\n"
    )
    for line in (*law_lines(fitted, delta), "", *sweep_lines(fitted, delta)):
        print(line)


def _run_law(args: argparse.Namespace) -> None:
    import json

    import numpy as np

    from triptych.scaling.figures import draw_fit
    from triptych.scaling.fit import HUBER, compare, fit
    from triptych.scaling.law import ADDITIVE, JOINT, NOISE, find_form
    from triptych.scaling.optimal import SIX_N, FlopsPerToken
    from triptych.scaling.report import BudgetOptimum, as_json, comparison_line, optimum_for_budget
    from triptych.scaling.runs import read_runs
    from triptych.utils.files import write_atomically

    forms = [JOINT, ADDITIVE] if args.law == "best" else [find_form(args.law)]
    names = forms[0].columns
    runs = read_runs(
        args.runs,
        names,
        called=_column_names(args.columns),
        unit=args.unit,
        skip_diverged=args.skip_diverged,
        drop_worst=args.drop_worst,
    )
    fits = [fit(form, runs, rounds=args.rounds or _ROUNDS, huber=args.huber or HUBER, seed=args.seed) for form in forms]
    comparison = compare(*fits) if len(fits) == 2 else None
    chosen = comparison.better if comparison else fits[0]
    per_token, largest_run = None, 0.0
    optima: list[BudgetOptimum] = []
    budgets: list[float] = []
    if chosen.law.form is not NOISE:
        sizes, tokens = runs.columns
        per_token = FlopsPerToken.from_runs(runs)
        largest_run = float((per_token(sizes) * tokens).max())
        budgets = args.budget or [float(f"{largest_run * factor:.1g}") for factor in (1, 10, 100)]
        candidates = (optimum_for_budget(chosen.law, chosen.laws, budget, per_token) for budget in budgets)
        optima = [optimum for optimum in candidates if optimum]
    result = as_json(fits, comparison, chosen, per_token, optima)
    if args.save:
        write_atomically(args.save, (json.dumps(result, indent=2, allow_nan=False) + "\n").encode())
    if args.figure:
        draw_fit(chosen, per_token or SIX_N, args.figure)
        print(f"wrote {args.figure}", file=sys.stderr)
    if args.json is not None:
        write_json(result, args.json)
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
        _print_optima(optima, is_counted=runs.flops is not None, largest_run=largest_run)
        for budget in budgets:
            if all(optimum.flops != budget for optimum in optima):
                print(f"  {budget:8.3g}   this law has no optimum")


def _column_names(text: str | None) -> dict[str, str]:
    """ "N=params,loss=val_loss" -> {"N": "params", "loss": "val_loss"}"""
    names = {}
    for part in text.split(",") if text else []:
        name, equals, column = part.partition("=")
        if not equals or not column:
            raise UserError(
                f"--columns takes NAME=COLUMN separated by commas, as in N=params,loss=val_loss; got {part!r}."
            )
        names[name.strip()] = column.strip()
    return names


def _print_law(fit: Any) -> None:
    from triptych.scaling.fit import LEVEL

    form = fit.law.form
    unit = ", N and D in billions" if form.unit != 1 else ""
    print(f"\n{form.name}: L = {form.formula}{unit}, {LEVEL:.0%} intervals from {len(fit.rounds)} rounds")
    for (name, value), (low, high) in zip(fit.law.coefficients.items(), fit.intervals.values()):
        interval = f"{low:.4g} to {high:.4g}" if low == low else "not determined by these runs"
        print(f"  {name:4} {value:10.4g}   {interval}")
    if form.unit != 1:
        print("  for N and D as plain counts, A is {:.4g} and B {:.4g}".format(*fit.law.raw_coefficients))


def interval_text(low: float, high: float) -> str:
    return f"({human_number(low)} to {human_number(high)})" if low == low else "(undetermined)"


def _print_optima(optima: list[Any], *, is_counted: bool, largest_run: float) -> None:
    flops = "the FLOPs of these runs" if is_counted else "6 N FLOPs per token"
    print(f"\ncompute-optimal models, with {flops}:")
    print(f"  {'FLOPs':>8}   {'N':>22}   {'D':>22}   {'D/N':>6}   {'loss':>20}")
    for best in optima:
        ends = {name: interval_text(low, high) for name, (low, high) in best.intervals.items()}
        far = best.flops > 10 * largest_run
        note = f"   extrapolated to {best.flops / largest_run:,.0f} x the largest run" if far else ""
        print(
            f"  {best.flops:8.3g}   {human_number(best.N):>6} {ends['N']:>15}   {human_number(best.D):>6} "
            f"{ends['D']:>15}   {best.D / best.N:6.3g}   {best.loss:5.3f} {ends['loss']:>14}{note}"
        )


COMMANDS = {"fit": Command("fit a scaling law to your runs, with confidence intervals", _describe, _run, group=PLAN)}
