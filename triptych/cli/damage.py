"""Warnings about damaged files, as commands print them."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triptych.errors import DamageWarning
from triptych.utils.terminal import say


@contextmanager
def printed_damage() -> Iterator[None]:
    """Print each `DamageWarning` as one line on standard error, once."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
        if issubclass(category, DamageWarning):
            say(f"triptych: warning: {message}", sys.stderr)
        else:
            show_others(message, category, *rest, **options)

    with warnings.catch_warnings():
        show_others = warnings.showwarning
        warnings.simplefilter("default", DamageWarning)
        warnings.showwarning = show
        yield
