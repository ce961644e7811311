"""Names and bounds of sampling, for checks that must not import torch. A test compares the names with the tables."""

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
MOST_STEPS, MOST_CANDIDATES = 1_000_000, 1024
"""Bounds of num_steps, and of best_of: all candidates of a request are kept until they are ranked."""
PRESET_NAMES = ("scenes", "fast", "paper")
