"""Helpers without knowledge of models: random numbers, media files, plots, work shared by processes."""
