"""`/v1/images/generations` and `/v1/images/edits`, as OpenAI's clients call them."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from PIL import Image
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from triptych.errors import UserError
from triptych.hub.pipeline import Pipeline
from triptych.hub.requests import Request
from triptych.sample.canvas import Canvas
from triptych.serve import sse
from triptych.serve.bodies import ParsedRoute
from triptych.serve.canvases import checked_text, likeliest_ids, segments_in
from triptych.serve.context import call_of, service_of, unless_disconnected
from triptych.serve.filling import Filling
from triptych.serve.forms import form_schema, read_form
from triptych.serve.job import Done, Step
from triptych.serve.limits import ServeLimits
from triptych.serve.media import base64_of, decode_image, decode_mask, encode_image
from triptych.serve.schemas_openai import ImageBody
from triptych.serve.service import Call, Prepared, ServedModel, unusual
from triptych.serve.streams import merged
from triptych.serve.usage import usage_of
from triptych.vocab import Modality

router = APIRouter(route_class=ParsedRoute)

_FILES = {"image": True, "mask": False}


@router.post("/v1/images/generations")
async def generations(body: ImageBody, http: HttpRequest) -> Response:
    """Draw what a prompt says. Events: image_generation.partial_image and image_generation.completed."""
    service, call = service_of(http), call_of(http)
    model = service.model(body.model)
    model.check_kinds(["text", "image"])

    def make() -> Request:
        _check_size(body.size, model.pipe)
        return model.pipe._requests.text_to_image(checked_text(body.prompt, service.limits))

    prepared = await model.prepare(call, make, body.sampling, body.count)
    return await _Answer(call, model, prepared, body, "image_generation").respond(http)


@router.post("/v1/images/edits", openapi_extra=form_schema(ImageBody, _FILES))
async def edits(http: HttpRequest) -> Response:
    """Repaint the transparent part of a mask, or of the image itself; all of the image if nothing is transparent."""
    service, call = service_of(http), call_of(http)
    body, files = await read_form(http, ImageBody, _FILES, service.limits)
    model = service.model(body.model)
    model.check_kinds(["text", "image"])

    def make() -> Request:
        prompt = checked_text(body.prompt, service.limits)
        if max(map(len, files.values())) > 1:
            raise UserError("one image is edited at a time, with one mask.")
        image = decode_image(files["image"][0], service.limits)
        _check_sides(image, service.limits)
        mask = decode_mask((files["mask"] or files["image"])[0], service.limits)
        if not files["mask"] and not mask.any():
            mask = np.ones((image.height, image.width), bool)
        return model.pipe._requests.infill_pixels(image, mask, prompt)

    prepared = await model.prepare(call, make, body.sampling, body.count)
    return await _Answer(call, model, prepared, body, "image_edit").respond(http)


def _check_size(size: str | None, pipe: Pipeline) -> None:
    side = pipe.bundle.image.resolution
    if size not in (None, "auto", f"{side}x{side}"):
        raise UserError(f"size must be {side}x{side} or auto for this model, got {size[:40]!r}.")


def _check_sides(image: Image.Image, limits: ServeLimits) -> None:
    """An image is edited on a square."""
    if max(image.size) ** 2 > limits.pixels:
        raise UserError(
            f"an image to edit has at most {int(limits.pixels**0.5)} pixels on a side, got {max(image.size)}."
        )


@dataclass(frozen=True)
class _Answer:
    """The answer to one request for images."""

    call: Call
    model: ServedModel
    prepared: Prepared
    body: ImageBody
    name: Literal["image_generation", "image_edit"]

    async def respond(self, http: HttpRequest) -> Response:
        if self.body.stream:
            wants_steps = bool(self.body.partial_images)
            return sse.stream(self._events(self.model.submit(self.call, self.prepared, wants_steps=wants_steps)))
        return JSONResponse(await unless_disconnected(http, self._whole()))

    async def _whole(self) -> dict[str, Any]:
        filled = await self.model.fill(self.call, self.prepared)
        images = [await self._encoded(canvas) for canvas in filled]
        return {
            "created": int(time.time()),
            "data": [{"b64_json": data} for data, _ in images],
            "size": images[0][1],
            **self._described,
            "usage": usage_of(self.prepared.request.canvas, filled).for_media,
            "triptych": {"seeds": list(self.prepared.seeds), "warnings": unusual(self.prepared.warnings)},
        }

    @property
    def _described(self) -> dict[str, Any]:
        return {"output_format": self.body.output_format or "png", "background": "opaque", "quality": "auto"}

    async def _encoded(self, canvas: Canvas) -> tuple[str, str]:
        """The image of a filled canvas in base64, and its size."""

        def run() -> tuple[str, str]:
            image = self.prepared.request.read(canvas)
            data = encode_image(image, self.body.output_format or "png", self.body.output_compression)
            return base64_of(data), f"{image.width}x{image.height}"

        return await self.model.in_thread(self.call, run)

    async def _events(self, fillings: Sequence[Filling]) -> AsyncIterator[bytes]:
        num_partial = self.body.partial_images or 0
        sent = [0] * len(fillings)
        async for index, each in merged(fillings):
            extra: dict[str, Any] = {"index": index, "seed": self.prepared.seeds[index]}
            if isinstance(each, Done):
                usage = usage_of(self.prepared.request.canvas, [each.canvas]).for_media
                extra["warnings"] = unusual(self.prepared.warnings)
                yield await self._event("completed", each.canvas, {"usage": usage, "triptych": extra})
            elif _is_due(each, sent[index], num_partial):
                extra |= {"step": each.step, "num_steps": each.num_steps}
                more = {"partial_image_index": sent[index], "triptych": extra}
                sent[index] += 1
                yield await self._event("partial_image", self._expected(each), more)

    async def _event(self, kind: str, canvas: Canvas, more: dict[str, Any]) -> bytes:
        data, size = await self._encoded(canvas)
        name = f"{self.name}.{kind}"
        content = {"type": name, "b64_json": data, "created_at": int(time.time()), "size": size}
        return sse.event({**content, **self._described, **more}, name)

    def _expected(self, step: Step) -> Canvas:
        """The canvas, as if every masked position had its likeliest id."""
        assert step.outlook is not None
        vocabulary, canvas = self.model.pipe.vocabulary, self.prepared.request.canvas
        (segment,) = (each for each in segments_in(step.tokens, vocabulary) if each.modality == Modality.IMAGE)
        assert canvas.media is not None
        return canvas.with_span(replace(canvas.media, ids=likeliest_ids(segment, step.outlook, vocabulary)))


def _is_due(step: Step, num_sent: int, num_partial: int) -> bool:
    """Whether it is time for another partial image: they divide the steps into equal parts."""
    done = step.step + 1
    return done < step.num_steps and done * (num_partial + 1) >= (num_sent + 1) * step.num_steps
