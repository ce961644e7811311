"""Local search for multipliers per role of a weight and per part of the depth.

    a round:  proposals around the incumbent, all with the same seed
              candidates: the best proposal, the mean of the best few, and a step twice as far towards that mean
              retest: candidates and incumbent with the same fresh seeds
              a candidate that beats the incumbent by more than the noise replaces it, and the region grows;
              otherwise the region shrinks

Steps are taken in logs, and a proposal changes half of the multipliers. There are more than a hundred: in a single
proposal most changes are random, but the mean of several good proposals keeps what they have in common. Runs diverge
close to the best global values, so the search is local; a diverged proposal has an infinite loss and is never the best.
The papers mention such a search without details; this algorithm is ours.

The search is a function of its records: `replay` repeats the rounds so far and returns the trials that come next. So
any number of processes can share a round (triptych.utils.trials), and an interrupted search resumes with the same
proposals.

The incumbent is retested in every round, because the losses it was accepted for are biased by selection. Some bias
remains; `compare` (triptych.studies.compare_tables) measures a table on fresh seeds. The margin assumes independent
runs; runs with shared seeds differ by less, so the test is somewhat conservative.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import DataError, UserError
from triptych.studies.table_runs import (
    PROPOSALS,
    RETESTS,
    Evaluate,
    draw_seed,
    loss_or_inf,
    pooled_std,
    run_until_finished,
)
from triptych.transfer.per_module import Multipliers, MultiplierTable
from triptych.utils.trials import Trial, TrialRecords

Candidates = dict[str, np.ndarray]
VALUES = tuple(f.name for f in fields(Multipliers))
INCUMBENT = "incumbent"
_DIGITS = 6  # digits of a step's log: equal on every machine, and exact in the records
_MAX_LOG_ALPHA = math.log(0.99)  # keeps 1 - beta below 1


@dataclass(frozen=True, kw_only=True)
class ModuleSearch:
    """Settings of a search."""

    roles: tuple[str, ...]
    """Roles of the model's weights, or prefixes of roles; each has its own multipliers."""
    beta1: float
    """beta1 of the runs; limits the multipliers of 1 - beta1, so that betas stay positive."""
    beta2: float
    """beta2 of the runs; limits the multipliers of 1 - beta2."""
    depth_bins: int = 2
    """Number of equal parts of the depth; all weights of a part share its multipliers."""
    start: MultiplierTable = field(default_factory=MultiplierTable)
    """Table to start from; the search finds factors on top of it."""
    num_proposals: int = 16
    """Proposals per round."""
    num_mixed: int = 4
    """Number of best proposals whose mean is a candidate."""
    num_retest_seeds: int = 3
    confidence: float = 1.5
    """Standard errors by which a candidate must beat the incumbent."""
    share_changed: float = 0.5
    """Probability that a proposal changes a multiplier."""
    radius: float = math.log(1.5)
    """Standard deviation of the log of a changed multiplier in the first round."""
    smallest_radius: float = math.log(1.05)
    largest_radius: float = math.log(3)
    grow: float = 1.25
    shrink: float = 0.75
    bound: float = math.log(32)
    """Largest distance of a multiplier's log from the start."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.roles or len(set(self.roles)) != len(self.roles):
            raise UserError(f"a search per module needs roles without duplicates, got {list(self.roles)}.")
        if min(self.num_proposals, self.num_mixed) < 1 or self.num_retest_seeds < 2:
            raise UserError("num_proposals and num_mixed must be at least 1, num_retest_seeds at least 2.")
        if self.depth_bins < 0 or self.seed < 0:
            raise UserError("depth_bins and seed must not be negative.")
        if self.start.depth and len(self.start.depth) != self.depth_bins:
            raise UserError(
                f"the table to start from has {len(self.start.depth)} parts of the depth, the search has "
                f"{self.depth_bins}: set depth_bins to the same number."
            )
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise UserError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}.")
        if not np.array_equal(self.clip(self.zeros), self.zeros):
            raise UserError("the table to start from makes a beta below 0.01: use smaller alphas or larger betas.")

    @property
    def zeros(self) -> np.ndarray:
        """The starting point: logs of the factors on top of `start`; rows are roles, then parts of the depth."""
        return np.zeros((len(self.roles) + self.depth_bins, len(VALUES)))

    def table(self, x: np.ndarray) -> MultiplierTable:
        rows = [own * Multipliers(**dict(zip(VALUES, np.exp(row).tolist()))) for own, row in zip(self._start_rows, x)]
        count = len(self.roles)
        by_role = {**self.start.roles, **dict(zip(self.roles, rows))}
        return MultiplierTable(by_role, tuple(rows[count:]), self.start.decays_all)

    def clip(self, x: np.ndarray) -> np.ndarray:
        """x within the bound, and with `multiplier * (1 - beta) < 1` for every role in every part of the depth."""
        x = np.clip(x, -self.bound, self.bound)
        roles, depth = slice(len(self.roles)), slice(len(self.roles), None)
        for column, limit, start in self._alphas:
            x[depth, column] = np.minimum(x[depth, column], limit - start[depth])
            of_depth = max([0.0, *(x[depth, column] + start[depth])])
            x[roles, column] = np.minimum(x[roles, column], limit - start[roles] - of_depth)
        return x

    @cached_property
    def _start_rows(self) -> list[Multipliers]:
        roles = [self.start.at(role, None, 1) for role in self.roles]
        return roles + list(self.start.depth or (Multipliers(),) * self.depth_bins)

    @cached_property
    def _alphas(self) -> list[tuple[int, float, np.ndarray]]:
        """For each alpha: its column, the limit of the log of its multipliers' product, and its start values."""
        alphas = []
        for name, beta in (("alpha1", self.beta1), ("alpha2", self.beta2)):
            with np.errstate(divide="ignore"):
                start = np.log([getattr(row, name) for row in self._start_rows])
            alphas.append((VALUES.index(name), _MAX_LOG_ALPHA - math.log(1 - beta), start))
        return alphas

    def proposals(self, number: int, incumbent: np.ndarray, radius: float) -> list[np.ndarray]:
        """The proposals of a round; determined by the seed, the number of the round and the incumbent."""
        rng = np.random.default_rng([self.seed, number])
        proposals = []
        for _ in range(self.num_proposals):
            is_changed = rng.random(incumbent.shape) < self.share_changed
            step = radius * rng.standard_normal(incumbent.shape) * is_changed
            proposals.append(np.round(self.clip(incumbent + step), _DIGITS))
        return proposals

    def candidates(self, incumbent: np.ndarray, proposals: Sequence[np.ndarray], losses: Sequence[float]) -> Candidates:
        """The points to retest; none if all proposals diverged."""
        order = [i for i in np.argsort(losses, kind="stable").tolist() if math.isfinite(losses[i])]
        if not order:
            return {}
        candidates = {"best": proposals[order[0]]}
        if len(order) > 1 and self.num_mixed > 1:
            step = np.mean([proposals[i] - incumbent for i in order[: self.num_mixed]], axis=0)
            for name, length in (("mean", 1.0), ("twice", 2.0)):
                candidates[name] = np.round(self.clip(incumbent + length * step), _DIGITS)
        return candidates


@dataclass(frozen=True)
class Round:
    """A finished round."""

    number: int
    radius: float
    losses: tuple[float, ...]
    """Losses of the proposals."""
    retests: dict[str, tuple[float, ...]]
    """Losses of the incumbent and of each candidate, with the same fresh seeds."""
    margin: float
    """How much lower than the incumbent's the mean loss of a candidate has to be."""
    accepted: str | None
    """The candidate that became the incumbent."""


@dataclass(frozen=True)
class SearchState:
    """The progress of a search."""

    incumbent: np.ndarray
    radius: float
    rounds: tuple[Round, ...]
    wanted: tuple[Trial, ...]
    """The trials of the current stage, finished ones included; they are independent of each other."""

    @property
    def losses(self) -> list[float]:
        """Mean retest loss of the incumbent after each round; biased low in a round that accepted it."""
        return [float(np.mean(each.retests[each.accepted or INCUMBENT])) for each in self.rounds if each.retests]


def replay(search: ModuleSearch, records: Iterable[Mapping[str, Any]]) -> SearchState:
    """The state of a search from its records, in any order."""
    known: dict[str, Mapping[str, Any]] = {}
    for record in records:
        known.setdefault(record["key"], record)  # if two processes ran a trial, the first record counts

    def losses(trials: Sequence[Trial]) -> list[float] | None:
        """The losses of the trials; None if any is missing."""
        results = [known.get(trial.key) for trial in trials]
        for trial, record in zip(trials, results):
            if record is not None and (record["x"] != trial.settings["x"] or record["seed"] != trial.settings["seed"]):
                raise DataError(
                    f"the record {trial.key!r} belongs to another search (its roles, start, seed or settings differ): "
                    "choose another folder, or use the settings of that search."
                )
        return None if None in results else [loss_or_inf(record["loss"]) for record in results if record is not None]

    x, radius, spread = search.zeros, search.radius, list[list[float]]()
    rounds: tuple[Round, ...] = ()
    while True:
        number = len(rounds)
        proposals = search.proposals(number, x, radius)
        wanted = [_trial(search, f"round{number}-{i}", each, PROPOSALS, number, 0) for i, each in enumerate(proposals)]
        proposal_losses = losses(wanted)
        if proposal_losses is None:
            return SearchState(x, radius, rounds, tuple(wanted))
        candidates = search.candidates(x, proposals, proposal_losses)
        tested = {INCUMBENT: x, **candidates} if candidates else {}
        wanted = [
            _trial(search, f"round{number}-{name}-{index}", each, RETESTS, number, index)
            for name, each in tested.items()
            for index in range(search.num_retest_seeds)
        ]
        results = losses(wanted)
        if results is None:
            return SearchState(x, radius, rounds, tuple(wanted))
        rows = np.reshape(results, (len(tested), search.num_retest_seeds)).tolist()
        retests = dict(zip(tested, map(tuple, rows)))
        spread += rows
        margin = search.confidence * pooled_std(spread) * math.sqrt(2 / search.num_retest_seeds)
        means = {name: float(np.mean(each)) for name, each in retests.items()}
        top = min(candidates, key=means.__getitem__, default=None)
        if top is not None and not means[top] < means[INCUMBENT] - margin:
            top = None
        rounds += (Round(number, radius, tuple(proposal_losses), retests, margin, top),)
        if top is not None:
            x, radius = candidates[top], min(search.grow * radius, search.largest_radius)
        else:
            radius = max(search.shrink * radius, search.smallest_radius)


def search_modules(
    search: ModuleSearch,
    evaluate: Evaluate,
    folder: Path,
    num_rounds: int,
    report: Callable[[str], None] = print,
    wait_seconds: float = 5.0,
) -> SearchState:
    """Search until `num_rounds` rounds are finished, sharing the trials with other processes in the folder."""

    def run(trial: Trial) -> float:
        return evaluate(search.table(np.array(trial.settings["x"])), trial.settings["seed"])

    records, reported = TrialRecords(folder), 0
    while True:
        now = replay(search, records)
        for each in now.rounds[reported:]:
            report(_summary(each))
        reported = len(now.rounds)
        if reported >= num_rounds:
            return now
        run_until_finished(folder, now.wanted, run, report, wait_seconds)


def _trial(search: ModuleSearch, name: str, x: np.ndarray, purpose: int, number: int, index: int) -> Trial:
    """Runs that are compared share their seeds: the proposals of a round, and the retests of a round."""
    return Trial(name, {"seed": draw_seed(search.seed, purpose, number, index), "x": x.tolist()})


def _summary(last: Round) -> str:
    means = ", ".join(f"{name} {np.mean(losses):.4f}" for name, losses in last.retests.items())
    verdict = f"{last.accepted} is the new incumbent" if last.accepted is not None else "none accepted"
    return (
        f"round {last.number}, region x{math.exp(last.radius):.2f}: best proposal {min(last.losses):.4f}; retests "
        f"{means or 'none'}; margin {last.margin:.4f}: {verdict}"
    )
