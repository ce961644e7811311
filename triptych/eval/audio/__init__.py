"""Evaluation of speech: word errors, FAD, quality."""
