"""The transfer check: is the best learning rate of the proxy also the best for wider and deeper models?"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import positive_float, positive_floats, positive_int, positive_ints
from triptych.errors import UserError, did_you_mean
from triptych.recipes.proxy import BASE_LAYERS, BASE_WIDTH, GLOBAL_TUNED, scaled_proxy
from triptych.scaling.parabola import parabola_minimum
from triptych.studies.base import Study, StudyRecords, grid_study, missing_grid_runs
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial

RULES = ("standard", "completed_p")
RATES = [2.0**exponent * GLOBAL_TUNED.lr for exponent in range(-4, 4)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--widths", type=positive_ints, default=[64, 256], metavar="N,N", help="default: 64,256")
    parser.add_argument("--depths", type=positive_ints, default=[2, 8], metavar="N,N", help="default: 2,8")
    parser.add_argument(
        "--rates",
        type=positive_floats,
        default=RATES,
        metavar="LR,LR",
        help=f"learning rates (default: {RATES[0]:.3g} to {RATES[-1]:.3g}, a factor of 2 apart)",
    )
    parser.add_argument(
        "--tokens",
        type=positive_float,
        default=1.0,
        metavar="X",
        help="tokens per run, as a multiple of the proxy's (default: 1)",
    )
    parser.add_argument("--seeds", type=positive_int, default=1, metavar="N", help="seeds per setting (default: 1)")
    parser.add_argument(
        "--rules", type=_rules, default=list(RULES), metavar="RULE,RULE", help=f"default: {','.join(RULES)}"
    )


def _rules(text: str) -> list[str]:
    rules = text.split(",")
    for rule in rules:
        if rule not in RULES:
            raise argparse.ArgumentTypeError(f"unknown rule {rule!r}.{did_you_mean(rule, list(RULES))}")
    return rules


def trials(args: argparse.Namespace) -> list[Trial]:
    base = (BASE_WIDTH, BASE_LAYERS)  # the reference for all other shapes
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
        # At the size of the proxy all rules are the same, so it is run once.
        if (rule in args.rules if (width, layers) != base else rule == RULES[0])
    ]


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    return scaled_proxy(run, **trial.settings)


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    return train_in_memory(configure(trial, run), bundle).as_json


def curves(records: StudyRecords, rule: str) -> dict[tuple[int, int], dict[float, float]]:
    """By shape, the mean loss over seeds for each learning rate; infinite where a seed diverged."""
    by_shape: dict[tuple[int, int], dict[float, list[float]]] = {}
    for record in records:
        key = (record["width"], record["layers"])
        if record["rule"] == rule or key == (BASE_WIDTH, BASE_LAYERS):
            loss = math.inf if record["loss"] is None else record["loss"]
            by_shape.setdefault(key, {}).setdefault(record["lr"], []).append(loss)
    return {
        key: {lr: float(np.mean(losses)) for lr, losses in sorted(by_lr.items())}
        for key, by_lr in sorted(by_shape.items())
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
    lines = []
    if not any((record["width"], record["layers"]) == (BASE_WIDTH, BASE_LAYERS) for record in records):
        raise UserError("the proxy itself, the reference for all other shapes, has not been run yet.")
    for rule in RULES:
        by_shape = curves(records, rule)
        best = {shape: best_rate(curve) for shape, curve in by_shape.items()}
        base, interpolated = best[(BASE_WIDTH, BASE_LAYERS)], interpolated_rate(by_shape[(BASE_WIDTH, BASE_LAYERS)])
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
    fixed_options=lambda args: {"tokens": args.tokens},
)
