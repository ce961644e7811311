"""Keys of run configurations that earlier versions wrote, so that their checkpoints and records still load.

A run's configuration is in its checkpoints and in `records.jsonl`; a model's is in its `config.json`.
"""

from collections.abc import Sequence
from typing import Any

RENAMED_KEYS: dict[str, str | None] = {
    "antimask": "complementary_masks",
    "begin_with": "init_from",
    "corrupt.smallest_time": "corrupt.smallest_mask_rate",
    "guard.most_in_a_row": "guard.max_consecutive_skips",
    "guard.most_rollbacks": "guard.max_rollbacks",
    "keep": "keep_last_checkpoints",
    "model.places": "model.max_learned_positions",
    "parallel.watch": "parallel.hang_timeout",
    "world": None,
    "z_weight": "z_loss_weight",
}
"""Old dotted path -> current path, or None for a key that was removed."""
RENAMED_RECIPES = {"family": "proxy"}
"""Old name of a recipe -> current name."""
RENAMED_TABLES = {"family": "proxy"}
"""Old name of a table of multipliers -> current name."""
_RENAMED_VALUES = {"recipe": RENAMED_RECIPES, "transfer.per_module": RENAMED_TABLES}


def with_current_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a run configuration with current keys, and current names of its recipe and multiplier table."""
    return _rename(config, "")


def with_current_model_keys(model: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a model configuration with current keys."""
    return _rename(model, "model.")


def with_current_names(changes: Sequence[str]) -> list[str]:
    """Saved `key.path=value` overrides with current keys and names; those of removed keys are left out."""
    current = []
    for change in changes:
        path, equals, text = change.partition("=")
        new = RENAMED_KEYS.get(path, path)
        if new is not None:
            current.append(f"{new}{equals}{_RENAMED_VALUES.get(path, {}).get(text, text)}")
    return current


def _rename(value: dict[str, Any], prefix: str) -> dict[str, Any]:
    renamed = {}
    for key, item in value.items():
        path = prefix + key
        new = RENAMED_KEYS.get(path, path)
        if new is None:
            continue
        value_now = _rename(item, f"{path}.") if isinstance(item, dict) else item
        if isinstance(item, str):
            value_now = _RENAMED_VALUES.get(path, {}).get(item, item)
        renamed[new.removeprefix(prefix)] = value_now
    return renamed
