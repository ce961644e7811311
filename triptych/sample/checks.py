"""Checks of settings. An error names the setting, what it must be and what it is."""

import numbers
from collections.abc import Callable

from triptych.errors import UserError
from triptych.utils.arguments import shown


def check_count(name: str, value: object, most: int | None = None) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {shown(value)}.")
    if most is not None and int(value) > most:
        raise UserError(f"{name} must be at most {most:,}, got {shown(value)}.")


def check_number(name: str, value: object, expected: str, is_valid: Callable[[float], bool]) -> None:
    """`expected` completes "must be a number"; NaN is never valid."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not is_valid(value):  # type: ignore[arg-type]
        raise UserError(f"{name} must be a number {expected}, got {shown(value)}.")
