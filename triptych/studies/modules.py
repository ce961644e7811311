"""The search per module: how much do separate hyperparameters gain for each role of a weight and part of the depth?

It starts from the result of the global search. The table it finds is compared, on fresh seeds and at the same cost,
with no table, with the paper's table, and with the table made by hand for the toy dataset.
"""

import argparse
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from triptych.cli.args import positive_float, positive_floats, positive_int
from triptych.errors import UserError
from triptych.model.transformer import Transformer, tagged_parameters
from triptych.recipes.proxy import scaled_proxy
from triptych.scaling.intervals import Interval, mean_interval
from triptych.studies.base import Claim, Study, StudyRecords
from triptych.studies.compare_tables import MeanEstimate, compare, paired_gain
from triptych.studies.search_modules import INCUMBENT, VALUES, ModuleSearch, SearchState, replay, search_modules
from triptych.studies.table_runs import loss_or_inf, table_digest, with_table
from triptych.studies.token_gain import TokenGain, gain_claim, recorded_gain, run_horizons
from triptych.studies.verdict import verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.transfer.per_module import MULTIPLIER_TABLES, MultiplierTable, load_multiplier_table
from triptych.utils import trials
from triptych.utils.plotting import pyplot, save

SEARCH = "search"  # key of the record that describes the search
OTHERS = ("none", "paper", "scenes")
_NUM_RETESTED = 4  # points that are retested in a round: the incumbent and up to three candidates


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=positive_int, default=12, metavar="N", help="default: 12")
    parser.add_argument(
        "--proposals", type=positive_int, default=16, metavar="N", help="proposals per round (default: 16)"
    )
    parser.add_argument(
        "--radius",
        type=_factor,
        default=1.5,
        metavar="X",
        help="factor by which a proposal changes a multiplier in the first round (default: 1.5)",
    )
    parser.add_argument(
        "--start",
        default="none",
        metavar="TABLE",
        help="table of multipliers to start from, a preset or a file (default: none)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the search (default: 0)")
    parser.add_argument(
        "--seeds", type=positive_int, default=8, metavar="N", help="seeds of the final comparison (default: 8)"
    )
    parser.add_argument(
        "--horizons",
        type=positive_floats,
        default=[0.125, 0.25, 0.5],
        metavar="X,X",
        help="shares of the tokens that the best table is run on, for its gain in tokens (default: 0.125,0.25,0.5)",
    )


def _factor(text: str) -> float:
    factor = positive_float(text)
    if factor <= 1:
        raise argparse.ArgumentTypeError(f"expected a factor larger than 1, got {text!r}")
    return factor


def _run_study(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    if max(args.horizons) >= 1:
        raise UserError(f"--horizons are shares of the tokens, below 1, got {max(args.horizons):g}.")
    base, config = config, scaled_proxy(config)
    with torch.device("meta"):
        model = Transformer(config.model, bundle.vocabulary)
    settings = {
        "roles": list(dict.fromkeys(weight.role for weight in tagged_parameters(model))),
        "beta1": config.optimizer.beta1,
        "beta2": config.optimizer.beta2,
        "start": load_multiplier_table(args.start).as_json,
        "num_proposals": args.proposals,
        "radius": round(math.log(args.radius), 6),
        "seed": args.seed,
    }
    search = _search(settings)
    records = trials.TrialRecords(args.out)
    with records.claim(SEARCH) as is_ours:
        if is_ours:
            records.add({"key": SEARCH, **settings})

    def evaluate(table: MultiplierTable, seed: int) -> float:
        return train_in_memory(with_table(config, table, seed, args.out / "tables"), bundle).loss

    best_table = search.table(search_modules(search, evaluate, args.out, args.rounds).incumbent)
    best_table.save(args.out / "table.json")
    others = {name: _usable(MULTIPLIER_TABLES[name], config.optimizer.beta1, config.optimizer.beta2) for name in OTHERS}
    compare({**others, "found": best_table}, evaluate, args.out, args.seeds)

    def evaluate_at(horizon: float, seed: int) -> float:
        shorter = scaled_proxy(base, batch=base.loader.global_batch, tokens=horizon)
        return train_in_memory(with_table(shorter, best_table, seed, args.out / "tables"), bundle).loss

    run_horizons(best_table, evaluate_at, args.out, args.horizons, sorted(_losses_by_seed(list(records))["none"]))
    return True


def _missing_runs(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
    """As many as there are without records: the runs of a search follow from its results."""
    per_round = args.proposals + _NUM_RETESTED * ModuleSearch.num_retest_seeds
    wanted = args.rounds * per_round + args.seeds * (len(OTHERS) + 1 + len(args.horizons))
    recorded = sum(record["key"] != SEARCH for record in trials.TrialRecords(args.out))
    return [scaled_proxy(config)] * max(0, wanted - recorded)


def _usable(table: MultiplierTable, beta1: float, beta2: float) -> MultiplierTable:
    """The table with multipliers of 1 - beta limited so that no beta becomes negative."""
    limits = {"alpha1": 0.99 / (1 - beta1), "alpha2": 0.99 / (1 - beta2)}
    largest = {name: max([1.0, *(getattr(own, name) for own in table.depth)]) for name in limits}
    limited = {
        role: replace(own, **{name: min(getattr(own, name), limits[name] / largest[name]) for name in limits})
        for role, own in table.roles.items()
    }
    return replace(table, roles=limited)


def _search(settings: dict[str, Any]) -> ModuleSearch:
    own = {name: settings[name] for name in ("beta1", "beta2", "num_proposals", "radius", "seed")}
    return ModuleSearch(roles=tuple(settings["roles"]), start=MultiplierTable.from_json(settings["start"]), **own)


def _replay(records: StudyRecords) -> tuple[ModuleSearch, SearchState]:
    search = _search(next(record for record in records if record["key"] == SEARCH))
    return search, replay(search, [record for record in records if "x" in record])


def _losses_by_seed(records: StudyRecords) -> dict[str, dict[int, float]]:
    """Losses of the table that the search found and of the others, on the seeds that all have been run with."""
    search, now = _replay(records)
    current = f"compare-found-{table_digest(search.table(now.incumbent))}-"
    losses: dict[str, dict[int, float]] = {name: {} for name in (*OTHERS, "found")}
    for record in records:
        # Comparisons of the table found after fewer rounds may be recorded, too.
        if "table" in record and (record["table"] != "found" or record["key"].startswith(current)):
            losses[record["table"]].setdefault(record["seed"], loss_or_inf(record["loss"]))
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in losses.values())))
    return {name: {seed: by_seed[seed] for seed in seeds} for name, by_seed in losses.items()}


def estimates(records: StudyRecords) -> dict[str, MeanEstimate]:
    """Mean losses of the table that the search found and of the others."""
    losses = _losses_by_seed(records)
    if len(losses["found"]) < 2:
        raise UserError("the table that the search found has not been compared yet: run the study to its end.")
    return {name: MeanEstimate(tuple(by_seed.values())) for name, by_seed in losses.items()}


def tokens_saved(records: StudyRecords) -> TokenGain | None:
    """The gain in tokens over no table; None without runs on fewer tokens."""
    search, now = _replay(records)
    losses = _losses_by_seed(records)
    return recorded_gain(records, search.table(now.incumbent), losses["none"], losses["found"])


def _findings(records: StudyRecords) -> list[str]:
    _, now = _replay(records)
    accepted = [each.accepted for each in now.rounds if each.accepted is not None]
    searched = sum("x" in record for record in records)
    diverged = sum("x" in record and record["loss"] is None for record in records)
    by_kind = ", ".join(f"{accepted.count(name)} x {name}" for name in dict.fromkeys(accepted))
    lines = [
        f"{len(now.rounds)} rounds with {searched} runs ({diverged} diverged), {len(accepted)} with a new incumbent"
        + (f" ({by_kind})" if accepted else "")
    ]
    compared = estimates(records)
    settings = next(record for record in records if record["key"] == SEARCH)
    if _usable(MULTIPLIER_TABLES["paper"], settings["beta1"], settings["beta2"]) != MULTIPLIER_TABLES["paper"]:
        lines.append(
            f"paper: multipliers of 1 - beta limited to keep betas positive (here beta1 is {settings['beta1']:g})"
        )
    for name, estimate in compared.items():
        lines.append(
            f"{name}: {estimate.mean:.4f} +- {estimate.standard_error:.4f} on {len(estimate.losses)} fresh seeds"
            + (f", {estimate.num_diverged} diverged" if estimate.num_diverged else "")
        )
    for name in OTHERS:
        gain = paired_gain(compared["found"], compared[name])
        lines.append(f"gain of found over {name}: {gain.mean:+.4f} +- {gain.standard_error:.4f} nats")
    saved = tokens_saved(records)
    if saved is not None:
        lines.append(f"found reaches the loss of none on {saved}")
    return lines


def rank_correlation(one: MultiplierTable, other: MultiplierTable) -> Interval:
    """Spearman's correlation of the learning-rate multipliers of common roles, with its 95 % interval by Fisher's z."""
    pairs = [(one.roles[role].lr, other.roles[role].lr) for role in sorted(one.roles.keys() & other.roles.keys())]
    if len(pairs) < 5:
        return Interval(math.nan, math.nan, math.nan)
    value = float(spearmanr(*zip(*pairs)).statistic)
    reach = 1.96 * math.sqrt((1 + value**2 / 2) / (len(pairs) - 3))  # the variance for ranks of Bonett and Wright
    centre = math.atanh(max(-0.999999, min(0.999999, value)))
    return Interval(value, math.tanh(centre - reach), math.tanh(centre + reach))


def claims(records: StudyRecords) -> list[Claim]:
    compared = estimates(records)
    search, now = _replay(records)
    gain = mean_interval(np.array(paired_gain(compared["found"], compared["none"]).losses))
    alike = rank_correlation(search.table(now.incumbent), MULTIPLIER_TABLES["paper"])
    saved = tokens_saved(records)
    return [
        *([] if saved is None else [gain_claim(saved)]),
        Claim(
            "Figure 21",
            "Separate hyperparameters for each kind of weight reach a lower loss than the best global ones.",
            f"the table that the search found is {gain} nats better than no table on fresh seeds",
            verdict((gain.low, gain.high), low=0),
        ),
        Claim(
            "Table 6",
            "Multipliers are structured: embeddings and unembeddings learn faster, attention projections and MLP gates "
            "more slowly.",
            f"rank correlation of our learning-rate multipliers with the paper's {alike.shown('.2f')}, from one search",
            verdict((alike.low, alike.high), low=0),
        ),
    ]


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


def _draw_rounds(panel: Any, now: SearchState) -> None:
    for each in now.rounds:
        finite = [loss for loss in each.losses if math.isfinite(loss)]
        panel.plot([each.number] * len(finite), finite, ".", ms=3, color="#8d99ae", label=None)
        if each.retests:
            name = each.accepted or INCUMBENT
            marker = "*" if each.accepted else "o"
            panel.plot(
                [each.number], [np.mean(each.retests[name])], marker, ms=9 if each.accepted else 4, color="#1f5f8b"
            )
    panel.plot([each.number for each in now.rounds if each.retests], now.losses, "-", lw=1, color="#1f5f8b")
    finite = [loss for each in now.rounds for loss in each.losses if math.isfinite(loss)]
    panel.set_ylim(min([*finite, *now.losses]) - 0.05, np.quantile(finite, 0.9))
    panel.set_xlabel("round (star: a new incumbent)")
    panel.set_ylabel("validation loss, nats per token")


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
    panel.set_xlabel("validation loss, nats per token, on fresh seeds")


def _draw_table(figure: Any, table: MultiplierTable) -> None:
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
    start = table_digest(load_multiplier_table(args.start))
    return {"proposals": args.proposals, "radius": args.radius, "seed": args.seed, "start": start}


STUDY = Study(_add_arguments, _run_study, _missing_runs, _findings, _draw, claims, fixed_options=_fixed)
