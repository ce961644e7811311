"""Triptych: one masked-diffusion model for text, images and audio, pretrained from scratch."""

__version__ = "0.1.0"
