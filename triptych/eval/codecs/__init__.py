"""Evaluation of tokenizers and codecs on any files."""
