"""How a model is stored: a folder with weights, configuration, tokenizers and model card, without pickle.

model.safetensors   float32, or float16 or bfloat16 at half the size
config.json         shape, limits, sampling preset, licence, fingerprints of vocabulary and tokenizers, input checks
tokenizers/         as `TokenizerBundle` saves them; built-in models name built-in tokenizers instead
README.md           the model card
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file

from triptych.data.sequences import PAIR_SPECIALS
from triptych.errors import CheckpointError, UserError, did_you_mean
from triptych.hub.input_checks import InputChecks
from triptych.hub.source import CONFIG, is_run
from triptych.model.transformer import ModelConfig, Transformer
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.utils.files import write_atomically
from triptych.utils.legacy import with_current_model_keys
from triptych.utils.voice_request import check_voices
from triptych.vocab import Vocabulary

DtypeName = Literal["float32", "float16", "bfloat16"]
"""Precisions that weights are stored and computed in."""

WEIGHTS, _CARD, _TOKENIZERS = "model.safetensors", "README.md", "tokenizers"
_INPUT_CHECKS = "input_checks"  # key of config.json


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

    def __post_init__(self) -> None:
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


def torch_dtype(name: str | torch.dtype) -> torch.dtype:
    """The torch dtype of one of the names in `DtypeName`; a torch dtype of such a name is taken as it is."""
    if isinstance(name, torch.dtype):
        name = str(name).removeprefix("torch.")
    if name not in get_args(DtypeName):
        raise UserError(f"unknown dtype {name!r}.{did_you_mean(name, list(get_args(DtypeName)))}")
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
    if saved.bundle.folder is None or saved.bundle.folder.resolve() != (folder / _TOKENIZERS).resolve():
        shutil.rmtree(folder / _TOKENIZERS, ignore_errors=True)  # of a model that was saved here before
    (folder / _CARD).unlink(missing_ok=True)
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
    if builtin_tokenizers is not None:
        config["builtin_tokenizers"] = builtin_tokenizers
    else:
        saved.bundle.save(folder / _TOKENIZERS)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    if saved.card is not None:
        (folder / _CARD).write_text(saved.card)


def read_model(folder: Path) -> SavedModel:
    """Read a folder; parts that do not fit together are refused."""
    config = read_config(folder)
    bundle = TokenizerBundle.load(_tokenizers_of(folder, config))
    if config["vocabulary"] != bundle.vocabulary.fingerprint or config["tokenizers"] != bundle.fingerprints:
        raise CheckpointError(
            f"{folder} was trained with other tokenizers than those beside it: their fingerprints differ."
        )
    card = folder / _CARD
    return SavedModel(
        _read_weights(folder / WEIGHTS, ModelConfig(**config["model"]), bundle.vocabulary),
        bundle,
        Limits.from_json(config["limits"]),
        config["presets"],
        card.read_text() if card.exists() else None,
        config.get("license"),
        InputChecks.from_json(config[_INPUT_CHECKS]) if _INPUT_CHECKS in config else None,
    )


def store_input_checks(folder: Path, checks: InputChecks) -> None:
    """Add input checks to a saved model, or replace its checks; nothing else changes."""
    read_config(folder)  # refuses what is not a saved model
    config = json.loads((folder / CONFIG).read_text())
    config[_INPUT_CHECKS] = checks.as_json
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`, checked, with current keys."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text())
        if config["format"] != "triptych-model" or config["version"] != 1:
            raise KeyError("format")
        config["model"] = with_current_model_keys(config["model"])
        if "embedded_tokenizers" in config:  # the key of earlier versions
            config["builtin_tokenizers"] = config.pop("embedded_tokenizers")
        ModelConfig(**config["model"]), Limits.from_json(config["limits"])
        if _INPUT_CHECKS in config:
            InputChecks.from_json(config[_INPUT_CHECKS])
        _ = config["presets"], config["vocabulary"], config["tokenizers"]
        return config
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder} is not a saved Triptych model: {path.name} ({error!r}).") from error


def _tokenizers_of(folder: Path, config: dict[str, Any]) -> Path | str:
    if (folder / _TOKENIZERS).is_dir():
        return folder / _TOKENIZERS
    if "builtin_tokenizers" not in config:
        raise CheckpointError(f"{folder} is incomplete: the folder {_TOKENIZERS} is missing.")
    return config["builtin_tokenizers"]


def _read_weights(path: Path, config: ModelConfig, vocabulary: Vocabulary) -> Transformer:
    """A model in float32, whatever precision its weights were saved in."""
    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own kind, OSError and others
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}).") from error
    with torch.device("meta"):
        model = Transformer(config, vocabulary)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted({*expected, *weights}):
        shape = tuple(weights[name].shape) if name in weights else None
        if shape != expected.get(name):
            raise CheckpointError(
                f"{path} does not fit its configuration: {name} is {shape}, expected {expected.get(name)}. "
                "Is it of another vocabulary or shape?"
            )
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    return model
