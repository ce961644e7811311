"""`/v1/completions`, as OpenAI's clients call it."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from triptych.errors import UserError
from triptych.hub.requests import Request
from triptych.sample.canvas import MASKED
from triptych.serve import sse
from triptych.serve.bodies import ParsedRoute
from triptych.serve.context import call_of, service_of, unless_disconnected
from triptych.serve.filling import Filling
from triptych.serve.probabilities import Probabilities, check_probabilities
from triptych.serve.schemas_openai import CompletionBody
from triptych.serve.service import Call, Prepared, ServedModel, unusual
from triptych.serve.streams import merged
from triptych.serve.text_requests import completion_of
from triptych.serve.usage import Usage
from triptych.serve.writing import Progress, Writer, Written, write

router = APIRouter(route_class=ParsedRoute)


@router.post("/v1/completions")
async def completions(body: CompletionBody, http: HttpRequest) -> Response:
    """Continue texts, or with `suffix` fill in what lies between two."""
    service, call = service_of(http), call_of(http)
    model = service.model(body.model)
    model.check_kinds(["text"])
    if len(body.prompts) * body.count > service.limits.results:
        raise UserError(f"the prompts times n must be 1 to {service.limits.results}.")
    if not body.prompts:
        raise UserError("expected a prompt, got an empty list.")
    answer = _Answer(call, model, body)
    for prompt in body.prompts:
        make = partial(completion_of, model.pipe, body, prompt, service.limits)
        prepared = await model.prepare(call, make, body.sampling, body.count)
        if body.logprobs is not None:
            check_probabilities(prepared.config, body.stream, body.logprobs, service.limits.top_k)
        answer.add(prepared)
    answer.submit()
    if body.stream:
        return sse.stream(answer.events())
    return JSONResponse(await unless_disconnected(http, answer.whole()))


@dataclass(frozen=True)
class _Choice:
    prepared: Prepared
    filling: Filling


class _Answer:
    """The answer to one request for completions."""

    def __init__(self, call: Call, model: ServedModel, body: CompletionBody):
        self.call, self.model, self.body = call, model, body
        self._prepared: list[Prepared] = []
        self._choices: list[_Choice] = []
        self._head = {
            "id": f"cmpl-{call.name}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self._usage = Usage()

    def add(self, prepared: Prepared) -> None:
        """Add the choices for a prompt."""
        self._prepared.append(prepared)

    def submit(self) -> None:
        """Begin to write all choices."""
        wants_steps, top_k = bool(self.body.stream) or self.body.logprobs is not None, max(1, self.body.logprobs or 0)
        fillings = self.model.submit(self.call, *self._prepared, wants_steps=wants_steps, top_k=top_k)
        requests = [prepared for prepared in self._prepared for _ in prepared.seeds]
        self._choices = [_Choice(*each) for each in zip(requests, fillings)]

    async def whole(self) -> dict[str, Any]:
        made: dict[int, dict[str, Any]] = {}
        async for index, each in merged([self._choice(choice) for choice in self._choices]):
            if isinstance(each, dict):
                made[index] = {**each, "index": index}
        return {
            **self._head,
            "choices": [made[index] for index in sorted(made)],
            "usage": self._usage.for_text,
            "triptych": {
                "seeds": [seed for prepared in self._prepared for seed in prepared.seeds],
                "warnings": unusual([each for prepared in self._prepared for each in prepared.warnings]),
            },
        }

    async def _choice(self, choice: _Choice) -> AsyncIterator[Progress | dict[str, Any]]:
        """Progress, and then the choice itself."""
        request, prepared, body = choice.prepared.request, choice.prepared, self.body
        writer = Writer(request, prepared.config, body.stops, body.max_tokens)
        seen = None if body.logprobs is None else Probabilities(self.model.pipe, body.logprobs)
        async for each in write(
            self.model, self.call, choice.filling, writer, stream=bool(body.stream), probabilities=seen
        ):
            if isinstance(each, Progress):
                yield each
                continue
            self._usage.add(request.canvas, each.canvas)
            logprobs = None if seen is None else self._logprobs(seen, writer, request, each)
            yield {"text": each.text, "finish_reason": each.finish_reason, "logprobs": logprobs}

    def _logprobs(self, seen: Probabilities, writer: Writer, request: Request, written: Written) -> dict[str, Any]:
        ids = written.canvas.text.ids
        if self.body.echo:
            return seen.for_completions(ids, list(range(len(ids))))
        asked = request.canvas.text.ids
        is_new = np.concatenate([asked == MASKED, np.full(max(0, len(ids) - len(asked)), True)])[: len(ids)]
        return seen.for_completions(ids, np.flatnonzero(is_new).tolist())

    async def events(self) -> AsyncIterator[bytes]:
        async for index, each in merged([self._choice(choice) for choice in self._choices]):
            empty = {"index": index, "text": "", "finish_reason": None, "logprobs": None}
            if isinstance(each, Progress):
                frame = {} if each.frame is None else {"triptych": each.frame}
                yield sse.event({**self._head, "choices": [{**empty, "text": each.delta}], **frame})
            else:
                yield sse.event({**self._head, "choices": [{**empty, "finish_reason": each["finish_reason"]}]})
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield sse.event({**self._head, "choices": [], "usage": self._usage.for_text})
        yield sse.DONE
