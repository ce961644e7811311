"""Evaluation of images: distances to references, CLIP score, GenEval."""
