"""Names of samplers and presets, for checks that must not import torch. A test compares them with the real tables."""

SAMPLER_NAMES = (
    "ancestral",
    "first_hitting",
    "random_order",
    "remdm",
    "low_confidence",
    "maskgit",
    "threshold",
    "entropy_bounded",
    "blocks",
)
PRESET_NAMES = ("scenes", "fast", "paper")
