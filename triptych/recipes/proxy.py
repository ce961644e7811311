"""The family that studies are made with: models of one aspect from tiny to small, on the embedded world, on a CPU.

Every member is the same recipe with another width, depth, batch, number of steps or rule; the base is where the global
values were tuned (studies/search). Masks are the paper's (one time for a whole sequence, linear), so the loss that is
trained is the one that is measured.
"""

from dataclasses import replace
from operator import attrgetter
from typing import Any

from triptych.data.loader import LoaderConfig
from triptych.data.pack import Packed
from triptych.diffusion.corrupt import CorruptConfig
from triptych.errors import UserError
from triptych.model.transformer import ModelConfig
from triptych.training.config import OptimizerConfig, RunConfig, ValidationConfig
from triptych.transfer.groups import TransferConfig
from triptych.transfer.rules import RuleName

BASE_WIDTH, BASE_LAYERS, BASE_BATCH, BASE_STEPS = 64, 2, 16, 400
HEAD_WIDTH = 16
_DECIDED = (
    "num_steps", "seed", "loader.seed", "corrupt.seed", "parallel",
    "model.num_layers", "model.width", "model.num_heads", "model.d_ff",
    "transfer.rule", "transfer.base_width", "transfer.base_layers", "transfer.base_batch", "transfer.base_steps",
)  # fmt: skip
_WARMUP = BASE_STEPS // 8
# With the table that was found by hand (studies/search).
TUNED = OptimizerConfig(
    lr=0.015, beta1=0.68, beta2=0.999, eps=3e-9, weight_decay=0.0145, clip=1.0, warmup_steps=_WARMUP
)
# Without a table (studies/search-without-table), from where the one named "family" was found (studies/modules).
PER_MODULE_TUNED = OptimizerConfig(
    lr=0.00465, beta1=0.754, beta2=0.999, eps=7.58e-6, weight_decay=1.02e-3, clip=1.0, warmup_steps=_WARMUP
)
INIT_STD = 0.06


def family() -> RunConfig:
    """Where hyperparameters are tuned."""
    tasks = ("text", "image-text", "audio-text")
    return RunConfig(
        recipe="family",
        sampling_preset="scenes",
        model=ModelConfig(
            **_sizes(BASE_WIDTH, BASE_LAYERS), softmax_scope="modality", max_learned_positions=120, init_std=INIT_STD
        ),
        loader=LoaderConfig(
            seq_len=144,
            global_batch=BASE_BATCH,
            layout=Packed(row_length=144),
            task_weights={"text": 0.1, "image-text": 0.7, "audio-text": 0.2},
            document_attention=True,
            mask_text_eos="none",
        ),
        corrupt=CorruptConfig(),
        optimizer=TUNED,
        transfer=TransferConfig(per_module="scenes"),
        norm="masked",
        num_steps=BASE_STEPS,
        data=tuple(f"data/scenes/train/{task}" for task in tasks),
        validation_data=tuple(f"data/scenes/validation/{task}" for task in tasks),
        validation=ValidationConfig(sequences=256, draws=2),
    )


def from_base() -> TransferConfig:
    """For other recipes of the embedded world: everything follows from the base, with PER_MODULE_TUNED and its table."""
    return TransferConfig(
        rule="completed_p",
        base_width=BASE_WIDTH,
        base_layers=BASE_LAYERS,
        base_batch=BASE_BATCH,
        base_steps=BASE_STEPS,
        per_module="family",
    )


def check(run: RunConfig) -> None:
    """Refuse changes of what every study decides by itself: they would be undone in silence."""
    mine = family()
    for name in _DECIDED:
        if attrgetter(name)(run) != attrgetter(name)(mine):
            raise UserError(f"{name} is what a study decides itself: it cannot be changed, but see its options.")


def _sizes(width: int, layers: int) -> dict[str, Any]:
    """One ratio of d_ff to width for all: else the sizes of activations drift with it."""
    return {"num_layers": layers, "width": width, "num_heads": width // HEAD_WIDTH, "d_ff": width * 5 // 2}


def member(
    run: RunConfig,
    *,
    width: int = BASE_WIDTH,
    layers: int = BASE_LAYERS,
    batch: int | None = None,
    tokens: float = 1.0,
    rule: RuleName = "standard",
    lr: float | None = None,
    seed: int = 0,
) -> RunConfig:
    """A run of the family: `tokens` in units of the base's; `batch` turns the rule of batch size and tokens on."""
    transfer = replace(run.transfer, rule=rule, base_width=BASE_WIDTH, base_layers=BASE_LAYERS)
    if batch is not None:
        transfer = replace(transfer, base_batch=BASE_BATCH, base_steps=BASE_STEPS)
    loader = replace(run.loader, global_batch=batch or run.loader.global_batch, seed=seed)
    steps = round(tokens * BASE_BATCH * BASE_STEPS / loader.global_batch)
    return replace(
        run,
        model=replace(run.model, **_sizes(width, layers)),
        loader=loader,
        optimizer=replace(run.optimizer, lr=run.optimizer.lr if lr is None else lr),
        corrupt=replace(run.corrupt, seed=seed),
        transfer=transfer,
        num_steps=steps,
        seed=seed,
    )


def by_module() -> RunConfig:
    """The same with what was found for every module: better at the base, and what `scenes` is made from."""
    run = family()
    return replace(run, optimizer=PER_MODULE_TUNED, transfer=replace(run.transfer, per_module="family"))


def of_width(run: RunConfig, width: int, seed: int = 0) -> RunConfig:
    """For scaling: as many layers as keep the base's aspect, and everything follows from the base."""
    if width < HEAD_WIDTH or width % HEAD_WIDTH:
        raise UserError(f"a width of the family is a multiple of {HEAD_WIDTH}, got {width}.")
    layers = max(1, round(width * BASE_LAYERS / BASE_WIDTH))
    return member(run, width=width, layers=layers, batch=BASE_BATCH, rule="completed_p", seed=seed)
