"""Masked diffusion: the forward process (masking), and the training and evaluation objectives."""
