"""The global search: which learning rate, betas, epsilon and weight decay suit the base of the family?

Random trials, a Gaussian process through them, and a second look at the best few trials and at the process's optimum,
with fresh seeds: the lowest of many noisy losses is low by luck, too.
"""

import argparse
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from triptych.cli.args import two_numbers, whole_number
from triptych.data.shards import write_atomically
from triptych.errors import UserError
from triptych.recipes.proxy import member
from triptych.studies import landscape
from triptych.studies.base import Study, StudyRecords
from triptych.studies.in_memory import train_in_memory
from triptych.studies.search_global import NAMES, Ranges, Search, random_search, records_of, retest, tuned
from triptych.studies.search_modules import pooled_std
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig, to_json
from triptych.utils import trials

RANGES = Ranges(lr=(5e-4, 5e-2))


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=whole_number, default=120, help="of all processes together (default: 120)")
    parser.add_argument("--top", type=whole_number, default=5, help="trials that get a second look (default: 5)")
    parser.add_argument(
        "--again", type=whole_number, default=8, metavar="SEEDS", help="of the second look (default: 8)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--storage", metavar="URL", help="a database, for nodes without a shared folder (default: FOLDER/trials.log)"
    )
    for name in NAMES:
        low, high = getattr(RANGES, name)
        parser.add_argument(
            f"--{name}", type=two_numbers, default=(low, high), metavar="LOW,HIGH", help=f"(default: {low:g},{high:g})"
        )


def _run_study(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    family = hashlib.sha256(json.dumps(to_json(config), sort_keys=True).encode()).hexdigest()[:12]
    search = Search(
        name=f"search-{family}",  # a database may hold those of several
        storage=args.storage or str(args.out / "trials.log"),
        ranges=Ranges(**{name: getattr(args, name) for name in NAMES}),
        seed=args.seed,
    )

    def evaluate(values: dict[str, float], seed: int) -> float:
        return train_in_memory(tuned(member(config), values, seed), bundle).loss

    kept = trials.TrialRecords(args.out)
    here, stored = ({record["number"] for record in _trials(each)} for each in (list(kept), records_of(search)))
    if not here <= stored:
        raise UserError(
            f"{args.out} has records of trials that are not in its storage, and would lose them: choose another --out."
        )
    found = random_search(search, evaluate, args.trials)
    with kept.claim("again") as is_ours:
        if not is_ours:
            return False
        print("the best trials and the optimum of the landscape once more, with fresh seeds")
        points = {"the landscape's optimum": landscape.fit(found).optimum, "the values before": _values(config)}
        candidates = retest(search, evaluate, args.top, args.again, points)
        lines = [{"key": f"trial {record['number']}", **record} for record in found]
        lines += [{"key": f"again: {each.name}", "again": list(each.losses), **each.values} for each in candidates]
        text = "".join(json.dumps(_plain(line)) + "\n" for line in lines)
        write_atomically(args.out / "records.jsonl", text.encode())
    return True


def _values(config: RunConfig) -> dict[str, float]:
    own = config.optimizer
    alphas = {"alpha1": 1 - own.beta1, "alpha2": 1 - own.beta2}
    return {"lr": own.lr, **alphas, "eps": own.eps, "decay": own.weight_decay}


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """inf has no name in JSON."""
    if "again" in record:
        record = {**record, "again": [None if math.isinf(loss) else loss for loss in record["again"]]}
    return record


def _trials(records: StudyRecords) -> list[dict[str, Any]]:
    return [record for record in records if "again" not in record]


def _findings(records: StudyRecords) -> list[str]:
    first = _trials(records)
    fitted = landscape.fit(first)
    lowest = min(first, key=lambda record: math.inf if record["loss"] is None else record["loss"])
    found = [
        f"{len(first)} trials, {sum(record['diverged'] for record in first)} diverged; lowest loss {lowest['loss']:.4f}"
        f" (trial {lowest['number']})",
        f"the landscape: {fitted.predicted:.4f} at its optimum",
    ]
    again = [[math.inf if loss is None else loss for loss in each["again"]] for each in records if "again" in each]
    if not again:
        raise UserError("the best trials have not had their second look yet: run the study to its end.")
    found.append(f"a loss changes by {pooled_std(again):.4f} (standard deviation) with the seed")
    for record in records:
        if "again" in record:
            losses = [math.inf if loss is None else loss for loss in record["again"]]
            values = ", ".join(f"{name} {record[name]:.3g}" for name in NAMES)
            error = np.std(losses, ddof=1) / len(losses) ** 0.5
            found.append(f"{record['key']}: {np.mean(losses):.4f} +- {error:.4f} on {len(losses)} seeds ({values})")
    best = next(record for record in records if "again" in record)  # they are in order
    changes = {
        "lr": best["lr"],
        "beta1": 1 - best["alpha1"],
        "beta2": 1 - best["alpha2"],
        "eps": best["eps"],
        "weight_decay": best["decay"],
    }
    found.append("to use them: " + " ".join(f"optimizer.{name}={value:.6g}" for name, value in changes.items()))
    return found


def _draw(records: StudyRecords, path: Path) -> None:
    landscape.draw(landscape.fit(_trials(records)), path)


STUDY = Study(_describe, _run_study, _findings, _draw)
