"""`/v1/audio/speech` and `/v1/audio/transcriptions`, as OpenAI's clients call them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from triptych.errors import UserError
from triptych.hub.requests import Request
from triptych.sample.canvas import Canvas
from triptych.serve import sse
from triptych.serve.bodies import ParsedRoute
from triptych.serve.canvases import checked_text
from triptych.serve.context import call_of, service_of, unless_disconnected
from triptych.serve.filling import Filling
from triptych.serve.forms import form_schema, read_form
from triptych.serve.media import CONTENT_TYPES, base64_of, decode_audio, encode_audio
from triptych.serve.schemas_openai import SpeechBody, TranscriptionBody, voice_name
from triptych.serve.service import Call, Prepared, ServedModel, unusual
from triptych.serve.usage import usage_of
from triptych.serve.voices import voice_of
from triptych.serve.writing import Writer, Written, write
from triptych.utils.media import Audio

router = APIRouter(route_class=ParsedRoute)

_BLOCK = 16 * 1024  # bytes of audio in one event
_FILES = {"file": True}


@router.post("/v1/audio/speech")
async def speech(body: SpeechBody, http: HttpRequest) -> Response:
    """Speak a text. The answer is the file, or with `stream_format` "sse" events of its parts."""
    service, call = service_of(http), call_of(http)
    model = service.model(body.model)
    model.check_kinds(["text", "audio"])

    def make() -> Request:
        voice = voice_of(voice_name(body.voice), model.pipe.limits)
        return model.pipe._requests.text_to_speech(checked_text(body.input, service.limits), voice, body.seconds)

    prepared = await model.prepare(call, make, body.sampling)

    (filling,) = model.submit(call, prepared)

    async def encoded() -> tuple[bytes, Canvas]:
        filled = await filling.canvas()
        read = prepared.request.read
        return await model.in_thread(call, lambda: encode_audio(read(filled), body.response_format)), filled

    if body.stream_format == "sse":
        return sse.stream(_speech_events(encoded, prepared))
    data, _ = await unless_disconnected(http, encoded())
    return Response(data, media_type=CONTENT_TYPES[body.response_format])


async def _speech_events(
    encoded: Callable[[], Awaitable[tuple[bytes, Canvas]]], prepared: Prepared
) -> AsyncIterator[bytes]:
    data, filled = await encoded()
    for start in range(0, len(data), _BLOCK):
        part = {"type": "speech.audio.delta", "audio": base64_of(data[start : start + _BLOCK])}
        yield sse.event(part, "speech.audio.delta")
    done = {
        "type": "speech.audio.done",
        "usage": usage_of(prepared.request.canvas, [filled]).for_media,
        "triptych": {"seed": prepared.seeds[0], "warnings": unusual(prepared.warnings)},
    }
    yield sse.event(done, "speech.audio.done")


@router.post("/v1/audio/transcriptions", openapi_extra=form_schema(TranscriptionBody, _FILES))
async def transcriptions(http: HttpRequest) -> Response:
    """Write down what is said. Events: transcript.text.delta and transcript.text.done."""
    service, call = service_of(http), call_of(http)
    body, files = await read_form(http, TranscriptionBody, _FILES, service.limits)
    model = service.model(body.model)
    model.check_kinds(["text", "audio"])
    recordings: list[Audio] = []

    def make() -> Request:
        if len(files["file"]) > 1:
            raise UserError("one file is transcribed at a time.")
        recordings.append(decode_audio(files["file"][0], service.limits))
        return model.pipe._requests.transcribe(recordings[0], body.num_tokens)

    prepared = await model.prepare(call, make, body.sampling)
    (filling,) = model.submit(call, prepared, wants_steps=bool(body.stream))
    transcript = _Transcript(call, model, prepared, filling, body, recordings[0].seconds)
    if body.stream:
        return sse.stream(transcript.events())
    return await unless_disconnected(http, transcript.whole())


@dataclass(frozen=True)
class _Transcript:
    """The answer to a request for a transcript."""

    call: Call
    model: ServedModel
    prepared: Prepared
    filling: Filling
    body: TranscriptionBody
    seconds: float

    async def whole(self) -> Response:
        filled = await self.filling.canvas()
        text = self.prepared.request.read(filled)
        match self.body.response_format:
            case "json":
                return JSONResponse({"text": text, **self._ending(filled)})
            case "verbose_json":
                return JSONResponse(self._verbose(text, filled))
            case "srt":
                end = _time(self.seconds, ",")
                return PlainTextResponse(f"1\n{_time(0.0, ',')} --> {end}\n{text}\n", media_type="application/x-subrip")
            case "vtt":
                cue = f"{_time(0.0, '.')} --> {_time(self.seconds, '.')}\n{text}\n"
                return PlainTextResponse(f"WEBVTT\n\n{cue}", media_type="text/vtt")
            case _:
                return PlainTextResponse(f"{text}\n")

    async def events(self) -> AsyncIterator[bytes]:
        writer = Writer(self.prepared.request, self.prepared.config)
        async for each in write(self.model, self.call, self.filling, writer, stream=True):
            if isinstance(each, Written):
                done = {"type": "transcript.text.done", "text": each.text, **self._ending(each.canvas)}
                yield sse.event(done, "transcript.text.done")
            elif each.delta:
                yield sse.event({"type": "transcript.text.delta", "delta": each.delta}, "transcript.text.delta")

    def _ending(self, filled: Canvas) -> dict[str, Any]:
        extra = {"seed": self.prepared.seeds[0], "warnings": unusual(self.prepared.warnings)}
        return {"usage": usage_of(self.prepared.request.canvas, [filled]).for_media, "triptych": extra}

    def _verbose(self, text: str, filled: Canvas) -> dict[str, Any]:
        """The recording is one segment: the model does not say when a word is spoken."""
        segment = {
            "id": 0,
            "seek": 0,
            "start": 0.0,
            "end": self.seconds,
            "text": text,
            "tokens": filled.text.ids.tolist(),
            "temperature": self.prepared.config.temperature,
            "avg_logprob": None,
            "compression_ratio": None,
            "no_speech_prob": None,
        }
        return {
            "task": "transcribe",
            "language": self.body.language or "",
            "duration": self.seconds,
            "text": text,
            "segments": [segment],
            **self._ending(filled),
            "usage": {"type": "duration", "seconds": self.seconds},
        }


def _time(seconds: float, point: str) -> str:
    """A time in subtitles: 00:01:02,345."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
