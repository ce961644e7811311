"""`/v1/models`, and whether the server lives and is ready."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest

from triptych.hub.directions import DIRECTIONS
from triptych.sample.names import SAMPLER_NAMES
from triptych.serve.canvases import layout_of
from triptych.serve.context import service_of
from triptych.serve.errors import ApiError
from triptych.serve.service import ServedModel
from triptych.vocab import Modality

router = APIRouter()


@router.get("/v1/models")
async def models(http: HttpRequest) -> dict[str, Any]:
    """All models."""
    return {"object": "list", "data": [_model_json(model) for model in service_of(http).models.values()]}


@router.get("/v1/models/{name:path}")
async def model(name: str, http: HttpRequest) -> dict[str, Any]:
    """One model."""
    return _model_json(service_of(http).model(name))


@router.get("/health")
async def health() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(http: HttpRequest) -> dict[str, str]:
    """All engines take requests."""
    if not service_of(http).is_ready:
        raise ApiError(503, "not ready", type="server_error", code="unavailable")
    return {"status": "ready"}


def _model_json(model: ServedModel) -> dict[str, Any]:
    """Besides the keys of OpenAI's API, what a client needs to know of the model."""
    limits, kinds = model.pipe.limits, model.kinds
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "triptych",
        "triptych": {
            "modalities": kinds,
            "directions": [name for name, direction in DIRECTIONS.items() if direction.needs <= set(kinds)],
            "voices": list(limits.voices),
            "words": list(limits.words),
            "examples": list(limits.examples),
            "seq_len": limits.seq_len,
            "text_slot": limits.text_slot,
            "audio_slot": limits.audio_slot,
            "caption_prompt": limits.caption_prompt,
            "transcript_prompt": limits.transcript_prompt,
            "voice_request": limits.voice_request,
            "image": layout_of(model.pipe, Modality.IMAGE, 0) if "image" in kinds else None,
            "audio": layout_of(model.pipe, Modality.AUDIO, 0) if "audio" in kinds else None,
            "samplers": list(SAMPLER_NAMES),
            "top_k": model.limits.top_k,
        },
    }
