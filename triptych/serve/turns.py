"""What the last turn of a chat asks for: a direction of the model, by what is given and what is to come out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image

from triptych.errors import UserError
from triptych.hub.directions import GAP, Direction, Kind, direction_for
from triptych.hub.pipeline import Pipeline
from triptych.hub.requests import Request
from triptych.hub.voices import voice_named
from triptych.serve.canvases import checked_text
from triptych.serve.limits import ServeLimits
from triptych.serve.media import bytes_of_base64, bytes_of_data_uri, decode_audio, decode_image
from triptych.serve.remote import bytes_of_url
from triptych.serve.schemas_openai import AudioPart, ChatBody, ImagePart, TextPart, UserMessage, voice_name
from triptych.serve.text_requests import after_prompt, num_tokens
from triptych.serve.voices import voice_of
from triptych.utils.media import Audio

_Content = Sequence[TextPart | ImagePart | AudioPart]


@dataclass(frozen=True)
class Turn:
    """The last message of the user, and the media it is about."""

    direction: Direction
    text: str
    image: ImagePart | None
    audio: AudioPart | None
    body: ChatBody

    @property
    def output(self) -> Kind:
        return self.direction.output

    @property
    def kinds(self) -> set[Kind]:
        """What is given and what is made."""
        given: dict[Kind, object] = {"image": self.image, "audio": self.audio}
        return self.direction.needs | {kind for kind, part in given.items() if part is not None}

    @property
    def is_chain(self) -> bool:
        """Whether the result is made from a text that the model writes first."""
        return len(self.direction.outputs) > 1

    def request(self, pipe: Pipeline, limits: ServeLimits) -> Request:
        """The request for the result, or in a chain for its text. Decodes files, which takes time."""
        requests, text, count = pipe._requests, checked_text(self.text, limits), num_tokens(pipe, self.body)
        voice, seconds = self._voice(pipe), self.body.seconds
        image, audio = _decoded_image(self.image, limits), _decoded_audio(self.audio, limits)
        name = self.direction.name
        if name == "text-to-image":
            return requests.text_to_image(text)
        if name == "text-to-speech":
            return requests.text_to_speech(text, voice, seconds)
        if name == "infill-text":
            return requests.infill_text(text, image, audio)
        if image is not None and name == "answer":
            return requests.answer(image, text, count)
        if image is not None:
            return requests.caption(image, None, count, keep_prompt=self.is_chain)
        if audio is not None:
            return requests.transcribe(audio, count)
        request = after_prompt(pipe, requests.complete(text, count), text)
        return replace(request, read=lambda filled: request.read(filled).strip())

    def then(self, pipe: Pipeline, text: str) -> Request:
        """In a chain: the request for the result, from the text that the model wrote."""
        if self.output == "image":
            return pipe._requests.text_to_image(text, is_own=True)
        return pipe._requests.text_to_speech(text, self._voice(pipe), self.body.seconds, is_own=True)

    def _voice(self, pipe: Pipeline) -> str | None:
        wanted = voice_of(voice_name(self.body.audio.voice), pipe.limits) if self.body.audio else None
        return None if wanted is None else voice_named(wanted, pipe.limits)


def turn_of(body: ChatBody, limits: ServeLimits) -> Turn:
    """The turn of a chat.

    A question without media is about the latest image or recording of earlier messages. Instructions and other earlier
    messages are not used: the model continues one text.
    """
    contents = [_content(each) for each in body.messages if isinstance(each, UserMessage)]
    _check_counts(body, contents, limits)
    output = _output(body)
    text = "\n".join(part.text for part in contents[-1] if isinstance(part, TextPart))
    media = _media(contents[-1])
    if not media and output == "text":
        media = next((earlier for each in reversed(contents) if (earlier := _media(each))), [])
    images = [part for part in media if isinstance(part, ImagePart)]
    recordings = [part for part in media if isinstance(part, AudioPart)]
    if len(images) > 1 or len(recordings) > 1:
        raise UserError("a message has at most one image or one recording.")
    given = [kind for kind, there in (("text", text.strip()), ("image", images), ("audio", recordings)) if there]
    direction = direction_for(output, given or ["text"], has_gap=GAP in text)
    return Turn(direction, text, images[0] if images else None, recordings[0] if recordings else None, body)


def _check_counts(body: ChatBody, contents: Sequence[_Content], limits: ServeLimits) -> None:
    if len(body.messages) > limits.messages:
        raise UserError(f"a chat has at most {limits.messages} messages, got {len(body.messages)}.")
    if not isinstance(body.messages[-1], UserMessage):
        raise UserError("the last message of a chat is the user's.")
    num_media = sum(len(_media(each)) for each in contents)
    if num_media > limits.media:
        raise UserError(f"a chat has at most {limits.media} images and recordings, got {num_media}.")


def _content(message: UserMessage) -> _Content:
    return [TextPart(type="text", text=message.content)] if isinstance(message.content, str) else message.content


def _media(content: _Content) -> list[ImagePart | AudioPart]:
    return [part for part in content if not isinstance(part, TextPart)]


def _output(body: ChatBody) -> Kind:
    """What is to come out; a text may come with an image or speech."""
    wanted = set(body.modalities or ["text"])
    if {"image", "audio"} <= wanted:
        raise UserError("an answer has an image or audio, not both: use one of them in modalities.")
    return "image" if "image" in wanted else "audio" if "audio" in wanted else "text"


def _decoded_image(part: ImagePart | None, limits: ServeLimits) -> Image.Image | None:
    return None if part is None else decode_image(bytes_of_url(part.image_url.url, "image", limits), limits)


def _decoded_audio(part: AudioPart | None, limits: ServeLimits) -> Audio | None:
    """Some clients send a data URI where base64 is expected."""
    if part is None:
        return None
    data = part.input_audio.data
    return decode_audio(bytes_of_data_uri(data, "audio") if data.startswith("data:") else bytes_of_base64(data), limits)
