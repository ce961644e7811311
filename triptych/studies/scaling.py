"""Scaling: over several budgets of compute, models of one aspect from too small to too large, by the rules of transfer.

Nothing is tuned but the base (64 wide, 2 deep): learning rates, betas, epsilon and decay of every other run follow from
it by Complete(d)P, by the rule of batch size and tokens, and by the table of its modules. The batch grows with the
tokens so that kappa stays 1. What is fitted to the final losses is in `triptych.scaling`.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive, two_numbers, whole_number, whole_numbers
from triptych.errors import UserError
from triptych.plan.lengths import gather
from triptych.recipes.proxy import by_module, of_width
from triptych.scaling import figures
from triptych.scaling.fit import Fit, compare, fit
from triptych.scaling.grid import TOKENS_PER_PARAMETER, Lengths, budgets_between, isoflop_grid
from triptych.scaling.law import ADDITIVE, JOINT
from triptych.scaling.optimal import SIX_N, FlopsPerToken, Frontier, line_search
from triptych.scaling.parabola import Bottom, bottom
from triptych.scaling.published import PUBLISHED
from triptych.scaling.report import coefficients_line, comparison_line, errors_line
from triptych.scaling.runs import Runs, runs_of
from triptych.studies.base import Study, StudyRecords
from triptych.studies.in_memory import train_in_memory
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial, run_trials

_WIDTHS = [16, 32, 48, 64, 80, 96, 112, 128, 144, 160]
_MODALITIES = ("text", "image", "audio")


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--low", type=positive, default=1e11, metavar="FLOPS", help="smallest budget (default: 1e11)")
    parser.add_argument("--high", type=positive, default=2e13, metavar="FLOPS", help="largest (default: 2e13)")
    parser.add_argument(
        "--budgets", type=whole_number, default=9, metavar="N", help="how many, both ends among them (default: 9)"
    )
    parser.add_argument("--widths", type=whole_numbers, default=_WIDTHS, metavar="N,N", help="16 to 160")
    parser.add_argument(
        "--tokens-per-parameter",
        type=two_numbers,
        default=TOKENS_PER_PARAMETER,
        metavar="LOW,HIGH",
        help="default: 1,2000",
    )
    parser.add_argument("--seeds", type=whole_number, default=1)


def run(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    lengths = Lengths.of(gather(config, bundle.vocabulary).lengths)
    members = [of_width(config, width, seed) for seed in range(args.seeds) for width in args.widths]
    budgets = budgets_between(args.low, args.high, args.budgets)
    cells = isoflop_grid(members, bundle.vocabulary, lengths, budgets, tokens_per_parameter=args.tokens_per_parameter)
    planned = {cell.key: cell for cell in cells}

    def run(trial: Trial) -> dict[str, Any]:
        cell = planned[trial.key]
        print(f"{trial.key}: {cell.config.num_steps:,} steps, {cell.D:.3g} tokens", flush=True)
        outcome = train_in_memory(cell.config, bundle)
        counted = {"N": cell.N, "D": outcome.tokens, "C": cell.C / cell.D * outcome.tokens}
        return {**outcome.as_json, **counted, "curve": outcome.curve}

    trials = [
        Trial(
            key,
            {
                "budget": cell.budget,
                "width": cell.config.model.width,
                "layers": cell.config.model.num_layers,
                "batch": cell.config.loader.global_batch,
                "num_steps": cell.config.num_steps,
                "seed": cell.config.seed,
            },
        )
        for key, cell in planned.items()
    ]
    return run_trials(args.out, trials, run).keys() == planned.keys()


# -- what the records say ---------------------------------------------------------------------------------------------


def _kept(records: StudyRecords) -> list[dict[str, Any]]:
    return sorted((each for each in records if each["loss"] is not None), key=lambda each: (each["C"], each["N"]))


def runs(records: StudyRecords) -> Runs:
    kept = _kept(records)
    return runs_of(("N", "D"), *([each[name] for each in kept] for name in ("N", "D", "loss", "C")))


def _budget(record: dict[str, Any]) -> float:
    """As it is named, for it may have been computed in two ways."""
    return float(f"{record['budget']:.4g}")


def bottoms(records: StudyRecords) -> dict[float, Bottom]:
    """The best size of each budget by a parabola through the best run and its neighbours, without any law."""
    found = {}
    for budget in sorted({_budget(each) for each in records}):
        losses: dict[float, list[float]] = {}
        for each in _kept(records):
            if _budget(each) == budget:
                losses.setdefault(each["N"], []).append(each["loss"])
        sizes = sorted(losses)
        if len(sizes) >= 3:
            found[budget] = bottom(np.array(sizes, float), np.array([np.mean(losses[size]) for size in sizes]))
    return found


def _findings(records: StudyRecords) -> list[str]:
    table, kept = runs(records), _kept(records)
    cost = FlopsPerToken.of(table)
    both = [fit(form, table) for form in (JOINT, ADDITIVE)]
    comparison = compare(*both)
    sizes, tokens = table.columns
    ratios = tokens / sizes
    budgets = sorted({_budget(each) for each in kept})
    found = [
        f"{len(records)} runs, {len(records) - len(kept)} diverged: {len(budgets)} budgets of {budgets[0]:.3g} to "
        f"{budgets[-1]:.3g} FLOPs, N {sizes.min():,.0f} to {sizes.max():,.0f}, {ratios.min():.1f} to "
        f"{ratios.max():,.0f} tokens per parameter"
    ]
    for each in both:
        found += [coefficients_line(each), errors_line(each)]
    found += [comparison_line(comparison), *_seed_line(table), *_forecast_lines(kept, budgets[-1])]
    best = comparison.better
    frontier = Frontier.of(best.law)
    shown = _shown_sizes(table)
    for how, count in (("with the FLOPs of these models", cost), ("where a token takes 6 N", SIX_N)):
        suited = (f"{float(frontier.tokens(n, count)) / n:,.0f} at N = {n:,.0f}" for n in shown)
        found.append(f"tokens per parameter by the {best.law.form.name} law, {how}: {', '.join(suited)}")
    others = (f"{float(law.frontier.tokens(shown[1])) / shown[1]:,.0f} ({name})" for name, law in PUBLISHED.items())
    found.append(f"published laws, carried down to N = {shown[1]:,.0f}, where a token takes 6 N: {', '.join(others)}")
    found.append(f"D* grows as N^{frontier.p:.2f} where a token takes 6 N")
    found += [_flatness_line(best, budgets, cost), _modality_line(kept, budgets)]
    by_parabola = bottoms(records)
    for budget in budgets:
        found.append(_budget_line(budget, kept, best, cost, by_parabola.get(budget)))
    inside = {budget: each.at for budget, each in by_parabola.items() if not each.is_on_edge}
    if len(inside) >= 3:
        slope = np.polyfit(np.log(list(inside)), np.log(list(inside.values())), 1)[0]
        by_law = {budget: law.N for budget in inside if (law := line_search(best.law, budget, cost)) is not None}
        law_slope = np.polyfit(np.log(list(by_law)), np.log(list(by_law.values())), 1)[0] if len(by_law) > 1 else np.nan
        found.append(
            f"the best size grows as C^{slope:.2f} by parabolas through the runs ({len(inside)} budgets), as "
            f"C^{law_slope:.2f} by the law with the FLOPs of these models, as C^{frontier.tau:.2f} where training "
            "takes 6 N FLOPs a token"
        )
    return found


def _seed_line(table: Runs) -> list[str]:
    """What chance alone does to the loss, where runs differ in their seed alone."""
    logs, cells = np.log(table.loss), table.cells
    groups = [logs[cells == cell] for cell in np.unique(cells)]
    several = [group - group.mean() for group in groups if len(group) > 1]
    if not several:
        return []
    spread = np.sqrt(sum(float(np.square(gaps).sum()) for gaps in several) / sum(len(gaps) - 1 for gaps in several))
    return [f"another seed changes the loss by {spread:.2%} (standard deviation, {len(several)} pairs of runs)"]


def _forecast_lines(kept: StudyRecords, largest: float) -> list[str]:
    """What the laws say of the largest budget when they have not seen it."""
    below = [each for each in kept if _budget(each) < largest]
    last = [each for each in kept if _budget(each) == largest]
    try:
        seen = runs(below)
    except UserError:  # too few
        return []
    sizes, tokens, losses = (np.array([each[name] for each in last], float) for name in ("N", "D", "loss"))
    found = []
    for form in (JOINT, ADDITIVE):
        misses = fit(form, seen, rounds=0).law.loss(sizes, tokens) / losses - 1
        found.append(
            f"fitted to the smaller budgets alone, the {form.name} law misses the {len(last)} runs of {largest:.3g} "
            f"FLOPs by {np.abs(misses).mean():.2%} on average ({misses.min():+.1%} to {misses.max():+.1%})"
        )
    return found


def _flatness_line(best: Fit, budgets: list[float], cost: FlopsPerToken) -> str:
    """What a wrong size costs."""
    rises = []
    for budget in budgets:
        found = line_search(best.law, budget, cost)
        if found is None:
            continue
        tried = found.N * np.array([1, 1 / 3, 3])
        losses = best.law.loss(tried, budget / cost(tried))
        rises += list(losses[1:] / losses[0] - 1)
    return (
        f"by the law, a model three times too large or too small costs {min(rises):.1%} to {max(rises):.1%} of the loss"
    )


def _modality_line(kept: StudyRecords, budgets: list[float]) -> str:
    first, last = (_best_run(kept, budget) for budget in (budgets[0], budgets[-1]))
    changes = (f"{name} {first['held_out'][name]:.2f} to {last['held_out'][name]:.2f}" for name in _MODALITIES)
    return f"from the best run of the smallest budget to that of the largest: {', '.join(changes)}"


def _best_run(kept: StudyRecords, budget: float) -> dict[str, Any]:
    return min((each for each in kept if _budget(each) == budget), key=lambda each: each["loss"])


def _shown_sizes(table: Runs) -> list[float]:
    low, high = table.columns[0].min(), table.columns[0].max()
    return [float(f"{size:.1g}") for size in np.geomspace(low, high, 3)]


def _budget_line(budget: float, kept: StudyRecords, best: Fit, cost: FlopsPerToken, found: Bottom | None) -> str:
    run = _best_run(kept, budget)
    law, parabola = line_search(best.law, budget, cost), ""
    by_law = "no size is best by the law"
    if law is not None:
        by_law = f"by the law N {law.N:,.0f}, {law.tokens_per_parameter:,.0f} tokens per parameter"
    if found is not None:
        parabola = "; the best is at an edge" if found.is_on_edge else f"; by parabola N {found.at:,.0f}"
    return (
        f"{budget:.3g} FLOPs: best run {run['width']} x {run['layers']}, N {run['N']:,}, "
        f"{run['D'] / run['N']:,.0f} tokens per parameter, loss {run['loss']:.3f}; {by_law}{parabola}"
    )


def _draw(records: StudyRecords, path: Path) -> None:
    table, kept = runs(records), _kept(records)
    cost = FlopsPerToken.of(table)
    best = compare(*(fit(form, table) for form in (JOINT, ADDITIVE))).better
    plt = pyplot()
    figure, panels = plt.subplots(2, 3, figsize=(15, 8.4))
    curves = []
    for each in kept:
        seen, loss = np.array(each["curve"]).T
        later = seen > seen[-1] / 300  # the first steps say nothing
        curves.append(((seen * each["C"] / each["D"])[later], loss[later]))
    figures.training_curves(panels[0, 0], curves, [_budget(each) for each in kept])
    figures.predictions(panels[0, 1], best)
    figures.isoflops(panels[0, 2], best, cost)
    figures.contours(panels[1, 0], best, cost)
    figures.frontiers(panels[1, 1], best, cost)
    budgets = sorted({_budget(each) for each in kept})
    bests = [_best_run(kept, budget) for budget in budgets]
    losses = {name: [each["held_out"][name] for each in bests] for name in _MODALITIES}
    figures.by_modality(panels[1, 2], [each["C"] for each in bests], losses)
    figure.tight_layout()
    save(figure, path)


STUDY = Study(_describe, run, _findings, _draw, base=by_module)
