"""Hyperparameters that are tuned once, small, and follow width, depth, batch size, tokens and role of a weight."""
