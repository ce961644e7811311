"""Search for multipliers by the role of a weight and by depth, in a region that follows what has been found.

    a round:  proposals around the incumbent, all with one seed
              candidates: the best of them, the mean of the best few, and a step twice as far towards that mean
              candidates and incumbent once more, with the same fresh seeds
              a candidate that beats the incumbent by more than seeds do is the new one and the region grows,
              else the region shrinks

Steps are taken in logarithms, half of the multipliers at a time. There are a hundred of them and more: of a single
proposal most changes are there by chance, and the mean of several good ones keeps what they have in common. Near the
best global values there are cliffs beyond which runs diverge, so the search is local: a diverged proposal has a loss of
inf and is never the best. The papers name such a search but do not spell it out; this one is ours.

All of it is a function of the records: `state` replays the rounds so far and says which runs are wanted next. So any
number of processes work at the runs of a round (trials.py), and an interrupted search goes on with the same proposals.

The incumbent is run again in every round: a loss that it was accepted for is low by luck, too. So what luck does is
bounded, but not zero; what a table is worth, `compare` says, on seeds of its own. The standard error is that of
independent runs; runs that share their seeds differ by less, so in truth a candidate must be ahead by somewhat more.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import DataError, UserError
from triptych.training.config import RunConfig
from triptych.transfer.per_module import Multipliers, Table
from triptych.utils.trials import Trial, TrialRecords, run_trials

Evaluate = Callable[[Table, int], float]
"""From multipliers and a seed to a loss; not finite if the run diverged."""

Candidates = dict[str, np.ndarray]
VALUES = tuple(f.name for f in fields(Multipliers))
INCUMBENT = "incumbent"
_DIGITS = 6  # of a step's logarithm: the same on every machine, and as it stands in the records
_MOST_FORGETTING = math.log(0.99)  # of an alpha: 1 - beta stays below 1
_PROPOSALS, _RETESTS, _COMPARISONS = 1, 2, 3  # what a seed is drawn for; no two share one


@dataclass(frozen=True, kw_only=True)
class ModuleSearch:
    """What decides a search, the runs themselves apart."""

    roles: tuple[str, ...]
    """Of the model's weights, or families of them: each has multipliers of its own."""
    beta1: float
    """Of the runs: multipliers of 1 - beta1 and 1 - beta2 are kept so small that betas stay positive."""
    beta2: float
    depth_bins: int = 2
    """Equal parts of the depth, each with multipliers that all its weights share."""
    start: Table = field(default_factory=Table)
    """The search is for factors on top of these."""
    num_proposals: int = 16
    """In a round."""
    num_mixed: int = 4
    """Of the best proposals, whose mean is a candidate."""
    num_retest_seeds: int = 3
    confidence: float = 1.5
    """Standard errors that a candidate must be ahead by."""
    share_changed: float = 0.5
    """Probability of each multiplier to be changed in a proposal."""
    radius: float = math.log(1.5)
    """Standard deviation of a changed multiplier's logarithm, at the beginning."""
    smallest_radius: float = math.log(1.05)
    largest_radius: float = math.log(3)
    grow: float = 1.25
    shrink: float = 0.75
    bound: float = math.log(32)
    """How far a multiplier's logarithm may go from the start."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.roles or len(set(self.roles)) != len(self.roles):
            raise UserError(f"a search over modules needs roles, each once, got {list(self.roles)}.")
        if min(self.num_proposals, self.num_mixed) < 1 or self.num_retest_seeds < 2:
            raise UserError("num_proposals and num_mixed must be at least 1, num_retest_seeds at least 2.")
        if self.depth_bins < 0 or self.seed < 0:
            raise UserError("depth_bins and seed must not be negative.")
        if self.start.depth and len(self.start.depth) != self.depth_bins:
            raise UserError(
                f"the table to start from has {len(self.start.depth)} parts of the depth, and the search "
                f"{self.depth_bins}: set depth_bins to the same."
            )
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise UserError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}.")
        if not np.array_equal(self.clip(self.zeros), self.zeros):
            raise UserError("the table to start from makes a beta below 0.01: choose smaller alphas, or larger betas.")

    @property
    def zeros(self) -> np.ndarray:
        """The start: roles, then parts of the depth, by values. Logarithms of factors on top of `start`."""
        return np.zeros((len(self.roles) + self.depth_bins, len(VALUES)))

    def table(self, x: np.ndarray) -> Table:
        rows = [own * Multipliers(**dict(zip(VALUES, np.exp(row).tolist()))) for own, row in zip(self._start_rows, x)]
        count = len(self.roles)
        return Table({**self.start.roles, **dict(zip(self.roles, rows))}, tuple(rows[count:]), self.start.decays_all)

    def clip(self, x: np.ndarray) -> np.ndarray:
        """Within the bound, and with `multiplier * (1 - beta) < 1` for a role in any part of the depth, or in none."""
        x = np.clip(x, -self.bound, self.bound)
        roles, depth = slice(len(self.roles)), slice(len(self.roles), None)
        for column, most, start in self._alphas:
            x[depth, column] = np.minimum(x[depth, column], most - start[depth])
            of_depth = max([0.0, *(x[depth, column] + start[depth])])
            x[roles, column] = np.minimum(x[roles, column], most - start[roles] - of_depth)
        return x

    @cached_property
    def _start_rows(self) -> list[Multipliers]:
        roles = [self.start.at(role, None, 1) for role in self.roles]
        return roles + list(self.start.depth or (Multipliers(),) * self.depth_bins)

    @cached_property
    def _alphas(self) -> list[tuple[int, float, np.ndarray]]:
        """For each alpha its column, the largest logarithm of its multipliers' product, and what it starts from."""
        found = []
        for name, beta in (("alpha1", self.beta1), ("alpha2", self.beta2)):
            with np.errstate(divide="ignore"):
                start = np.log([getattr(row, name) for row in self._start_rows])
            found.append((VALUES.index(name), _MOST_FORGETTING - math.log(1 - beta), start))
        return found

    def proposals(self, number: int, incumbent: np.ndarray, radius: float) -> list[np.ndarray]:
        """Of a round: decided by the seed, the round's number and the incumbent."""
        rng = np.random.default_rng([self.seed, number])
        found = []
        for _ in range(self.num_proposals):
            is_changed = rng.random(incumbent.shape) < self.share_changed
            step = radius * rng.standard_normal(incumbent.shape) * is_changed
            found.append(np.round(self.clip(incumbent + step), _DIGITS))
        return found

    def candidates(self, incumbent: np.ndarray, proposals: Sequence[np.ndarray], losses: Sequence[float]) -> Candidates:
        """What is worth a second look; nothing where all diverged."""
        order = [i for i in np.argsort(losses, kind="stable").tolist() if math.isfinite(losses[i])]
        if not order:
            return {}
        found = {"best": proposals[order[0]]}
        if len(order) > 1 and self.num_mixed > 1:
            step = np.mean([proposals[i] - incumbent for i in order[: self.num_mixed]], axis=0)
            for name, length in (("mean", 1.0), ("twice", 2.0)):
                found[name] = np.round(self.clip(incumbent + length * step), _DIGITS)
        return found


@dataclass(frozen=True)
class Round:
    """One that is over."""

    number: int
    radius: float
    losses: tuple[float, ...]
    """Of the proposals."""
    again: dict[str, tuple[float, ...]]
    """Of the incumbent and each candidate, with the same fresh seeds."""
    margin: float
    """What a candidate's mean has to be ahead by."""
    accepted: str | None
    """The candidate that is the incumbent from here on."""


@dataclass(frozen=True)
class State:
    """Where a search is."""

    incumbent: np.ndarray
    radius: float
    rounds: tuple[Round, ...]
    wanted: tuple[Trial, ...]
    """The runs that come next, done ones among them; they need nothing of each other."""

    @property
    def losses(self) -> list[float]:
        """After each round, the mean of what was the incumbent then; optimistic where it was accepted just then."""
        return [float(np.mean(each.again[each.accepted or INCUMBENT])) for each in self.rounds if each.again]


def state(search: ModuleSearch, records: Iterable[Mapping[str, Any]]) -> State:
    """Replay a search from its records, in whatever order they were written."""
    known: dict[str, Mapping[str, Any]] = {}
    for record in records:
        known.setdefault(record["key"], record)  # of two processes at one trial, the first

    def losses(trials: Sequence[Trial]) -> list[float] | None:
        """None unless all are there."""
        found = [known.get(trial.key) for trial in trials]
        for trial, record in zip(trials, found):
            if record is not None and (record["x"] != trial.settings["x"] or record["seed"] != trial.settings["seed"]):
                raise DataError(
                    f"the record {trial.key!r} is of another search (its roles, start, seed or settings differ): "
                    "choose another folder, or search as it began."
                )
        return None if None in found else [_loss(record["loss"]) for record in found if record is not None]

    x, radius, spread = search.zeros, search.radius, list[list[float]]()
    rounds: tuple[Round, ...] = ()
    while True:
        number = len(rounds)
        proposals = search.proposals(number, x, radius)
        wanted = [_trial(search, f"round{number}-{i}", each, _PROPOSALS, number, 0) for i, each in enumerate(proposals)]
        found = losses(wanted)
        if found is None:
            return State(x, radius, rounds, tuple(wanted))
        candidates = search.candidates(x, proposals, found)
        tested = {INCUMBENT: x, **candidates} if candidates else {}
        wanted = [
            _trial(search, f"round{number}-{name}-{index}", each, _RETESTS, number, index)
            for name, each in tested.items()
            for index in range(search.num_retest_seeds)
        ]
        results = losses(wanted)
        if results is None:
            return State(x, radius, rounds, tuple(wanted))
        rows = np.reshape(results, (len(tested), search.num_retest_seeds)).tolist()
        again = dict(zip(tested, map(tuple, rows)))
        spread += rows
        margin = search.confidence * pooled_std(spread) * math.sqrt(2 / search.num_retest_seeds)
        means = {name: float(np.mean(each)) for name, each in again.items()}
        top = min(candidates, key=means.__getitem__, default=None)
        if top is not None and not means[top] < means[INCUMBENT] - margin:
            top = None
        rounds += (Round(number, radius, tuple(found), again, margin, top),)
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
) -> State:
    """Go on until that many rounds are over, together with whoever else searches in the folder."""

    def run(trial: Trial) -> float:
        return evaluate(search.table(np.array(trial.settings["x"])), trial.settings["seed"])

    records, reported = TrialRecords(folder), 0
    while True:
        now = state(search, records)
        for each in now.rounds[reported:]:
            report(_summary(each))
        reported = len(now.rounds)
        if reported >= num_rounds:
            return now
        _run_all(folder, now.wanted, run, report, wait_seconds)


def configured(config: RunConfig, table: Table, seed: int, folder: Path) -> RunConfig:
    """A run with these multipliers and no others, by way of a file that its configuration names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest(table)}.json"
    if not path.exists():
        mine = path.with_suffix(f".{os.getpid()}")
        table.save(mine)
        mine.replace(path)  # whole or not at all: others may be reading
    return replace(
        config,
        seed=seed,
        loader=replace(config.loader, seed=seed),
        corrupt=replace(config.corrupt, seed=seed),
        transfer=replace(config.transfer, per_module=str(path), multipliers={}),
    )


# -- what it was worth ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanEstimate:
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        """inf if any run diverged."""
        return float(np.mean(self.losses))

    @property
    def standard_error(self) -> float:
        if len(self.losses) < 2 or not all(map(math.isfinite, self.losses)):
            return math.nan
        return float(np.std(self.losses, ddof=1)) / math.sqrt(len(self.losses))

    @property
    def num_diverged(self) -> int:
        return sum(map(math.isinf, self.losses))


def gain(found: MeanEstimate, baseline: MeanEstimate) -> MeanEstimate:
    """How much lower a table's loss is than another's, seed by seed: what seeds do to both cancels."""
    pairs = zip(baseline.losses, found.losses)
    return MeanEstimate(tuple(math.nan if math.isinf(a) and math.isinf(b) else a - b for a, b in pairs))


def compare(
    tables: Mapping[str, Table],
    evaluate: Evaluate,
    folder: Path,
    num_seeds: int = 8,
    seed: int = 0,
    report: Callable[[str], None] = print,
    wait_seconds: float = 5.0,
) -> dict[str, MeanEstimate]:
    """Tables in runs that cost the same, on the same seeds, which no search has seen.

    The incumbent's own losses will not do: it was accepted for some of them.
    """
    if num_seeds < 2:
        raise UserError(f"a comparison needs at least 2 seeds for its standard error, got {num_seeds}.")
    seeds = [_seed(seed, _COMPARISONS, index) for index in range(num_seeds)]
    trials = [
        Trial(f"compare-{name}-{digest(table)}-{each}", {"table": name, "seed": each})
        for each in seeds
        for name, table in tables.items()
    ]

    def run(trial: Trial) -> float:
        return evaluate(tables[trial.settings["table"]], trial.settings["seed"])

    losses = _run_all(folder, trials, run, report, wait_seconds)
    return {name: MeanEstimate(tuple(losses[number :: len(tables)])) for number, name in enumerate(tables)}


# -- parts ------------------------------------------------------------------------------------------------------------


def _run_all(
    folder: Path,
    trials: Sequence[Trial],
    run: Callable[[Trial], float],
    report: Callable[[str], None],
    wait_seconds: float,
) -> list[float]:
    """The losses of all trials, those that others are at included."""

    def result(trial: Trial) -> dict[str, Any]:
        try:
            loss = float(run(trial))
        except ArithmeticError:
            loss = math.inf
        return {"loss": loss if math.isfinite(loss) else None, "diverged": not math.isfinite(loss)}

    while True:
        done = run_trials(folder, trials, result, report)
        if all(trial.key in done for trial in trials):
            return [_loss(done[trial.key]["loss"]) for trial in trials]
        time.sleep(wait_seconds)


def _trial(search: ModuleSearch, name: str, x: np.ndarray, purpose: int, number: int, index: int) -> Trial:
    """Runs that are compared have the same seed: proposals of a round, and the second runs of its candidates."""
    return Trial(name, {"seed": _seed(search.seed, purpose, number, index), "x": x.tolist()})


def _loss(recorded: float | None) -> float:
    return math.inf if recorded is None else recorded


def pooled_std(groups: Sequence[Sequence[float]]) -> float:
    """Of losses around the means of their groups, each a table's; groups with a diverged run say nothing about it."""
    finite = [group for group in groups if all(map(math.isfinite, group))]
    freedom = sum(len(group) - 1 for group in finite)
    squares = sum(float(np.var(group)) * len(group) for group in finite)
    return math.sqrt(squares / freedom) if freedom else 0.0


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def digest(table: Table) -> str:
    """The table's name in records and files. Machines differ in an exponential's last digits: they do not count."""

    def rounded(multipliers: Multipliers) -> dict[str, str]:
        return {name: f"{value:.9g}" for name, value in asdict(multipliers).items()}

    roles = {name: rounded(table.roles[name]) for name in sorted(table.roles)}
    content = json.dumps([roles, [rounded(each) for each in table.depth], table.decays_all])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _summary(last: Round) -> str:
    means = ", ".join(f"{name} {np.mean(losses):.4f}" for name, losses in last.again.items())
    verdict = f"{last.accepted} is the new incumbent" if last.accepted is not None else "none accepted"
    return (
        f"round {last.number}, region x{math.exp(last.radius):.2f}: best proposal {min(last.losses):.4f}; again "
        f"{means or 'nothing'}; margin {last.margin:.4f}: {verdict}"
    )
