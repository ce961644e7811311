"""Checks of settings. An error names the setting, what it must be and what it is."""

import numbers
from collections.abc import Callable

from triptych.errors import UserError


def check_count(name: str, value: object) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {value!r}.")


def check_number(name: str, value: object, expected: str, is_valid: Callable[[float], bool]) -> None:
    """`expected` completes "must be a number"; NaN is never valid."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not is_valid(value):  # type: ignore[arg-type]
        raise UserError(f"{name} must be a number {expected}, got {value!r}.")
