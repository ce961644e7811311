"""The model, batch and number of steps for some hours or FLOPs on given data, with a predicted loss.

    speed     a few training steps on the data give the FLOP/s of this machine
    choice    of the models of one aspect ratio, the one with the lowest loss by a law of N and D
    pilots    three short compute-optimal runs fit the law to the data: L = E + k f(N, D)^s

f is the excess loss of the law; s corrects its exponents, which come from other data. Repeated data count less
(Muennighoff et al. 2023, arXiv 2305.16264): U tokens, repeated R times, are worth U + U R* (1 - exp(-R / R*)),
R* = 15.4.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.data.loader import Loader
from triptych.errors import UserError
from triptych.model.flops import count_parameters
from triptych.plan.estimate import estimate
from triptych.plan.lengths import sample_batches
from triptych.plan.machines import CPU, Machine
from triptych.recipes.proxy import HEAD_WIDTH, shape_of
from triptych.scaling.fit_file import SavedFit, read_fit
from triptych.scaling.grid import GridPoint, LengthStats, flops_per_token, grid_point
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import train_in_memory
from triptych.training.step import build_model, build_optimizer, train_step
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.units import human_bytes, human_number
from triptych.vocab import Vocabulary

BUILT_IN_LAW = Path(__file__).parent.parent / "assets" / "laws" / "scenes.json"
"""Fitted to 36 runs on the toy dataset: `triptych fit studies/scaling/records.jsonl --save FILE`."""
REPEAT_CONSTANT = 15.39
MANY_REPEATS = 4
TRAINING_SHARE = 0.8
"""Of the hours; the rest is for the pilots, validation and saving."""
_PILOTS = (0.01, 0.03, 0.1)  # shares of the budget
_EXPONENT_FACTORS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25)
_NOISE = 0.01  # of a validation loss, between seeds
_MAX_WIDTH = 768
_MIN_PILOT_STEPS = 20
_PROBE_SECONDS = 4.0
_SURVEYED = 4096  # sequences that shares and lengths are measured on

Report = Callable[[str], None]


@dataclass(frozen=True)
class Epochs:
    """How often a run sees one dataset."""

    name: str
    epochs: float
    tokens: float
    """Tokens that are drawn from it."""

    @property
    def effective(self) -> float:
        """What these tokens are worth, counted in tokens that are seen once."""
        unique = self.tokens / max(1.0, self.epochs)
        repeats = max(0.0, self.epochs - 1)
        return unique * (1 + REPEAT_CONSTANT * (1 - math.exp(-repeats / REPEAT_CONSTANT)))


@dataclass(frozen=True)
class Prediction:
    """The predicted validation loss, with a 90 % interval."""

    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    point: GridPoint
    law: str
    epochs: list[Epochs]
    prediction: Prediction | None
    """None if the budget is too small for pilots."""
    pilots: list[tuple[float, float, float]]
    """N, effective D and loss of each pilot."""
    is_largest: bool = False
    """Whether a larger model than those of the family might be better."""

    @property
    def config(self) -> RunConfig:
        return self.point.config

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "law": self.law,
            "N": self.point.N,
            "D": self.point.D,
            "flops": self.point.C,
            "epochs": {each.name: each.epochs for each in self.epochs},
            "pilots": [{"N": n, "effective_D": d, "loss": loss} for n, d, loss in self.pilots],
            "prediction": None if self.prediction is None else vars(self.prediction),
        }


@dataclass(frozen=True)
class _Dataset:
    name: str
    size: int
    """Sequences."""
    share: float
    """Of the sequences that are drawn."""
    mean_length: float


class Chooser:
    """Chooses runs on the data of one configuration."""

    def __init__(self, base: RunConfig, vocabulary: Vocabulary, fit: SavedFit | None = None):
        self.base, self.vocabulary = base, vocabulary
        self.fit = fit or replace(read_fit(BUILT_IN_LAW), name="the law of studies/scaling")
        self.lengths = LengthStats.from_lengths(sample_batches(base, vocabulary).lengths)
        self.members = [replace(base, model=replace(base.model, **shape_of(width))) for width in _widths()]
        with Loader(list(base.data), replace(base.loader, prefetch=0)) as loader:
            sources = loader.builder.sources
            drawn, lengths = loader.builder.survey(_SURVEYED)
        self._datasets = [
            _Dataset(
                Path(folder).name, len(source), float(np.mean(drawn == number)), float(lengths[drawn == number].mean())
            )
            for number, (folder, source) in enumerate(zip(base.data, sources))
            if (drawn == number).any()
        ]

    def epochs(self, sequences: float) -> list[Epochs]:
        return [
            Epochs(each.name, sequences * each.share / each.size, sequences * each.share * each.mean_length)
            for each in self._datasets
        ]

    def point(self, budget: float) -> GridPoint:
        """The run with the lowest loss by the law for a number of FLOPs."""
        points = [grid_point(member, self.vocabulary, self.lengths, budget) for member in self.members]
        possible = [point for point in points if point is not None]
        if not possible:
            raise UserError(f"{budget:.3g} FLOPs are less than one training step of the smallest model.")
        return min(possible, key=lambda point: float(self.fit.law.excess(point.N, self.effective(point))))

    def effective(self, point: GridPoint) -> float:
        """Tokens of a run, repeated ones discounted."""
        return sum(each.effective for each in self.epochs(point.config.num_steps * point.config.loader.global_batch))

    def choose(self, budget: float, pilots: "Pilots | None" = None) -> Choice:
        """The run for a budget; with pilots, their law predicts its loss."""
        point = self.point(budget)
        results = [] if pilots is None else pilots.run(self, budget)
        sequences = point.config.num_steps * point.config.loader.global_batch
        prediction = predict(self.fit, results, point.N, self.effective(point))
        is_largest = point.config.model.width == self.members[-1].model.width
        return Choice(point, self.fit.name, self.epochs(sequences), prediction, results, is_largest)

    def flops_per_second(self, config: RunConfig, bundle: TokenizerBundle, device: torch.device) -> float:
        """Measured on training steps of this configuration, as the law counts FLOPs."""
        model = build_model(config, bundle.vocabulary, device)
        optimizer = build_optimizer(model, config.resolved)
        tokens, started = 0, 0.0
        with Loader(list(config.data), replace(config.loader, prefetch=0)) as loader:
            train_step(model, optimizer, next(loader), config, bundle.vocabulary, device)
            started = time.perf_counter()
            while time.perf_counter() - started < _PROBE_SECONDS:
                step = next(loader)
                train_step(model, optimizer, step, config, bundle.vocabulary, device)
                tokens += step.num_tokens
            seconds = time.perf_counter() - started
        return flops_per_token(config, self.vocabulary, self.lengths) * tokens / seconds

    def budget_of_hours(
        self, hours: float, bundle: TokenizerBundle, device: torch.device, report: Report = print
    ) -> float:
        """FLOPs of some hours of training on this device, measured at the size that they are enough for."""
        rate = self.flops_per_second(self.base, bundle, device)
        for _ in range(2):
            point = self.point(TRAINING_SHARE * hours * 3600 * rate)
            rate = self.flops_per_second(point.config, bundle, device)
        per_token = flops_per_token(point.config, self.vocabulary, self.lengths)
        report(f"{device} trains {rate / per_token:,.0f} tokens/s of a model of that size, {rate:.3g} FLOP/s")
        return TRAINING_SHARE * hours * 3600 * rate


@dataclass(frozen=True)
class Pilots:
    """Short runs whose losses are kept in a file, so that a stop loses at most one."""

    bundle: TokenizerBundle
    device: torch.device
    path: Path
    report: Report = print

    def run(self, chooser: Chooser, budget: float) -> list[tuple[float, float, float]]:
        """N, effective D and loss of a compute-optimal run for each share of the budget."""
        points = [chooser.point(share * budget) for share in _PILOTS]
        if points[0].config.num_steps < _MIN_PILOT_STEPS:
            self.report("the budget is too small for pilot runs: no loss is predicted")
            return []
        known: dict[str, float | None] = read_kept(self.path)
        results = []
        for point in points:
            shape = point.config.model
            if point.key not in known:
                outcome = train_in_memory(point.config, self.bundle, self.device)
                known[point.key] = None if outcome.diverged else outcome.loss
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.path, (json.dumps(known) + "\n").encode())
            loss = known[point.key]
            shown = "diverged" if loss is None else f"loss {loss:.3f}"
            self.report(f"pilot run {shape.num_layers} x {shape.width}, {human_number(point.D)} tokens: {shown}")
            if loss is not None:
                results.append((float(point.N), chooser.effective(point), loss))
        return results


def read_kept(path: Path) -> dict[str, Any]:
    """What was kept in a file; nothing if it is missing or damaged, so that it is measured again."""
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


def predict(
    fit: SavedFit, pilots: Sequence[tuple[float, float, float]], size: float, tokens: float
) -> Prediction | None:
    """The loss of a model of `size` after `tokens`: the median and the 90 % interval of all laws that the pilots allow.

    A law is one of the fit's, also of its resampled runs, with its exponents times a common factor, because other data
    have other exponents. Its level is fitted to the pilots; laws that miss them have little weight.
    """
    if len(pilots) < 2:
        return None
    sizes, seen, losses = np.array(pilots).T
    values, misfits = [], []
    for law in (fit.law, *fit.laws):
        for factor in _EXPONENT_FACTORS:
            excess, wanted = law.excess(sizes, seen) ** factor, float(law.excess(size, tokens)) ** factor
            level, slope = _level(excess, losses)
            values.append(level + slope * wanted)
            misfits.append(float(np.square((losses - level - slope * excess) / (_NOISE * losses)).sum()))
    weights = np.exp(-0.5 * (np.array(misfits) - min(misfits)))
    order = np.argsort(values)
    share = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    low, middle, high = (float(np.interp(level, share, np.array(values)[order])) for level in (0.05, 0.5, 0.95))
    return Prediction(middle, low * (1 - 1.645 * _NOISE), high * (1 + 1.645 * _NOISE))


def _level(excess: np.ndarray, losses: np.ndarray) -> tuple[float, float]:
    """E and k of L = E + k f, neither negative, by least squares."""
    from scipy.optimize import nnls

    scale = excess.max()
    (level, slope), _ = nnls(np.stack([np.ones_like(excess), excess / scale], 1), losses)
    return float(level), float(slope / scale)


def _widths() -> range:
    return range(2 * HEAD_WIDTH, _MAX_WIDTH + 1, HEAD_WIDTH)


_ANY_CPU = Machine(CPU, math.inf, math.inf)


def describe(choice: Choice, vocabulary: Vocabulary, machine: Machine = _ANY_CPU, ranks: int = 1) -> list[str]:
    """The choice and its reasons; memory is that of one of `ranks` on such a machine."""
    point, config = choice.point, choice.config
    count, shape = count_parameters(config.model, vocabulary), config.model
    lines = [
        f"model: {shape.num_layers} layers of width {shape.width}, {human_number(count.total)} parameters "
        f"({human_number(point.N)} without embeddings): the lowest loss for {point.C:.3g} FLOPs by {choice.law}",
        f"training: {config.num_steps:,} steps of {config.loader.global_batch} sequences, "
        f"{human_number(point.D)} tokens, {point.tokens_per_parameter:.0f} per parameter; "
        f"the batch gives kappa {_kappa(config):.2f}",
    ]
    if choice.is_largest:
        lines.append(
            "warning: this is the largest model of the family. For a larger one, `triptych plan --budget "
            f"{point.C:.3g}` names a recipe and its settings; add data=FOLDER"
        )
    for each in choice.epochs:
        note = ": more data would help more than more time" if each.epochs > MANY_REPEATS else ""
        lines.append(f"data: {each.name} is seen {each.epochs:.1f} times{note}")
    needs = estimate(config, vocabulary, machine, ranks)
    disk = needs.checkpoint_bytes * (config.keep_last_checkpoints + 1)  # one more while it is written
    of_rank = "" if ranks == 1 else " per rank"
    lines.append(f"memory: {human_bytes(needs.needed)}{of_rank}; disk: {human_bytes(disk)} for checkpoints")
    if choice.prediction is not None:
        predicted = choice.prediction
        lines.append(
            f"predicted validation loss: {predicted.loss:.3f} nats per token, "
            f"90 % interval {predicted.low:.3f} to {predicted.high:.3f}"
        )
    return lines


def _kappa(config: RunConfig) -> float:
    sde = config.resolved.sde
    return 1.0 if sde is None else sde.kappa
