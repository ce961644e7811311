"""Warnings about unusual inputs, as commands print them."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triptych.errors import UnusualInputWarning
from triptych.utils.terminal import say


@contextmanager
def printed_warnings() -> Iterator[dict[str, Any]]:
    """Print each warning as one line on standard error, once; yields those so far, by message, as JSON."""
    printed: dict[str, Any] = {}

    def show(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
        if not isinstance(message, UnusualInputWarning):
            show_others(message, category, *rest, **options)
        elif str(message) not in printed:
            printed[str(message)] = {"message": str(message), **message.check.as_json}
            say(f"triptych: warning: {message}", sys.stderr)

    with warnings.catch_warnings():
        show_others = warnings.showwarning
        warnings.simplefilter("always", UnusualInputWarning)
        warnings.showwarning = show
        yield printed
