"""Comparison of tables of multipliers on fresh seeds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triptych.errors import UserError
from triptych.studies.table_runs import COMPARISONS, Evaluate, draw_seed, run_until_finished, table_digest
from triptych.transfer.per_module import MultiplierTable
from triptych.utils.trials import Trial


@dataclass(frozen=True)
class MeanEstimate:
    """Losses of one table over several seeds, and their mean."""

    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean loss; inf if any run diverged."""
        return float(np.mean(self.losses))

    @property
    def standard_error(self) -> float:
        if len(self.losses) < 2 or not all(map(math.isfinite, self.losses)):
            return math.nan
        return float(np.std(self.losses, ddof=1)) / math.sqrt(len(self.losses))

    @property
    def num_diverged(self) -> int:
        return sum(map(math.isinf, self.losses))


def paired_gain(candidate: MeanEstimate, baseline: MeanEstimate) -> MeanEstimate:
    """How much lower the candidate's loss is than the baseline's, seed by seed, so that common noise cancels."""
    pairs = zip(baseline.losses, candidate.losses)
    return MeanEstimate(tuple(math.nan if math.isinf(a) and math.isinf(b) else a - b for a, b in pairs))


def compare(
    tables: Mapping[str, MultiplierTable],
    evaluate: Evaluate,
    folder: Path,
    num_seeds: int = 8,
    seed: int = 0,
    report: Callable[[str], None] = print,
    wait_seconds: float = 5.0,
) -> dict[str, MeanEstimate]:
    """Losses of several tables in runs of equal cost, on the same seeds, none of which the search has used.

    The losses of the search itself are biased, because the incumbent was selected by them.
    """
    if num_seeds < 2:
        raise UserError(f"a comparison needs at least 2 seeds for its standard error, got {num_seeds}.")
    seeds = [draw_seed(seed, COMPARISONS, index) for index in range(num_seeds)]
    trials = [
        Trial(f"compare-{name}-{table_digest(table)}-{each}", {"table": name, "seed": each})
        for each in seeds
        for name, table in tables.items()
    ]

    def run(trial: Trial) -> float:
        return evaluate(tables[trial.settings["table"]], trial.settings["seed"])

    losses = run_until_finished(folder, trials, run, report, wait_seconds)
    return {name: MeanEstimate(tuple(losses[number :: len(tables)])) for number, name in enumerate(tables)}
