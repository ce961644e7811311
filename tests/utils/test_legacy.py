"""Configurations of earlier versions."""

from typing import Any

from triptych.recipes import recipe
from triptych.utils.config import fill_in, to_json
from triptych.utils.legacy import with_current_keys, with_current_model_keys

# A run's configuration as the first version saved it.
SAVED: dict[str, Any] = {
    "recipe": "nano",
    "model": {
        "num_layers": 1,
        "width": 16,
        "num_heads": 2,
        "d_ff": 24,
        "softmax_scope": "modality",
        "places": 0,
        "rope_base": 10000.0,
        "norm_eps": 1e-06,
        "init_std": 0.1,
        "residual_scale": 1.0,
        "logit_scale": 1.0,
    },
    "loader": {
        "seq_len": 20,
        "global_batch": 9,
        "layout": {"kind": "packed", "row_length": 40, "micro_batch_rows": None},
        "task_weights": {"text": 1.0, "image-text": 1.0, "audio-text": 1.0},
        "dataset_weights": {},
        "p_subsample": 0.05,
        "document_attention": True,
        "mask_text_eos": "packed",
        "open_ends": {"probability": 0.0, "text": 0, "audio": 0, "audio_share": 1.0},
        "seed": 0,
        "num_workers": 0,
        "prefetch": 0,
    },
    "optimizer": {
        "lr": 0.01,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-08,
        "weight_decay": 0.1,
        "clip": 1.0,
        "warmup_steps": 2,
        "min_lr_ratio": 0.0011111111111111111,
    },
    "num_steps": 6,
    "data": ["train/text", "train/image-text", "train/audio-text"],
    "validation_data": [],
    "tokenizers": "scenes",
    "world": None,
    "begin_with": None,
    "transfer": {
        "rule": "standard",
        "base_width": None,
        "base_layers": None,
        "depth_exponent": 1.0,
        "base_batch": None,
        "base_steps": None,
        "base_seq_len": None,
        "gamma": 0.44,
        "scales_decay": True,
        "scales_clip": True,
        "warmup_mode": "steps",
        "per_module": "none",
        "multipliers": {},
    },
    "corrupt": {
        "schedule": {"kind": "linear"},
        "text_schedule": None,
        "time_mode": "shared",
        "p_one_sided": 0.3,
        "p_prompt_masked": 0.1,
        "p_text_end": 0.0,
        "smallest_time": 0.001,
        "seed": 0,
    },
    "norm": "sequence",
    "antimask": False,
    "z_weight": 1e-05,
    "ema_decay": 0.9,
    "validation": {"every": 4, "sequences": 4, "draws": 1},
    "parallel": {
        "shard": None,
        "precision": "float32",
        "checkpoint_activations": False,
        "compile": False,
        "reshard_after_forward": True,
        "timeout": 600.0,
        "watch": 300.0,
    },
    "guard": {"spike_sigmas": None, "spike_window": 100, "most_in_a_row": 10, "most_rollbacks": 3},
    "log_every": 1,
    "save_every": 100,
    "keep": 2,
    "threads": None,
    "tensorboard": False,
    "seed": 0,
}


def keys_of(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    return {key for name, item in value.items() for key in keys_of(item, f"{prefix}.{name}" if prefix else name)}


def test_a_configuration_of_the_first_version_has_all_current_keys() -> None:
    current = recipe("nano")
    filled = fill_in(with_current_keys(SAVED), current)
    kinds = ("corrupt.schedule", "corrupt.text_schedule", "loader.layout", "transfer.multipliers")
    saved, expected = (
        {key for key in keys_of(config) if not key.startswith(kinds)} for config in (filled, to_json(current))
    )
    assert saved == expected


def test_old_keys_are_renamed_or_removed() -> None:
    config = with_current_keys(SAVED)
    assert config["complementary_masks"] is False
    assert config["z_loss_weight"] == 1e-05
    assert config["corrupt"]["smallest_mask_rate"] == 0.001
    assert config["keep_last_checkpoints"] == 2
    assert config["guard"]["max_rollbacks"] == 3
    assert config["parallel"]["hang_timeout"] == 300.0
    assert config["model"]["max_learned_positions"] == 0
    assert "world" not in config
    assert with_current_keys(config) == config
    assert SAVED["keep"] == 2  # not changed


def test_a_model_configuration_has_current_keys() -> None:
    assert with_current_model_keys(SAVED["model"]) == with_current_keys(SAVED)["model"]
