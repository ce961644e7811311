"""The transfer check: is the best learning rate of a small model also that of a wider or deeper one?"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import numbers, positive, whole_number, whole_numbers
from triptych.errors import UserError, did_you_mean
from triptych.recipes.proxy import BASE_LAYERS, BASE_WIDTH, TUNED, member
from triptych.studies.base import Study, StudyRecords, grid
from triptych.studies.in_memory import train_in_memory
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

RULES = ("standard", "completed_p")
RATES = [2.0**exponent * TUNED.lr for exponent in range(-4, 4)]


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--widths", type=whole_numbers, default=[64, 256], metavar="N,N")
    parser.add_argument("--depths", type=whole_numbers, default=[2, 8], metavar="N,N")
    parser.add_argument("--rates", type=numbers, default=RATES, metavar="LR,LR")
    parser.add_argument("--tokens", type=positive, default=1.0, help="of every run, in units of the base's")
    parser.add_argument("--seeds", type=whole_number, default=1)
    parser.add_argument("--rules", type=_rules, default=list(RULES), metavar="RULE,RULE", help=f"of {', '.join(RULES)}")


def _rules(text: str) -> list[str]:
    found = text.split(",")
    for rule in found:
        if rule not in RULES:
            raise argparse.ArgumentTypeError(f"unknown rule {rule!r}.{did_you_mean(rule, list(RULES))}")
    return found


def trials(args: argparse.Namespace) -> list[Trial]:
    base = (BASE_WIDTH, BASE_LAYERS)  # what all are compared with
    shapes = [base, *((width, BASE_LAYERS) for width in args.widths), *((BASE_WIDTH, layers) for layers in args.depths)]
    shapes = list(dict.fromkeys(shapes))
    return [
        Trial(
            f"{rule} {width}x{layers} lr {lr:g} tokens {args.tokens:g} seed {seed}",
            {"rule": rule, "width": width, "layers": layers, "lr": lr, "tokens": args.tokens, "seed": seed},
        )
        for seed in range(args.seeds)
        for width, layers in shapes
        for lr in args.rates
        for rule in RULES
        # At the base all rules are one.
        if (rule in args.rules if (width, layers) != base else rule == RULES[0])
    ]


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    return train_in_memory(member(run, **trial.settings), bundle).as_json


def curves(records: StudyRecords, rule: str) -> dict[tuple[int, int], dict[float, float]]:
    """By shape: mean loss over seeds by learning rate; infinite where a seed diverged."""
    found: dict[tuple[int, int], dict[float, list[float]]] = {}
    for record in records:
        key = (record["width"], record["layers"])
        if record["rule"] == rule or key == (BASE_WIDTH, BASE_LAYERS):
            loss = math.inf if record["loss"] is None else record["loss"]
            found.setdefault(key, {}).setdefault(record["lr"], []).append(loss)
    return {
        key: {lr: float(np.mean(losses)) for lr, losses in sorted(by_lr.items())}
        for key, by_lr in sorted(found.items())
    }


def best_rate(curve: dict[float, float]) -> float:
    return min(curve, key=lambda lr: curve[lr])


def lowest_rate(curve: dict[float, float]) -> float:
    """Where a parabola through the best rate and its neighbours is lowest: valleys are flat, and losses noisy."""
    rates, best = list(curve), best_rate(curve)
    number = rates.index(best)
    if number in (0, len(rates) - 1) or not all(math.isfinite(curve[lr]) for lr in rates[number - 1 : number + 2]):
        return best
    x, y = np.log(rates[number - 1 : number + 2]), [curve[lr] for lr in rates[number - 1 : number + 2]]
    bend, slope, _ = np.polyfit(x, y, 2)
    return float(np.exp(-slope / (2 * bend))) if bend > 0 else best


def _findings(records: StudyRecords) -> list[str]:
    found = []
    if not any((record["width"], record["layers"]) == (BASE_WIDTH, BASE_LAYERS) for record in records):
        raise UserError("the base has not been run yet, with which all are compared.")
    for rule in RULES:
        by_shape = curves(records, rule)
        best = {shape: best_rate(curve) for shape, curve in by_shape.items()}
        base, lowest = best[(BASE_WIDTH, BASE_LAYERS)], lowest_rate(by_shape[(BASE_WIDTH, BASE_LAYERS)])
        for shape, lr in best.items():
            edge = " (at the edge of the grid)" if lr in (min(by_shape[shape]), max(by_shape[shape])) else ""
            lost = by_shape[shape][base] - by_shape[shape][lr] if base in by_shape[shape] else math.nan
            found.append(
                f"{rule}, {shape[0]} wide and {shape[1]} deep: best learning rate {lr:g}{edge}, "
                f"{math.log2(lr / base):+.0f} factors of 2 from the base's "
                f"({math.log2(lowest_rate(by_shape[shape]) / lowest):+.2f} between the grid); "
                f"loss {by_shape[shape][lr]:.4f}, {lost:.4f} more at the base's rate"
            )
    return found


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panels = plt.subplots(1, len(RULES), figsize=(9, 3.6), sharey=True)
    for panel, rule in zip(panels, RULES):
        for number, ((width, layers), curve) in enumerate(curves(records, rule).items()):
            finite = {lr: loss for lr, loss in curve.items() if math.isfinite(loss)}
            (line,) = panel.plot(list(finite), list(finite.values()), "o-", ms=3, label=f"{width} wide, {layers} deep")
            best = best_rate(curve)
            panel.plot([best], [curve[best]], "*", ms=11, color=line.get_color(), zorder=9 + number)
        panel.set_xscale("log", base=2)
        panel.set_xlabel("learning rate of the base")
        panel.set_title(rule)
    panels[0].set_ylabel("held-out nats per token")
    best = min(record["loss"] for record in records if record["loss"] is not None)
    panels[0].set_ylim(best - 0.05 * best, best * 1.8)
    panels[1].legend()
    figure.tight_layout()
    save(figure, path)


STUDY = Study(_describe, grid(trials, run_trial), _findings, _draw, fixed=lambda args: {"tokens": args.tokens})
