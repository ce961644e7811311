"""Means over the last steps: losses, gradient norm, speed, model FLOPs utilisation."""

import time

import numpy as np

from triptych.data.steps import Step
from triptych.model.flops import flops
from triptych.training.config import RunConfig
from triptych.training.logging import NullLog, RunLog
from triptych.training.step import StepSums, lr_factor
from triptych.vocab import Modality, Vocabulary


class Meter:
    """Accumulates steps and records their mean every `log_every` steps."""

    def __init__(
        self, config: RunConfig, vocabulary: Vocabulary, records: RunLog | NullLog, peak_flops: float | None = None
    ):
        self.config, self.vocabulary, self.records, self.peak = config, vocabulary, records, peak_flops
        self.restart()

    def restart(self) -> None:
        """Reset the clock, so that validation and saving do not count as training time."""
        self._since = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._seconds, self._steps, self._tokens, self._positions, self._flops = 0.0, 0, 0, 0, 0.0
        self._sums, self._loss, self._norm = StepSums(), 0.0, 0.0

    def add(self, step: Step, sums: StepSums, norm: float, samples: list[str] | None = None) -> None:
        """Add a step. A skipped step gets a record of its own, with the names of its samples."""
        config = self.config
        before, self._since = self._since, time.monotonic()
        if sums.skipped:
            self.flush()
        self._step = step.index + 1
        self._seconds += self._since - before
        self._steps += 1
        self._tokens += step.num_tokens
        self._positions += step.num_positions
        passed = step.num_tokens * config.num_views
        share = float(sums.predicted.sum()) / max(1, passed)
        context = step.num_tokens / max(1, step.num_sequences)
        per_token = flops(config.model, self.vocabulary, context, predicted=share, columns=self._columns(sums)).training
        self._flops += per_token * passed
        self._loss += sums.loss
        self._norm += norm
        self._sums.nll += sums.nll
        self._sums.predicted += sums.predicted
        self._sums.skipped, self._samples = sums.skipped, samples
        if sums.skipped or self._step % config.log_every == 0:
            self.flush()

    def _columns(self, sums: StepSums) -> float | None:
        """How many logits a predicted token has, on average."""
        if self.config.model.softmax_scope == "full" or not sums.predicted.sum():
            return None
        sizes = [self.vocabulary.num_logits(modality) for modality in Modality]
        return float(np.average(sizes, weights=sums.predicted))

    def flush(self) -> None:
        if not self._steps:
            return
        config = self.config
        seconds = max(self._seconds, 1e-9)
        nll = {
            modality.name.lower(): round(float(self._sums.nll[modality] / n), 5)
            if (n := self._sums.predicted[modality])
            else None
            for modality in Modality
        }
        self.records(
            "step",
            step=self._step,
            num_steps=config.num_steps,
            skipped=self._sums.skipped,
            loss=round(self._loss / self._steps, 5),
            nll=nll,
            lr=config.optimizer.lr * lr_factor(self._step - 1, config),
            grad_norm=round(self._norm / self._steps, 5),
            tokens=self._tokens,
            padding=round(1 - self._tokens / max(1, self._positions), 4),
            tokens_per_second=round(self._tokens / seconds, 1),
            mfu=None if self.peak is None else round(self._flops / seconds / self.peak, 4),
            seconds_left=round((config.num_steps - self._step) * seconds / self._steps, 1),
            **({"samples": self._samples} if self._samples else {}),
        )
        self._clear()
