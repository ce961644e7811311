"""How many fewer tokens a table of multipliers needs for the same loss.

The better table is trained on fewer tokens than the baseline, at several horizons; batch, learning rate and the rest
follow from the number of tokens by the batch-size rule. A monotone cubic through its mean losses over the logarithm of
the tokens shows where it reaches the loss of the baseline. The gain is the ratio of the tokens, as the paper's 1.81.
Its interval is a bootstrap over seeds, which both tables share.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq

from triptych.scaling.critical_batch import widened_interval
from triptych.studies.base import Claim, StudyRecords
from triptych.studies.table_runs import loss_or_inf, run_until_finished, table_digest
from triptych.studies.verdict import Verdict
from triptych.transfer.per_module import MultiplierTable
from triptych.utils.trials import Trial

PAPERS_GAIN = 1.81  # at 320M parameters on 13B tokens
_RESAMPLES = 400
_MIN_SEEDS = 2


@dataclass(frozen=True)
class TokenGain:
    """Tokens of the baseline relative to those that the better table needs for the same loss."""

    value: float
    low: float
    high: float
    fewest: float
    """Smallest horizon of the better table, relative to the baseline's tokens."""
    num_seeds: int

    @property
    def is_bound(self) -> bool:
        """Whether the better table is still better at its smallest horizon: the gain is at least this."""
        return self.value * self.fewest > 1 - 1e-9

    def __str__(self) -> str:
        if self.is_bound:
            gain = f"at least {1 / self.fewest:.2f} times fewer tokens (the fewest that were tried)"
        else:
            high = "more" if self.high * self.fewest > 1 - 1e-9 else f"{self.high:.2f}"
            gain = f"{self.value:.2f} ({self.low:.2f} to {high}) times fewer tokens"
        return f"{gain}, over {self.num_seeds} seeds"


def token_gain(
    baseline: Mapping[int, float], better: Mapping[float, Mapping[int, float]], seed: int = 0
) -> TokenGain | None:
    """From losses by seed: of the baseline at horizon 1, of the better table by horizon, 1 and less.

    None with fewer than two seeds that all horizons share, or without a horizon below 1.
    """
    horizons = sorted(better)
    seeds = sorted(set(baseline).intersection(*(better[horizon] for horizon in horizons)))
    if len(seeds) < _MIN_SEEDS or len(horizons) < 2:
        return None
    target = np.array([baseline[each] for each in seeds])
    losses = np.array([[better[horizon][each] for each in seeds] for horizon in horizons])
    if not (np.isfinite(target).all() and np.isfinite(losses).all()):
        return None
    logs = np.log(horizons)

    def log_gain(picks: NDArray[np.int64]) -> float:
        return -_crossing(logs, losses[:, picks].mean(1), float(target[picks].mean()))

    rng = np.random.default_rng(seed)
    value = log_gain(np.arange(len(seeds)))
    estimates = np.array([log_gain(picks) for picks in rng.integers(len(seeds), size=(_RESAMPLES, len(seeds)))])
    low, high = widened_interval(value, estimates, len(seeds), 1)
    return TokenGain(float(np.exp(value)), float(np.exp(low)), float(np.exp(high)), horizons[0], len(seeds))


def _crossing(logs: NDArray[np.float64], losses: NDArray[np.float64], target: float) -> float:
    """The log of the tokens at which the loss falls to the target; the first or last horizon if it does not cross.

    Noise can make the curve rise between two horizons; the first crossing from many tokens down counts.
    """
    if losses[-1] >= target:
        return float(logs[-1])
    for index in range(len(logs) - 2, -1, -1):
        if losses[index] >= target:
            curve = PchipInterpolator(logs, losses - target)
            return float(brentq(curve, logs[index], logs[index + 1]))
    return float(logs[0])


# -- records ----------------------------------------------------------------------------------------------------------


def run_horizons(
    table: MultiplierTable,
    evaluate: Callable[[float, int], float],
    folder: Path,
    horizons: Sequence[float],
    seeds: Sequence[int],
    report: Callable[[str], None] = print,
    wait_seconds: float = 5.0,
) -> None:
    """Run the table on fewer tokens; `evaluate` gives the loss for a horizon and a seed."""
    digest = table_digest(table)
    trials = [
        Trial(f"horizon-{digest}-{horizon:g}-{seed}", {"digest": digest, "horizon": horizon, "seed": seed})
        for seed in seeds
        for horizon in horizons
    ]
    run_until_finished(
        folder, trials, lambda trial: evaluate(trial.settings["horizon"], trial.settings["seed"]), report, wait_seconds
    )


def recorded_gain(
    records: StudyRecords, table: MultiplierTable, baseline: Mapping[int, float], better: Mapping[int, float]
) -> TokenGain | None:
    """The gain from the final comparison, where both tables have all tokens, and the table's runs on fewer."""
    by_horizon: dict[float, dict[int, float]] = {1.0: dict(better)}
    for record in records:
        if record.get("digest") == table_digest(table):
            by_horizon.setdefault(record["horizon"], {})[record["seed"]] = loss_or_inf(record["loss"])
    return token_gain(baseline, by_horizon)


def gain_claim(gain: TokenGain) -> Claim:
    return Claim(
        "Figure 21",
        f"Multipliers per module reach the same loss on fewer tokens, there {PAPERS_GAIN:g} times fewer.",
        str(gain),
        _verdict(gain),
    )


def _verdict(gain: TokenGain) -> Verdict:
    """The claim is that there is a gain; its size depends on the model, the data and the length of the search."""
    if gain.low > 1:
        return "agrees"
    return "disagrees" if gain.high <= 1 else "undecided"
