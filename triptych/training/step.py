"""One optimizer step: mask, predict, weight, sum over micro-batches, update.

The loss of a step is a plain sum over predicted tokens whose weights already contain all means (see
`diffusion.objective`), so losses and gradients of micro-batches and ranks are simply added.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from triptych.data.steps import Step
from triptych.data.types import Batch
from triptych.diffusion.corrupt import Corrupted, corrupt
from triptych.diffusion.objective import token_weights
from triptych.model.segments import Segments, find_segments
from triptych.model.transformer import Loss, Targets, Transformer, initialise, tagged_parameters
from triptych.training.config import RunConfig
from triptych.training.distributed import build_sharded, clip_gradients, local, write_weight
from triptych.training.ranks import Ranks
from triptych.transfer.groups import Transfer, build_param_groups
from triptych.vocab import Modality, Vocabulary

# R rows, T tokens in a row, n positions to predict


@dataclass(frozen=True)
class ModelInput:
    """A corrupted batch as tensors."""

    tokens: Tensor
    positions: Tensor
    segments: Segments
    targets: Targets


def model_input(
    batch: Batch, corrupted: Corrupted, weights: np.ndarray, z_loss_weight: float, device: torch.device
) -> ModelInput:
    """Sort the positions to predict by modality and move everything to the device."""
    flat_rows = np.flatnonzero(corrupted.predicted)
    modality = batch.modality_ids.reshape(-1)[flat_rows]
    order = np.argsort(modality, kind="stable")
    rows = flat_rows[order]
    counts = np.bincount(modality, minlength=len(Modality))

    def tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

    return ModelInput(
        tokens=tensor(corrupted.tokens, torch.int64),
        positions=tensor(batch.positions, torch.int64),
        segments=find_segments(batch.segment_ids, device),
        targets=Targets(
            query_idx=tensor(rows, torch.int64),
            ids_n=tensor(batch.tokens.reshape(-1)[rows], torch.int64),
            loss_weight_n=tensor(weights.reshape(-1)[rows], torch.float32),
            z_loss_weight_n=torch.full((len(rows),), z_loss_weight, device=device),
            counts=(int(counts[0]), int(counts[1]), int(counts[2])),
        ),
    )


@dataclass
class StepSums:
    """Statistics of a step, summed over micro-batches."""

    loss: float = 0.0
    """The objective, without the z-loss."""
    nll: np.ndarray = field(default_factory=lambda: np.zeros(len(Modality)))
    """[M] summed negative log-likelihood of predicted positions, by modality."""
    predicted: np.ndarray = field(default_factory=lambda: np.zeros(len(Modality), np.int64))
    """[M] number of predicted positions, by modality."""
    skipped: Literal["not finite", "spike"] | None = None
    """Why the update was skipped; None if it was not."""

    def add(self, loss: Loss, targets: Targets) -> None:
        self.loss += float((targets.loss_weight_n * loss.nll_n).sum())
        for modality, part in zip(Modality, loss.nll_n.split(targets.counts)):
            self.nll[modality] += float(part.sum())
        self.predicted += np.array(targets.counts)

    def all_reduce(self, ranks: Ranks) -> None:
        """Sum over all ranks."""
        total = ranks.sum([self.loss, *self.nll, *self.predicted])
        count = len(Modality)
        self.loss = total[0]
        self.nll, self.predicted = np.array(total[1 : 1 + count]), np.array(total[1 + count :]).astype(np.int64)


def micro_inputs(
    step: Step, config: RunConfig, vocabulary: Vocabulary, device: torch.device, ranks: Ranks
) -> Iterator[ModelInput]:
    """This rank's inputs of a step, by micro-batch and view."""
    # Includes micro-batches that are empty on this rank: all ranks must take part when weights are gathered.
    masked = [
        (batch, corrupt(batch, vocabulary, config.corrupt, step=step.index, global_batch=step.num_sequences, view=view))
        for batch in step.micro_batches
        for view in config.views
    ]
    num_eligible, num_predicted = ranks.sum(
        [
            sum(int(corrupted.num_eligible.sum()) for _, corrupted in masked),
            sum(int(corrupted.predicted.sum()) for _, corrupted in masked),
        ]
    )
    for batch, corrupted in masked:
        weights = token_weights(
            batch,
            corrupted,
            config.norm,
            num_sequences=step.num_sequences * config.num_views,
            num_eligible=max(int(num_eligible), 1),
        )
        yield model_input(batch, corrupted, weights, config.z_loss_weight / max(num_predicted, 1), device)


def train_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    step: Step,
    config: RunConfig,
    vocabulary: Vocabulary,
    device: torch.device,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
    is_spike: Callable[[float], bool] = lambda loss: False,
) -> tuple[StepSums, float]:
    """Do one step; returns its sums over all ranks and the gradient norm.

    If the loss or the norm is not finite, or the loss is a spike, weights and optimizer state do not change. The
    decision depends on sums over all ranks only, so it is the same on all of them.
    """
    factor = lr_factor(step.index, config)
    for group in optimizer.param_groups:
        group["lr"] = group["full_lr"] * factor
    sums = StepSums()
    for inputs in micro_inputs(step, config, vocabulary, device, ranks):
        loss = model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets)
        loss.total.backward()
        sums.add(loss, inputs.targets)
    sums.all_reduce(ranks)
    norm = clip_gradients(model.parameters(), config.clip or math.inf)
    if not (math.isfinite(sums.loss) and math.isfinite(norm)):
        sums.skipped = "not finite"
    elif is_spike(sums.loss):
        sums.skipped = "spike"
    else:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sums, norm


def lr_factor(step: int, config: RunConfig) -> float:
    """Linear warm-up to 1, then a cosine down to `min_lr_ratio`, reached by the last step."""
    warmup, total = config.warmup_steps, config.num_steps
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - 1 - warmup)
    floor = config.optimizer.min_lr_ratio
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def build_model(
    config: RunConfig,
    vocabulary: Vocabulary,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    mesh: DeviceMesh | None = None,
) -> Transformer:
    """The initialised model of a run, with the multipliers of its transfer rule; on a mesh, this rank's part."""
    transfer = config.resolved
    model = build_sharded(transfer.scaled_shape, vocabulary, config.parallel, mesh, device)
    initialise(model, config.seed, lambda weight: transfer.hyperparameters(weight).init, write_weight)
    return model


def build_optimizer(model: nn.Module, transfer: Transfer) -> torch.optim.AdamW:
    """AdamW with one group per set of hyperparameters; `full_lr` is a group's learning rate after the warm-up."""
    param_groups = [
        {
            "params": [weight.parameter for weight in group.weights],
            "lr": group.values.lr,
            "full_lr": group.values.lr,
            "betas": (group.values.beta1, group.values.beta2),
            "eps": group.values.eps,
            "weight_decay": group.values.decay,
        }
        for group in build_param_groups(transfer, tagged_parameters(model))
    ]
    return torch.optim.AdamW(param_groups, fused=True)


def init_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Create the optimizer's state before its first step, so that a checkpoint can be loaded into it."""
    for _, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }


@torch.no_grad()
def update_ema(ema: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the average towards the model's weights: ema = decay * ema + (1 - decay) * model."""
    torch._foreach_lerp_([local(p) for p in ema.parameters()], [local(p) for p in model.parameters()], 1 - decay)
