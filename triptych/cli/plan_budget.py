"""`triptych plan --budget`: the compute-optimal model for a number of FLOPs."""

import argparse

from triptych.cli.command import write_json
from triptych.cli.fit import interval_text
from triptych.cli.run_settings import family_settings, family_text
from triptych.errors import UserError
from triptych.utils.units import human_number

_DEFAULT_RECIPE = "aspect_8"


def recipe_and_changes(args: argparse.Namespace) -> tuple[str, list[str]]:
    """The recipe and the overrides; without a recipe, the first word is already an override."""
    if args.recipe is None or "=" in args.recipe:
        return _DEFAULT_RECIPE, [*([args.recipe] if args.recipe else []), *args.changes]
    return args.recipe, args.changes


def run_budget(args: argparse.Namespace) -> None:
    from triptych.plan.warnings import KAPPA_1_PERCENT, KAPPA_10_PERCENT
    from triptych.scaling.advice import advise
    from triptych.scaling.family import model_family
    from triptych.scaling.fit_file import read_fit

    if any(getattr(args, name) is not None for name in ("gpus", "gpu", "mfu", "price_per_hour")) or args.dry_run:
        raise UserError("--budget cannot be combined with --gpus and its options: plan the resulting recipe with them.")
    family = model_family(*recipe_and_changes(args))
    advice = advise(family, args.budget, None if args.law is None else read_fit(args.law))
    if args.json is not None:
        settings = family_settings(family.members[0])
        write_json({"budget": args.budget, **settings, "advice": [each.as_json for each in advice]}, args.json)
        return
    print(f"{args.budget:g} FLOPs, {family}\n{family_text(family.members[0])}\n")
    print(
        f"  {'law':24} {'N':>7}  {'D':>7}  {'D/N':>6}   {'nearest model':>13} {'N':>7}  {'D':>7}  {'batch':>6}  steps"
    )
    for each in advice:
        if each.best is None:
            print(f"  {each.law:24} has no optimum for this budget")
            continue
        best, model = each.best, "no model of this size in the family"
        if each.point is not None:
            run, point = each.point.config, each.point
            shape, batch = f"{run.model.num_layers} x {run.model.width}", run.loader.global_batch
            model = f"{shape:>13} {human_number(point.N):>7}  {human_number(point.D):>7}  {batch:6,}  {run.num_steps:,}"
        note = f"   ({each.note})" if each.note else ""
        print(
            f"  {each.law:24} {human_number(best.N):>7}  {human_number(best.D):>7}  "
            f"{best.tokens_per_parameter:6.3g}   {model}{note}"
        )
        if each.intervals:
            intervals = [f"{name} {interval_text(*ends)}" for name, ends in each.intervals.items()]
            print(f"  {'':24} 90% intervals: {', '.join(intervals)}")
    print(
        f"\nN counts non-embedding parameters (Chinchilla's counts all). Batch sizes give kappa = 1; exp(loss) was 1 % "
        f"higher with batches\n{KAPPA_1_PERCENT:g} x as large, and 10 % higher with {KAPPA_10_PERCENT:g} x "
        "(studies/batch-size)."
    )
    command = next((each.command for each in advice if each.command), None)
    if command is not None:
        print(f"to train the first of these models: {command}")
