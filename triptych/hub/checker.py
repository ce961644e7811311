"""Checks inputs of one model as they come, and warns about unusual ones."""

import hashlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from PIL import Image

from triptych.errors import UnusualInputWarning, UserError
from triptych.hub.directions import Kind
from triptych.hub.input_checks import FALSE_ALARM_RATE, InputCheck, InputChecks, kind_of_text
from triptych.hub.measures import RECONSTRUCTION, Measures
from triptych.tokenizers.reconstruction import LARGEST_PSNR
from triptych.utils.media import Audio

_EXCERPT = 50  # characters of a text in a message
_collected: ContextVar[list[InputCheck] | None] = ContextVar("collected", default=None)
_REMEMBERED = 64  # checks of the latest inputs: several samples of one input are checked once


class InputChecker:
    """Measures inputs and compares them with validation data. Without calibration there are no checks.

    `is_on` switches the warnings. Nothing here draws random numbers, so results do not depend on it.
    """

    def __init__(self, measures: Measures, checks: InputChecks | None, is_on: bool = True):
        self.measures, self.checks, self.is_on = measures, checks, is_on
        self._latest: dict[bytes, InputCheck] = {}

    def text(self, text: str, ids: np.ndarray, beside: Kind | None) -> InputCheck:
        return self._check(
            kind_of_text(beside), ids.tobytes(), lambda: self.measures.text(ids, beside), _excerpt_of(text)
        )

    def image(self, image: Image.Image, ids: np.ndarray) -> InputCheck:
        def measure() -> dict[str, float]:
            values = self.measures.image(image, ids)
            # What the tokenizer reproduces exactly was made by it: an image of this model, or a reconstruction.
            return {name: value for name, value in values.items() if (name, value) != (RECONSTRUCTION, LARGEST_PSNR)}

        return self._check("image", repr(image.size).encode() + image.tobytes(), measure)

    def audio(self, audio: Audio, ids: np.ndarray) -> InputCheck:
        key = repr(audio.sample_rate).encode() + audio.samples.tobytes()
        return self._check("audio", key, lambda: self.measures.audio(audio, ids))

    def warn_about_text(self, text: str, ids: np.ndarray, beside: Kind | None, problem: str = "") -> None:
        """`problem` is what the model's reader found, if anything; then nothing is measured."""
        if problem and self.is_on:
            threshold = self.checks.threshold if self.checks else 1 - FALSE_ALARM_RATE
            _warn(InputCheck(kind_of_text(beside), 1.0, threshold, np.inf, excerpt=_excerpt_of(text), reason=problem))
        elif self._is_checked(kind_of_text(beside)) and (ids >= 0).any():
            _warn(self.text(text, ids, beside))

    def warn_about_image(self, image: Image.Image, ids: np.ndarray) -> None:
        if self._is_checked("image"):
            _warn(self.image(image, ids))

    def warn_about_audio(self, audio: Audio, ids: np.ndarray) -> None:
        if self._is_checked("audio"):
            _warn(self.audio(audio, ids))

    def _is_checked(self, kind: str) -> bool:
        return self.is_on and self.checks is not None and kind in self.checks.distributions

    def _check(
        self, kind: str, content: bytes, measure: Callable[[], dict[str, float]], excerpt: str | None = None
    ) -> InputCheck:
        if self.checks is None or kind not in self.checks.distributions:
            raise UserError(
                f"this model has no validation distribution for inputs of the kind {kind!r}: "
                "make one with `triptych calibrate MODEL DATA`."
            )
        key = hashlib.sha256(kind.encode() + content).digest()
        check = self._latest.get(key)
        if check is None:
            check = self.checks.check(kind, measure(), excerpt)
            while len(self._latest) >= _REMEMBERED:
                self._latest.pop(next(iter(self._latest)), None)
            self._latest[key] = check
        return check


def _excerpt_of(text: str) -> str:
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


@contextmanager
def collect_checks() -> Iterator[list[InputCheck]]:
    """Collect the checks of this thread's inputs instead of warning about them."""
    checks: list[InputCheck] = []
    token = _collected.set(checks)
    try:
        yield checks
    finally:
        _collected.reset(token)


def _warn(check: InputCheck) -> None:
    """Warn at the line that called the package."""
    collected = _collected.get()
    if collected is not None:
        collected.append(check)
    elif check.is_unusual:
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("triptych."):
            level, frame = level + 1, frame.f_back
        warnings.warn(UnusualInputWarning(check.message, check), stacklevel=level)
