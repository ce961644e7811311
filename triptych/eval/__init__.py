"""Metrics of generated text, images and speech, independent of how they were generated."""
