"""The transfer check: is the best learning rate of the proxy also the best for wider and deeper models?"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive_float, positive_floats, positive_int, positive_ints
from triptych.errors import UserError, did_you_mean
from triptych.recipes.proxy import proxy_per_module, scaled_proxy, tuned_shape
from triptych.scaling.intervals import Interval
from triptych.scaling.parabola import parabola_minimum
from triptych.studies.base import Claim, Study, StudyRecords, grid_study, missing_grid_runs
from triptych.studies.table_runs import pooled_std
from triptych.studies.verdict import all_of, verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

RULES = ("standard", "completed_p")
_RATES = [2.0**exponent for exponent in range(-4, 4)]  # of the base run's


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("--widths", "--depths"):
        parser.add_argument(name, type=positive_ints, metavar="N,N", help="default: 4 times the proxy's")
    parser.add_argument(
        "--rates",
        type=positive_floats,
        metavar="LR,LR",
        help="learning rates (default: 1/16 to 8 times the proxy's, a factor of 2 apart)",
    )
    parser.add_argument(
        "--tokens",
        type=positive_float,
        default=1.0,
        metavar="X",
        help="tokens per run, as a multiple of the proxy's (default: 1)",
    )
    parser.add_argument("--seeds", type=positive_int, default=2, metavar="N", help="seeds per setting (default: 2)")
    parser.add_argument(
        "--rules", type=_rules, default=list(RULES), metavar="RULE,RULE", help=f"default: {','.join(RULES)}"
    )


def _rules(text: str) -> list[str]:
    rules = text.split(",")
    for rule in rules:
        if rule not in RULES:
            raise argparse.ArgumentTypeError(f"unknown rule {rule!r}.{did_you_mean(rule, list(RULES))}")
    return rules


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    base = base_width, base_layers = tuned_shape(run)  # the reference for all other shapes
    shapes = [base, *((width, base_layers) for width in args.widths or [4 * base_width])]
    shapes += [(base_width, layers) for layers in args.depths or [4 * base_layers]]
    shapes, rates = list(dict.fromkeys(shapes)), args.rates or [factor * run.optimizer.lr for factor in _RATES]
    return [
        Trial(
            f"{rule} {width}x{layers} lr {lr:g} tokens {args.tokens:g} seed {seed}",
            {"rule": rule, "width": width, "layers": layers, "lr": lr, "tokens": args.tokens, "seed": seed},
        )
        for seed in range(args.seeds)
        for width, layers in shapes
        for lr in rates
        for rule in RULES
        # At the size of the proxy all rules are the same, so it is run once.
        if (rule in args.rules if (width, layers) != base else rule == RULES[0])
    ]


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    return scaled_proxy(run, **trial.settings)


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    return {**train_in_memory(configure(trial, run), bundle).as_json, "base_shape": list(tuned_shape(run))}


def base_shape(records: StudyRecords) -> tuple[int, int]:
    """Width and layers of the proxy, the reference for all other shapes; it has the fewest in older records."""
    smallest = [min(record[axis] for record in records) for axis in ("width", "layers")]
    width, layers = records[0].get("base_shape", smallest)
    return width, layers


def by_rate(records: StudyRecords, rule: str) -> dict[tuple[int, int], dict[float, list[float]]]:
    """By shape, the losses of all seeds for each learning rate; infinite where a run diverged."""
    base = base_shape(records)
    by_shape: dict[tuple[int, int], dict[float, list[float]]] = {}
    for record in records:
        key = (record["width"], record["layers"])
        if record["rule"] == rule or key == base:
            loss = math.inf if record["loss"] is None else record["loss"]
            by_shape.setdefault(key, {}).setdefault(record["lr"], []).append(loss)
    return {key: dict(sorted(by_lr.items())) for key, by_lr in sorted(by_shape.items())}


def curves(records: StudyRecords, rule: str) -> dict[tuple[int, int], dict[float, float]]:
    """By shape, the mean loss over seeds for each learning rate; infinite where a seed diverged."""
    return {
        shape: {lr: float(np.mean(losses)) for lr, losses in by_lr.items()}
        for shape, by_lr in by_rate(records, rule).items()
    }


def best_rate(curve: dict[float, float]) -> float:
    return min(curve, key=lambda lr: curve[lr])


def interpolated_rate(curve: dict[float, float]) -> float:
    """Minimum of a parabola through the best rate and its neighbours; the best rate itself beside a diverged one."""
    rates, best = list(curve), best_rate(curve)
    index = rates.index(best)
    if not all(math.isfinite(curve[lr]) for lr in rates[max(0, index - 1) : index + 2]):
        return best
    return parabola_minimum(np.array(rates), np.array(list(curve.values()))).at


def _findings(records: StudyRecords) -> list[str]:
    lines, reference = [], base_shape(records)
    if not any((record["width"], record["layers"]) == reference for record in records):
        raise UserError("the proxy itself, the reference for all other shapes, has not been run yet.")
    for rule in RULES:
        by_shape = curves(records, rule)
        best = {shape: best_rate(curve) for shape, curve in by_shape.items()}
        base, interpolated = best[reference], interpolated_rate(by_shape[reference])
        for shape, lr in best.items():
            edge = " (at the edge of the grid)" if lr in (min(by_shape[shape]), max(by_shape[shape])) else ""
            lost = by_shape[shape][base] - by_shape[shape][lr] if base in by_shape[shape] else math.nan
            lines.append(
                f"{rule}, width {shape[0]}, {shape[1]} layers: best learning rate {lr:g}{edge}, "
                f"{math.log2(lr / base):+.0f} factors of 2 from the proxy's "
                f"({math.log2(interpolated_rate(by_shape[shape]) / interpolated):+.2f} interpolated); "
                f"loss {by_shape[shape][lr]:.4f}, {lost:.4f} higher at the proxy's rate"
            )
    return lines


def shifts(records: StudyRecords, rule: str, resamples: int = 1000) -> dict[tuple[int, int], Interval]:
    """By shape, the log2 of its best learning rate relative to the proxy's, with a 95 % interval.

    The noise between seeds is pooled over all runs, in logs, and added to every mean in a parametric bootstrap.
    """
    losses, base = by_rate(records, rule), base_shape(records)
    noise = pooled_std([[math.log(x) for x in each] for by_lr in losses.values() for each in by_lr.values()])
    rng = np.random.default_rng(0)

    def best(by_lr: dict[float, list[float]], width: float) -> float:
        moved = {
            lr: float(np.mean(of)) * math.exp(width * rng.standard_normal() / len(of) ** 0.5)
            for lr, of in by_lr.items()
        }
        return math.log2(interpolated_rate(moved))

    if base not in losses:
        return {}
    shifted = {}
    for shape, by_lr in losses.items():
        if shape != base:
            value = best(by_lr, 0.0) - best(losses[base], 0.0)
            draws = [best(by_lr, noise) - best(losses[base], noise) for _ in range(resamples if noise else 0)]
            ends = np.quantile(draws, (0.025, 0.975)).tolist() if draws else (math.nan, math.nan)
            shifted[shape] = Interval(value, *ends)
    return shifted


def claims(records: StudyRecords) -> list[Claim]:
    with_rule = shifts(records, RULES[1])
    without = shifts(records, RULES[0])
    if not with_rule:
        return []
    shown = [f"{each.shown('+.2f')} at {width} x {layers}" for (width, layers), each in with_rule.items()]
    other = [f"{each.shown('+.2f')} at {width} x {layers}" for (width, layers), each in without.items()]
    return [
        Claim(
            "Section 4",
            "Under the transfer rule the best learning rate of a small model is also best for wider and deeper ones.",
            "shift of the best rate from the proxy's, in factors of 2: "
            + ", ".join(shown)
            + (f"; without the rule {', '.join(other)}" if other else ""),
            all_of([verdict((each.low, each.high), -1, 1) for each in with_rule.values()]),
        )
    ]


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panels = plt.subplots(1, len(RULES), figsize=(9, 3.6), sharey=True)
    for panel, rule in zip(panels, RULES):
        for number, ((width, layers), curve) in enumerate(curves(records, rule).items()):
            finite = {lr: loss for lr, loss in curve.items() if math.isfinite(loss)}
            (line,) = panel.plot(
                list(finite), list(finite.values()), "o-", ms=3, label=f"width {width}, {layers} layers"
            )
            best = best_rate(curve)
            panel.plot([best], [curve[best]], "*", ms=11, color=line.get_color(), zorder=9 + number)
        panel.set_xscale("log", base=2)
        panel.set_xlabel("learning rate at the size of the proxy")
        panel.set_title(rule)
    panels[0].set_ylabel("validation loss, nats per token")
    best = min(record["loss"] for record in records if record["loss"] is not None)
    panels[0].set_ylim(best - 0.05 * best, best * 1.8)
    panels[1].legend()
    figure.tight_layout()
    save(figure, path)


STUDY = Study(
    _add_arguments,
    grid_study(trials, run_trial),
    missing_grid_runs(trials, configure),
    _findings,
    _draw,
    claims,
    fixed_options=lambda args: {"tokens": args.tokens},
    base=proxy_per_module,
)
