"""The coordinate check: do activations, and what a few steps change in them, keep their size as a model grows?

Models of several widths (and depths) take the same few steps on the same batches. On one further batch, before and
after each step, the root mean square of every kind of activation is measured, and that of its change since then.
Under a right parametrisation the size does not depend on the width: the slope of log size against log width is 0.

Logits are the exception: at the beginning they fall with the width by design (the unembedding's variance does), so of
them only the change is asked to keep its size.
"""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.cli.args import positive, several, whole_number
from triptych.data.loader import Loader
from triptych.errors import UserError
from triptych.model.transformer import Transformer
from triptych.recipes.proxy import BASE_LAYERS, BASE_WIDTH, member
from triptych.studies.base import Study, StudyRecords, grid
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.ranks import Ranks
from triptych.training.step import build_model, build_optimizer, micro_inputs, train_step
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial
from triptych.vocab import Modality

CPU = torch.device("cpu")
PARTS = ("embedding", "attention", "mlp", "stream", "logits")
RULES = ("standard", "completed_p")


def sizes(config: RunConfig, bundle: TokenizerBundle, steps: int) -> list[dict[str, Any]]:
    """For each number of steps from 0 on and each part: the size of the activations, and of their change."""
    model = build_model(config, bundle.vocabulary)
    optimizer = build_optimizer(model, config.resolved)
    # Every step has the full learning rate: a check of ten steps must not be one of the warm-up.
    config = replace(config, optimizer=replace(config.optimizer, warmup_steps=0, min_lr_ratio=1.0))
    with Loader(list(config.data), config.loader, 0, 1, start_step=0, num_steps=steps + 1) as loader:
        *batches, probe = loader
    inputs = next(iter(micro_inputs(probe, config, bundle.vocabulary, CPU, Ranks())))
    first = _activations(model, inputs)
    found: list[dict[str, Any]] = []
    for done in range(steps + 1):
        if done:
            train_step(model, optimizer, batches[done - 1], config, bundle.vocabulary, CPU)
        now = _activations(model, inputs)
        for part in PARTS:
            changes = [after - before for after, before in zip(now[part], first[part])]
            found.append({"steps": done, "part": part, "size": _rms(now[part]), "change": _rms(changes)})
    return found


def _rms(tensors: Iterable[Tensor]) -> float:
    """The root mean square, averaged over the places it was measured at."""
    return float(np.mean([float(each.square().mean().sqrt()) for each in tensors]))


@torch.no_grad()
def _activations(model: Transformer, inputs: Any) -> dict[str, list[Tensor]]:
    """Of the rows to be predicted: what branches give out in the first and the middle block, what leaves the last one.

    Blocks at the same share of the depth: a mean over all of them would differ with their number by itself.
    """
    kept: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    numbers = inputs.segments.number(inputs.targets.rows_n)

    def keep(part: str) -> Any:
        return lambda _module, _inputs, out: kept[part].append(out[numbers])

    hooks = [model.embed.register_forward_hook(keep("embedding"))]
    blocks: list[Any] = list(model.blocks)
    for block in (blocks[0], blocks[len(blocks) // 2]):
        hooks.append(block.attention.register_forward_hook(keep("attention")))
        hooks.append(block.mlp.register_forward_hook(keep("mlp")))
    hooks.append(blocks[-1].register_forward_hook(keep("stream")))
    hidden = model(inputs.tokens, inputs.positions, inputs.segments).flatten(0, 1)[inputs.targets.rows_n]
    for hook in hooks:
        hook.remove()
    for modality, part in zip(Modality, hidden.split(inputs.targets.counts)):
        if len(part):
            kept["logits"].append(model.logits(part, modality))
    return kept


def slope(records: StudyRecords, axis: str, part: str, what: str, steps: int) -> float:
    """Of log size against log width or layers, over trials that differ in it; means over seeds."""
    points = _points(records, axis, part, what, steps)
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


def _points(records: StudyRecords, axis: str, part: str, what: str, steps: int) -> dict[int, float]:
    """Geometric mean over seeds by width or layers."""
    found: dict[int, list[float]] = {}
    for record in records:
        for row in record["sizes"]:
            if (row["part"], row["steps"]) == (part, steps):
                found.setdefault(record[axis], []).append(row[what])
    return {x: float(np.exp(np.mean(np.log(values)))) for x, values in sorted(found.items())}


# -- the study --------------------------------------------------------------------------------------------------------


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--widths", type=several, default=[64, 128, 256, 512], metavar="N,N")
    parser.add_argument("--depths", type=several, default=[2, 4, 8, 16], metavar="N,N")
    parser.add_argument("--steps", type=whole_number, default=10)
    parser.add_argument("--lr", type=positive, default=2e-3, help="of the base")
    parser.add_argument("--seeds", type=whole_number, default=3)


def trials(args: argparse.Namespace) -> list[Trial]:
    shapes = [("width", width, BASE_LAYERS) for width in args.widths]
    shapes += [("layers", BASE_WIDTH, layers) for layers in args.depths]
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


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    asked = trial.settings
    shape = {name: asked[name] for name in ("width", "layers", "rule", "lr", "seed")}
    config = member(run, **shape)
    return {"sizes": sizes(config, bundle, asked["steps"])}


def _asked(part: str) -> list[str]:
    return ["change"] if part == "logits" else ["size", "change"]


def _worst(records: StudyRecords, rule: str, axis: str) -> dict[str, float]:
    """By part and what is measured: the slope farthest from 0 after 1 to the last step."""
    mine = [record for record in records if (record["rule"], record["axis"]) == (rule, axis)]
    if len({record[axis] for record in mine}) < 2:
        raise UserError(f"{rule} has not been run yet with two values of {axis}: a slope needs them.")
    last = max(row["steps"] for record in mine for row in record["sizes"])
    return {
        f"{part} {what}": max((slope(mine, axis, part, what, n) for n in range(1, last + 1)), key=abs)
        for part in PARTS
        for what in _asked(part)
    }


def _findings(records: StudyRecords) -> list[str]:
    found = []
    for axis in ("width", "layers"):
        for rule in RULES:
            slopes = _worst(records, rule, axis)
            worst = max(slopes, key=lambda name: abs(slopes[name]))
            found.append(
                f"{rule}, over {axis}: largest slope {slopes[worst]:+.3f} ({worst}); "
                + ", ".join(f"{name} {value:+.3f}" for name, value in slopes.items())
            )
    return found


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    figure, panels = plt.subplots(4, len(PARTS), figsize=(13, 9.5), squeeze=False, layout="constrained")
    for line, (axis, rule) in enumerate((axis, rule) for axis in ("width", "layers") for rule in RULES):
        mine = [record for record in records if (record["rule"], record["axis"]) == (rule, axis)]
        last = max(row["steps"] for record in mine for row in record["sizes"])
        for column, part in enumerate(PARTS):
            panel = panels[line][column]
            for steps in range(1, last + 1):
                points = _points(mine, axis, part, "change", steps)
                colour = plt.cm.viridis(0.9 * (steps - 1) / max(1, last - 1))
                panel.plot(list(points), list(points.values()), "o-", ms=3, color=colour, label=f"{steps}")
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            low, high = panel.get_ylim()
            middle = (low * high) ** 0.5
            panel.set_ylim(min(low, middle / 4), max(high, middle * 4))  # so that what is flat looks flat
            if line == 0:
                panel.set_title(part)
            panel.set_xlabel(axis)
        panels[line][0].set_ylabel(f"{rule}\nsize of the change")
    figure.legend(*panels[0][0].get_legend_handles_labels(), title="steps", loc="outside right center")
    save(figure, path)


STUDY = Study(
    _describe, grid(trials, run_trial), _findings, _draw, fixed=lambda args: {"lr": args.lr, "steps": args.steps}
)
