"""Types for argparse: each parses a word, or raises an error that says what was expected."""

import argparse
from collections.abc import Callable

_LARGEST = 2**53  # exact as a float, far above any count of steps, samples or tokens


def positive_int(text: str) -> int:
    return whole_number(1)(text)


def whole_number(least: int, most: int = _LARGEST) -> Callable[[str], int]:
    """A type for whole numbers within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            kind = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
            raise argparse.ArgumentTypeError(f"expected {kind}, got {_shown(text)}")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected a whole number of at most {most:,}, got {_shown(text)}")
        return value

    return parse


MOST_PROCESSES = 1024
processes = whole_number(1, MOST_PROCESSES)
"""A number of processes on one machine."""
grid_size = whole_number(1, 1000)
"""A number of budgets or of models, for each of which there is a run."""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def positive_ints(text: str) -> list[int]:
    """ "64,128" -> [64, 128]"""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1 or max(values) > _LARGEST:
        raise argparse.ArgumentTypeError(f"expected positive whole numbers separated by commas, got {_shown(text)}")
    return values


def distinct_ints(text: str) -> list[int]:
    """Like `positive_ints`, with at least two different numbers."""
    values = positive_ints(text)
    if len(set(values)) < 2:
        raise argparse.ArgumentTypeError(f"expected at least two different numbers, got {_shown(text)}")
    return values


def positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {_shown(text)}")
    return value


def positive_floats(text: str) -> list[float]:
    """ "1e-3,2e-3" -> [0.001, 0.002]"""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"expected positive numbers separated by commas, got {_shown(text)}")
    return values


def float_range(text: str) -> tuple[float, float]:
    """ "1,2000" -> (1, 2000)"""
    values = positive_floats(text)
    if len(values) != 2 or not values[0] < values[1]:
        raise argparse.ArgumentTypeError(f"expected two numbers, the smaller first, got {_shown(text)}")
    return values[0], values[1]
