"""How a model is stored: a folder with weights, configuration, tokenizers and model card, without pickle.

model.safetensors   float32, or float16 or bfloat16 at half the size
config.json         shape, limits, sampling preset and changes to it, licence, input checks, fingerprints of vocabulary
                    and tokenizers, and the size and SHA-256 of every other file, which are compared when the model is
                    loaded
tokenizers/         as `TokenizerBundle` saves them; built-in models name built-in tokenizers instead
README.md           the model card
"""

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save_file

from triptych.data.sequences import PAIR_SPECIALS
from triptych.errors import CheckpointError, DamageWarning, UserError, did_you_mean
from triptych.hub.input_checks import InputChecks
from triptych.hub.integrity import (
    CARD,
    TOKENIZERS,
    WEIGHTS,
    check_config,
    check_files,
    has_checksums,
    read_raw_config,
    write_checksums,
    write_config,
)
from triptych.hub.keywords import check_own_sampling
from triptych.hub.source import CONFIG, is_run
from triptych.hub.weights import read_weights
from triptych.model.transformer import ModelConfig, Transformer
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle, write_bundle_checksums
from triptych.utils.arguments import shown
from triptych.utils.json_files import read_text
from triptych.utils.legacy import with_current_model_keys
from triptych.utils.voice_request import check_voices

DtypeName = Literal["float32", "float16", "bfloat16"]
"""Precisions that weights are stored and computed in."""

_INPUT_CHECKS, _SAMPLING = "input_checks", "sampling"  # keys of config.json
_MAX_LENGTH = 2**24  # tokens of a sequence


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a model was trained to handle, and what its users may type."""

    seq_len: int
    """Tokens of the longest sequence."""
    text_slot: int | None
    """Longest text whose length the model can choose, EOS included; None if it was trained without open ends."""
    audio_slot: int | None
    """The same for audio."""
    words: tuple[str, ...] = ()
    """All words the model knows, in lower case; other words are refused. Empty: any text."""
    caption_prompt: str = ""
    """Text that a caption starts with; it is removed from results."""
    transcript_prompt: str = ""
    """Text that a transcript starts with; it is removed from results."""
    voices: tuple[str, ...] = ()
    """Names of the voices that can be asked for. Empty: the model chooses the voice."""
    voice_request: str = ""
    """How a text asks for a voice, with {text} and {voice}."""
    examples: tuple[str, ...] = ()
    """Prompts that suit the model, for model cards and `triptych info`."""
    reader: str = ""
    """Name of the reader of prompts, see `triptych.hub.readers`. Empty: the model reads them itself."""

    def __post_init__(self) -> None:
        for name in ("seq_len", "text_slot", "audio_slot"):
            value = getattr(self, name)
            if value is None and name != "seq_len":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_LENGTH:
                raise UserError(f"{name} of a model must be a whole number from 1 to {_MAX_LENGTH}, got {value!r}.")
        for name in ("caption_prompt", "transcript_prompt", "voice_request", "reader"):
            if not isinstance(getattr(self, name), str):
                raise UserError(f"{name} of a model must be a text, got {getattr(self, name)!r}.")
        for name in ("words", "voices", "examples"):
            if not all(isinstance(each, str) for each in getattr(self, name)):
                raise UserError(f"{name} of a model must be texts, got {getattr(self, name)!r}.")
        check_voices(self.voices, self.voice_request, set(self.words))

    def longest(self, slot: int | None) -> int:
        """Tokens of the longest text or audio: what a slot holds, otherwise what a sequence holds."""
        return slot - 1 if slot is not None else self.seq_len - PAIR_SPECIALS

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> "Limits":
        """The limits of a model trained with this run configuration (as JSON)."""
        ends = config["loader"]["open_ends"]
        limits = {
            "seq_len": config["loader"]["seq_len"],
            "text_slot": ends["text"] if ends["probability"] and ends["text"] else None,
            "audio_slot": ends["audio"] if ends["probability"] * ends["audio_share"] and ends["audio"] else None,
        }
        return cls.from_json({**limits, **config["prompts"]})

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Limits":
        """Fields that earlier versions did not have get their defaults."""
        lists = {f.name for f in fields(cls) if isinstance(f.default, tuple)}
        for key in lists & set(saved):
            if not isinstance(saved[key], list | tuple):
                raise UserError(f"{key} of a model must be a list, got {saved[key]!r}.")
        values: dict[str, Any] = {key: tuple(value) if key in lists else value for key, value in saved.items()}
        return cls(**values)


@dataclass(frozen=True)
class SavedModel:
    """The contents of a model's folder."""

    model: Transformer
    bundle: TokenizerBundle
    limits: Limits
    preset: str
    """Name of the sampling preset that is used by default."""
    card: str | None = None
    license: str | None = None
    """SPDX identifier or name of the licence of the weights; None if the maker has not chosen one."""
    input_checks: InputChecks | None = None
    """Validation distributions of inputs; None before `triptych calibrate`."""
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes to the sampling preset, by name of the modality ("image") or use ("caption")."""


def torch_dtype(name: str | torch.dtype) -> torch.dtype:
    """The torch dtype of one of the names in `DtypeName`; a torch dtype of such a name is taken as it is."""
    if isinstance(name, torch.dtype):
        name = str(name).removeprefix("torch.")
    if not isinstance(name, str) or name not in get_args(DtypeName):
        raise UserError(f"unknown dtype {shown(name)}.{did_you_mean(shown(name), list(get_args(DtypeName)))}")
    return getattr(torch, name)


def write_model(
    folder: Path,
    saved: SavedModel,
    *,
    dtype: DtypeName | torch.dtype | None = None,
    builtin_tokenizers: str | None = None,
) -> None:
    """Write a folder. `builtin_tokenizers` is the name of built-in tokenizers to refer to instead of copying them."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in saved.model.state_dict().items()}
    if dtype is not None:
        weights = {name: tensor.to(torch_dtype(dtype)) for name, tensor in weights.items()}
    if is_run(folder):
        raise UserError(f"{folder} is the folder of a run; save the model in another one.")
    if builtin_tokenizers is not None:
        builtin = BUILTIN_TOKENIZERS.get(builtin_tokenizers)
        if builtin is None or TokenizerBundle.load(builtin).fingerprints != saved.bundle.fingerprints:
            raise UserError(f"the model was not trained with built-in tokenizers of the name {builtin_tokenizers!r}.")
    folder.mkdir(parents=True, exist_ok=True)
    if saved.bundle.folder is None or saved.bundle.folder.resolve() != (folder / TOKENIZERS).resolve():
        shutil.rmtree(folder / TOKENIZERS, ignore_errors=True)  # of a model that was saved here before
    (folder / CARD).unlink(missing_ok=True)
    save_file(weights, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes for the owner only
    config = {
        "format": "triptych-model",
        "version": 1,
        "model": asdict(saved.model.config),
        "limits": asdict(saved.limits),
        "presets": saved.preset,
        "license": saved.license,
        "vocabulary": saved.bundle.vocabulary.fingerprint,
        "tokenizers": saved.bundle.fingerprints,
    }
    if saved.input_checks is not None:
        config[_INPUT_CHECKS] = saved.input_checks.as_json
    if saved.sampling:
        config[_SAMPLING] = {name: dict(changes) for name, changes in saved.sampling.items()}
    if builtin_tokenizers is not None:
        config["builtin_tokenizers"] = builtin_tokenizers
    else:
        saved.bundle.save(folder / TOKENIZERS)
    if saved.card is not None:
        (folder / CARD).write_text(saved.card)
    write_checksums(folder, config)


def read_model(folder: Path) -> SavedModel:
    """Read a folder; damaged files, and parts that do not fit together, are refused."""
    config = read_config(folder)
    check_files(folder, config)
    if not has_checksums(config):
        warnings.warn(
            f"{folder} has no checksums, because an earlier version saved it: damage cannot be noticed. Add them with "
            f"`triptych verify {folder} --update`.",
            DamageWarning,
            stacklevel=2,
        )
    return _read_parts(folder, config)


def verify_model(folder: Path) -> list[str]:
    """Compare all that can be compared, the tokenizers' weights too; returns what is no damage, but worth a note."""
    config = read_config(folder)
    card_is_saved_one = check_files(folder, config)
    _read_parts(folder, config).bundle.verify()
    return [] if card_is_saved_one else [f"{CARD} was edited after the model was saved"]


def accept_files(folder: Path) -> None:
    """Write checksums of the files as they are now, if they make a model: of an earlier version, or edited by hand."""
    raw = _raw_config(folder)
    bundle = _read_parts(folder, _checked(folder, dict(raw))).bundle
    if bundle.folder == folder / TOKENIZERS:
        write_bundle_checksums(bundle.folder)
    else:
        bundle.verify()
    write_checksums(folder, raw)


def _read_parts(folder: Path, config: dict[str, Any]) -> SavedModel:
    bundle = TokenizerBundle.load(_tokenizers_of(folder, config))
    if config["vocabulary"] != bundle.vocabulary.fingerprint or config["tokenizers"] != bundle.fingerprints:
        raise CheckpointError(
            f"{folder} was trained with other tokenizers than those beside it: their fingerprints differ."
        )
    card = folder / CARD
    return SavedModel(
        read_weights(folder / WEIGHTS, ModelConfig(**config["model"]), bundle.vocabulary),
        bundle,
        Limits.from_json(config["limits"]),
        config["presets"],
        read_text(card, errors="replace") if card.is_file() else None,
        config.get("license"),
        InputChecks.from_json(config[_INPUT_CHECKS]) if _INPUT_CHECKS in config else None,
        config.get(_SAMPLING, {}),
    )


def store_input_checks(folder: Path, checks: InputChecks) -> None:
    """Add input checks to a saved model, or replace its checks; nothing else changes."""
    edit_config(folder, {_INPUT_CHECKS: checks.as_json})


def store_sampling(folder: Path, sampling: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the changes that a saved model makes to its sampling preset; nothing else changes."""
    check_own_sampling(read_config(folder)["presets"], sampling)
    edit_config(folder, {_SAMPLING: {name: dict(changes) for name, changes in sampling.items()}})


def edit_config(folder: Path, changes: Mapping[str, Any]) -> None:
    """Set keys of a saved model's config.json. Checksums of the other files stay as they are."""
    read_config(folder)  # refuses what is not a saved model
    config = {**_raw_config(folder), **changes}
    if has_checksums(config):
        write_config(folder, config)
    else:
        write_checksums(folder, config)


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`, checked, with current keys."""
    config = _raw_config(folder)
    check_config(folder, config)
    return _checked(folder, config)


def _raw_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_raw_config(folder)
        if config["format"] != "triptych-model" or config["version"] != 1:
            raise KeyError("format")
        return config
    except (OSError, ValueError, KeyError) as error:
        raise _no_model(folder, error) from error


def _checked(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with current keys; `config` changes."""
    try:
        config["model"] = with_current_model_keys(config["model"])
        if "embedded_tokenizers" in config:  # the key of earlier versions
            config["builtin_tokenizers"] = config.pop("embedded_tokenizers")
        ModelConfig(**config["model"]), Limits.from_json(config["limits"])
        if _INPUT_CHECKS in config:
            InputChecks.from_json(config[_INPUT_CHECKS])
        check_own_sampling(config["presets"], config.get(_SAMPLING, {}))
        _ = config["presets"], config["vocabulary"], config["tokenizers"]
        if config.get("builtin_tokenizers") not in (None, *BUILTIN_TOKENIZERS):
            raise ValueError(f"there are no built-in tokenizers {shown(config['builtin_tokenizers'])}")
        return config
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_model(folder, error) from error


def _no_model(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{folder} is not a saved Triptych model: {CONFIG} ({error!r}).")


def _tokenizers_of(folder: Path, config: dict[str, Any]) -> Path | str:
    if (folder / TOKENIZERS).is_dir():
        return folder / TOKENIZERS
    if "builtin_tokenizers" not in config:
        raise CheckpointError(f"{folder} is incomplete: the folder {TOKENIZERS} is missing.")
    return config["builtin_tokenizers"]
