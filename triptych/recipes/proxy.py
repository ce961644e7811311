"""The proxy: the small model on which hyperparameters are tuned, as in muTransfer, and the models scaled up from it.

It trains on the toy dataset on a CPU in seconds. Studies change its width, depth, batch, number of steps or transfer
rule and nothing else. Global hyperparameters were tuned on it (studies/search). Masking follows the paper (one time for
a whole sequence, linear schedule), so that training and validation estimate the same ELBO. Training averages it over
sequences, validation over tokens.
"""

from dataclasses import replace
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
SET_BY_STUDIES = (
    "num_steps", "seed", "loader.seed", "corrupt.seed", "parallel",
    "model.num_layers", "model.width", "model.num_heads", "model.d_ff",
    "transfer.rule", "transfer.base_width", "transfer.base_layers", "transfer.base_batch", "transfer.base_steps",
)  # fmt: skip
_WARMUP = BASE_STEPS // 8
# Tuned with the multiplier table "scenes", which was made by hand (studies/search).
GLOBAL_TUNED = OptimizerConfig(
    lr=0.015, beta1=0.68, beta2=0.999, eps=3e-9, weight_decay=0.0145, clip=1.0, warmup_steps=_WARMUP
)
# Tuned without a table (studies/search-without-table). The search per module started here (studies/modules); its result
# is the multiplier table "proxy", which belongs to these values.
PER_MODULE_TUNED = OptimizerConfig(
    lr=0.00465, beta1=0.754, beta2=0.999, eps=7.58e-6, weight_decay=1.02e-3, clip=1.0, warmup_steps=_WARMUP
)
INIT_STD = 0.06


def proxy() -> RunConfig:
    """2 layers, width 64: the model that hyperparameters are tuned on."""
    tasks = ("text", "image-text", "audio-text")
    return RunConfig(
        recipe="proxy",
        sampling_preset="scenes",
        model=ModelConfig(
            **_shape(BASE_WIDTH, BASE_LAYERS), softmax_scope="modality", max_learned_positions=120, init_std=INIT_STD
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
        optimizer=GLOBAL_TUNED,
        transfer=TransferConfig(per_module="scenes"),
        norm="masked",
        num_steps=BASE_STEPS,
        data=tuple(f"data/scenes/train/{task}" for task in tasks),
        validation_data=tuple(f"data/scenes/validation/{task}" for task in tasks),
        validation=ValidationConfig(sequences=256, draws=2),
    )


def proxy_per_module() -> RunConfig:
    """The proxy with hyperparameters tuned per module: a lower loss than `proxy`, and the source of `scenes`."""
    run = proxy()
    return replace(run, optimizer=PER_MODULE_TUNED, transfer=replace(run.transfer, per_module="proxy"))


def transfer_from_proxy() -> TransferConfig:
    """For other recipes of the toy dataset: hyperparameters scaled from `PER_MODULE_TUNED` and its table."""
    return TransferConfig(
        rule="completed_p",
        base_width=BASE_WIDTH,
        base_layers=BASE_LAYERS,
        base_batch=BASE_BATCH,
        base_steps=BASE_STEPS,
        per_module="proxy",
    )


def _shape(width: int, layers: int) -> dict[str, Any]:
    """d_ff has the same ratio to every width; otherwise the scale of activations would drift with it."""
    return {"num_layers": layers, "width": width, "num_heads": width // HEAD_WIDTH, "d_ff": width * 5 // 2}


def shape_of(width: int) -> dict[str, Any]:
    """Fields of a `ModelConfig` with the proxy's aspect ratio."""
    return _shape(width, max(1, round(width * BASE_LAYERS / BASE_WIDTH)))


def tuned_shape(run: RunConfig) -> tuple[int, int]:
    """Width and layers that the hyperparameters of a base run were tuned at: its own, unless it names others."""
    own, shape = run.transfer, run.model
    return own.base_width or shape.width, own.base_layers or shape.num_layers


def scaled_proxy(
    run: RunConfig,
    *,
    width: int | None = None,
    layers: int | None = None,
    batch: int | None = None,
    tokens: float = 1.0,
    rule: RuleName | None = None,
    lr: float | None = None,
    seed: int = 0,
) -> RunConfig:
    """The base run at another size. `tokens` is a multiple of its own; `batch` turns on the batch-size rule.

    Heads are as wide as in the base run, and d_ff has the same ratio to the width. Without a `rule` it is the base
    run's own. Rules scale from the size that the hyperparameters were tuned at: the base run's, unless it names another
    one itself.
    """
    base, width, layers = run.model, width or run.model.width, layers or run.model.num_layers
    model = replace(
        base,
        width=width,
        num_layers=layers,
        num_heads=max(1, width // base.head_width),
        d_ff=width * base.d_ff // base.width,
    )
    tuned_width, tuned_layers = tuned_shape(run)
    transfer = replace(run.transfer, rule=rule or run.transfer.rule, base_width=tuned_width, base_layers=tuned_layers)
    if batch is not None and run.transfer.base_batch is None:
        transfer = replace(transfer, base_batch=run.masked_copies, base_steps=run.num_steps)
    loader = replace(run.loader, global_batch=batch or run.loader.global_batch, seed=seed)
    steps = round(tokens * run.loader.global_batch * run.num_steps / loader.global_batch)
    return replace(
        run,
        model=model,
        loader=loader,
        optimizer=replace(run.optimizer, lr=run.optimizer.lr if lr is None else lr),
        corrupt=replace(run.corrupt, seed=seed),
        transfer=transfer,
        num_steps=max(1, steps),
        seed=seed,
    )


def proxy_of_width(run: RunConfig, width: int, seed: int = 0) -> RunConfig:
    """For scaling laws: the base run at another width and the same aspect ratio, with transferred hyperparameters."""
    base, unit = run.model, run.model.head_width
    if width < unit or width % unit:
        raise UserError(f"the width of a scaled proxy must be a multiple of {unit}, got {width}.")
    layers = max(1, round(width * base.num_layers / base.width))
    batch = run.loader.global_batch
    scaled = scaled_proxy(run, width=width, layers=layers, batch=batch, rule="completed_p", seed=seed)
    # Runs of a grid differ in length by orders of magnitude; all warm up for the same share as the base run.
    assert scaled.transfer.base_steps is not None
    warmup = round(run.warmup_steps * scaled.transfer.base_steps / run.num_steps)
    return replace(
        scaled,
        optimizer=replace(scaled.optimizer, warmup_steps=warmup),
        transfer=replace(scaled.transfer, warmup_mode="share"),
    )
