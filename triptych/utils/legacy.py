"""Names that configurations had in files written by earlier versions; such files still load.

A run's configuration lies in its checkpoints, in `records.jsonl` and in studies; a model's in its `config.json`.
"""

from typing import Any

RENAMED_KEYS = {
    "antimask": "complementary_masks",
    "begin_with": "init_from",
    "guard.most_in_a_row": "guard.max_consecutive_skips",
    "guard.most_rollbacks": "guard.max_rollbacks",
    "keep": "keep_last_checkpoints",
    "model.places": "model.max_learned_positions",
    "z_weight": "z_loss_weight",
}
"""By dotted path in a run's configuration: its name today."""


def with_current_keys(config: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration as JSON, with the keys of today."""
    return _rename(config, "")


def with_current_model_keys(model: dict[str, Any]) -> dict[str, Any]:
    """The same for the part of it that describes the model."""
    return _rename(model, "model.")


def _rename(value: dict[str, Any], prefix: str) -> dict[str, Any]:
    renamed = {}
    for key, item in value.items():
        path = prefix + key
        new = RENAMED_KEYS.get(path, path).removeprefix(prefix)
        renamed[new] = _rename(item, f"{path}.") if isinstance(item, dict) else item
    return renamed
