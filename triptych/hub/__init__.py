"""Saved models: how they lie on disk, how they are exported, and the pipeline that uses them."""
