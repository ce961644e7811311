"""Variance of the gradient at a fixed model: complementary pairs of masks against the alternatives of equal cost.

Every draw costs as many masked copies as a batch. With n for half a batch:

    pairs of masks       n fixed sequences, each with complementary masks or with two independent ones; only masks vary
    training steps       n sequences with complementary masks, or 2 n with one mask each; sequences and masks vary

The first says what complementary masks do to the noise of masks. The second is what training sees: half as many
different sequences add noise of the data.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from triptych.data.loader import Loader
from triptych.data.steps import Step
from triptych.model.transformer import Transformer, tagged_parameters
from triptych.training.config import RunConfig
from triptych.training.ranks import Ranks
from triptych.training.step import micro_inputs
from triptych.vocab import Vocabulary

ALL = "all"
KINDS = ("complementary pairs", "independent pairs", "complementary steps", "plain steps")
RATIOS = {"masks": KINDS[:2], "steps": KINDS[2:]}
"""What is compared: the variance with complementary masks, and that of the alternative."""
_FRESH_SEED = 1 << 20
"""Added to the seed of the data, so that the measured sequences come in another order than in training."""


class GradientMoments:
    """Sum of the squared norms of gradients, and the sum of the gradients, by module."""

    def __init__(self, model: Transformer):
        self._modules = {tagged.name: tagged.role.partition("_")[0].rstrip("12") for tagged in tagged_parameters(model)}
        self._sums = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in model.named_parameters()}
        self._squares = dict.fromkeys(self._sums, 0.0)
        self.count = 0

    def add(self, gradients: dict[str, Tensor]) -> None:
        self.count += 1
        for name, gradient in gradients.items():
            exact = gradient.double()
            self._sums[name] += exact
            self._squares[name] += float(exact.square().sum())

    @property
    def variances(self) -> dict[str, float]:
        """Unbiased variance of the gradient, summed over the weights of each module and of all of them."""
        by_module: dict[str, float] = {}
        for name, total in self._sums.items():
            variance = (self._squares[name] - float(total.square().sum()) / self.count) / (self.count - 1)
            for module in (self._modules[name], ALL):
                by_module[module] = by_module.get(module, 0.0) + variance
        return by_module


def gradient_variance_ratios(
    model: Transformer, config: RunConfig, vocabulary: Vocabulary, num_draws: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """By comparison and module: variance with complementary masks over that of the alternative, for a plain run."""
    assert not config.complementary_masks
    moments = {kind: GradientMoments(model) for kind in KINDS}
    seed = config.loader.seed + _FRESH_SEED
    whole = replace(config.loader, seed=seed, unique_sequences=None, num_workers=0)
    half = replace(whole, seed=seed + 1, global_batch=config.loader.global_batch // 2)
    paired = replace(config, complementary_masks=True)
    with Loader(list(config.data), whole) as wholes, Loader(list(config.data), half) as halves:
        fixed = next(halves)
        for draw, of_whole, of_half in zip(range(num_draws), wholes, halves):
            estimates: dict[str, tuple[Step, list[RunConfig]]] = {
                "complementary pairs": (fixed, [_with_mask_seed(paired, 2 * draw)]),
                "independent pairs": (fixed, [_with_mask_seed(config, 2 * draw + number) for number in range(2)]),
                "complementary steps": (of_half, [_with_mask_seed(paired, 2 * draw)]),
                "plain steps": (of_whole, [_with_mask_seed(config, 2 * draw)]),
            }
            for kind, (step, runs) in estimates.items():
                moments[kind].add(mean_gradient(model, step, runs, vocabulary, device))
    variances = {kind: each.variances for kind, each in moments.items()}
    return {
        name: {module: variances[first][module] / variances[second][module] for module in variances[first]}
        for name, (first, second) in RATIOS.items()
    }


def _with_mask_seed(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, corrupt=replace(config.corrupt, seed=_FRESH_SEED + seed))


def mean_gradient(
    model: Transformer, step: Step, runs: Sequence[RunConfig], vocabulary: Vocabulary, device: torch.device
) -> dict[str, Tensor]:
    """The gradient of a step, averaged over configurations; weights that the step does not use are left out."""
    model.zero_grad(set_to_none=True)
    for run in runs:
        for inputs in micro_inputs(step, run, vocabulary, device, Ranks()):
            loss = model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets)
            (loss.total / len(runs)).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad(set_to_none=True)
    return gradients
