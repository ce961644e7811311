"""The search by module: what is it worth that every role of a weight, and every part of the depth, has its own values?

It starts where the global search ended. What it finds is compared on seeds of their own, in runs of the same cost, with
the global values alone, with the paper's table and with the one that was found by hand for the embedded world.
"""

import argparse
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.cli.args import positive, whole_number
from triptych.errors import UserError
from triptych.model.transformer import Transformer, tagged_parameters
from triptych.recipes.proxy import member
from triptych.studies.base import Study, StudyRecords
from triptych.studies.in_memory import train_in_memory
from triptych.studies.search_modules import (
    INCUMBENT,
    VALUES,
    MeanEstimate,
    ModuleSearch,
    State,
    compare,
    configured,
    digest,
    gain,
    search_modules,
    state,
)
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.transfer.per_module import MULTIPLIER_TABLES, Table, table_named
from triptych.utils import trials
from triptych.utils.plotting import pyplot, save

SEARCH = "search"  # the key of the record that says what the search is
OTHERS = ("none", "paper", "scenes")


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=whole_number, default=12)
    parser.add_argument("--proposals", type=whole_number, default=16, help="in a round (default: 16)")
    parser.add_argument(
        "--radius",
        type=_factor,
        default=1.5,
        help="by what factor a proposal changes a multiplier, at first (default: 1.5)",
    )
    parser.add_argument(
        "--start", default="none", metavar="TABLE", help="a preset or a file; the search is for factors on top of it"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=whole_number, default=8, help="of the comparison at the end (default: 8)")


def _factor(text: str) -> float:
    found = positive(text)
    if found <= 1:
        raise argparse.ArgumentTypeError(f"expected a factor larger than 1, got {text!r}")
    return found


def _run_study(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    config = member(config)
    with torch.device("meta"):
        model = Transformer(config.model, bundle.vocabulary)
    settings = {
        "roles": list(dict.fromkeys(weight.role for weight in tagged_parameters(model))),
        "beta1": config.optimizer.beta1,
        "beta2": config.optimizer.beta2,
        "start": table_named(args.start).as_json,
        "num_proposals": args.proposals,
        "radius": round(math.log(args.radius), 6),
        "seed": args.seed,
    }
    search = _search(settings)
    records = trials.TrialRecords(args.out)
    with records.claim(SEARCH) as is_ours:
        if is_ours:
            records.add({"key": SEARCH, **settings})

    def evaluate(table: Table, seed: int) -> float:
        return train_in_memory(configured(config, table, seed, args.out / "tables"), bundle).loss

    found = search.table(search_modules(search, evaluate, args.out, args.rounds).incumbent)
    found.save(args.out / "table.json")
    others = {name: _usable(MULTIPLIER_TABLES[name], config.optimizer.beta1, config.optimizer.beta2) for name in OTHERS}
    compare({**others, "found": found}, evaluate, args.out, args.seeds)
    return True


def _usable(table: Table, beta1: float, beta2: float) -> Table:
    """The table with smaller multipliers of 1 - beta where they would make a beta negative."""
    most = {"alpha1": 0.99 / (1 - beta1), "alpha2": 0.99 / (1 - beta2)}
    largest = {name: max([1.0, *(getattr(own, name) for own in table.depth)]) for name in most}
    cut = {
        role: replace(own, **{name: min(getattr(own, name), most[name] / largest[name]) for name in most})
        for role, own in table.roles.items()
    }
    return replace(table, roles=cut)


def _search(settings: dict[str, Any]) -> ModuleSearch:
    own = {name: settings[name] for name in ("beta1", "beta2", "num_proposals", "radius", "seed")}
    return ModuleSearch(roles=tuple(settings["roles"]), start=Table.from_json(settings["start"]), **own)


def _replay(records: StudyRecords) -> tuple[ModuleSearch, State]:
    search = _search(next(record for record in records if record["key"] == SEARCH))
    return search, state(search, [record for record in records if "x" in record])


def estimates(records: StudyRecords) -> dict[str, MeanEstimate]:
    """Of every table that was compared with the one that the search came to, on the seeds that all have had."""
    search, now = _replay(records)
    searched = f"compare-found-{digest(search.table(now.incumbent))}-"
    found: dict[str, dict[int, float]] = {name: {} for name in (*OTHERS, "found")}
    for record in records:
        # After more rounds, there may be a comparison with what was found before.
        if "table" in record and (record["table"] != "found" or record["key"].startswith(searched)):
            loss = math.inf if record["loss"] is None else record["loss"]
            found[record["table"]].setdefault(record["seed"], loss)
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
    if len(seeds) < 2:
        raise UserError("what the search has found is not compared yet: run the study to its end.")
    return {name: MeanEstimate(tuple(by_seed[seed] for seed in seeds)) for name, by_seed in found.items()}


def _findings(records: StudyRecords) -> list[str]:
    _, now = _replay(records)
    accepted = [each.accepted for each in now.rounds if each.accepted is not None]
    searched = sum("x" in record for record in records)
    diverged = sum("x" in record and record["loss"] is None for record in records)
    by_kind = ", ".join(f"{accepted.count(name)} x {name}" for name in dict.fromkeys(accepted))
    found = [
        f"{len(now.rounds)} rounds of {searched} runs ({diverged} diverged), {len(accepted)} with a new incumbent"
        + (f" ({by_kind})" if accepted else "")
    ]
    compared = estimates(records)
    settings = next(record for record in records if record["key"] == SEARCH)
    if _usable(MULTIPLIER_TABLES["paper"], settings["beta1"], settings["beta2"]) != MULTIPLIER_TABLES["paper"]:
        found.append(f"paper: multipliers of 1 - beta cut to keep betas positive (here beta1 is {settings['beta1']:g})")
    for name, each in compared.items():
        found.append(
            f"{name}: {each.mean:.4f} +- {each.standard_error:.4f} on {len(each.losses)} held-out seeds"
            + (f", {each.num_diverged} diverged" if each.num_diverged else "")
        )
    for name in OTHERS:
        paired = gain(compared["found"], compared[name])
        found.append(f"found against {name}: {paired.mean:+.4f} +- {paired.standard_error:.4f} nats lower")
    return found


def _draw(records: StudyRecords, path: Path) -> None:
    plt = pyplot()
    search, now = _replay(records)
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.15))
    above, below = left.subplots(2, 1)
    _draw_rounds(above, now)
    _draw_comparison(below, estimates(records))
    _draw_table(right, search.table(now.incumbent))
    save(figure, path)


def _draw_rounds(panel: Any, now: State) -> None:
    for each in now.rounds:
        finite = [loss for loss in each.losses if math.isfinite(loss)]
        panel.plot([each.number] * len(finite), finite, ".", ms=3, color="#8d99ae", label=None)
        if each.again:
            name = each.accepted or INCUMBENT
            marker = "*" if each.accepted else "o"
            panel.plot(
                [each.number], [np.mean(each.again[name])], marker, ms=9 if each.accepted else 4, color="#1f5f8b"
            )
    panel.plot([each.number for each in now.rounds if each.again], now.losses, "-", lw=1, color="#1f5f8b")
    finite = [loss for each in now.rounds for loss in each.losses if math.isfinite(loss)]
    panel.set_ylim(min([*finite, *now.losses]) - 0.05, np.quantile(finite, 0.9))
    panel.set_xlabel("round (star: a new incumbent)")
    panel.set_ylabel("held-out nats per token")


def _draw_comparison(panel: Any, compared: dict[str, MeanEstimate]) -> None:
    for number, each in enumerate(compared.values()):
        finite = [loss for loss in each.losses if math.isfinite(loss)]
        panel.plot(finite, [number] * len(finite), ".", ms=4, color="#8d99ae")
        if finite:
            panel.plot([np.mean(finite)], [number], "|", ms=16, mew=2, color="#d1495b")
            diverged = f"  ({each.num_diverged} diverged)" if each.num_diverged else ""
            panel.annotate(
                f"{np.mean(finite):.3f}{diverged}", (np.mean(finite), number + 0.28), ha="center", fontsize=8
            )
    panel.set_yticks(range(len(compared)), list(compared))
    panel.set_ylim(-0.5, len(compared) - 0.3)
    panel.set_xlabel("held-out nats per token, held-out seeds")


def _draw_table(figure: Any, table: Table) -> None:
    rows = dict(table.roles) | {f"depth, part {number + 1}": own for number, own in enumerate(table.depth)}
    values = np.log2([[max(asdict(own)[name], 1e-6) for name in VALUES] for own in rows.values()])
    panel = figure.subplots()
    most = max(1.0, float(np.abs(values).max()))
    panel.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    panel.set_xticks(range(len(VALUES)), VALUES)
    panel.set_yticks(range(len(rows)), list(rows))
    panel.grid(False)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            colour = "white" if abs(value) > 0.6 * most else "black"
            panel.text(j, i, f"{2**value:.2g}", ha="center", va="center", fontsize=7, color=colour)
    panel.set_title("multipliers found", fontsize=9)


def _fixed(args: argparse.Namespace) -> dict[str, Any]:
    start = digest(table_named(args.start))
    return {"proposals": args.proposals, "radius": args.radius, "seed": args.seed, "start": start}


STUDY = Study(_describe, _run_study, _findings, _draw, _fixed)
