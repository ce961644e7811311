"""Bodies of requests and answers of `/v1/canvas`, and what all bodies share."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from triptych.hub.directions import Kind


class Body(BaseModel):
    """The body of a request. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    model: StrictStr | None = None


class SamplingFields(BaseModel):
    """How to sample: fields of `SamplingConfig`; what is not given follows the model's preset."""

    preset: str | None = None
    sampler: str | None = None
    num_steps: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    guidance_scale: float | None = Field(None, ge=0)
    length: Literal["draw", "median", "mode"] | None = None
    best_of: int | None = Field(None, ge=1)
    options: dict[str, float | int | str] | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)

    @property
    def sampling(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in SamplingFields.model_fields}
        return {name: value for name, value in given.items() if value is not None}


class Segment(BaseModel):
    """A part of a canvas: what is known of one modality, and what is to be generated."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    modality: Kind
    content: str | None = None
    """A text, or a data URI of an image or audio."""
    tokens: list[int | None] | None = None
    """Ids of the modality instead of content; null for positions to generate."""
    mask: list[tuple[int, int]] | Literal["all"] | None = None
    """Ranges [start, stop) of token positions to generate again."""
    length: int | None = Field(default=None, ge=1)
    """Number of tokens in all, if there are more than `content` or `tokens` have."""
    open: bool = False
    """Whether the model chooses the length; what is given is the beginning."""


class CanvasBody(Body, SamplingFields):
    """`POST /v1/canvas`: a text, or an image or audio with a text, in which anything may be masked."""

    segments: list[Segment] = Field(min_length=1, max_length=2)
    stream: bool = False
    top_k: int = Field(1, ge=1)
    """In a stream: report the likeliest ids of every masked position before each step."""
    preview_every: int = Field(0, ge=0)
    """In a stream: decode what there is every so many steps; 0 is never."""


class EncodeBody(Body):
    """`POST /v1/encode`."""

    modality: Kind
    content: str
    prompt: bool = False
    """Whether a text is to be drawn: it is read by the model's reader of prompts, if it has one."""


class DecodeBody(Body):
    """`POST /v1/decode`."""

    modality: Kind
    tokens: list[int | None]
