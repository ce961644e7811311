"""Texts that are longer than a model's sequences.

    prompt and answer fit     one window
    the prompt is too long    its beginning is cut off
    the answer is too long    windows: the first is full, each later one is half full of the answer before it

By the chain rule, the log-likelihood of an answer is the sum over its windows.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Windows:
    """A prompt and an answer in pieces that fit the model."""

    parts: tuple[tuple[np.ndarray, np.ndarray], ...]
    """A prompt and an answer each; the answers are consecutive."""
    num_cut: int
    """Tokens of the prompt that the first window does not see."""


def fit_windows(prompt: np.ndarray, answer: np.ndarray, room: int) -> Windows:
    """Windows of at most `room` tokens, which is at least 2. An empty answer has one window."""
    assert room >= 2
    first = min(len(answer), room)
    kept = prompt[max(0, len(prompt) - (room - first)) :] if first < room else prompt[:0]
    parts = [(kept, answer[:first])]
    stride, done = room - room // 2, first
    while done < len(answer):
        stop = min(done + stride, len(answer))
        parts.append((answer[stop - room : done], answer[done:stop]))
        done = stop
    return Windows(tuple(parts), len(prompt) - len(kept))
