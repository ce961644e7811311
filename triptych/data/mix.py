"""The stream of sequences: number i -> (source, index in it, epoch), a pure function of the seed and i.

    numbers --table of one period--> source and how often it was drawn before
            --divmod by its size---> epoch and place in the epoch
            --permute--------------> index

Nothing is stored between two calls, so any rank or worker can ask for any part of the stream, and to resume is to
know one number. grain's own shuffle and mixture have the same property; ours are vectorised (a batch costs one
call), exact to 1/262,144 where grain rounds proportions to a percent of the smallest, and fast on small sources,
where grain's `index_shuffle` walks a 16-bit cycle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.errors import UserError, did_you_mean
from triptych.utils.rng import permute
from triptych.vocab import Task

PERIOD = 1 << 18  # sequences after which the order of the sources repeats; a weight is exact to 1 / PERIOD


# -- streams ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picks:
    """Which sequences stand at some numbers of a stream; all arrays have the length of the numbers asked for."""

    sources: np.ndarray
    """int64, number of the source."""
    indices: np.ndarray
    """int64, which of the source's sequences."""
    epochs: np.ndarray
    """int64, how often the source had been read through before."""


class Mixture:
    """An endless stream over several sources, each shuffled anew in every epoch.

    Sources take turns as evenly as their weights allow: the k-th of n turns of a source stands at (k + 1/2) / n of
    the period, so every batch has nearly the same mixture.
    """

    length: int | None = None  # endless

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int):
        self._sizes, self._seed = np.asarray(sizes, dtype=np.int64), seed
        self._turns = _turns(weights)
        times = np.concatenate([(np.arange(n) + 0.5) / n for n in self._turns])
        owner = np.repeat(np.arange(len(sizes)), self._turns)
        order = np.argsort(times, kind="stable")
        self._source = owner[order].astype(np.int32)
        self._turn = np.concatenate([np.arange(n) for n in self._turns])[order].astype(np.int32)

    def __getitem__(self, numbers: np.ndarray) -> Picks:
        period, place = np.divmod(np.asarray(numbers, dtype=np.int64), PERIOD)
        sources = self._source[place].astype(np.int64)
        draws = period * self._turns[sources] + self._turn[place]
        sizes = self._sizes[sources]
        epochs, places = np.divmod(draws, sizes)
        return Picks(sources, permute(places, sizes, self._seed, sources, epochs), epochs)


class OnePass:
    """Every sequence of the sources once, one source after another, in order: for evaluation."""

    def __init__(self, sizes: Sequence[int]):
        self.length = sum(sizes)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])

    def __getitem__(self, numbers: np.ndarray) -> Picks:
        sources = np.searchsorted(self._starts, numbers, side="right") - 1
        return Picks(sources, numbers - self._starts[sources], np.zeros(len(numbers), np.int64))


def _turns(weights: Sequence[float]) -> np.ndarray:
    """Whole turns per period in proportion to the weights, by largest remainders; no weight above 0 gets none."""
    exact = np.asarray(weights, dtype=np.float64) / sum(weights) * PERIOD
    turns = np.where(exact > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    missing = PERIOD - int(turns.sum())
    if missing > 0:
        turns[np.argsort(turns - exact, kind="stable")[:missing]] += 1
    else:  # more than one weight was below 1 / PERIOD and was rounded up: the heaviest pays
        turns[np.argmax(turns)] += missing
    return turns


# -- weights ----------------------------------------------------------------------------------------------------------


def source_weights(
    names: Sequence[str],
    tasks: Sequence[Task],
    sizes: Sequence[int],
    task_weights: Mapping[str, float],
    dataset_weights: Mapping[str, float],
) -> list[float]:
    """The share of every data set in the stream: its task's share, split within the task.

    Within a task the split is by `dataset_weights`, or by the number of sequences if none of its data sets is named.
    Shares are of sequences, not of tokens, and sum to 1.
    """
    labels = [task.label for task in Task]
    _check_weights("task_weights", task_weights, labels)
    _check_weights("dataset_weights", dataset_weights, list(names))
    total = sum(task_weights.values())
    if total <= 0:
        raise UserError("task_weights are all 0; give at least one task a weight.")

    weights = [0.0] * len(names)
    for task in Task:
        share = task_weights.get(task.label, 0.0) / total
        members = [i for i in range(len(names)) if tasks[i] == task]
        if share == 0:
            continue
        if not members:
            raise UserError(
                f"task {task.label!r} has weight {task_weights[task.label]:g} but no data set. "
                "Add a data set for it, or set its weight to 0."
            )
        within = _weights_within(task, [(names[i], sizes[i]) for i in members], dataset_weights)
        for i, weight in zip(members, within):
            if weight > 0 and sizes[i] == 0:
                raise UserError(f"data set {names[i]!r} has a weight but no sequences; leave it out.")
            weights[i] = share * weight / sum(within)
    return weights


def _weights_within(task: Task, members: list[tuple[str, int]], weights: Mapping[str, float]) -> list[float]:
    """The weights of one task's data sets, not yet normalised."""
    unnamed = [name for name, _ in members if name not in weights]
    if len(unnamed) == len(members):
        chosen = [float(size) for _, size in members]
    elif unnamed:
        raise UserError(
            f"dataset_weights names some data sets of task {task.label!r} but not {', '.join(map(repr, unnamed))}. "
            "Name all of them, or none to weigh them by their number of sequences."
        )
    else:
        chosen = [float(weights[name]) for name, _ in members]
    if sum(chosen) <= 0:
        raise UserError(
            f"the data sets of task {task.label!r} have no weight or no sequences; set the task's weight to 0."
        )
    return chosen


def _check_weights(field: str, weights: Mapping[str, float], known: list[str]) -> None:
    for name, weight in weights.items():
        if name not in known:
            raise UserError(f"{field} names {name!r}, which is not there.{did_you_mean(name, known)}")
        if known.count(name) > 1:
            raise UserError(f"{field} names {name!r}, but {known.count(name)} data sets are called so; rename one.")
        if not (isinstance(weight, int | float) and 0 <= weight < float("inf")):
            raise UserError(f"{field}[{name!r}] must be a number that is not negative, got {weight!r}.")
