"""`/v1/chat/completions`, as OpenAI's clients call it."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from triptych.sample.canvas import Canvas
from triptych.serve import sse
from triptych.serve.bodies import ParsedRoute
from triptych.serve.canvases import num_masked
from triptych.serve.context import call_of, service_of, unless_disconnected
from triptych.serve.filling import Filling
from triptych.serve.job import Done, Step
from triptych.serve.media import base64_of, data_uri, encode_audio, encode_image
from triptych.serve.probabilities import Probabilities, check_probabilities
from triptych.serve.schemas_openai import ChatBody
from triptych.serve.service import Call, Prepared, ServedModel, unusual
from triptych.serve.streams import merged
from triptych.serve.turns import Turn, turn_of
from triptych.serve.usage import Usage
from triptych.serve.writing import Progress, Writer, write
from triptych.vocab import Modality

router = APIRouter(route_class=ParsedRoute)


@router.post("/v1/chat/completions")
async def chat(body: ChatBody, http: HttpRequest) -> Response:
    """Answer the last message: by `modalities` with a text, an image or speech."""
    service, call = service_of(http), call_of(http)
    model = service.model(body.model)
    if body.max_completion_tokens is not None:
        body.max_tokens = body.max_completion_tokens
    turn = turn_of(body, service.limits)
    model.check_kinds(turn.kinds)
    sampling = body.sampling
    if turn.is_chain:  # what the client asks for is for the result, as in `Pipeline`
        seed = sampling.pop("seed", 0)
        model.sampling_config(Modality[turn.output.upper()], None, sampling, body.count)  # before the text is written
        sampling = {"seed": seed}
    prepared = await model.prepare(call, lambda: turn.request(model.pipe, service.limits), sampling, body.count)
    if body.logprobs and turn.output == "text":
        check_probabilities(prepared.config, body.stream, body.top_logprobs or 0, service.limits.top_k)
    answer = _Answer(call, model, turn, prepared)
    answer.submit()
    if body.stream:
        return sse.stream(answer.events())
    return JSONResponse(await unless_disconnected(http, answer.whole()))


@dataclass
class _Message:
    """One choice, complete."""

    message: dict[str, Any]
    finish_reason: str
    logprobs: dict[str, Any] | None = None


@dataclass
class _Answer:
    """The answer to one chat."""

    call: Call
    model: ServedModel
    turn: Turn
    prepared: Prepared
    created: int = field(default_factory=lambda: int(time.time()))
    usage: Usage = field(default_factory=Usage)
    fillings: list[Filling] = field(default_factory=list)

    def submit(self) -> None:
        """Begin with all choices; in a chain, with their texts."""
        logprobs = self._wants_probabilities
        top_k = max(1, self.turn.body.top_logprobs or 0) if logprobs else 1
        self.fillings = self.model.submit(self.call, self.prepared, wants_steps=self.stream or logprobs, top_k=top_k)

    @property
    def _wants_probabilities(self) -> bool:
        return bool(self.turn.body.logprobs) and self.turn.output == "text"

    @property
    def stream(self) -> bool:
        return bool(self.turn.body.stream)

    async def whole(self) -> dict[str, Any]:
        made: dict[int, _Message] = {}
        async for index, each in self._choices():
            if isinstance(each, _Message):
                made[index] = each
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": None, "refusal": None, **made[index].message},
                "finish_reason": made[index].finish_reason,
                "logprobs": made[index].logprobs,
            }
            for index in sorted(made)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage.for_text, **self._extra}

    @property
    def _extra(self) -> dict[str, Any]:
        extra = {
            "direction": self.turn.direction.name,
            "seeds": list(self.prepared.seeds),
            "warnings": unusual(self.prepared.warnings),
        }
        return {"triptych": extra}

    async def events(self) -> AsyncIterator[bytes]:
        for index in range(len(self.prepared.seeds)):
            yield self._chunk(index, {"role": "assistant", "content": ""}, self._extra)
        async for index, each in self._choices():
            if isinstance(each, Progress):
                frame = {} if each.frame is None else {"triptych": each.frame}
                yield self._chunk(index, self._delta(index, each.delta), frame)
            else:
                media = {key: value for key, value in each.message.items() if key in ("images", "audio")}
                if "audio" in media:
                    media["audio"] = {**media["audio"], "transcript": ""}  # has been sent
                if media:
                    yield self._chunk(index, media)
                yield self._chunk(index, {}, finish_reason=each.finish_reason)
        options = self.turn.body.stream_options
        if options and options.include_usage:
            yield sse.event({**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage.for_text})
        yield sse.DONE

    def _delta(self, index: int, text: str) -> dict[str, Any]:
        """More text: of the answer, or of what is spoken."""
        if not text:
            return {}
        if self.turn.output == "audio":
            return {"audio": {"id": self._audio_id(index), "transcript": text}}
        return {"content": text}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.call.name}", "object": kind, "created": self.created, "model": self.model.name}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        extra: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return sse.event({**self._head("chat.completion.chunk"), "choices": [choice], **(extra or {})})

    def _audio_id(self, index: int) -> str:
        return f"audio-{self.call.name}-{index}"

    def _choices(self) -> AsyncIterator[tuple[int, Progress | _Message]]:
        return merged([self._choice(index, filling) for index, filling in enumerate(self.fillings)])

    async def _choice(self, index: int, filling: Filling) -> AsyncIterator[Progress | _Message]:
        """Progress if the answer is a stream, and then the message."""
        if self.turn.output == "text":
            async for each in self._write(filling):
                yield each
            return
        text, prepared = self.turn.text, self.prepared
        if self.turn.is_chain:
            async for progress in write(self.model, self.call, filling, self._writer, stream=self.stream):
                if isinstance(progress, Progress):
                    yield progress
                else:
                    self.usage.add(prepared.request.canvas, progress.canvas)
                    text = progress.text
            then = partial(self.turn.then, self.model.pipe, text)
            sampling = {**self.turn.body.sampling, "seed": filling.job.seed}
            prepared = await self.model.prepare(self.call, then, sampling)
            (filling,) = self.model.submit(self.call, prepared, wants_steps=self.stream)
        elif self.turn.output == "audio" and self.stream:
            yield Progress(text)
        async for step in filling:
            if isinstance(step, Step):
                yield Progress("", self._frame(step))
            else:
                yield await self._media_message(index, prepared, step, text)

    async def _write(self, filling: Filling) -> AsyncIterator[Progress | _Message]:
        body, writer = self.turn.body, self._writer
        seen = Probabilities(self.model.pipe, body.top_logprobs or 0) if self._wants_probabilities else None
        async for each in write(self.model, self.call, filling, writer, stream=self.stream, probabilities=seen):
            if isinstance(each, Progress):
                yield each
            else:
                self.usage.add(self.prepared.request.canvas, each.canvas)
                logprobs = None if seen is None else seen.for_chat(each.canvas.text.ids, writer.first)
                yield _Message({"content": each.text}, each.finish_reason, logprobs)

    @property
    def _writer(self) -> Writer:
        if self.turn.is_chain:  # its text is cut nowhere: the result is made from it
            return Writer(self.prepared.request, self.prepared.config)
        return Writer(self.prepared.request, self.prepared.config, self.turn.body.stops, self.turn.body.max_tokens)

    def _frame(self, step: Step) -> dict[str, Any]:
        modality = self.turn.output
        masked = num_masked(step.tokens, self.model.pipe.vocabulary, modality)
        return {"modality": modality, "step": step.step, "num_steps": step.num_steps, "masked": masked}

    async def _media_message(self, index: int, prepared: Prepared, done: Done, text: str) -> _Message:
        self.usage.add(prepared.request.canvas, done.canvas)
        wanted = self.turn.body.audio

        def image(canvas: Canvas) -> dict[str, Any]:
            url = data_uri(encode_image(prepared.request.read(canvas)), "image/png")
            images = [{"type": "image_url", "index": 0, "image_url": {"url": url}}]
            return {"content": text if self.turn.is_chain else None, "images": images}

        def audio(canvas: Canvas) -> dict[str, Any]:
            data = base64_of(encode_audio(prepared.request.read(canvas), wanted.format if wanted else "wav"))
            spoken = {"id": self._audio_id(index), "data": data, "expires_at": self.created, "transcript": text}
            return {"audio": spoken}

        read = image if self.turn.output == "image" else audio
        return _Message(await self.model.in_thread(self.call, lambda: read(done.canvas)), "stop")
