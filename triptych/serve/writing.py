"""Texts as they are written: what is certain so far, and where a text ends.

A diffusion model fills in a text in any order. What is shown in a stream is the longest beginning without gaps, and
only what no later step can change: nothing if the sampler may mask tokens again, or if the text is one of several
candidates.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from triptych.hub.requests import Request
from triptych.sample.canvas import MASKED, Canvas
from triptych.sample.config import SamplingConfig
from triptych.serve.canvases import SegmentIds, pieces_of, text_segment
from triptych.serve.filling import Filling
from triptych.serve.job import Step
from triptych.serve.probabilities import Probabilities
from triptych.serve.service import Call, ServedModel

_PART_OF_CHARACTER = "\ufffd"  # how a character decodes of which there are only some bytes


@dataclass(frozen=True)
class Written:
    text: str
    finish_reason: Literal["stop", "length"]
    canvas: Canvas
    """Filled, and cut where the text was cut."""


class Writer:
    """Reads the text of one request whose target is text."""

    def __init__(
        self, request: Request, config: SamplingConfig, stops: Sequence[str] = (), max_tokens: int | None = None
    ):
        span = request.canvas.text
        gaps = np.flatnonzero(span.ids == MASKED)
        self.request, self._stops = request, stops
        self.first = int(gaps[0]) if len(gaps) else len(span.ids)
        """Index of the first token to write."""
        self._is_open = span.open_slot is not None
        self._max_ids = self.first + max_tokens if max_tokens is not None and self._is_open else None
        may_change = "remdm" in (config.sampler, config.options.get("inner")) or config.best_of > 1
        self._is_certain = not may_change
        self._held_back = max(map(len, stops), default=1) - 1

    def final(self, filled: Canvas) -> Written:
        ids = filled.text.ids[: self._max_ids]
        is_cut = len(ids) < len(filled.text.ids)
        for end in range(self.first, len(ids) + 1) if self._stops else [len(ids)]:
            canvas = _with_text(filled, ids[:end])
            text, is_stopped = self._up_to_stop(self.request.read(canvas))
            if is_stopped:
                return Written(text, "stop", canvas)
        return Written(text, "length" if is_cut or not self._is_open else "stop", canvas)

    def certain(self, segment: SegmentIds) -> str:
        """The beginning of the text that no later step can change."""
        if not self._is_certain:
            return ""
        gaps = np.flatnonzero(segment.ids == MASKED)
        ids = segment.ids[: gaps[0] if len(gaps) else None][: self._max_ids]
        if len(ids) < self.first:
            return ""
        text, is_stopped = self._up_to_stop(self.request.read(_with_text(self.request.canvas, ids)))
        if is_stopped:
            return text
        return text[: len(text) - self._held_back].rstrip(_PART_OF_CHARACTER)

    def _up_to_stop(self, text: str) -> tuple[str, bool]:
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        return (text[: min(ends)], True) if ends else (text, False)


def _with_text(canvas: Canvas, ids: np.ndarray) -> Canvas:
    return canvas.with_span(replace(canvas.text, ids=ids, open_slot=None))


@dataclass(frozen=True)
class Progress:
    """A step of a text that is being written."""

    delta: str
    """What has become certain."""
    frame: dict[str, Any] | None = None
    """All tokens as they are after the step; those that are masked are null."""


async def write(
    model: ServedModel,
    call: Call,
    filling: Filling,
    writer: Writer,
    *,
    stream: bool,
    probabilities: Probabilities | None = None,
) -> AsyncIterator[Progress | Written]:
    """Write one text. With `stream` there is progress at every step, whose deltas make up the text.

    `stream` and `probabilities` need a filling with steps.
    """
    sent = ""
    async for each in filling:
        if isinstance(each, Step):
            if probabilities is not None:
                probabilities.see(each)
            if stream:
                segment = text_segment(each.tokens, model.pipe.vocabulary)
                text = writer.certain(segment)
                yield Progress(text[len(sent) :], _frame(model, each, segment))
                sent = max(sent, text, key=len)
        else:
            written = await model.in_thread(call, partial(writer.final, each.canvas))
            assert written.text.startswith(sent)
            if stream:
                yield Progress(written.text[len(sent) :])
            yield written


def _frame(model: ServedModel, step: Step, segment: SegmentIds) -> dict[str, Any]:
    return {
        "modality": "text",
        "step": step.step,
        "num_steps": step.num_steps,
        "pieces": pieces_of(model.pipe, segment.ids),
    }
