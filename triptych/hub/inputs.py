"""From what people pass to a pipeline (texts, images, audio) to spans of a canvas.

Wrong input is refused here. Input that is unlike the training data is reported with a warning.
"""

import math
from typing import Any, Literal

import numpy as np
from PIL import Image

from triptych.errors import UserError
from triptych.hub.checker import InputChecker
from triptych.hub.directions import GAP, Kind
from triptych.hub.format import Limits
from triptych.hub.readers import PromptReading, Use, as_it_is, reader_named
from triptych.hub.words import refuse_unknown_words
from triptych.sample.canvas import MASKED, Span, known, masked, open_ended
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.arguments import shown
from triptych.utils.media import Audio, AudioLike, ImageLike, load_audio, load_image
from triptych.vocab import Modality


class Inputs:
    """Encodes what a model of these limits and tokenizers takes, and lets `checker` see it.

    `beside` of the texts says what they come with in the request: the checker compares them with such texts.
    """

    def __init__(self, bundle: TokenizerBundle, limits: Limits, checker: InputChecker):
        self.bundle, self.limits, self.checker = bundle, limits, checker
        self._reader = reader_named(limits.reader)

    # -- text ---------------------------------------------------------------------------------------------------------

    def normalize(self, text: Any) -> str:
        """The text as the model was trained on it; white space is kept unless the model has a word list."""
        if not isinstance(text, str):
            raise UserError(f"expected a text, got {type(text).__name__}.")
        return " ".join(text.lower().split()) if self.limits.words else text

    def given_text(self, text: Any) -> str:
        """A text that must not be empty, as the model was trained on it."""
        text = self.normalize(text)
        if not text.strip():
            raise UserError("expected a text, got an empty one.")
        return text

    def read(self, text: str, use: Use | None) -> PromptReading:
        """A text as the model was trained on it, and why its result may be wrong."""
        text = self.given_text(text)
        if use is None or self._reader is as_it_is:
            return PromptReading(text)
        reading = self._reader(text, use)
        return PromptReading(self.normalize(reading.text), reading.problem)

    def text(self, text: str, beside: Literal["image", "audio"] | None = None, *, is_prompt: bool = True) -> Span:
        """A text that is given. Only a prompt, all of which is to be drawn or spoken, is read by the model's reader."""
        read, problem = self.read(text, beside if is_prompt else None)
        read, ids = self.encoded_text(read)
        self.checker.warn_about_text(text, ids, beside, problem)
        return known(Modality.TEXT, ids)

    def own_text(self, text: str) -> Span:
        """A text that the model wrote itself: neither its words nor its length are the user's fault."""
        return known(Modality.TEXT, self._encode(self.normalize(text), is_own=True))

    def encoded_text(self, text: str, *, cut: bool = False) -> tuple[str, np.ndarray]:
        """A text as the model was trained on it, and its ids; one that is too long is refused, or with `cut` cut."""
        text = self.given_text(text)
        ids = self._encode(text)
        if cut:
            return text, ids[: self.limits.longest(self.limits.text_slot)]
        self._check_length(len(ids), text)
        return text, ids

    def text_to_write(
        self,
        prefix: str = "",
        num_tokens: int | None = None,
        beside: Kind | None = None,
        *,
        is_own: bool = False,
        problem: str = "",
    ) -> Span:
        """A text that the model is to write after a prefix: of a given number of new tokens, or of its own choice.

        `is_own` says that the prefix is the model's own, not the user's; `problem`, why the result may be wrong.
        """
        prefix = self.normalize(prefix)
        ids = self._encode(prefix, is_own=is_own)
        if num_tokens is not None:
            if isinstance(num_tokens, bool) or not isinstance(num_tokens, int | np.integer) or num_tokens < 1:
                raise UserError(f"num_tokens must be a whole number of at least 1, got {shown(num_tokens)}.")
            longest = self.limits.longest(self.limits.text_slot)
            if len(ids) + num_tokens > longest:
                after = f" after the {len(ids)} tokens of {prefix[:50]!r}" if len(ids) else ""
                raise UserError(f"num_tokens must be at most {longest - len(ids)}{after}, got {shown(num_tokens)}.")
            span = Span(Modality.TEXT, np.concatenate([ids, np.full(num_tokens, MASKED, np.int64)]))
        elif self.limits.text_slot is None:
            raise UserError(
                "this model was trained without open ends, so it cannot choose the length of a text: "
                "give it with num_tokens=N (--num-tokens N)."
            )
        else:
            self._check_length(len(ids) + 1, prefix)
            span = open_ended(Modality.TEXT, self.limits.text_slot, ids)
        if not is_own:
            self.checker.warn_about_text(prefix, ids, beside, problem)
        return span

    def text_with_gaps(self, text: str, beside: Kind | None = None) -> Span:
        """A text in which every gap is one token to generate."""
        parts = self.normalize(text).split(GAP)
        if len(parts) < 2:
            raise UserError(f"expected a text with gaps, written {GAP}, got {text!r}.")
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += [MASKED] if number else []
            # A word's token starts with its space, so the space before a gap belongs to the token that fills it.
            part = part.removesuffix(" ") if number < len(parts) - 1 else part
            ids += self._encode(part).tolist()
        self._check_length(len(ids), text)
        self.checker.warn_about_text(text, np.array(ids, np.int64), beside)
        return Span(Modality.TEXT, np.array(ids, np.int64))

    def _encode(self, text: str, *, is_own: bool = False) -> np.ndarray:
        if (
            self.limits.words and not is_own
        ):  # a model of a small world would make something up for a word it has never seen
            refuse_unknown_words(text, self.limits.words)
        return np.asarray(self.bundle.text.encode([text])[0] if text else [], np.int64)

    def _check_length(self, tokens: int, text: str) -> None:
        longest = self.limits.longest(self.limits.text_slot)
        if tokens > longest:
            raise UserError(
                f"the text has {tokens} tokens, and this model takes at most {longest}: {text[:50]!r}... Shorten it."
            )

    # -- images -------------------------------------------------------------------------------------------------------

    def image(self, image: ImageLike) -> Span:
        loaded, ids = self.encoded_image(image)
        self.checker.warn_about_image(loaded, ids)
        return known(Modality.IMAGE, ids)

    def encoded_image(self, image: ImageLike) -> tuple[Image.Image, np.ndarray]:
        loaded = load_image(image)
        return loaded, self.bundle.image.encode([loaded])[0]

    def image_to_draw(self) -> Span:
        return masked(Modality.IMAGE, self.bundle.image.tokens_per_image)

    @property
    def image_codebooks(self) -> int:
        return self.bundle.image.num_codebooks

    @property
    def codes_per_side(self) -> int:
        return math.isqrt(self.bundle.image.tokens_per_image // self.image_codebooks)

    # -- audio --------------------------------------------------------------------------------------------------------

    @property
    def codebooks(self) -> int:
        return self.bundle.audio.num_codebooks

    def audio(self, audio: AudioLike) -> Span:
        loaded, ids = self.encoded_audio(audio)
        self.checker.warn_about_audio(loaded, ids)
        return known(Modality.AUDIO, ids)

    def encoded_audio(self, audio: AudioLike) -> tuple[Audio, np.ndarray]:
        loaded = load_audio(audio)
        if not len(loaded.samples):
            raise UserError("expected audio, got no samples.")
        ids = self.bundle.audio.encode([loaded])[0]
        longest = self.limits.longest(self.limits.audio_slot)
        if len(ids) > longest:
            seconds = loaded.seconds * longest / len(ids)
            raise UserError(
                f"the audio is {loaded.seconds:.1f} s long, and this model takes at most {seconds:.1f} s. Shorten it."
            )
        return loaded, ids

    def audio_to_speak(self, seconds: float | None) -> Span:
        if seconds is None:
            if self.limits.audio_slot is None:
                raise UserError(
                    "this model was trained without open ends, so it cannot choose the length of audio: "
                    "give it with seconds=S (--seconds S)."
                )
            return open_ended(Modality.AUDIO, self.limits.audio_slot, stride=self.codebooks)
        if not isinstance(seconds, int | float) or (isinstance(seconds, int) and abs(seconds) > 1e9):
            raise UserError(f"seconds must be a number, got {shown(seconds)}.")
        tokenizer = self.bundle.audio
        most = self.limits.longest(self.limits.audio_slot) // self.codebooks
        frames = round(seconds * tokenizer.frame_rate) if np.isfinite(seconds) else 0
        if not 1 <= frames <= most:
            raise UserError(
                f"seconds must lie between {1 / tokenizer.frame_rate:.2f} and {most / tokenizer.frame_rate:.2f} "
                f"for this model, got {seconds:g}."
            )
        return masked(Modality.AUDIO, frames * self.codebooks)
