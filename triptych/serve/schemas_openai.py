"""Bodies of the routes of OpenAI's API.

Every body also has the fields of `SamplingFields`, which clients send in `extra_body`. A field of OpenAI's that asks
for something this server does not do is refused; one that changes no result is ignored.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from triptych.serve.media import AudioFormat, ImageFormat
from triptych.serve.schemas import Body, SamplingFields

T = TypeVar("T")


def _check(is_possible: Callable[[Any], bool], message: str) -> AfterValidator:
    """Refuse other values with this message."""

    def check(value: T) -> T:
        if not is_possible(value):
            raise PydanticCustomError("unsupported", "{message}", {"message": message})
        return value

    return AfterValidator(check)


def _without(what: str) -> AfterValidator:
    """Refuse all values that ask for something."""
    return _check(lambda value: not value, f"{what} not supported: leave it out.")


class _Ignored(BaseModel):
    """What clients send that changes no result."""

    user: Any = None
    safety_identifier: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None


class _OpenAIBody(Body, SamplingFields, _Ignored):
    pass


class _WithCount(_OpenAIBody):
    n: int | None = Field(None, ge=1)

    @property
    def count(self) -> int:
        return 1 if self.n is None else self.n


# -- images -----------------------------------------------------------------------------------------------------------


class ImageBody(_WithCount):
    """`POST /v1/images/generations`, and with files `POST /v1/images/edits`."""

    prompt: str
    size: str | None = None
    """The size of the model's images, such as "64x64", or "auto"."""
    response_format: Annotated[
        Literal["b64_json", "url"] | None,
        _check(lambda value: value != "url", "the server keeps no files to link to: use b64_json."),
    ] = None
    output_format: ImageFormat | None = None
    output_compression: int | None = Field(None, ge=0, le=100)
    background: Annotated[
        Literal["auto", "opaque", "transparent"] | None,
        _check(lambda value: value != "transparent", "images have no transparent parts: use opaque or auto."),
    ] = None
    stream: bool | None = None
    partial_images: int | None = Field(None, ge=0, le=100)
    """In a stream: how many images on the way; fewer if the image is done sooner."""
    quality: Any = None
    style: Any = None
    moderation: Any = None
    input_fidelity: Any = None


# -- audio ------------------------------------------------------------------------------------------------------------


class VoiceId(BaseModel):
    id: str


Voice = str | VoiceId
"""One of the model's voices; a name of OpenAI's that the model does not have leaves it to the model."""


def voice_name(voice: Voice | None) -> str | None:
    return voice.id if isinstance(voice, VoiceId) else voice


class SpeechBody(_OpenAIBody):
    """`POST /v1/audio/speech`."""

    input: str
    voice: Voice | None = None
    response_format: AudioFormat = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    speed: Annotated[
        float, _check(lambda value: value == 1, "the speed of speech is the model's: use 1, or `seconds`.")
    ] = 1.0
    instructions: Annotated[str | None, _without("instructions for speech are")] = None
    seconds: float | None = Field(None, gt=0)
    """Length of the recording; the model chooses it by default."""


class TranscriptionBody(_OpenAIBody):
    """`POST /v1/audio/transcriptions`, with a file."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    stream: bool | None = None
    language: str | None = None
    """Not used; `verbose_json` repeats it."""
    prompt: Annotated[str | None, _without("a prompt of a transcript is")] = None
    timestamp_granularities: Annotated[
        list[Literal["segment", "word"]],
        _check(lambda value: "word" not in value, "the model does not say when a word is spoken: use segment."),
    ] = []
    include: Annotated[list[str], _without("include is")] = []
    chunking_strategy: Any = None
    num_tokens: int | None = Field(None, ge=1)
    """Tokens of the transcript; the model chooses their number by default."""


# -- text -------------------------------------------------------------------------------------------------------------


class StreamOptions(BaseModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextFields(BaseModel):
    """How a text ends, and what is not done to it."""

    max_tokens: int | None = Field(None, ge=1)
    """A longer text is cut. A model that cannot choose the length of a text writes this many tokens."""
    num_tokens: int | None = Field(None, ge=1)
    """Tokens to write; the model chooses their number by default."""
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[float | None, _without("frequency_penalty is")] = None
    presence_penalty: Annotated[float | None, _without("presence_penalty is")] = None
    logit_bias: Annotated[dict[str, float] | None, _without("logit_bias is")] = None

    @property
    def stops(self) -> list[str]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in given if each]


class CompletionBody(_WithCount, TextFields):
    """`POST /v1/completions`."""

    prompt: Annotated[
        str | list[Any] | None,
        _check(
            lambda value: not isinstance(value, list) or all(isinstance(each, str) for each in value),
            "prompt must be a text or a list of texts; token ids have a meaning only in /v1/canvas.",
        ),
    ] = None
    suffix: str | None = None
    """What comes after the text: num_tokens or max_tokens is the number of tokens between."""
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)

    @property
    def prompts(self) -> list[str]:
        return self.prompt if isinstance(self.prompt, list) else [self.prompt or ""]


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ImageUrl(BaseModel):
    url: str
    """A data URI."""
    detail: Any = None


class ImagePart(BaseModel):
    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(BaseModel):
    data: str
    """Base64 of a file."""
    format: str | None = None


class AudioPart(BaseModel):
    type: Literal["input_audio"]
    input_audio: InputAudio


Part = Annotated[TextPart | ImagePart | AudioPart, Field(discriminator="type")]


class UserMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["user"]
    content: str | list[Part]


class OtherMessage(BaseModel):
    """An instruction, or an earlier answer: the model has no use for it."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "assistant", "tool", "function"]
    content: Any = None


def _kind_of_message(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return "user" if role == "user" else "other"


Message = Annotated[
    Annotated[UserMessage, Tag("user")] | Annotated[OtherMessage, Tag("other")], Discriminator(_kind_of_message)
]


class SpokenAnswer(BaseModel):
    voice: Voice | None = None
    format: AudioFormat = "wav"


class ResponseFormat(BaseModel):
    type: Annotated[str, _check(lambda value: value == "text", "only the response format text is supported.")]


class ChatBody(_WithCount, TextFields):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    modalities: list[Literal["text", "image", "audio"]] | None = None
    audio: SpokenAnswer | None = None
    seconds: float | None = Field(None, gt=0)
    """Length of a spoken answer; the model chooses it by default."""
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Any] | None, _without("tools are")] = None
    functions: Annotated[list[Any] | None, _without("functions are")] = None
    tool_choice: Any = None
    function_call: Any = None
    parallel_tool_calls: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    prediction: Any = None
