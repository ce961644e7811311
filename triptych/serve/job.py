"""What the server asks of the engine, what it hears back, and how a job can fail."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from triptych.sample.canvas import Canvas
from triptych.sample.config import SamplingConfig


@dataclass(frozen=True)
class Job:
    """One canvas to fill."""

    name: str
    canvas: Canvas
    config: SamplingConfig
    seed: int
    deadline: float | None = None
    """By `time.monotonic`."""
    wants_steps: bool = False
    """Whether to report every step."""
    top_k: int = 1
    """With steps: how many of the most probable ids to report for each masked position."""


@dataclass(frozen=True)
class Outlook:
    """The model's forecast for the masked positions of one sequence, before a step."""

    positions: np.ndarray
    """[n] int64."""
    ids: np.ndarray
    """[n, k] int64, ids of the unified vocabulary, best first."""
    prob: np.ndarray
    """[n, k] float64."""
    entropy: np.ndarray
    """[n] float64, in nats."""
    confidence: np.ndarray
    """[T] float64, the probability of the id that is drawn at a position; 0 where none is."""


@dataclass(frozen=True)
class Step:
    """A step of a job, from 0, and the sequence after it."""

    step: int
    num_steps: int
    """At least as many steps in all; exact at the last step."""
    tokens: np.ndarray
    """[T] int64, ids of the unified vocabulary."""
    outlook: Outlook | None = None

    @property
    def nbytes(self) -> int:
        """Size in memory, roughly."""
        arrays = [self.tokens, *(vars(self.outlook).values() if self.outlook else ())]
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True)
class Done:
    canvas: Canvas


@dataclass(frozen=True)
class Failed:
    error: Exception


Event = Step | Done | Failed
Deliver = Callable[[Event], None]
"""Takes the events of a job, on the engine's thread: any number of steps, then `Done` or `Failed` once."""


class JobError(Exception):
    """A job that the engine did not finish."""


class QueueFullError(JobError):
    """Too many jobs wait already."""


class DeadlineError(JobError):
    """The deadline passed before the job was done."""


class CancelledError(JobError):
    """Nobody waits for the result any more."""


class SlowReaderError(JobError):
    """The steps come faster than they are read."""


class EngineStoppedError(JobError):
    """The engine has stopped or is about to."""
