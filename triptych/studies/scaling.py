"""Scaling laws: an isoFLOP grid of models with one aspect ratio, with transferred hyperparameters.

Only the proxy (width 64, 2 layers) is tuned. Learning rates, betas, epsilon and weight decay of every other run follow
from it by Complete(d)P, the batch-size rule and the multiplier table. The batch grows with the tokens so that kappa
stays 1. The laws fitted to the final losses are in `triptych.scaling`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import float_range, grid_size, positive_float, positive_int, positive_ints
from triptych.errors import UserError
from triptych.plan.lengths import sample_batches
from triptych.recipes.proxy import proxy_of_width, proxy_per_module
from triptych.scaling import figures
from triptych.scaling.fit import Fit, compare, fit
from triptych.scaling.grid import TOKENS_PER_PARAMETER, GridPoint, LengthStats, budgets_between, isoflop_grid
from triptych.scaling.law import ADDITIVE, JOINT
from triptych.scaling.optimal import SIX_N, FlopsPerToken, Frontier, line_search
from triptych.scaling.parabola import ParabolaMinimum, parabola_minimum
from triptych.scaling.published import PUBLISHED
from triptych.scaling.report import coefficients_line, comparison_line, errors_line
from triptych.scaling.runs import Runs, runs_from_columns
from triptych.studies.base import Claim, Study, StudyRecords, multiples
from triptych.studies.scaling_claims import scaling_claims
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial, TrialRecords, run_trials

_WIDTHS = [quarters / 4 for quarters in range(1, 11)]  # of the base run's
_MODALITIES = ("text", "image", "audio")
Member = Callable[[RunConfig, int, int], RunConfig]
"""A model of the family, from the base run, its width and its seed."""


def add_arguments(
    parser: argparse.ArgumentParser, low: float = 1e11, high: float = 2e13, budgets: int = 9, seeds: int = 2
) -> None:
    parser.add_argument(
        "--low", type=positive_float, default=low, metavar="FLOPS", help=f"smallest budget (default: {low:g})"
    )
    parser.add_argument(
        "--high", type=positive_float, default=high, metavar="FLOPS", help=f"largest budget (default: {high:g})"
    )
    parser.add_argument(
        "--budgets",
        type=grid_size,
        default=budgets,
        metavar="N",
        help=f"number of budgets, with both ends (default: {budgets})",
    )
    parser.add_argument(
        "--widths", type=positive_ints, metavar="N,N", help="default: 1/4, 2/4, ..., 10/4 times the proxy's"
    )
    parser.add_argument(
        "--tokens-per-parameter",
        type=float_range,
        default=TOKENS_PER_PARAMETER,
        metavar="LOW,HIGH",
        help="default: 1,2000",
    )
    parser.add_argument(
        "--seeds", type=positive_int, default=seeds, metavar="N", help=f"seeds per run (default: {seeds})"
    )


def _points(
    args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle, member: Member
) -> dict[str, GridPoint]:
    """The runs of the grid, by key."""
    lengths = LengthStats.from_lengths(sample_batches(config, bundle.vocabulary).lengths)
    widths = args.widths or multiples(config.model.width, _WIDTHS, config.model.head_width)
    members = [member(config, width, seed) for seed in range(args.seeds) for width in widths]
    budgets = budgets_between(args.low, args.high, args.budgets)
    grid = isoflop_grid(members, bundle.vocabulary, lengths, budgets, tokens_per_parameter=args.tokens_per_parameter)
    return {point.key: point for point in grid}


def missing_runs(
    args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle, member: Member = proxy_of_width
) -> list[RunConfig]:
    recorded = TrialRecords(args.out).keys
    return [point.config for key, point in _points(args, config, bundle, member).items() if key not in recorded]


def run(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle, member: Member = proxy_of_width) -> bool:
    """Run the grid of models that `member` makes."""
    points = _points(args, config, bundle, member)

    def run(trial: Trial) -> dict[str, Any]:
        point = points[trial.key]
        print(f"{trial.key}: {point.config.num_steps:,} steps, {point.D:.3g} tokens", flush=True)
        outcome = train_in_memory(point.config, bundle)
        counted = {"N": point.N, "D": outcome.tokens, "C": point.C / point.D * outcome.tokens}
        return {**outcome.as_json, **counted, "curve": outcome.curve}

    trials = [
        Trial(
            key,
            {
                "budget": point.budget,
                "width": point.config.model.width,
                "layers": point.config.model.num_layers,
                "batch": point.config.loader.global_batch,
                "num_steps": point.config.num_steps,
                "seed": point.config.seed,
            },
        )
        for key, point in points.items()
    ]
    return run_trials(args.out, trials, run).keys() == points.keys()


# -- findings ---------------------------------------------------------------------------------------------------------


def finite_records(records: StudyRecords) -> list[dict[str, Any]]:
    """Records of runs that did not diverge, sorted by FLOPs and size."""
    return sorted((each for each in records if each["loss"] is not None), key=lambda each: (each["C"], each["N"]))


def runs(records: StudyRecords) -> Runs:
    finite = finite_records(records)
    return runs_from_columns(("N", "D"), *([each[name] for each in finite] for name in ("N", "D", "loss", "C")))


def budget_of(record: dict[str, Any]) -> float:
    """The budget, rounded as in the key: sweeps may have computed it with different rounding."""
    return float(f"{record['budget']:.4g}")


def parabola_minima(records: StudyRecords) -> dict[float, ParabolaMinimum]:
    """The best size of each budget by a parabola through the best run and its neighbours, without any law."""
    minima = {}
    for budget in sorted({budget_of(each) for each in records}):
        losses: dict[float, list[float]] = {}
        for each in finite_records(records):
            if budget_of(each) == budget:
                losses.setdefault(each["N"], []).append(each["loss"])
        sizes = sorted(losses)
        if len(sizes) >= 3:
            means = np.array([np.mean(losses[size]) for size in sizes])
            minima[budget] = parabola_minimum(np.array(sizes, float), means)
    return minima


def _findings(records: StudyRecords) -> list[str]:
    table, finite = runs(records), finite_records(records)
    cost = FlopsPerToken.from_runs(table)
    fits = [fit(form, table) for form in (JOINT, ADDITIVE)]
    comparison = compare(*fits)
    sizes, tokens = table.columns
    ratios = tokens / sizes
    budgets = sorted({budget_of(each) for each in finite})
    lines = [
        f"{len(records)} runs, {len(records) - len(finite)} diverged: {len(budgets)} budgets of {budgets[0]:.3g} to "
        f"{budgets[-1]:.3g} FLOPs, N {sizes.min():,.0f} to {sizes.max():,.0f}, {ratios.min():.1f} to "
        f"{ratios.max():,.0f} tokens per parameter"
    ]
    for each in fits:
        lines += [coefficients_line(each), errors_line(each)]
    lines += [comparison_line(comparison), *seed_line(table), *extrapolation_lines(finite, budgets[-1])]
    best = comparison.better
    frontier = Frontier.from_law(best.law)
    shown = _shown_sizes(table)
    for how, count in (("with the FLOPs of these models", cost), ("at 6 N FLOPs per token", SIX_N)):
        optimal = (f"{float(frontier.tokens(n, count)) / n:,.0f} at N = {n:,.0f}" for n in shown)
        lines.append(
            f"compute-optimal tokens per parameter by the {best.law.form.name} law, {how}: {', '.join(optimal)}"
        )
    others = (f"{float(law.frontier.tokens(shown[1])) / shown[1]:,.0f} ({name})" for name, law in PUBLISHED.items())
    lines.append(f"published laws, extrapolated to N = {shown[1]:,.0f}, at 6 N FLOPs per token: {', '.join(others)}")
    lines.append(f"D* grows as N^{frontier.p:.2f} at 6 N FLOPs per token")
    lines += [flatness_line(best, budgets, cost), _modality_line(finite, budgets)]
    by_parabola = parabola_minima(records)
    for budget in budgets:
        lines.append(_budget_line(budget, finite, best, cost, by_parabola.get(budget)))
    inside = {budget: each.at for budget, each in by_parabola.items() if not each.is_on_edge}
    if len(inside) >= 3:
        slope = np.polyfit(np.log(list(inside)), np.log(list(inside.values())), 1)[0]
        by_law = {budget: law.N for budget in inside if (law := line_search(best.law, budget, cost)) is not None}
        law_slope = np.polyfit(np.log(list(by_law)), np.log(list(by_law.values())), 1)[0] if len(by_law) > 1 else np.nan
        lines.append(
            f"the best size grows as C^{slope:.2f} by parabolas through the runs ({len(inside)} budgets), as "
            f"C^{law_slope:.2f} by the law with the FLOPs of these models, and as C^{frontier.tau:.2f} by the law at "
            "6 N FLOPs per token"
        )
    return lines


def seed_line(table: Runs) -> list[str]:
    """Standard deviation of the loss over seeds, from runs that differ only in their seed."""
    logs, numbers = np.log(table.loss), table.seed_groups
    groups = [logs[numbers == number] for number in np.unique(numbers)]
    several = [group - group.mean() for group in groups if len(group) > 1]
    if not several:
        return []
    spread = np.sqrt(sum(float(np.square(gaps).sum()) for gaps in several) / sum(len(gaps) - 1 for gaps in several))
    return [f"standard deviation of the loss over seeds: {spread:.2%} ({len(several)} pairs of runs)"]


def extrapolation_lines(finite: StudyRecords, largest: float) -> list[str]:
    """Errors at the largest budget of laws fitted to the smaller budgets."""
    smaller = [each for each in finite if budget_of(each) < largest]
    last = [each for each in finite if budget_of(each) == largest]
    try:
        fitted = runs(smaller)
    except UserError:  # too few
        return []
    sizes, tokens, losses = (np.array([each[name] for each in last], float) for name in ("N", "D", "loss"))
    lines = []
    for form in (JOINT, ADDITIVE):
        errors = fit(form, fitted, rounds=0).law.loss(sizes, tokens) / losses - 1
        lines.append(
            f"fitted to the smaller budgets only, the {form.name} law predicts the {len(last)} runs of {largest:.3g} "
            f"FLOPs with a mean relative error of {np.abs(errors).mean():.2%} ({errors.min():+.1%} to "
            f"{errors.max():+.1%})"
        )
    return lines


def flatness_line(best: Fit, budgets: list[float], cost: FlopsPerToken) -> str:
    """How much the loss rises if the size is wrong by a factor of 3."""
    rises = []
    for budget in budgets:
        optimum = line_search(best.law, budget, cost)
        if optimum is None:
            continue
        sizes = optimum.N * np.array([1, 1 / 3, 3])
        losses = best.law.loss(sizes, budget / cost(sizes))
        rises += list(losses[1:] / losses[0] - 1)
    if not rises:
        return "the law has no optimum at these budgets: the runs do not show what a wrong size costs"
    return (
        f"by the law, the loss of a model three times too large or too small is {min(rises):.1%} to {max(rises):.1%} "
        "higher"
    )


def _modality_line(finite: StudyRecords, budgets: list[float]) -> str:
    first, last = (_best_run(finite, budget) for budget in (budgets[0], budgets[-1]))
    changes = (f"{name} {first['held_out'][name]:.2f} to {last['held_out'][name]:.2f}" for name in _MODALITIES)
    return f"loss by modality, from the best run of the smallest budget to that of the largest: {', '.join(changes)}"


def _best_run(finite: StudyRecords, budget: float) -> dict[str, Any]:
    return min((each for each in finite if budget_of(each) == budget), key=lambda each: each["loss"])


def _shown_sizes(table: Runs) -> list[float]:
    low, high = table.columns[0].min(), table.columns[0].max()
    return [float(f"{size:.1g}") for size in np.geomspace(low, high, 3)]


def _budget_line(
    budget: float, finite: StudyRecords, best: Fit, cost: FlopsPerToken, minimum: ParabolaMinimum | None
) -> str:
    run = _best_run(finite, budget)
    law, by_parabola = line_search(best.law, budget, cost), ""
    by_law = "the law has no optimum"
    if law is not None:
        by_law = f"optimum by the law N {law.N:,.0f}, {law.tokens_per_parameter:,.0f} tokens per parameter"
    if minimum is not None:
        by_parabola = (
            "; the best run is at an edge of the grid" if minimum.is_on_edge else f"; by parabola N {minimum.at:,.0f}"
        )
    return (
        f"{budget:.3g} FLOPs: best run {run['width']} x {run['layers']}, N {run['N']:,}, "
        f"{run['D'] / run['N']:,.0f} tokens per parameter, loss {run['loss']:.3f}; {by_law}{by_parabola}"
    )


def curves(finite: StudyRecords) -> list[tuple[Any, Any]]:
    """FLOPs and training loss of each run; the first steps are left out, because they are not informative."""
    pairs = []
    for each in finite:
        seen, loss = np.array(each["curve"]).T
        later = seen > seen[-1] / 300
        pairs.append(((seen * each["C"] / each["D"])[later], loss[later]))
    return pairs


def _draw(records: StudyRecords, path: Path) -> None:
    table, finite = runs(records), finite_records(records)
    cost = FlopsPerToken.from_runs(table)
    best = compare(*(fit(form, table) for form in (JOINT, ADDITIVE))).better
    plt = pyplot()
    figure, panels = plt.subplots(2, 3, figsize=(15, 8.4))
    figures.training_curves(panels[0, 0], curves(finite), [budget_of(each) for each in finite])
    figures.predictions(panels[0, 1], best)
    figures.isoflops(panels[0, 2], best, cost)
    figures.contours(panels[1, 0], best, cost)
    figures.frontiers(panels[1, 1], best, cost)
    budgets = sorted({budget_of(each) for each in finite})
    best_runs = [_best_run(finite, budget) for budget in budgets]
    losses = {name: [each["held_out"][name] for each in best_runs] for name in _MODALITIES}
    figures.by_modality(panels[1, 2], [each["C"] for each in best_runs], losses)
    figure.tight_layout()
    save(figure, path)


def claims(records: StudyRecords) -> list[Claim]:
    table = runs(records)
    comparison = compare(*(fit(form, table) for form in (JOINT, ADDITIVE)))
    return scaling_claims(table, comparison.better, comparison, list(parabola_minima(records).values()))


STUDY = Study(add_arguments, run, missing_runs, _findings, _draw, claims, base=proxy_per_module)
