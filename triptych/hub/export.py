"""From a training run to a model: its newest checkpoint, with a card written from the run's records."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from triptych.errors import CheckpointError, UserError
from triptych.hub.card import write_card
from triptych.hub.format import Limits, SavedModel
from triptych.hub.weights import model_with_weights
from triptych.model.transformer import ModelConfig
from triptych.recipes import recipe
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import PromptConfig
from triptych.utils.config import to_json
from triptych.utils.legacy import with_current_keys, with_current_model_keys


def model_of_run(folder: Path, *, license: str | None = None) -> SavedModel:
    """The newest checkpoint of a run: the moving average of its weights, if the run keeps one."""
    checkpoints = ckpt.list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        raise CheckpointError(f"{folder} holds no checkpoint yet; train it first, or name a saved model.")
    checkpoint = ckpt.load(checkpoints[-1], "model", "ema")
    state = checkpoint.state
    try:
        config = _current_config(state["config"])
        shape = ModelConfig(**with_current_model_keys(state.get("shape", config["model"])))
        limits = Limits.of_run(config)
        bundle = TokenizerBundle.load(config["tokenizers"])
        is_same = state["vocabulary"] == bundle.vocabulary.fingerprint and state["tokenizers"] == bundle.fingerprints
        _ = config["sampling_preset"]
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{checkpoints[-1]} does not hold the state of a run ({error!r}).") from error
    if not is_same:
        raise CheckpointError(
            f"{checkpoints[-1]} was trained with another vocabulary or other tokenizers than {config['tokenizers']!r}."
        )
    weights = checkpoint.part("ema") or checkpoint.part("model")
    model = model_with_weights(checkpoints[-1], shape, bundle.vocabulary, weights)
    card = write_card(folder, checkpoint.step, model, limits, license)
    return SavedModel(model, bundle, limits, config["sampling_preset"], card, license)


def _current_config(saved: dict[str, Any]) -> dict[str, Any]:
    """The run configuration in a checkpoint, with current keys; earlier versions had prompts only in the recipe."""
    config = with_current_keys(saved)
    if "prompts" not in config:
        planned = {"prompts": to_json(PromptConfig()), "sampling_preset": "paper"}
        if saved.get("world") is not None:  # the key of earlier versions for the toy dataset
            with suppress(KeyError, UserError):
                planned = to_json(recipe(config["recipe"]))
        config |= {key: planned[key] for key in ("prompts", "sampling_preset")}
    return config
