"""Saved models: a folder of weights, configuration, tokenizers and card, written and read without pickle.

model.safetensors   float32, or float16 at half the size
config.json         shape, limits, presets, fingerprints
tokenizers/         as `TokenizerBundle` saves them; embedded models name embedded ones instead
README.md           the card
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from triptych.data.sequences import PAIR_SPECIALS
from triptych.errors import CheckpointError
from triptych.model.transformer import ModelConfig, Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Vocabulary

BUILTIN_MODELS = {"scenes": Path(__file__).parent.parent / "assets" / "models" / "scenes"}
"""Models that come with the package, by name."""

_WEIGHTS, _CONFIG, _CARD, _TOKENIZERS = "model.safetensors", "config.json", "README.md", "tokenizers"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a model was trained to handle."""

    seq_len: int
    text_slot: int | None
    """Longest text whose length the model can choose, with its end; None if it never learned where texts end."""
    audio_slot: int | None
    words: tuple[str, ...] = ()
    """All the words it knows, in small letters, if it is a model of a small world; none if it takes any text."""
    caption_prompt: str = ""
    """How a text about a picture begins if it describes it and does not ask, say; "" if all of them describe."""

    def longest(self, slot: int | None) -> int:
        """Tokens of the longest text or sound: what a slot holds, else what a sequence does."""
        return slot - 1 if slot is not None else self.seq_len - PAIR_SPECIALS


@dataclass(frozen=True)
class SavedModel:
    """All that a folder holds."""

    model: Transformer
    bundle: TokenizerBundle
    limits: Limits
    presets: str
    """Name of the presets it is sampled with."""
    card: str | None


def write_model(folder: Path, saved: SavedModel, *, half: bool, embedded_tokenizers: str | None) -> None:
    """Write a folder; with `embedded_tokenizers`, their name instead of a copy."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in saved.model.state_dict().items()}
    if half:
        weights = {name: tensor.half() for name, tensor in weights.items()}
    save_file(weights, folder / _WEIGHTS)
    (folder / _WEIGHTS).chmod(0o644)  # safetensors writes for the owner only
    config = {
        "format": "triptych-model",
        "version": 1,
        "model": asdict(saved.model.config),
        "limits": asdict(saved.limits),
        "presets": saved.presets,
        "vocabulary": saved.bundle.vocabulary.fingerprint,
        "tokenizers": saved.bundle.fingerprints,
    }
    if embedded_tokenizers is not None:
        config["embedded_tokenizers"] = embedded_tokenizers
    else:
        saved.bundle.save(folder / _TOKENIZERS)
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    if saved.card is not None:
        (folder / _CARD).write_text(saved.card)


def read_model(folder: Path) -> SavedModel:
    """Read a folder; what does not fit together is refused."""
    config = read_config(folder)
    bundle = TokenizerBundle.load(_tokenizers_of(folder, config))
    if config["vocabulary"] != bundle.vocabulary.fingerprint or config["tokenizers"] != bundle.fingerprints:
        raise CheckpointError(
            f"{folder} was trained with other tokenizers than those beside it: their fingerprints differ."
        )
    card = folder / _CARD
    limits = Limits(**config["limits"])
    return SavedModel(
        _read_weights(folder / _WEIGHTS, ModelConfig(**config["model"]), bundle.vocabulary),
        bundle,
        replace(limits, words=tuple(limits.words)),
        config["presets"],
        card.read_text() if card.exists() else None,
    )


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text())
        if config["format"] != "triptych-model" or config["version"] != 1:
            raise KeyError("format")
        ModelConfig(**config["model"]), Limits(**config["limits"])
        _ = config["presets"], config["vocabulary"], config["tokenizers"]
        return config
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} is not a saved Triptych model: {path.name} ({error!r}).") from error


def _tokenizers_of(folder: Path, config: dict[str, Any]) -> Path | str:
    if (folder / _TOKENIZERS).is_dir():
        return folder / _TOKENIZERS
    if "embedded_tokenizers" not in config:
        raise CheckpointError(f"{folder} is not a whole model: the folder {_TOKENIZERS} is missing.")
    return config["embedded_tokenizers"]


def _read_weights(path: Path, config: ModelConfig, vocabulary: Vocabulary) -> Transformer:
    """A model from its weights, in float32 whatever they were saved in."""
    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own kind, OSError and others
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}).") from error
    with torch.device("meta"):
        model = Transformer(config, vocabulary)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted({*expected, *weights}):
        found = tuple(weights[name].shape) if name in weights else None
        if found != expected.get(name):
            raise CheckpointError(
                f"{path} does not fit its configuration: {name} is {found}, expected {expected.get(name)}. "
                "Is it of another vocabulary or shape?"
            )
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    return model
