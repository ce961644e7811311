"""Types for argparse: each parses a word, or raises an error that says what was expected."""

import argparse


def positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return value


def positive_ints(text: str) -> list[int]:
    """ "64,128" -> [64, 128]"""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"expected positive whole numbers separated by commas, got {text!r}")
    return values


def distinct_ints(text: str) -> list[int]:
    """Like `positive_ints`, with at least two different numbers."""
    values = positive_ints(text)
    if len(set(values)) < 2:
        raise argparse.ArgumentTypeError(f"expected at least two different numbers, got {text!r}")
    return values


def positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def positive_floats(text: str) -> list[float]:
    """ "1e-3,2e-3" -> [0.001, 0.002]"""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"expected positive numbers separated by commas, got {text!r}")
    return values


def float_range(text: str) -> tuple[float, float]:
    """ "1,2000" -> (1, 2000)"""
    values = positive_floats(text)
    if len(values) != 2 or not values[0] < values[1]:
        raise argparse.ArgumentTypeError(f"expected two numbers, the smaller first, got {text!r}")
    return values[0], values[1]
