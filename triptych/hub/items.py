"""One item or a list of them: methods return one result for one item, and a list for a list."""

from collections.abc import Callable
from typing import Any

import numpy as np

from triptych.errors import UserError


def is_several(items: Any) -> bool:
    """Whether this is a list or tuple of items. A pair of samples and rate is one item."""
    is_audio = isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], np.ndarray)
    return isinstance(items, list | tuple) and not is_audio


def for_each(function: Callable[[Any], Any], items: Any) -> Any:
    """The result for one item, or a list of results for several."""
    return [function(item) for item in items] if is_several(items) else function(items)


def for_each_pair(function: Callable[[Any, Any], Any], first: Any, second: Any, names: tuple[str, str]) -> Any:
    """The same for pairs. One item goes with every item of several; `names` are what both are called."""
    if not is_several(first) and not is_several(second):
        return function(first, second)
    firsts, seconds = (list(items) if is_several(items) else [items] for items in (first, second))
    firsts = firsts * len(seconds) if len(firsts) == 1 else firsts
    seconds = seconds * len(firsts) if len(seconds) == 1 else seconds
    if len(firsts) != len(seconds):
        raise UserError(f"expected as many {names[1]} as {names[0]}, got {len(seconds)} and {len(firsts)}.")
    return [function(*pair) for pair in zip(firsts, seconds)]
