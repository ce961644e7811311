"""Protection against hangs and bad steps: a watchdog for steps that never finish, and detection of loss spikes."""

import faulthandler
import math
import sys
from dataclasses import dataclass, field
from typing import Any

from triptych.training.config import GuardConfig


class HangWatchdog:
    """Prints the stack of every thread of this process if nothing was reported for a number of seconds.

    The timer runs outside of the interpreter, so it also fires when Python is stuck, as in a collective operation.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __enter__(self) -> "HangWatchdog":
        self.reset()
        return self

    def reset(self) -> None:
        """Report progress: start the timer again."""
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(self.seconds, repeat=True, file=sys.__stderr__)

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()


class LossSpikeDetector:
    """Detects losses far above the recent ones, by a running mean and variance.

    Checkpoints hold its state, so that a resumed run makes the same decisions as an uninterrupted one.
    """

    def __init__(self, config: GuardConfig, state: dict[str, float] | None = None):
        self.config = config
        self.count, self.mean, self.variance = 0, 0.0, 0.0
        if state is not None:
            self.count, self.mean, self.variance = int(state["count"]), state["mean"], state["variance"]

    @property
    def state(self) -> dict[str, float]:
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def is_spike(self, loss: float) -> bool:
        """Whether to skip a step with this loss; if not, the loss enters the running mean."""
        limit = self.config.spike_sigmas
        is_warm = self.count >= self.config.spike_window
        if limit is not None and is_warm and loss > self.mean + limit * math.sqrt(self.variance):
            return True
        self.count += 1
        share = 1 / min(self.count, self.config.spike_window)
        above = loss - self.mean
        self.mean += share * above
        self.variance = (1 - share) * (self.variance + share * above**2)
        return False


@dataclass
class GuardState:
    """What the decisions about bad steps depend on."""

    spikes: LossSpikeDetector
    rollbacks: int = 0
    """Rollbacks so far."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """Steps skipped since the last good one, with reason, loss, gradient norm and samples."""

    @classmethod
    def from_json(cls, config: GuardConfig, saved: dict[str, Any]) -> "GuardState":
        spikes = LossSpikeDetector(config, saved.get("spikes"))
        return cls(spikes, saved.get("rollbacks", 0), saved.get("left_out", []))

    @property
    def as_json(self) -> dict[str, Any]:
        return {"spikes": self.spikes.state, "rollbacks": self.rollbacks, "left_out": self.skipped_as_json}

    @property
    def skipped_as_json(self) -> list[dict[str, Any]]:
        """The skipped steps, with NaN and infinities as text: JSON has neither."""
        return [
            {key: str(value) if _is_not_finite(value) else value for key, value in step.items()}
            for step in self.skipped
        ]


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
