"""The configuration of a training run."""

from dataclasses import dataclass, field
from typing import Any, Literal

from triptych.data.steps import LoaderConfig
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.objective import Norm, check_norm
from triptych.diffusion.schedule import SCHEDULES, Schedule
from triptych.errors import UserError, did_you_mean
from triptych.model.transformer import ModelConfig
from triptych.sample.names import PRESET_NAMES
from triptych.transfer.groups import BaseHyperparameters, Transfer, TransferConfig
from triptych.transfer.sde import Sde
from triptych.utils.arguments import check_fields
from triptych.utils.config import differences, register_choices
from triptych.utils.voice_request import check_voices

_MAX_Z_LOSS_WEIGHT = 1e6  # far above any useful value, far below the largest float32
_MAX_THREADS = 4096
_MAX_DRAWS = 65_536

register_choices(Schedule, SCHEDULES)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay."""

    lr: float
    """Learning rate at the end of the warm-up."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Decay of matrices and embeddings (not norms); each step subtracts lr * weight_decay times the weight."""
    clip: float | None = None
    """Maximum gradient norm; None for no limit."""
    warmup_steps: int = 1000
    """Steps of linear warm-up; at most a quarter of the run."""
    min_lr_ratio: float = 1e-6 / 9e-4
    """Final learning rate, as a fraction of lr."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "eps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"{name} must be positive, got {getattr(self, name)!r}.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must lie in [0, 1), got {getattr(self, name)!r}.")
        if not 0 <= self.weight_decay < float("inf") or self.warmup_steps < 0 or not 0 <= self.min_lr_ratio <= 1:
            raise UserError(
                "weight_decay and warmup_steps must be finite and not negative, and min_lr_ratio lie in [0, 1]."
            )
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise UserError(f"clip must be positive and finite, or none, got {self.clip!r}.")


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """The negative ELBO on validation data, with fixed masks."""

    every: int = 500
    """Steps between validations; the last step is always validated."""
    sequences: int = 256
    """Sequences from each dataset: a fixed random sample of it."""
    draws: int = 2
    """Masks per sequence."""

    def __post_init__(self) -> None:
        check_fields(self)
        if min(self.every, self.sequences, self.draws) < 1:
            raise UserError("validation needs every, sequences and draws of at least 1.")
        if self.draws > _MAX_DRAWS:
            raise UserError(f"validation.draws must be at most {_MAX_DRAWS:,}, got {self.draws}.")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the model is sharded over ranks, and how a rank trades memory for time."""

    shard: int | None = None
    """Ranks that share one copy of the weights; None for all ranks. It must divide the number of ranks."""
    precision: Literal["float32", "bfloat16", "bfloat16-products"] = "float32"
    """Precision of the forward and backward pass; weights and optimizer state are always float32. "bfloat16-products"
    is for CPUs with bfloat16 instructions: factors and results of the products with the blocks' matrices are rounded,
    and attention, norms, residuals and the head stay float32."""
    checkpoint_activations: bool = False
    """Keep only the input of each block and recompute the rest: less memory, a third more time."""
    compile: bool = False
    """Compile the blocks with torch.compile. Worth it on a GPU."""
    reshard_after_forward: bool = True
    """Free a block's gathered weights after its forward pass and gather them again for its backward pass."""
    timeout: float = 600.0
    """Seconds a rank waits for another rank before it fails."""
    hang_timeout: float = 300.0
    """Seconds without a finished step after which every rank prints its stack traces."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shard is not None and self.shard < 1:
            raise UserError(f"parallel.shard must be at least 1, or none for all ranks, got {self.shard}.")
        for name in ("timeout", "hang_timeout"):
            if not 1 <= getattr(self, name) < 1e9:
                raise UserError(f"parallel.{name} must be at least 1 second, got {getattr(self, name)!r}.")


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What a run does about bad steps. A step whose loss or gradient is not finite is always skipped."""

    spike_sigmas: float | None = None
    """Skip a step whose loss is this many standard deviations above the running mean; None to disable."""
    spike_window: int = 100
    """Approximate length of the running mean, in steps; there are no spikes before it is full."""
    max_consecutive_skips: int = 10
    """Skipped steps in a row after which the run rolls back or ends. If all of them were spikes, the weights of the
    newest regular checkpoint are restored and training resumes after the data of the skipped steps; otherwise the run
    ends."""
    max_rollbacks: int = 3
    """Rollbacks allowed in one run."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.spike_sigmas is not None and not 0 < self.spike_sigmas < float("inf"):
            raise UserError(f"guard.spike_sigmas must be positive, or none, got {self.spike_sigmas!r}.")
        if min(self.spike_window, self.max_consecutive_skips) < 1 or self.max_rollbacks < 0:
            raise UserError(
                "guard.spike_window and max_consecutive_skips must be at least 1, max_rollbacks at least 0."
            )


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """What users of the trained model may type. Saved with the model; does not affect training."""

    words: tuple[str, ...] = ()
    """All words the model knows, in lower case; other words are refused. Empty: any text."""
    caption_prompt: str = ""
    """Text that a caption starts with; it is removed from results. Empty if every text of an image is a caption."""
    transcript_prompt: str = ""
    """Text that a transcript starts with; it is removed from results."""
    voices: tuple[str, ...] = ()
    """Names of the voices that can be asked for."""
    voice_request: str = ""
    """How a text asks for a voice, with {text} and {voice}."""
    examples: tuple[str, ...] = ()
    """Prompts that TensorBoard shows as image and speech at each validation."""
    reader: str = ""
    """Name of the reader of prompts of the trained model, see `triptych/hub/readers.py`. Empty: none."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_voices(self.voices, self.voice_request, set(self.words))


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Configuration of a training run."""

    recipe: str
    """Name of the recipe it was made from."""
    model: ModelConfig
    loader: LoaderConfig
    optimizer: OptimizerConfig
    num_steps: int
    data: tuple[str, ...] = ()
    """Folders of the training datasets, made by `triptych tokenize`."""
    validation_data: tuple[str, ...] = ()
    """Folders of the validation datasets."""
    tokenizers: str = "scenes"
    """Tokenizers the data were made with: a folder or a built-in name."""
    prompts: PromptConfig = field(default_factory=PromptConfig)
    """What users of the trained model may type."""
    sampling_preset: str = "paper"
    """Sampling preset that the trained model uses by default."""
    init_from: str | None = None
    """Saved model (folder or built-in name) that provides the initial weights. It must have the run's shape and
    tokenizers. The optimizer state starts at zero."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    """How hyperparameters tuned at a base are scaled to this model, batch size and number of tokens."""
    corrupt: CorruptConfig = field(default_factory=CorruptConfig)
    norm: Norm = "sequence"
    """What the loss is averaged over."""
    complementary_masks: bool = False
    """Whether each step sees every sample twice, with complementary masks. For equal cost, halve the global batch: the
    hyperparameters stay the same, because the rule for batch size counts masked copies."""
    z_loss_weight: float = 1e-5
    """Weight of the z-loss: the mean squared log-sum-exp over predicted positions."""
    ema_decay: float | None = None
    """Decay of an exponential moving average of the weights, which is then validated and exported; None for none."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """How the model is sharded over several processes."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    log_every: int = 20
    save_every: int = 500
    keep_last_checkpoints: int = 2
    """Number of newest checkpoints to keep."""
    threads: int | None = None
    """CPU threads; None for all."""
    tensorboard: bool = False
    seed: int = 0
    """Seed of the initial weights; data and masks have their own seeds."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_norm(self.norm)
        if self.sampling_preset not in PRESET_NAMES:
            raise UserError(
                f"unknown sampling_preset {self.sampling_preset!r}.{did_you_mean(self.sampling_preset, PRESET_NAMES)}"
            )
        if min(self.num_steps, self.log_every, self.save_every, self.keep_last_checkpoints) < 1:
            raise UserError("num_steps, log_every, save_every and keep_last_checkpoints must be at least 1.")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UserError(f"ema_decay must lie between 0 and 1 or be none, got {self.ema_decay!r}.")
        if not 0 <= self.z_loss_weight <= _MAX_Z_LOSS_WEIGHT:
            raise UserError(f"z_loss_weight must lie between 0 and {_MAX_Z_LOSS_WEIGHT:g}, got {self.z_loss_weight!r}.")
        if self.threads is not None and not 1 <= self.threads <= _MAX_THREADS:
            raise UserError(f"threads must lie between 1 and {_MAX_THREADS}, or be none for all, got {self.threads}.")

    @property
    def views(self) -> tuple[Literal[0, 1] | None, ...]:
        """The masked copies of a sample in one step."""
        return (0, 1) if self.complementary_masks else (None,)

    @property
    def num_views(self) -> int:
        return len(self.views)

    @property
    def masked_copies(self) -> int:
        """Masked copies in the global batch."""
        return self.loader.global_batch * self.num_views

    @property
    def validation_folders(self) -> tuple[str, ...]:
        """Datasets to validate on: validation_data, or what is held out of the training data."""
        return self.validation_data or (self.data if self.loader.held_out else ())

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up, at most a quarter of the run."""
        steps: float = self.optimizer.warmup_steps
        if self.transfer.warmup_mode == "sde":
            steps /= self.resolved.kappa
        elif self.transfer.warmup_mode == "share":
            assert self.transfer.base_steps is not None
            steps = self.optimizer.warmup_steps * self.num_steps // self.transfer.base_steps
        return min(round(steps), self.num_steps // 4)

    @property
    def clip(self) -> float | None:
        """Maximum gradient norm, scaled with the batch: a larger batch has less noise, and so a smaller norm."""
        clip = self.optimizer.clip
        return clip if clip is None or not self.transfer.scales_clip else clip * self.resolved.kappa**-0.5

    @property
    def length_ratio(self) -> float:
        """Tokens of a sequence, relative to the base run of the transfer rules."""
        return self.loader.seq_len / (self.transfer.base_seq_len or self.loader.seq_len)

    @property
    def resolved(self) -> Transfer:
        """The transfer rules, applied to this run."""
        base, values, sde = self.transfer, self.optimizer, None
        if base.base_batch is not None and base.base_steps is not None:
            sde = Sde(
                self.masked_copies * self.length_ratio, self.num_steps, base.base_batch, base.base_steps, base.gamma
            )
        return Transfer(
            base,
            self.model,
            BaseHyperparameters(
                lr=values.lr, beta1=values.beta1, beta2=values.beta2, eps=values.eps, decay=values.weight_decay
            ),
            sde,
        )


RESUMABLE_CHANGES = frozenset(
    {
        "data",
        "keep_last_checkpoints",
        "loader.layout",
        "loader.num_workers",
        "loader.prefetch",
        "log_every",
        "parallel.checkpoint_activations",
        "parallel.compile",
        "parallel.hang_timeout",
        "parallel.reshard_after_forward",
        "parallel.shard",
        "parallel.timeout",
        "prompts",
        "sampling_preset",
        "save_every",
        "tensorboard",
        "threads",
        "tokenizers",
        "validation",
        "validation_data",
    }
)
"""Keys that may differ when a run resumes: they change no weight, except by the order of sums. Data and tokenizers may
move to other folders; their contents are compared by fingerprint."""


def weight_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What affects the weights and differs between two run configurations, given as JSON with current keys."""
    return differences(old, new, RESUMABLE_CHANGES)
