"""The Python API: one model with its tokenizers, in every direction.

    from triptych import Pipeline

    pipe = Pipeline.from_pretrained("scenes")
    image = pipe.text_to_image("two cats left of a red heart")
    pipe.caption(image)

Methods take one item or a list, and return one or a list. Request i of a list has seed + i; its result is the same as
when it is requested alone with that seed. Images may be paths, PIL images, arrays or bytes; audio may be paths,
`Audio`, (samples, rate) or bytes.

Inputs that are unlike the training data get their result with an `UnusualInputWarning`, if the model has been
calibrated (docs/input-checks.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from PIL import Image

from triptych.errors import UserError
from triptych.hub.base import AudioItem, BasePipeline, ImageItem
from triptych.hub.boxes import Box, Repaint, repainted_box
from triptych.hub.directions import GAP, direction_for
from triptych.hub.format import Limits as Limits
from triptych.hub.items import for_each, for_each_pair
from triptych.hub.keywords import Sampling, Writing, refuse_keywords
from triptych.hub.requests import Request
from triptych.hub.voices import voice_named
from triptych.utils.media import Audio, AudioLike, ImageLike

VoiceItem = TypeVar("VoiceItem", str, str | None)


class Pipeline(BasePipeline):
    """A model with its tokenizers, in every direction. Load one with `from_pretrained`."""

    # -- text, images, speech -----------------------------------------------------------------------------------------

    @overload
    def text_to_image(self, text: str, **sampling: Unpack[Sampling]) -> Image.Image: ...
    @overload
    def text_to_image(self, text: list[str], **sampling: Unpack[Sampling]) -> list[Image.Image]: ...
    def text_to_image(self, text: str | list[str], **sampling: Unpack[Sampling]) -> Image.Image | list[Image.Image]:
        """Draw what a text says.

        Example:

            pipe.text_to_image("two cats", guidance_scale=2.0, seed=1).save("cats.png")
        """
        return self._make(for_each(self._requests.text_to_image, text), sampling)

    @overload
    def caption(self, image: ImageLike, prompt: str | None = None, **writing: Unpack[Writing]) -> str: ...
    @overload
    def caption(self, image: list[ImageItem], prompt: str | None = None, **writing: Unpack[Writing]) -> list[str]: ...
    def caption(
        self,
        image: ImageLike | list[ImageItem],
        prompt: str | None = None,
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> str | list[str]:
        """Describe an image, in words that start with `prompt` if there is one.

        `num_tokens` fixes the length; models that were trained without open ends need it.

            pipe.caption("cats.png")
        """
        requests = for_each(lambda each: self._requests.caption(each, prompt, num_tokens), image)
        return self._make(requests, sampling)

    @overload
    def answer(self, image: ImageLike, question: str, **writing: Unpack[Writing]) -> str: ...
    @overload
    def answer(
        self, image: ImageLike | list[ImageItem], question: list[str], **writing: Unpack[Writing]
    ) -> list[str]: ...
    @overload
    def answer(self, image: list[ImageItem], question: str, **writing: Unpack[Writing]) -> list[str]: ...
    def answer(
        self,
        image: ImageLike | list[ImageItem],
        question: str | list[str],
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> str | list[str]:
        """Answer a question about an image. Several questions about one image are a list of questions.

        Example:

            pipe.answer("cats.png", "how many cats are there?")
        """

        def request(one: ImageLike, asked: str) -> Request:
            return self._requests.answer(one, asked, num_tokens)

        return self._make(for_each_pair(request, image, question, ("images", "questions")), sampling)

    @overload
    def text_to_speech(
        self, text: str, seconds: float | None = None, *, voice: str | None = None, **sampling: Unpack[Sampling]
    ) -> Audio: ...
    @overload
    def text_to_speech(
        self,
        text: str | list[str],
        seconds: float | None = None,
        *,
        voice: list[VoiceItem],
        **sampling: Unpack[Sampling],
    ) -> list[Audio]: ...
    @overload
    def text_to_speech(
        self, text: list[str], seconds: float | None = None, *, voice: str | None = None, **sampling: Unpack[Sampling]
    ) -> list[Audio]: ...
    def text_to_speech(
        self,
        text: str | list[str],
        seconds: float | None = None,
        *,
        voice: str | list[VoiceItem] | None = None,
        **sampling: Unpack[Sampling],
    ) -> Audio | list[Audio]:
        """Speak a text. The model chooses the duration and the voice unless they are given.

        `voice` is one of `pipe.voices`. A list of voices has one for each text, or speaks one text in all of them.

            pipe.text_to_speech("a picture of three foxes").save("foxes.wav")
            pipe.text_to_speech(["two cats", "a dog"], voice=["emma", "liam"])
        """

        def request(said: str, name: str | None) -> Request:
            return self._requests.text_to_speech(said, name, seconds)

        return self._make(for_each_pair(request, text, voice, ("texts", "voices")), sampling)

    @overload
    def transcribe(self, audio: AudioLike, **writing: Unpack[Writing]) -> str: ...
    @overload
    def transcribe(self, audio: list[AudioItem], **writing: Unpack[Writing]) -> list[str]: ...
    def transcribe(
        self, audio: AudioLike | list[AudioItem], *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> str | list[str]:
        """Write down what is said.

        Example:

            pipe.transcribe("foxes.wav")
        """
        return self._make(for_each(lambda each: self._requests.transcribe(each, num_tokens), audio), sampling)

    @overload
    def complete(self, text: str, **writing: Unpack[Writing]) -> str: ...
    @overload
    def complete(self, text: list[str], **writing: Unpack[Writing]) -> list[str]: ...
    def complete(
        self, text: str | list[str], *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> str | list[str]:
        """Continue a text; the result includes it. An empty text gives a new one.

        Example:

            pipe.complete("there are two", temperature=1.0)
        """
        return self._make(for_each(lambda each: self._requests.complete(each, num_tokens), text), sampling)

    # -- infilling ----------------------------------------------------------------------------------------------------

    def infill_image(
        self,
        image: ImageLike,
        box: Sequence[int],
        text: str | None = None,
        *,
        repaint: Repaint = "codes",
        **sampling: Unpack[Sampling],
    ) -> Image.Image:
        """Repaint a rectangle of an image, following a text if there is one.

        The model repaints whole image codes: all that the box (left, top, right, bottom in pixels) touches;
        `repainted_box` says which pixels these are. `repaint="box"` keeps every pixel outside of the box as it was,
        "all" returns the image as the tokenizer decodes it.

            pipe.infill_image("cat.png", (0, 0, 32, 64), "a dog left of a red heart")
        """
        return self._make(self._requests.infill_image(image, box, text, repaint), sampling)

    def repainted_box(self, size: tuple[int, int], box: Sequence[int]) -> Box:
        """The pixels that `infill_image` repaints for a box in an image of (width, height): those of whole codes.

        Example:

            pipe.repainted_box((64, 64), (5, 5, 20, 20))
        """
        return repainted_box(size, box, self._inputs.codes_per_side)

    def infill_text(
        self,
        text: str,
        image: ImageLike | None = None,
        audio: AudioLike | None = None,
        **sampling: Unpack[Sampling],
    ) -> str:
        """Fill in the gaps of a text, one token for each `___`; about an image or audio if one is given.

        Example:

            pipe.infill_text("a picture of ___ red ___", image="cats.png")
        """
        return self._make(self._requests.infill_text(text, image, audio), sampling)

    def infill_audio(
        self,
        audio: AudioLike,
        interval: Sequence[float],
        text: str | None = None,
        **sampling: Unpack[Sampling],
    ) -> Audio:
        """Speak an interval (start and end in seconds) of a recording again, following a text if there is one.

        Example:

            pipe.infill_audio("foxes.wav", (0.4, 0.9), "a picture of three cats")
        """
        return self._make(self._requests.infill_audio(audio, interval, text), sampling)

    # -- chains -------------------------------------------------------------------------------------------------------

    def speech_to_image(
        self, audio: AudioLike, *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> tuple[str, Image.Image]:
        """Transcribe, then draw: the transcript and the image. `sampling` is for the image.

        Example:

            transcript, image = pipe.speech_to_image("foxes.wav")
        """
        transcript = self._make(self._requests.transcribe(audio, num_tokens), _seed_of(sampling))
        return transcript, self._make(self._requests.text_to_image(transcript, is_own=True), sampling)

    def image_to_speech(
        self,
        image: ImageLike,
        seconds: float | None = None,
        *,
        voice: str | None = None,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> tuple[str, Audio]:
        """Caption, then speak: the text and the audio. `voice` and `sampling` are for the audio.

        Example:

            text, audio = pipe.image_to_speech("cats.png")
        """
        if voice is not None:
            voice_named(voice, self.limits)  # before the caption, which takes time
        text = self._make(self._requests.caption(image, None, num_tokens, keep_prompt=True), _seed_of(sampling))
        return text, self._make(self._requests.text_to_speech(text, voice, seconds, is_own=True), sampling)

    # -- any to any ---------------------------------------------------------------------------------------------------

    def __call__(
        self,
        *positional: Any,
        output: str | None = None,
        text: str | None = None,
        image: ImageLike | None = None,
        audio: AudioLike | None = None,
        **options: Any,
    ) -> Any:
        """Make `output` ("text", "image" or "audio") from what is given; `triptych.hub.directions` is the table.

        Example:

            pipe(output="image", text="two cats")
            pipe(output="text", image="cats.png", text="how many cats are there?")
            pipe(output="image", image="cats.png", text="a dog", box=(0, 0, 32, 64))
        """
        if positional or output is None:
            raise UserError(
                'say what to make: pipe(output="image", text="a cat"), or use a method: pipe.text_to_image("a cat").'
            )
        if "prompt" in options and image is None:
            refuse_keywords({"prompt": options["prompt"]}, ())
        given = {kind: item for kind, item in (("text", text), ("image", image), ("audio", audio)) if item is not None}
        region = next((name for name in ("box", "interval") if options.get(name) is not None), None)
        direction = direction_for(output, given, region=region, has_gap=isinstance(text, str) and GAP in text)
        named = {}
        for kind, item in given.items():
            (parameter,) = (each.name for each in direction.inputs if kind in each.kinds)
            named[kind if parameter == "media" else parameter] = item
        result = getattr(self, direction.method)(**named, **options)
        return result[-1] if len(direction.outputs) > 1 else result


def _seed_of(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": sampling.get("seed", 0)}
