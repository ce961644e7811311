"""What each direction asks of a model: the canvas to fill, and how the result is read from the filled canvas.

    text-to-image     the text is given, the image masked
    caption, answer   the image and the beginning of the text are given, the end of the text is open
    transcribe        the same with audio
    infill-...        a part of what is given is masked

A model's own prompts (`Limits.caption_prompt`, `transcript_prompt`) stand in the canvas as in training; results do not
have them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from triptych.errors import UserError
from triptych.hub.boxes import Repaint, check_box, masked_codes, merge_repainted, on_square, touched_codes
from triptych.hub.format import Limits
from triptych.hub.inputs import Inputs
from triptych.hub.voices import ask_for_voice
from triptych.sample.canvas import MASKED, Canvas, Span, unconditional
from triptych.sample.config import Use
from triptych.utils.arguments import shown
from triptych.utils.media import Audio, AudioLike, ImageLike, load_audio, load_image
from triptych.vocab import Modality

_UNCONDITIONAL_TOKENS = 8  # length of a text that is not given: that of a usual caption


@dataclass(frozen=True)
class Request:
    canvas: Canvas
    target: Modality
    """What is generated; it decides the sampling preset."""
    read: Callable[[Canvas], Any]
    """The result in a filled canvas."""
    use: Use | None = None
    """A use with a preset of its own."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling arguments that differ from the preset, unless the user gives them."""


class Requests:
    """Makes the requests of every direction, for the model of these inputs. Wrong input is refused here."""

    def __init__(self, inputs: Inputs):
        self.inputs, self.bundle, self.limits = inputs, inputs.bundle, inputs.limits

    # -- directions ---------------------------------------------------------------------------------------------------

    def text_to_image(self, text: str, *, is_own: bool = False) -> Request:
        """`is_own` says that the model wrote the text."""
        given = self.inputs.own_text(text) if is_own else self.inputs.text(text, "image")
        canvas = Canvas(given, self.inputs.image_to_draw(), hide_text=True)
        return Request(canvas, Modality.IMAGE, self._image)

    def caption(
        self, image: ImageLike, prompt: str | None, num_tokens: int | None, *, keep_prompt: bool = False
    ) -> Request:
        """`keep_prompt` says that the result has the model's own prompt, as it has a user's."""
        is_own = prompt is None
        prefix = self.inputs.normalize(self.limits.caption_prompt if prompt is None else prompt)
        text = self.inputs.text_to_write(prefix, num_tokens, "image", is_own=is_own)
        canvas = Canvas(text, self.inputs.image(image))
        removed = prefix if is_own and not keep_prompt else ""
        return Request(canvas, Modality.TEXT, self._text_after(removed), use="caption")

    def answer(self, image: ImageLike, question: str, num_tokens: int | None) -> Request:
        asked = self.inputs.normalize(question).strip()
        if not asked:
            raise UserError("expected a question, got an empty one.")
        asked, problem = self.inputs.read(asked, "question")
        text = self.inputs.text_to_write(asked, num_tokens, "image", problem=problem)
        canvas = Canvas(text, self.inputs.image(image))
        return Request(canvas, Modality.TEXT, self._text_after(asked))

    def text_to_speech(self, text: str, voice: str | None, seconds: float | None, *, is_own: bool = False) -> Request:
        """`is_own` says that the model wrote the text."""
        if voice is not None:
            text = ask_for_voice(text if is_own else self.inputs.given_text(text), voice, self.limits)
        given = self.inputs.own_text(text) if is_own else self.inputs.text(text, "audio")
        return Request(Canvas(given, self.inputs.audio_to_speak(seconds), hide_text=True), Modality.AUDIO, self._audio)

    def transcribe(self, audio: AudioLike, num_tokens: int | None) -> Request:
        prefix = self.inputs.normalize(self.limits.transcript_prompt)
        text = self.inputs.text_to_write(prefix, num_tokens, "audio", is_own=True)
        return Request(Canvas(text, self.inputs.audio(audio)), Modality.TEXT, self._text_after(prefix))

    def complete(self, text: str, num_tokens: int | None) -> Request:
        return Request(Canvas(self.inputs.text_to_write(text, num_tokens)), Modality.TEXT, self._text)

    # -- infilling ----------------------------------------------------------------------------------------------------

    def infill_image(self, image: ImageLike, box: Sequence[int], text: str | None, repaint: Repaint) -> Request:
        if not isinstance(repaint, str) or repaint not in ("codes", "box", "all"):
            raise UserError(f"repaint must be codes, box or all, got {shown(repaint)}.")
        original = load_image(image)
        left, top, right, bottom = check_box(box, original.size)
        square, x, y = on_square(original)  # as the tokenizer does, so that pixels and codes correspond
        moved = (left + x, top + y, right + x, bottom + y)
        codes = touched_codes(moved, square.width, self.inputs.codes_per_side)

        def merge(painted: Image.Image) -> Image.Image:
            merged = merge_repainted(square, painted, moved, codes, repaint)
            return merged.crop((x, y, x + original.width, y + original.height))

        return self._repaint(square, codes, text, merge)

    def infill_pixels(self, image: ImageLike, mask: np.ndarray, text: str | None) -> Request:
        """Repaint all image codes that the pixels of `mask` ([H, W] bool) touch."""
        original = load_image(image)
        if mask.shape != (original.height, original.width):
            raise UserError(
                f"the mask must have the size of the image, {original.width} x {original.height} pixels, "
                f"got {mask.shape[1]} x {mask.shape[0]}."
            )
        if not mask.any():
            raise UserError("the mask marks no pixel to repaint.")
        square, x, y = on_square(original)
        codes = masked_codes(
            np.pad(mask, [(y, square.height - original.height - y), (x, square.width - original.width - x)]),
            self.inputs.codes_per_side,
        )

        def merge(painted: Image.Image) -> Image.Image:
            merged = merge_repainted(square, painted, (0, 0, *square.size), codes, "codes")
            return merged.crop((x, y, x + original.width, y + original.height))

        return self._repaint(square, codes, text, merge)

    def _repaint(
        self, square: Image.Image, codes: np.ndarray, text: str | None, merge: Callable[[Image.Image], Image.Image]
    ) -> Request:
        """Generate the given codes of a square image; `merge` makes the result from the image they are decoded to."""
        is_new = codes.reshape(-1).repeat(self.inputs.image_codebooks)
        ids = np.where(is_new, MASKED, self.inputs.image(square).ids)

        def read(filled: Canvas) -> Image.Image:
            return merge(self._image(filled).resize(square.size))

        return self._refill(Span(Modality.IMAGE, ids), text, read)

    def infill_text(self, text: str, image: ImageLike | None, audio: AudioLike | None) -> Request:
        if image is not None and audio is not None:
            raise UserError("a text is filled in about an image or about audio, not both.")
        if image is not None:
            canvas = Canvas(self.inputs.text_with_gaps(text, "image"), self.inputs.image(image))
        elif audio is not None:
            canvas = Canvas(self.inputs.text_with_gaps(text, "audio"), self.inputs.audio(audio))
        else:
            canvas = Canvas(self.inputs.text_with_gaps(text))
        return Request(canvas, Modality.TEXT, self._text)

    def infill_audio(self, audio: AudioLike, interval: Sequence[float], text: str | None) -> Request:
        recording = load_audio(audio)
        span = self.inputs.audio(recording)
        kinds = [isinstance(each, int | float) for each in interval] if isinstance(interval, Sequence) else []
        if kinds != [True, True] or not 0 <= interval[0] < interval[1] or interval[0] >= recording.seconds:
            raise UserError(
                f"the interval must be two times within the {recording.seconds:.2f} s of the audio, "
                f"got {shown(interval)}."
            )
        codebooks, rate = self.inputs.codebooks, self.bundle.audio.frame_rate
        # Times are decimal and frames are not: a hair beyond a frame's edge does not touch the next frame.
        first = math.floor(interval[0] * rate + 1e-6)
        last = min(math.ceil(min(interval[1], recording.seconds) * rate - 1e-6), len(span.ids) // codebooks)
        ids = span.ids.copy()
        ids[first * codebooks : last * codebooks] = MASKED
        return self._refill(Span(Modality.AUDIO, ids), text, self._audio)

    def _refill(self, span: Span, text: str | None, read: Callable[[Canvas], Any]) -> Request:
        """Fill what is masked in an image or audio, following a text or without one."""
        if text is None:
            canvas = Canvas(unconditional(Modality.TEXT, _UNCONDITIONAL_TOKENS), span)
            return Request(canvas, span.modality, read, defaults={"guidance_scale": 1.0})
        given = self.inputs.text(text, "image" if span.modality == Modality.IMAGE else "audio")
        return Request(Canvas(given, span, hide_text=True), span.modality, read)

    # -- results ------------------------------------------------------------------------------------------------------

    def _text(self, canvas: Canvas) -> str:
        text = self.bundle.text.decode([canvas.text.ids])[0]
        return text.strip() if self.limits.words else text

    def _text_after(self, prefix: str) -> Callable[[Canvas], str]:
        return lambda canvas: self._text(canvas)[len(prefix) :].strip()

    def _image(self, canvas: Canvas) -> Image.Image:
        assert canvas.media is not None
        return self.bundle.image.decode([canvas.media.ids])[0]

    def _audio(self, canvas: Canvas) -> Audio:
        assert canvas.media is not None
        return self.bundle.audio.decode([canvas.media.ids])[0]


def check_length(canvas: Canvas, limits: Limits) -> None:
    """Refuse a canvas that is longer than the sequences of training."""
    # Every span has a BOS and, if its end is not open, an EOS; one TASK token comes first.
    length = 1 + sum(1 + (span.open_slot or len(span.ids) + 1) for span in canvas.spans)
    if length > limits.seq_len:
        raise UserError(
            f"the request has {length} tokens in all, and this model was trained on sequences of at most "
            f"{limits.seq_len}. Shorten a text, the audio or the requested length."
        )
