"""Runs with tables of multipliers: shared by the search per module and by the comparison of its result."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from triptych.training.config import RunConfig
from triptych.transfer.per_module import Multipliers, MultiplierTable
from triptych.utils.trials import Trial, run_trials

PROPOSALS, RETESTS, COMPARISONS = 1, 2, 3  # purposes of seeds; each purpose has its own stream
Evaluate = Callable[[MultiplierTable, int], float]
"""The loss of a run with these multipliers and this seed; not finite if it diverged."""


def with_table(config: RunConfig, table: MultiplierTable, seed: int, folder: Path) -> RunConfig:
    """The run with these multipliers only, saved to a file in `folder` that the configuration names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table_digest(table)}.json"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}")
        table.save(temporary)
        temporary.replace(path)  # atomic, because other processes may read it
    return replace(
        config,
        seed=seed,
        loader=replace(config.loader, seed=seed),
        corrupt=replace(config.corrupt, seed=seed),
        transfer=replace(config.transfer, per_module=str(path), multipliers={}),
    )


def run_until_finished(
    folder: Path,
    trials: Sequence[Trial],
    run: Callable[[Trial], float],
    report: Callable[[str], None],
    wait_seconds: float,
) -> list[float]:
    """The losses of all trials; waits for those that other processes run."""

    def result(trial: Trial) -> dict[str, Any]:
        try:
            loss = float(run(trial))
        except ArithmeticError:
            loss = math.inf
        return {"loss": loss if math.isfinite(loss) else None, "diverged": not math.isfinite(loss)}

    while True:
        finished = run_trials(folder, trials, result, report)
        if all(trial.key in finished for trial in trials):
            return [loss_or_inf(finished[trial.key]["loss"]) for trial in trials]
        time.sleep(wait_seconds)


def loss_or_inf(recorded: float | None) -> float:
    return math.inf if recorded is None else recorded


def pooled_std(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation of losses around the means of their groups; groups with a diverged run are left out."""
    finite = [group for group in groups if all(map(math.isfinite, group))]
    freedom = sum(len(group) - 1 for group in finite)
    squares = sum(float(np.var(group)) * len(group) for group in finite)
    return math.sqrt(squares / freedom) if freedom else 0.0


def draw_seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def table_digest(table: MultiplierTable) -> str:
    """Name of a table in records and files, from 9 digits: the last digits of exp differ between machines."""

    def rounded(multipliers: Multipliers) -> dict[str, str]:
        return {name: f"{value:.9g}" for name, value in asdict(multipliers).items()}

    roles = {name: rounded(table.roles[name]) for name in sorted(table.roles)}
    content = json.dumps([roles, [rounded(each) for each in table.depth], table.decays_all])
    return hashlib.sha256(content.encode()).hexdigest()[:12]
