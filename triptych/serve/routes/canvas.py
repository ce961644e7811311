"""`/v1/canvas`: any canvas, filled at once or step by step; `/v1/encode` and `/v1/decode`: its segments."""

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from triptych.errors import UserError
from triptych.sample.canvas import MASKED, Canvas
from triptych.serve import sse
from triptych.serve.bodies import ParsedRoute
from triptych.serve.canvases import (
    SegmentIds,
    content_of,
    layout_of,
    likeliest_ids,
    pieces_of,
    request_of,
    segments_in,
    span_of,
)
from triptych.serve.context import call_of, service_of, unless_disconnected
from triptych.serve.filling import Filling
from triptych.serve.job import Done, Outlook, Step
from triptych.serve.schemas import CanvasBody, DecodeBody, EncodeBody, Segment
from triptych.serve.service import Call, Prepared, ServedModel, unusual
from triptych.vocab import Modality

router = APIRouter(route_class=ParsedRoute)


@router.post("/v1/canvas")
async def canvas(body: CanvasBody, http: HttpRequest) -> Response:
    """Fill a canvas. With `stream`, the events are canvas.created, canvas.step, canvas.preview and canvas.completed."""
    service, call = service_of(http), call_of(http)
    model = service.model(body.model)
    model.check_kinds(segment.modality for segment in body.segments)
    if body.top_k > service.limits.top_k:
        raise UserError(f"top_k must be at most {service.limits.top_k}, got {body.top_k}.")
    prepared = await model.prepare(call, lambda: request_of(model.pipe, body.segments, service.limits), body.sampling)
    (filling,) = model.submit(call, prepared, wants_steps=body.stream, top_k=body.top_k)
    answer = _Answer(call, model, prepared, filling, body)
    if body.stream:
        return sse.stream(answer.events())
    return JSONResponse(await unless_disconnected(http, answer.completed()))


@router.post("/v1/encode")
async def encode(body: EncodeBody, http: HttpRequest) -> Response:
    """The tokens of a text, an image or audio, and what a model sees of it."""
    service, call = service_of(http), call_of(http)
    model = service.model(body.model)
    model.check_kinds([body.modality])
    segment = Segment(modality=body.modality, content=body.content)

    def run() -> dict[str, Any]:
        if not body.content:
            raise UserError("expected content, got an empty one.")
        span = span_of(model.pipe, segment, service.limits, "image" if body.prompt else None, body.prompt)
        return _segment_json(model, SegmentIds(span.modality, 0, span.ids), with_content=True)

    return JSONResponse(await model.in_thread(call, run))


@router.post("/v1/decode")
async def decode(body: DecodeBody, http: HttpRequest) -> Response:
    """The text, image or audio of tokens."""
    service, call = service_of(http), call_of(http)
    model = service.model(body.model)
    model.check_kinds([body.modality])
    segment = Segment(modality=body.modality, tokens=body.tokens)

    def run() -> dict[str, Any]:
        span = span_of(model.pipe, segment, service.limits)
        return _segment_json(model, SegmentIds(span.modality, 0, span.ids), with_content=True)

    return JSONResponse(await model.in_thread(call, run))


def _segment_json(model: ServedModel, segment: SegmentIds, *, with_content: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {
        "modality": segment.modality.name.lower(),
        "tokens": [None if each == MASKED else int(each) for each in segment.ids],
        **layout_of(model.pipe, segment.modality, len(segment.ids)),
    }
    if segment.modality == Modality.TEXT:
        made["pieces"] = pieces_of(model.pipe, segment.ids)
    if with_content:
        made["content"] = content_of(model.pipe, segment.modality, segment.ids)
    return made


class _Answer:
    """The answer to one canvas."""

    def __init__(self, call: Call, model: ServedModel, prepared: Prepared, filling: Filling, body: CanvasBody):
        self.call, self.model, self.prepared, self.filling, self.body = call, model, prepared, filling, body
        self.vocabulary = model.pipe.vocabulary
        self.order = [Modality[segment.modality.upper()] for segment in body.segments]
        self.head = {
            "id": f"canvas-{call.name}",
            "model": model.name,
            "created": int(time.time()),
            "seed": prepared.seeds[0],
        }

    async def completed(self) -> dict[str, Any]:
        return {"object": "canvas", **await self._completed(await self.filling.canvas())}

    async def _completed(self, filled: Canvas) -> dict[str, Any]:
        def run() -> list[dict[str, Any]]:
            spans = {span.modality: SegmentIds(span.modality, 0, span.ids) for span in filled.spans}
            return [_segment_json(self.model, spans[modality], with_content=True) for modality in self.order]

        segments = await self.model.in_thread(self.call, run)
        return {**self.head, "segments": segments, "warnings": unusual(self.prepared.warnings)}

    async def events(self) -> AsyncIterator[bytes]:
        yield self._event("created", {**self.head, "warnings": unusual(self.prepared.warnings)})
        before: list[SegmentIds] | None = None
        async for each in self.filling:
            if isinstance(each, Done):
                yield self._event("completed", await self._completed(each.canvas))
                continue
            segments = self._segments(each.tokens)
            if before is None:
                before = [self._at_first(segment) for segment in segments]
                yield self._event("start", {"segments": [_segment_json(self.model, one) for one in before]})
            yield self._event("step", self._step(each, before, segments))
            before = segments
            if self.body.preview_every and (each.step + 1) % self.body.preview_every == 0:
                yield self._event("preview", await self._preview(each, segments))

    def _event(self, name: str, content: dict[str, Any]) -> bytes:
        return sse.event({"type": f"canvas.{name}", **content}, f"canvas.{name}")

    def _segments(self, tokens: np.ndarray) -> list[SegmentIds]:
        """In the order of the request."""
        by_modality = {segment.modality: segment for segment in segments_in(tokens, self.vocabulary)}
        return [by_modality[modality] for modality in self.order]

    def _at_first(self, segment: SegmentIds) -> SegmentIds:
        """A segment before the first step: what was given, and the rest of its length masked."""
        (span,) = (span for span in self.prepared.request.canvas.spans if span.modality == segment.modality)
        rest = np.full(len(segment.ids) - len(span.ids), MASKED, np.int64)
        return replace(segment, ids=np.concatenate([span.ids, rest]))

    def _step(self, step: Step, before: list[SegmentIds], after: list[SegmentIds]) -> dict[str, Any]:
        assert step.outlook is not None
        return {
            "step": step.step,
            "num_steps": step.num_steps,
            "deltas": [
                {"segment": number, **delta}
                for number, (old, new) in enumerate(zip(before, after))
                for delta in self._deltas(old, new, step.outlook)
            ],
            "masked": [int((segment.ids == MASKED).sum()) for segment in after],
            "outlook": self._outlook(step.outlook, after),
        }

    def _deltas(self, before: SegmentIds, after: SegmentIds, outlook: Outlook) -> Iterator[dict[str, Any]]:
        """Positions that changed: filled, or masked again (id null)."""
        for position in np.flatnonzero(before.ids != after.ids).tolist():
            local = int(after.ids[position])
            delta: dict[str, Any] = {"position": position, "id": None if local == MASKED else local}
            if local != MASKED:
                delta["confidence"] = float(outlook.confidence[after.start + position])
                if after.modality == Modality.TEXT:
                    (delta["piece"],) = pieces_of(self.model.pipe, after.ids[position : position + 1])
            yield delta

    def _outlook(self, outlook: Outlook, segments: list[SegmentIds]) -> list[dict[str, Any]]:
        """What the model expected before the step, by segment: a list entry for each position that was masked."""
        made = []
        for segment in segments:
            first, vocabulary = self.vocabulary.ids(segment.modality).start, self.vocabulary
            inside = (outlook.positions >= segment.start) & (outlook.positions < segment.start + len(segment.ids))
            local = outlook.ids[inside] - first
            is_data = (local >= 0) & (local < vocabulary.data_size(segment.modality))  # EOS has no id of its own here
            seen: dict[str, Any] = {
                "positions": (outlook.positions[inside] - segment.start).tolist(),
                "entropy": outlook.entropy[inside].round(4).tolist(),
                "ids": [[int(x) if ok else None for x, ok in zip(*row)] for row in zip(local, is_data)],
                "prob": outlook.prob[inside].round(5).tolist(),
            }
            if segment.modality == Modality.TEXT:
                rows = np.where(is_data, local, MASKED)
                seen["pieces"] = [pieces_of(self.model.pipe, row) for row in rows]
            made.append(seen)
        return made

    async def _preview(self, step: Step, segments: list[SegmentIds]) -> dict[str, Any]:
        """The content as it would be if every masked position had its likeliest id."""
        outlook = step.outlook
        assert outlook is not None

        def run() -> list[str]:
            likeliest = [likeliest_ids(segment, outlook, self.vocabulary) for segment in segments]
            return [content_of(self.model.pipe, each.modality, ids) for each, ids in zip(segments, likeliest)]

        return {"step": step.step, "contents": await self.model.in_thread(self.call, run)}
