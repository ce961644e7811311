"""Types of arguments: what a word must be, and what to say if it is not."""

import argparse


def whole_numbers(text: str) -> list[int]:
    """ "64,128" -> [64, 128]"""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected positive whole numbers with commas between, got {text!r}")
    return found


def whole_number(text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return found


def positive(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return found


def several(text: str) -> list[int]:
    """At least two different ones: a slope needs them."""
    found = whole_numbers(text)
    if len(set(found)) < 2:
        raise argparse.ArgumentTypeError(f"expected at least two different numbers, got {text!r}")
    return found


def numbers(text: str) -> list[float]:
    """ "1e-3,2e-3" -> [0.001, 0.002]"""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < float("inf") for number in found):
        raise argparse.ArgumentTypeError(f"expected positive numbers with commas between, got {text!r}")
    return found


def two_numbers(text: str) -> tuple[float, float]:
    """ "1,2000" -> (1, 2000)"""
    found = numbers(text)
    if len(found) != 2 or not found[0] < found[1]:
        raise argparse.ArgumentTypeError(f"expected two numbers, the smaller first, got {text!r}")
    return found[0], found[1]
