"""The global search: which learning rate, betas, epsilon and weight decay are best for the proxy?

Random trials, a Gaussian process fitted to them, and a retest of the best trials and of its optimum with fresh
seeds, because the lowest of many noisy losses is biased.
"""

import argparse
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import float_range, positive_int
from triptych.errors import UserError
from triptych.recipes.proxy import scaled_proxy
from triptych.scaling.intervals import mean_interval
from triptych.studies import landscape
from triptych.studies.base import Claim, Study, StudyRecords
from triptych.studies.search_global import NAMES, Ranges, Search, random_search, retest, trial_records, with_values
from triptych.studies.table_runs import loss_or_inf, pooled_std
from triptych.studies.verdict import verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.utils import trials
from triptych.utils.config import to_json
from triptych.utils.files import write_atomically

RANGES = Ranges(lr=(5e-4, 5e-2))
_RETEST = "again: "  # start of the key of a retest's record
_NUM_POINTS = 2  # points that are retested beside the best trials
_OPTIMUM, _BEFORE = "the landscape's optimum", "the values before"  # of the points that are retested
_DESCRIPTIONS = {
    "lr": "the learning rate",
    "alpha1": "1 - beta1",
    "alpha2": "1 - beta2",
    "eps": "epsilon",
    "decay": "weight decay",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trials", type=positive_int, default=120, metavar="N", help="random trials of all processes (default: 120)"
    )
    parser.add_argument(
        "--top", type=positive_int, default=5, metavar="N", help="number of best trials to retest (default: 5)"
    )
    parser.add_argument(
        "--retest-seeds", type=positive_int, default=8, metavar="N", help="seeds per retest (default: 8)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the search (default: 0)")
    parser.add_argument(
        "--storage", metavar="URL", help="database, for machines without a shared folder (default: FOLDER/trials.log)"
    )
    for name in NAMES:
        low, high = getattr(RANGES, name)
        parser.add_argument(
            f"--{name}",
            type=float_range,
            default=(low, high),
            metavar="LOW,HIGH",
            help=f"range of {_DESCRIPTIONS[name]} (default: {low:g},{high:g})",
        )


def _search(args: argparse.Namespace, config: RunConfig) -> Search:
    digest = hashlib.sha256(json.dumps(to_json(config), sort_keys=True).encode()).hexdigest()[:12]
    return Search(
        name=f"search-{digest}",  # a database may hold searches with several configurations
        storage=args.storage or str(args.out / "trials.log"),
        ranges=Ranges(**{name: getattr(args, name) for name in NAMES}),
        seed=args.seed,
    )


def _missing_runs(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
    retested = any("again" in record for record in trials.TrialRecords(args.out))
    # Retests of an interrupted study may be stored already; they are counted again.
    retests = 0 if retested else args.retest_seeds * (args.top + _NUM_POINTS)
    return [scaled_proxy(config)] * (max(0, args.trials - len(trial_records(_search(args, config)))) + retests)


def _run_study(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    search = _search(args, config)

    def evaluate(values: dict[str, float], seed: int) -> float:
        return train_in_memory(with_values(scaled_proxy(config), values, seed), bundle).loss

    records = trials.TrialRecords(args.out)
    recorded, stored = ({r["number"] for r in _trials(each)} for each in (list(records), trial_records(search)))
    if not recorded <= stored:
        raise UserError(
            f"{args.out} has records of trials that are not in its storage and would be lost: choose another --out."
        )
    finished = random_search(search, evaluate, args.trials)
    with records.claim("again") as is_ours:
        if not is_ours:
            return False
        print("retesting the best trials and the optimum of the landscape with fresh seeds")
        points = {_OPTIMUM: landscape.fit(finished).optimum, _BEFORE: _values(config)}
        candidates = retest(search, evaluate, args.top, args.retest_seeds, points)
        lines = [{"key": f"trial {record['number']}", **record} for record in finished]
        lines += [{"key": f"{_RETEST}{each.name}", "again": list(each.losses), **each.values} for each in candidates]
        text = "".join(json.dumps(_plain(line)) + "\n" for line in lines)
        write_atomically(args.out / "records.jsonl", text.encode())
    return True


def _values(config: RunConfig) -> dict[str, float]:
    own = config.optimizer
    alphas = {"alpha1": 1 - own.beta1, "alpha2": 1 - own.beta2}
    return {"lr": own.lr, **alphas, "eps": own.eps, "decay": own.weight_decay}


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """The record with None for infinite losses, which JSON cannot express."""
    if "again" in record:
        record = {**record, "again": [None if math.isinf(loss) else loss for loss in record["again"]]}
    return record


def _trials(records: StudyRecords) -> list[dict[str, Any]]:
    return [record for record in records if "again" not in record]


def _findings(records: StudyRecords) -> list[str]:
    first = _trials(records)
    fitted = landscape.fit(first)
    lowest = min(first, key=lambda record: math.inf if record["loss"] is None else record["loss"])
    lines = [
        f"{len(first)} trials, {sum(record['diverged'] for record in first)} diverged; lowest loss {lowest['loss']:.4f}"
        f" (trial {lowest['number']})",
        f"predicted loss at the landscape's optimum: {fitted.predicted:.4f}",
    ]
    retests = [[loss_or_inf(loss) for loss in each["again"]] for each in records if "again" in each]
    if not retests:
        raise UserError("the best trials have not been retested yet: run the study to its end.")
    lines.append(f"standard deviation of the loss over seeds: {pooled_std(retests):.4f}")
    for record in records:
        if "again" in record:
            losses = [loss_or_inf(loss) for loss in record["again"]]
            values = ", ".join(f"{name} {record[name]:.3g}" for name in NAMES)
            error = np.std(losses, ddof=1) / len(losses) ** 0.5
            name = record["key"].removeprefix(_RETEST)
            lines.append(f"retest of {name}: {np.mean(losses):.4f} +- {error:.4f} on {len(losses)} seeds ({values})")
    best = next(record for record in records if "again" in record)  # retests are sorted
    changes = {
        "lr": best["lr"],
        "beta1": 1 - best["alpha1"],
        "beta2": 1 - best["alpha2"],
        "eps": best["eps"],
        "weight_decay": best["decay"],
    }
    lines.append("best values: " + " ".join(f"optimizer.{name}={value:.6g}" for name, value in changes.items()))
    return lines


def _retests(records: StudyRecords) -> dict[str, np.ndarray]:
    """Losses of every retested point on the same seeds, best mean first."""
    return {
        each["key"].removeprefix(_RETEST): np.array([loss_or_inf(loss) for loss in each["again"]])
        for each in records
        if "again" in each
    }


def claims(records: StudyRecords) -> list[Claim]:
    retests = _retests(records)
    trials_only = [name for name in retests if name.startswith("trial ")]
    if _OPTIMUM not in retests or _BEFORE not in retests or not trials_only:
        return []
    best, optimum, before = retests[trials_only[0]], retests[_OPTIMUM], retests[_BEFORE]
    better = min((best, optimum), key=np.mean)
    noise = pooled_std([list(losses) for losses in retests.values()])
    behind, gain = mean_interval(optimum - best), mean_interval(before - better)
    return [
        Claim(
            "Figure 19",
            "A random search on a small model finds better global hyperparameters of AdamW.",
            f"the best retested point is {gain} nats better on fresh seeds than the values before the search",
            verdict((gain.low, gain.high), low=0),
        ),
        Claim(
            "Figure 19",
            "The optimum of a Gaussian process fitted to the trials is the best point.",
            f"its loss is {behind.shown('+.4f')} nats above that of the best trial on fresh seeds; up to {noise:.4f}, "
            "the noise of one seed, counts as equal",
            verdict((behind.low, behind.high), high=noise),
        ),
    ]


def _draw(records: StudyRecords, path: Path) -> None:
    landscape.draw(landscape.fit(_trials(records)), path)


STUDY = Study(_add_arguments, _run_study, _missing_runs, _findings, _draw, claims)
