"""Hyperparameter transfer: values tuned on a small base model, scaled to other widths, depths, batches and tokens."""
