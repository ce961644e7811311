"""How long the runs of a study take on this machine: FLOPs of all runs, and the speed of a few training steps.

Small models spend much of a step on overhead, which does not depend on their size. So two runs are timed, the one with
the fewest FLOPs per step and the one with the most: seconds per step = overhead + FLOPs / speed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from triptych.data.loader import Loader
from triptych.data.shards import TokenDataset
from triptych.model.flops import flops
from triptych.plan.lengths import sample_batches
from triptych.scaling.grid import LengthStats
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.step import build_model, build_optimizer, train_step
from triptych.utils.units import rough_duration
from triptych.vocab import Task, Vocabulary

_TIMED_STEPS, _TIMED_SECONDS = 4, 1.0  # per run, after one untimed step; whichever ends first


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step, as a function of its FLOPs."""

    overhead: float
    """Seconds of a step without FLOPs."""
    flops_per_second: float

    @classmethod
    def from_two(cls, small: tuple[float, float], large: tuple[float, float]) -> "StepTime":
        """From the FLOPs and seconds of two steps; without overhead if the times are too noisy to show one."""
        (fewer, shorter), (more, longer) = small, large
        if more <= fewer or longer <= shorter:
            return cls(0.0, more / longer)
        speed = (more - fewer) / (longer - shorter)
        overhead = longer - more / speed
        return cls(0.0, more / longer) if overhead < 0 else cls(overhead, speed)

    def seconds(self, step_flops: float, steps: float) -> float:
        return steps * (self.overhead + step_flops / self.flops_per_second)


@dataclass(frozen=True)
class StudyDuration:
    num_runs: int
    flops: float
    """FLOPs of all runs as they are computed, validation included."""
    seconds: float
    """Of one process."""

    def __str__(self) -> str:
        return (
            f"{self.num_runs:,} runs to do, {self.flops:.2g} FLOPs: about {rough_duration(self.seconds)} of one "
            "process, by the speed of a few steps measured now; several processes with the same --out share the runs"
        )


def estimate_duration(runs: Sequence[RunConfig], bundle: TokenizerBundle) -> StudyDuration:
    """The duration of training and validating all runs, one after the other."""
    batches = sample_batches(runs[0], bundle.vocabulary)
    lengths = LengthStats.from_lengths(batches.lengths)
    step_flops = [
        flops(
            run.model, bundle.vocabulary, lengths.context, predicted=batches.predicted, columns=batches.columns
        ).training
        * lengths.mean
        * run.loader.global_batch
        * (2 if run.complementary_masks else 1)
        for run in runs
    ]
    order = sorted(range(len(runs)), key=step_flops.__getitem__)
    first, last = order[0], order[-1]
    large = (step_flops[last], _step_seconds(runs[last], bundle.vocabulary))
    small = large if step_flops[first] == step_flops[last] else None
    step_time = StepTime.from_two(small or (step_flops[first], _step_seconds(runs[first], bundle.vocabulary)), large)
    passes = _validation_passes(runs[0])
    total, seconds = 0.0, 0.0
    for run, per_step in zip(runs, step_flops):
        validation = passes / 3 / run.loader.global_batch * per_step  # a forward pass is a third of a step
        total += run.num_steps * per_step + validation
        seconds += step_time.seconds(per_step, run.num_steps) + validation / step_time.flops_per_second
    return StudyDuration(len(runs), total, seconds)


def _step_seconds(run: RunConfig, vocabulary: Vocabulary) -> float:
    """The median of a few steps: other processes will slow down the study, too."""
    device = torch.device("cpu")
    model = build_model(run, vocabulary)
    optimizer = build_optimizer(model, run.resolved)
    times: list[float] = []
    loader_config = replace(run.loader, num_workers=0, prefetch=0)
    with Loader(list(run.data), loader_config, 0, 1, start_step=0, num_steps=1 + _TIMED_STEPS) as loader:
        started = time.perf_counter()
        for step in loader:
            train_step(model, optimizer, step, run, vocabulary, device)
            now = time.perf_counter()
            times.append(now - started)
            started = now
            if len(times) > 1 and sum(times[1:]) > _TIMED_SECONDS:
                break
    return median(times[1:])


def _validation_passes(run: RunConfig) -> float:
    """Forward passes of one sequence in a validation: a pair is scored as a whole, and each side given the other."""
    sides = [1 if TokenDataset(folder).task == Task.TEXT else 3 for folder in run.validation_data]
    return sum(sides) * run.validation.sequences * run.validation.draws
