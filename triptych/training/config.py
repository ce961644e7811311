"""Everything that decides a run, as one frozen value, and `key.path=value` on the command line."""

import dataclasses
import math
import re
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin

from triptych.data.loader import LoaderConfig
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.objective import Norm, check_norm
from triptych.diffusion.schedule import SCHEDULES, Schedule
from triptych.errors import UserError, did_you_mean
from triptych.model.transformer import ModelConfig
from triptych.transfer.groups import Globals, Transfer, TransferConfig
from triptych.transfer.sde import Sde

_MOST_Z_WEIGHT = 1e6  # far beyond any use, and far below what a float32 holds
_MOST_THREADS = 4096  # the same for threads that a machine can start


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with warm-up and a cosine."""

    lr: float
    """At the end of the warm-up."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Of matrices and embeddings, not of norms; a step takes lr * weight_decay of a weight away."""
    clip: float | None = None
    """Largest norm of the gradient; None for no limit."""
    warmup_steps: int = 1000
    """Never more than a quarter of the run."""
    min_lr_ratio: float = 1e-6 / 9e-4
    """What the learning rate ends at, as a share of lr."""

    def __post_init__(self) -> None:
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
    """The negative ELBO on held-out data, on masks that never change."""

    every: int = 500
    """Steps between two; there is one at the end, too."""
    sequences: int = 256
    """Of each data set."""
    draws: int = 2
    """Masks per sequence."""

    def __post_init__(self) -> None:
        if min(self.every, self.sequences, self.draws) < 1:
            raise UserError("validation needs every, sequences and draws of at least 1.")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How a model is spread over ranks, and what a rank does to save memory or time."""

    shard: int | None = None
    """Ranks among which one copy of the weights is divided; None for all of them. It must divide their number."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What is computed in. Weights, moments and sums of gradients are always float32."""
    checkpoint_activations: bool = False
    """Keep only what goes into each block and compute the rest again: less memory, a third more time."""
    compile: bool = False
    """Compile the blocks. Pays on a GPU."""
    reshard_after_forward: bool = True
    """Drop a block's gathered weights after its forward pass and gather them again for its backward pass."""
    timeout: float = 600.0
    """Seconds a rank waits for the others before it gives up."""
    watch: float = 300.0
    """Seconds without a finished step after which every rank prints where it is."""

    def __post_init__(self) -> None:
        if self.shard is not None and self.shard < 1:
            raise UserError(f"parallel.shard must be at least 1, or none for all ranks, got {self.shard}.")
        for name in ("timeout", "watch"):
            if not 0 < getattr(self, name) < 1e9:
                raise UserError(f"parallel.{name} must be a positive number of seconds, got {getattr(self, name)!r}.")


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What a run does about steps that go wrong. A step whose numbers are not finite is always left out."""

    spike_sigmas: float | None = None
    """Leave out a step whose loss is so many standard deviations above the mean of the last ones; None for never."""
    spike_window: int = 100
    """Steps that the mean looks back over, about; until there were as many, nothing is a spike."""
    max_consecutive_skips: int = 10
    """Steps left out one after the other, after which something has to happen: where they were spikes, the newest
    checkpoint's weights are taken and training goes on behind the data that spoiled them; where they were not finite,
    the run ends."""
    max_rollbacks: int = 3
    """How often that may happen in one run."""

    def __post_init__(self) -> None:
        if self.spike_sigmas is not None and not 0 < self.spike_sigmas < float("inf"):
            raise UserError(f"guard.spike_sigmas must be positive, or none, got {self.spike_sigmas!r}.")
        if min(self.spike_window, self.max_consecutive_skips) < 1 or self.max_rollbacks < 0:
            raise UserError(
                "guard.spike_window and max_consecutive_skips must be at least 1, max_rollbacks at least 0."
            )


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """What users of the trained model may type. It is saved with the model and changes no weight."""

    words: tuple[str, ...] = ()
    """All words the model knows, in lower case, if its world is small; other words are then refused. Empty: any text."""
    caption_prompt: str = ""
    """Text that a caption starts with; it is removed from results. Empty if every text of an image is a caption."""
    examples: tuple[str, ...] = ()
    """Texts that TensorBoard draws and speaks at each validation."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A training run."""

    recipe: str
    """The name it was made under."""
    model: ModelConfig
    loader: LoaderConfig
    optimizer: OptimizerConfig
    num_steps: int
    data: tuple[str, ...] = ()
    """Folders of the training data sets, made by `triptych tokenize`."""
    validation_data: tuple[str, ...] = ()
    tokenizers: str = "scenes"
    """The bundle the data were made with: a folder, or the name of embedded ones."""
    prompts: PromptConfig = field(default_factory=PromptConfig)
    """What users of the trained model may type."""
    sampling_preset: str = "paper"
    """The preset that the trained model is sampled with by default."""
    init_from: str | None = None
    """A saved model, a folder or the name of an embedded one, whose weights a new run begins with. It must have the
    run's shape and tokenizers; the optimizer begins anew."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    """How the optimizer's values, tuned at a base, are carried to this model, batch and number of tokens."""
    corrupt: CorruptConfig = field(default_factory=CorruptConfig)
    norm: Norm = "sequence"
    """What the loss is a mean over."""
    complementary_masks: bool = False
    """Whether each step sees every sample twice, with complementary masks. For equal cost, halve the global batch."""
    z_loss_weight: float = 1e-5
    """Of the mean squared log-sum-exp over predicted positions."""
    ema_decay: float | None = None
    """Of a running mean of the weights, which is then what is validated and exported."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """How the model is spread over several processes."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    log_every: int = 20
    save_every: int = 500
    keep_last_checkpoints: int = 2
    """Checkpoints kept, the newest ones."""
    threads: int | None = None
    """Of the CPU; None for all."""
    tensorboard: bool = False
    seed: int = 0
    """Of the initial weights; data and masks have seeds of their own."""

    def __post_init__(self) -> None:
        check_norm(self.norm)
        if min(self.num_steps, self.log_every, self.save_every, self.keep_last_checkpoints) < 1:
            raise UserError("num_steps, log_every, save_every and keep_last_checkpoints must be at least 1.")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UserError(f"ema_decay must lie between 0 and 1 or be none, got {self.ema_decay!r}.")
        if not 0 <= self.z_loss_weight <= _MOST_Z_WEIGHT:
            raise UserError(f"z_loss_weight must lie between 0 and {_MOST_Z_WEIGHT:g}, got {self.z_loss_weight!r}.")
        if self.threads is not None and not 1 <= self.threads <= _MOST_THREADS:
            raise UserError(f"threads must lie between 1 and {_MOST_THREADS}, or be none for all, got {self.threads}.")

    @property
    def warmup_steps(self) -> int:
        steps: float = self.optimizer.warmup_steps
        if self.transfer.warmup_mode == "sde":
            steps /= self.resolved.kappa
        return min(round(steps), self.num_steps // 4)

    @property
    def clip(self) -> float | None:
        """Largest norm of the gradient: noise, and with it the norm, falls with the batch."""
        clip = self.optimizer.clip
        return clip if clip is None or not self.transfer.scales_clip else clip * self.resolved.kappa**-0.5

    @property
    def resolved(self) -> Transfer:
        """The rules of transfer, for this run."""
        base, values, sde = self.transfer, self.optimizer, None
        if base.base_batch is not None and base.base_steps is not None:
            length = self.loader.seq_len / (base.base_seq_len or self.loader.seq_len)
            sde = Sde(self.loader.global_batch * length, self.num_steps, base.base_batch, base.base_steps, base.gamma)
        return Transfer(
            base,
            self.model,
            Globals(lr=values.lr, beta1=values.beta1, beta2=values.beta2, eps=values.eps, decay=values.weight_decay),
            sde,
        )


# -- what must not change on the way -------------------------------------------------------------------------------

# By part of the configuration, what may differ between a run and its continuation: none of it changes a weight beyond
# the order of sums. Data and tokenizers may lie elsewhere; what they hold is compared by fingerprint.
_FREE = {
    "": (
        "log_every",
        "save_every",
        "keep_last_checkpoints",
        "threads",
        "tensorboard",
        "validation",
        "validation_data",
        "prompts",
        "sampling_preset",
        "data",
        "tokenizers",
    ),
    "loader.": ("layout", "num_workers", "prefetch"),
    "parallel.": ("shard", "checkpoint_activations", "compile", "reshard_after_forward", "timeout", "watch"),
}


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """What decides the weights and is not as it was."""
    changed = []
    for key in sorted({*old, *new}):
        if key in _FREE.get(prefix, ()):
            continue
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            changed += differences(before, now, f"{prefix}{key}.")
        elif before != now:
            changed.append(f"{prefix}{key} was {before!r}, is {now!r}")
    return changed


# -- JSON -------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Plain JSON of a configuration; a choice among types carries its type's name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return fields if _is_config(type(value)) else {"kind": type(value).__name__.lower(), **fields}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def fill_in(saved: Any, config: Any) -> Any:
    """The JSON of a configuration that was saved when some fields were not there yet, with the defaults of those.

    `config` is one of the same kind as it is today; none of its values are taken.
    """
    if not isinstance(saved, dict) or not dataclasses.is_dataclass(config):
        return saved
    if saved.get("kind") != to_json(config).get("kind"):  # another choice, with other fields
        return saved
    filled = dict(saved)
    for f in dataclasses.fields(config):
        if f.name in saved:
            filled[f.name] = fill_in(saved[f.name], getattr(config, f.name))
        elif f.default is not dataclasses.MISSING:
            filled[f.name] = to_json(f.default)
        elif f.default_factory is not dataclasses.MISSING:
            filled[f.name] = to_json(f.default_factory())
    return filled


def _is_config(kind: type) -> bool:
    return kind.__name__.endswith("Config") or kind.__name__ == "OpenEnds"


# -- key.path=value ---------------------------------------------------------------------------------------------------

Config = TypeVar("Config")


def override(config: Config, assignments: list[str]) -> Config:
    """The configuration with fields changed: ["model.width=256", "corrupt.schedule=cosine", "data=a,b"].

    Fields of one part are changed together, so that values that are right only together need no order.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"expected key=value, got {assignment!r}; try {assignment}=VALUE.")
        branch = changes
        *parts, last = path.split(".")
        for part in parts:
            if isinstance(branch.get(part), str):  # `layout=packed layout.row_length=600`: a kind, then its fields
                branch[part] = {_KIND: branch[part]}
            branch = branch.setdefault(part, {})
        if isinstance(branch.get(last), dict):
            branch[last][_KIND] = text
        else:
            branch[last] = text
    return _apply(config, changes, "")


def assignments(config: Any, other: Any) -> list[str]:
    """What `override` must be given to make another configuration of this one."""
    return _assignments(to_json(config), to_json(other), "")


def _assignments(old: Any, new: Any, name: str) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict) and old.get("kind") == new.get("kind"):
        prefix = f"{name}." if name else ""
        return [text for key, value in new.items() for text in _assignments(old.get(key), value, prefix + key)]
    if isinstance(new, dict):
        fields = [_assignments(None, value, f"{name}.{key}") for key, value in new.items() if key != "kind"]
        return [f"{name}={new['kind']}", *(text for field in fields for text in field)]
    if isinstance(new, list):
        return [f"{name}={','.join(map(str, new))}"]
    return [f"{name}={'none' if new is None else str(new).lower() if isinstance(new, bool) else new}"]


_KIND = "="  # in a branch of changes: what the whole is set to before its fields are


def _apply_to_dict(kind: Any, config: dict[str, Any], changes: dict[str, Any], prefix: str) -> dict[str, Any]:
    """`kind` is a mapping of names to numbers, or to mappings of the same sort."""
    inner = get_args(kind)[1]
    found = dict(config)
    for name, change in changes.items():
        if get_origin(inner) is None:
            if isinstance(change, dict):
                raise UserError(f"{prefix}{name} has no fields; write {prefix}{name}=VALUE.")
            found[name] = _number(change, prefix + name)
        elif not isinstance(change, dict):
            raise UserError(f"{prefix}{name} cannot be set as a whole; write {prefix}{name}.FIELD=VALUE.")
        else:
            found[name] = _apply_to_dict(inner, found.get(name, {}), change, f"{prefix}{name}.")
    return found


def _apply(config: Any, changes: dict[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(type(config))
    known = [f.name for f in dataclasses.fields(config)]
    values = {}
    for name, change in changes.items():
        whole = prefix + name
        if name not in known:
            path, keys = (_first_path(change, name), known) if isinstance(change, dict) else (name, _all_keys(config))
            raise UserError(f"unknown key {prefix + path!r}.{did_you_mean(name, keys)}")
        current = getattr(config, name)
        if isinstance(change, dict):
            if _KIND in change:
                current = _parse(hints[name], change[_KIND], whole)
            if not dataclasses.is_dataclass(current) and not isinstance(current, dict):
                raise UserError(f"{prefix + _first_path(change, name)!r}: {name} has no fields; write {name}=VALUE.")
            inside = {key: value for key, value in change.items() if key != _KIND}
            if isinstance(current, dict):
                values[name] = _apply_to_dict(hints[name], current, inside, f"{whole}.")
            else:
                values[name] = _apply(current, inside, f"{whole}.")
        else:
            values[name] = _parse(hints[name], change, whole)
    return dataclasses.replace(config, **values)


def _first_path(change: Any, name: str) -> str:
    """The whole key of a change, for an error."""
    while isinstance(change, dict):
        key = next(key for key in change if key != _KIND)
        change, name = change[key], f"{name}.{key}"
    return name


def _all_keys(config: Any, prefix: str = "") -> list[str]:
    keys = []
    for f in dataclasses.fields(config):
        keys.append(prefix + f.name)
        if dataclasses.is_dataclass(getattr(config, f.name)):
            keys += _all_keys(getattr(config, f.name), f"{prefix}{f.name}.")
    return keys


def _parse(kind: Any, text: str, name: str) -> Any:
    """A value of a field's type from its text."""
    origin = get_origin(kind)
    if kind is Schedule:
        return _choice({each.__name__.lower(): each for each in SCHEDULES}, text, name)
    if origin in (typing.Union, types.UnionType):
        options = get_args(kind)
        if type(None) in options and text.lower() in ("none", "null"):
            return None
        rest = [option for option in options if option is not type(None)]
        if len(rest) > 1 and all(dataclasses.is_dataclass(option) for option in rest):
            return _choice({option.__name__.lower(): option for option in rest}, text, name)
        return _parse(rest[0], text, name)
    if origin is Literal:
        if text not in get_args(kind):
            raise UserError(f"{name} must be one of {', '.join(map(str, get_args(kind)))}, got {text!r}.")
        return text
    if origin is tuple:
        return tuple(item for item in text.split(",") if item)
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise UserError(f"{name} must be true or false, got {text!r}.")
        return text.lower() in ("true", "1", "yes")
    if kind is int:
        return _whole_number(text, name)
    if kind is float:
        return _number(text, name)
    if kind is str:
        return text
    raise UserError(f"{name} cannot be set as a whole; set one of its fields ({name}.FIELD=VALUE).")


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{name} must be a number, got {text!r}.")
    return number


def _whole_number(text: str, name: str) -> int:
    try:
        number: float = int(text.replace("_", ""))  # exact
    except ValueError:
        number = _number(text, name)
    if math.isinf(number) or number != int(number):
        raise UserError(f"{name} must be a whole number, got {text!r}.")
    if not -(2**63) <= number < 2**63:
        raise UserError(f"{name} must lie between -2**63 and 2**63, got {text!r}.")
    return int(number)


def _choice(kinds: dict[str, Any], text: str, name: str) -> Any:
    """`cosine`, or with numbers for its fields in order, `polynomial(3)`."""
    found = re.fullmatch(r"(\w+)(?:\((.+)\))?", text)
    if not found:
        raise UserError(f"{name} must be a kind, or a kind with numbers as in polynomial(3), got {text!r}.")
    kind, numbers = found.groups()
    if kind not in kinds:
        raise UserError(f"{name}: unknown kind {kind!r}.{did_you_mean(kind, list(kinds))}")
    fields = dataclasses.fields(kinds[kind])
    texts = numbers.split(",") if numbers else []
    if len(texts) > len(fields):
        raise UserError(f"{name}: {kind} takes {', '.join(f.name for f in fields) or 'no numbers'}, got {text!r}.")
    hints = typing.get_type_hints(kinds[kind])
    return kinds[kind](**{f.name: _parse(hints[f.name], n.strip(), f"{name}.{f.name}") for f, n in zip(fields, texts)})
