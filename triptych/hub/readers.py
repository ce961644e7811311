"""Readers of prompts: a package may read what people type before a model does.

A model of a small world knows few words and fewer sentences. Its reader says the same in words that the model was
trained on, refuses what the model cannot mean, and names what may go wrong. A saved model names its reader
(`Limits.reader`); installed packages offer readers as entry points of the group "triptych.readers":

    [project.entry-points."triptych.readers"]
    scenes-small = "triptych.scenes.prompts:read_small"
"""

import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Literal, NamedTuple

from triptych.errors import UserError

GROUP = "triptych.readers"
Use = Literal["image", "audio", "question"]
"""What a text is for: to be drawn, to be spoken, or to be answered about an image."""


class PromptReading(NamedTuple):
    """How a text is read."""

    text: str
    """What the model gets."""
    problem: str = ""
    """Why the result may be wrong, as the end of a sentence; empty if nothing speaks against it."""


PromptReader = Callable[[str, Use], PromptReading]
"""Raises UserError for a text that the model cannot mean."""


def as_it_is(text: str, use: Use) -> PromptReading:
    """The reader of models without one."""
    return PromptReading(text)


@cache
def reader_named(name: str) -> PromptReader:
    """An installed reader. Without it prompts reach the model unread, with a warning."""
    if not name:
        return as_it_is
    for entry in entry_points(group=GROUP, name=name):
        try:
            return entry.load()
        except Exception as error:
            raise UserError(f"the reader {name!r} of this model's prompts cannot be loaded: {error}") from error
    warnings.warn(
        f"the reader {name!r} of this model's prompts is not installed: prompts that the model does not understand get "
        "no warning. If it is a model of Triptych, install again: pip install -e .",
        stacklevel=2,
    )
    return as_it_is
