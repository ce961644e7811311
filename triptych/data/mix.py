"""The mixture: an endless stream of sequences from several datasets, shuffled in every epoch.

Sequence i of the stream is a pure function of the seed and i:

    i  --table of one period-->  dataset, and how often it was drawn before
       --divmod by its size--->  epoch, and position within the epoch
       --permute-------------->  index of the sequence in the dataset

There is no state between calls, so any rank or worker can compute any part of the stream, and resuming needs one
number. grain's shuffle and mixture are stateless too. These here are vectorised (one call per batch), exact to
1/262,144 (grain rounds weights to one percent of the smallest), and fast on small datasets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.errors import UserError, did_you_mean
from triptych.utils.rng import DataStream, permute
from triptych.vocab import Task

PERIOD = 1 << 18  # the order of the datasets repeats after this many sequences; weights are exact to 1 / PERIOD


# -- streams ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picks:
    """The sequences at n positions of a stream."""

    sources: np.ndarray
    """[n] int64, number of the dataset."""
    indices: np.ndarray
    """[n] int64, index of the sequence in its dataset."""
    epochs: np.ndarray
    """[n] int64, number of complete passes over the dataset before this one."""


class Mixture:
    """An endless stream over several datasets, each with a new shuffle in every epoch.

    Datasets alternate as evenly as their weights allow: turn k of n of a dataset is at (k + 1/2) / n of the period,
    so every batch has nearly the same mixture. With `unique`, a random subset of every dataset is used: as many
    sequences as the first `unique` of the stream have from it, so that these are one epoch of all subsets.
    """

    length: int | None = None  # endless

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int, unique: int | None = None):
        self._sizes, self._seed = np.asarray(sizes, dtype=np.int64), seed
        self._turns = _turns(weights)
        times = np.concatenate([(np.arange(n) + 0.5) / n for n in self._turns])
        owner = np.repeat(np.arange(len(sizes)), self._turns)
        order = np.argsort(times, kind="stable")
        self._source = owner[order].astype(np.int32)
        self._turn = np.concatenate([np.arange(n) for n in self._turns])[order].astype(np.int32)
        self.subsets = None if unique is None else self._draws_within(unique)
        """Different sequences that are used of each dataset; None for all."""

    def _draws_within(self, count: int) -> np.ndarray:
        """How often each dataset is drawn among the first sequences of the stream; at least once, if it is at all."""
        periods, rest = divmod(count, PERIOD)
        draws = periods * self._turns + np.bincount(self._source[:rest], minlength=len(self._turns))
        return np.where(self._turns > 0, np.maximum(1, draws), 0)

    def __getitem__(self, numbers: np.ndarray) -> Picks:
        period, within = np.divmod(np.asarray(numbers, dtype=np.int64), PERIOD)
        sources = self._source[within].astype(np.int64)
        draws = period * self._turns[sources] + self._turn[within]
        sizes = self._sizes[sources]
        in_epoch = sizes if self.subsets is None else self.subsets[sources]
        epochs, positions = np.divmod(draws, in_epoch)
        indices = permute(positions, in_epoch, self._seed, sources, epochs)
        if self.subsets is not None:
            indices = permute(indices, sizes, self._seed, DataStream.SUBSET, sources)
        return Picks(sources, indices, epochs)


class OnePass:
    """Every sequence of the datasets once: for evaluation.

    Without a seed they are in order, one dataset after another. With one they are shuffled, so that the first n are a
    random sample.
    """

    def __init__(self, sizes: Sequence[int], seed: int | None = None):
        self.length, self._seed = sum(sizes), seed
        self._starts = np.concatenate([[0], np.cumsum(sizes)])

    def __getitem__(self, numbers: np.ndarray) -> Picks:
        if self._seed is not None:
            numbers = permute(numbers, np.array([self.length]), self._seed, DataStream.VALIDATION_SAMPLE)
        sources = np.searchsorted(self._starts, numbers, side="right") - 1
        return Picks(sources, numbers - self._starts[sources], np.zeros(len(numbers), np.int64))


def _turns(weights: Sequence[float]) -> np.ndarray:
    """Turns per period in proportion to the weights, by largest remainders; at least one for a weight above 0."""
    exact = np.asarray(weights, dtype=np.float64) / sum(weights) * PERIOD
    turns = np.where(exact > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    missing = PERIOD - int(turns.sum())
    if missing > 0:
        turns[np.argsort(turns - exact, kind="stable")[:missing]] += 1
    else:  # weights below 1 / PERIOD were rounded up: subtract it from the largest
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
    """Mixture weight of every dataset: the weight of its task, divided among the task's datasets.

    The division follows `dataset_weights`, or the number of sequences if none of the task's datasets is named there.
    Weights count sequences, not tokens, and sum to 1.
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
                f"task {task.label!r} has weight {task_weights[task.label]:g} but no dataset. "
                f"Add a dataset for it, or give it no weight: loader.task_weights.{task.label}=0."
            )
        within = _weights_within(task, [(names[i], sizes[i]) for i in members], dataset_weights)
        for i, weight in zip(members, within):
            if weight > 0 and sizes[i] == 0:
                raise UserError(f"dataset {names[i]!r} has a weight but no sequences; leave it out.")
            weights[i] = share * weight / sum(within)
    return weights


def shares_in_task(
    names: Sequence[str], tasks: Sequence[Task], sizes: Sequence[int], dataset_weights: Mapping[str, float]
) -> list[float]:
    """Share of every validation dataset among those of its task.

    By `dataset_weights` if they name all of the task's validation datasets, otherwise by number of sequences.
    """
    shares = np.zeros(len(names))
    for task in Task:
        members = [i for i in range(len(names)) if tasks[i] == task]
        within = np.array([dataset_weights.get(names[i], np.nan) for i in members])
        if not within.sum() > 0:  # one of them is not named, or all have the weight 0
            within = np.array([float(sizes[i]) for i in members])
        shares[members] = within / (within.sum() or 1.0)
    return shares.tolist()


def _weights_within(task: Task, members: list[tuple[str, int]], weights: Mapping[str, float]) -> list[float]:
    """The weights of one task's datasets, not normalised."""
    unnamed = [name for name, _ in members if name not in weights]
    if len(unnamed) == len(members):
        chosen = [float(size) for _, size in members]
    elif unnamed:
        raise UserError(
            f"dataset_weights names some datasets of task {task.label!r} but not {', '.join(map(repr, unnamed))}. "
            "Name all of them, or none to weigh them by their number of sequences."
        )
    else:
        chosen = [float(weights[name]) for name, _ in members]
    if sum(chosen) <= 0:
        raise UserError(
            f"the datasets of task {task.label!r} have no weight or no sequences; set the task's weight to 0."
        )
    return chosen


def _check_weights(field: str, weights: Mapping[str, float], known: list[str]) -> None:
    for name, weight in weights.items():
        if name not in known:
            raise UserError(f"{field} has the unknown name {name!r}.{did_you_mean(name, known)}")
        if known.count(name) > 1:
            raise UserError(f"{field} names {name!r}, but {known.count(name)} datasets have this name; rename one.")
        if not (isinstance(weight, int | float) and 0 <= weight < float("inf")):
            raise UserError(f"{field}[{name!r}] must be a number of at least 0, got {weight!r}.")
