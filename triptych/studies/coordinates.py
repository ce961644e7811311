"""The coordinate check: do activations and their updates keep their scale as a model grows?

Models of several widths (and depths) take the same few steps on the same batches. On one further batch, the root mean
square of every kind of activation is measured after each step, and that of its change since initialisation. Under a
correct parametrisation neither depends on the width: the slope of log RMS against log width is 0.

Logits are an exception: at initialisation they decrease with the width by design, because the unembedding's variance
does. For logits only the change has to keep its scale.
"""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.cli.args import distinct_ints, positive_float, positive_int
from triptych.data.loader import Loader
from triptych.errors import UserError
from triptych.model.transformer import Transformer
from triptych.recipes.proxy import scaled_proxy, tuned_shape
from triptych.scaling.intervals import Interval, mean_interval
from triptych.studies.base import Claim, Study, StudyRecords, grid_study, missing_grid_runs, multiples
from triptych.studies.verdict import verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.ranks import Ranks
from triptych.training.step import build_model, build_optimizer, micro_inputs, train_step
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial
from triptych.vocab import Modality

CPU = torch.device("cpu")
PARTS = ("embedding", "attention", "mlp", "stream", "logits")
_FACTORS = (1, 2, 4, 8)
FLAT = 0.1  # |slope| below this: ten times the size changes the scale by less than a quarter
RULES = ("standard", "completed_p")


def sizes(config: RunConfig, bundle: TokenizerBundle, steps: int) -> list[dict[str, Any]]:
    """RMS of the activations, and of their change, for each part after 0 to `steps` steps."""
    model = build_model(config, bundle.vocabulary)
    optimizer = build_optimizer(model, config.resolved)
    # Full learning rate from the first step; otherwise ten steps would test only the warm-up.
    config = replace(config, optimizer=replace(config.optimizer, warmup_steps=0, min_lr_ratio=1.0))
    with Loader(list(config.data), config.loader, 0, 1, start_step=0, num_steps=steps + 1) as loader:
        *batches, probe = loader
    inputs = next(iter(micro_inputs(probe, config, bundle.vocabulary, CPU, Ranks())))
    first = _activations(model, inputs)
    rows: list[dict[str, Any]] = []
    for num_steps in range(steps + 1):
        if num_steps:
            train_step(model, optimizer, batches[num_steps - 1], config, bundle.vocabulary, CPU)
        now = _activations(model, inputs)
        for part in PARTS:
            changes = [after - before for after, before in zip(now[part], first[part])]
            rows.append({"steps": num_steps, "part": part, "size": _rms(now[part]), "change": _rms(changes)})
    return rows


def _rms(tensors: Iterable[Tensor]) -> float:
    """Root mean square of each tensor, averaged over the tensors."""
    return float(np.mean([float(each.square().mean().sqrt()) for each in tensors]))


@torch.no_grad()
def _activations(model: Transformer, inputs: Any) -> dict[str, list[Tensor]]:
    """Activations at predicted positions: branch outputs of the first and the middle block, output of the last block.

    Blocks are chosen at fixed fractions of the depth: a mean over all blocks would depend on their number.
    """
    activations: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    predicted = inputs.segments.compact_index(inputs.targets.query_idx)

    def record(part: str) -> Any:
        return lambda _module, _inputs, out: activations[part].append(out[predicted])

    hooks = [model.embed.register_forward_hook(record("embedding"))]
    blocks: list[Any] = list(model.blocks)
    for block in (blocks[0], blocks[len(blocks) // 2]):
        hooks.append(block.attention.register_forward_hook(record("attention")))
        hooks.append(block.mlp.register_forward_hook(record("mlp")))
    hooks.append(blocks[-1].register_forward_hook(record("stream")))
    hidden = model(inputs.tokens, inputs.positions, inputs.segments).flatten(0, 1)[inputs.targets.query_idx]
    for hook in hooks:
        hook.remove()
    for modality, part in zip(Modality, hidden.split(inputs.targets.counts)):
        if len(part):
            activations["logits"].append(model.logits(part, modality))
    return activations


def slope(records: StudyRecords, axis: str, part: str, what: str, steps: int) -> float:
    """Slope of log RMS against log width or log layers, averaged over seeds."""
    points = _points(records, axis, part, what, steps)
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


def _points(records: StudyRecords, axis: str, part: str, what: str, steps: int) -> dict[int, float]:
    """Geometric mean over seeds, by width or layers."""
    by_size: dict[int, list[float]] = {}
    for record in records:
        for row in record["sizes"]:
            if (row["part"], row["steps"]) == (part, steps):
                by_size.setdefault(record[axis], []).append(row[what])
    return {x: float(np.exp(np.mean(np.log(values)))) for x, values in sorted(by_size.items())}


# -- the study --------------------------------------------------------------------------------------------------------


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("--widths", "--depths"):
        parser.add_argument(name, type=distinct_ints, metavar="N,N", help="default: 1, 2, 4 and 8 times the proxy's")
    parser.add_argument("--steps", type=positive_int, default=10, metavar="N", help="training steps (default: 10)")
    parser.add_argument(
        "--lr", type=positive_float, default=2e-3, help="learning rate at the size of the proxy (default: 0.002)"
    )
    parser.add_argument("--seeds", type=positive_int, default=3, metavar="N", help="seeds per setting (default: 3)")


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    base_width, base_layers = tuned_shape(run)
    shapes = [("width", width, base_layers) for width in args.widths or multiples(base_width, _FACTORS)]
    shapes += [("layers", base_width, layers) for layers in args.depths or multiples(base_layers, _FACTORS)]
    return [
        Trial(
            f"{rule} {width}x{layers} {axis} lr {args.lr:g} steps {args.steps} seed {seed}",
            {"rule": rule, "axis": axis, "width": width, "layers": layers, "lr": args.lr, "steps": args.steps}
            | {"seed": seed},
        )
        for seed in range(args.seeds)
        for axis, width, layers in shapes
        for rule in RULES
    ]


def configure(trial: Trial, run: RunConfig) -> RunConfig:
    return scaled_proxy(run, **{name: trial.settings[name] for name in ("width", "layers", "rule", "lr", "seed")})


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    return {"sizes": sizes(configure(trial, run), bundle, trial.settings["steps"])}


def _as_run(trial: Trial, run: RunConfig) -> RunConfig:
    """The trial as a training run of about its cost: few steps, each followed by a forward pass, and no validation."""
    return replace(configure(trial, run), num_steps=-(-4 * trial.settings["steps"] // 3), validation_data=())


def _checked(part: str) -> list[str]:
    return ["change"] if part == "logits" else ["size", "change"]


def _worst(records: StudyRecords, rule: str, axis: str) -> dict[str, float]:
    """By part and quantity, the slope farthest from 0 after any number of steps from 1 on."""
    selected = [record for record in records if (record["rule"], record["axis"]) == (rule, axis)]
    if len({record[axis] for record in selected}) < 2:
        raise UserError(f"a slope needs two values of {axis}; {rule} has not been run with two yet.")
    last = max(row["steps"] for record in selected for row in record["sizes"])
    return {
        f"{part} {what}": max((slope(selected, axis, part, what, n) for n in range(1, last + 1)), key=abs)
        for part in PARTS
        for what in _checked(part)
    }


def _findings(records: StudyRecords) -> list[str]:
    lines = []
    for axis in ("width", "layers"):
        for rule in RULES:
            slopes = _worst(records, rule, axis)
            worst = max(slopes, key=lambda name: abs(slopes[name]))
            lines.append(
                f"{rule}, over {axis}: largest slope {slopes[worst]:+.3f} ({worst}); "
                + ", ".join(f"{name} {value:+.3f}" for name, value in slopes.items())
            )
    return lines


def worst_interval(records: StudyRecords, rule: str) -> Interval:
    """Of all slopes under a rule, after any number of steps, the one with the largest ends of its 95 % interval."""
    intervals = []
    for axis in ("width", "layers"):
        selected = [record for record in records if (record["rule"], record["axis"]) == (rule, axis)]
        seeds = [[each for each in selected if each["seed"] == seed] for seed in sorted({r["seed"] for r in selected})]
        whole = [each for each in seeds if len({record[axis] for record in each}) > 1]
        last = max((row["steps"] for record in selected for row in record["sizes"]), default=0)
        checked = [(part, what, n + 1) for part in PARTS for what in _checked(part) for n in range(last)]
        for quantity, what, steps in checked:
            slopes = np.array([slope(each, axis, quantity, what, steps) for each in whole])
            intervals.append(mean_interval(slopes) if len(slopes) else Interval(np.nan, np.nan, np.nan))
    if not intervals or any(np.isnan(each.low) for each in intervals):  # one seed
        return Interval(max((each.value for each in intervals), key=abs, default=np.nan), np.nan, np.nan)
    return max(intervals, key=lambda each: max(abs(each.low), abs(each.high)))


def claims(records: StudyRecords) -> list[Claim]:
    worst, without = (worst_interval(records, rule) for rule in reversed(RULES))
    return [
        Claim(
            "Section 4",
            "The transfer rule for width and depth makes models of all sizes train alike.",
            "the slope of log RMS, of activations or of their changes over width or depth, that is farthest from 0 is "
            f"{worst.shown('+.3f')} with the rule and {without.shown('+.3f')} without it",
            verdict((worst.low, worst.high), -FLAT, FLAT),
        )
    ]


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panels = plt.subplots(4, len(PARTS), figsize=(13, 9.5), squeeze=False, layout="constrained")
    for line, (axis, rule) in enumerate((axis, rule) for axis in ("width", "layers") for rule in RULES):
        selected = [record for record in records if (record["rule"], record["axis"]) == (rule, axis)]
        last = max(row["steps"] for record in selected for row in record["sizes"])
        for column, part in enumerate(PARTS):
            panel = panels[line][column]
            for steps in range(1, last + 1):
                points = _points(selected, axis, part, "change", steps)
                colour = plt.cm.viridis(0.9 * (steps - 1) / max(1, last - 1))
                panel.plot(list(points), list(points.values()), "o-", ms=3, color=colour, label=f"{steps}")
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            low, high = panel.get_ylim()
            middle = (low * high) ** 0.5
            panel.set_ylim(min(low, middle / 4), max(high, middle * 4))  # so that a flat line looks flat
            if line == 0:
                panel.set_title(part)
            panel.set_xlabel(axis)
        panels[line][0].set_ylabel(f"{rule}\nRMS of the change")
    figure.legend(*panels[0][0].get_legend_handles_labels(), title="steps", loc="outside right center")
    save(figure, path)


STUDY = Study(
    _add_arguments,
    grid_study(trials, run_trial),
    missing_grid_runs(trials, _as_run),
    _findings,
    _draw,
    claims,
    fixed_options=lambda args: {"lr": args.lr, "steps": args.steps},
)
