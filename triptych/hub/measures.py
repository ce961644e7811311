"""What is measured of an input to see whether it is unusual: see `input_checks` for what follows from it.

    text           mean and largest surprise of its tokens, as the beginning of a text of unknown length
    image, audio   mean surprise of its codes with an unknown text; how well the tokenizer reconstructs it

A text is judged in the place it has in a request: alone, or with an image or audio that is masked.
"""

import numpy as np
from PIL import Image

from triptych.data.sequences import PAIR_SPECIALS
from triptych.hub.format import Limits
from triptych.hub.surprise import token_surprise
from triptych.model.transformer import Transformer
from triptych.sample.canvas import MASKED, Canvas, Span, known, masked, open_ended, unconditional
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.pixels import resize_with_white_padding
from triptych.tokenizers.reconstruction import log_mel_distance, psnr
from triptych.utils.media import Audio
from triptych.vocab import Modality

_TEXT_TOKENS = 8  # length of a text that is not given
_MORE_TOKENS = 8  # masked tokens after a text, for models that were trained without open ends
_AUDIO_FRAMES = 50  # length of audio that is not given, for such models


RECONSTRUCTION = "reconstruction, dB"


class Measures:
    """Measures the inputs of one model."""

    def __init__(
        self, model: Transformer, bundle: TokenizerBundle, limits: Limits, *, text_masks: int = 4, media_masks: int = 2
    ):
        """Every token of a text, or code of an image or audio, is predicted in one of so many complementary masks.

        A text is short: with two masks its surprise depends much on which words the other mask happens to leave.
        """
        self.model, self.bundle, self.limits = model, bundle, limits
        self._num_masks = {Modality.TEXT: text_masks, Modality.IMAGE: media_masks, Modality.AUDIO: media_masks}

    def text(self, ids: np.ndarray, beside: str | None = None) -> dict[str, float]:
        """Of the ids of a text (-1 for gaps), alone or `beside` an "image" or "audio"."""
        surprise = self._surprise(Canvas(self._text_span(ids), self._media_span(len(ids), beside)))
        return {"mean surprise": float(surprise.mean()), "largest surprise": float(surprise.max())}

    def image(self, image: Image.Image, ids: np.ndarray) -> dict[str, float]:
        """Of an image and its codes."""
        tokenizer = self.bundle.image
        given = resize_with_white_padding(image, tokenizer.resolution)
        return {
            "mean surprise": self.media_surprise(known(Modality.IMAGE, ids)),
            RECONSTRUCTION: psnr(given, tokenizer.decode([ids])[0]),
        }

    def audio(self, audio: Audio, ids: np.ndarray) -> dict[str, float]:
        """Of audio and its codes."""
        return {
            "mean surprise": self.media_surprise(known(Modality.AUDIO, ids)),
            "log-mel distance": log_mel_distance(audio, ids, self.bundle.audio),
        }

    def _surprise(self, canvas: Canvas, modality: Modality = Modality.TEXT) -> np.ndarray:
        device = next(self.model.parameters()).device
        return token_surprise(self.model, canvas, modality, self._num_masks[modality], device)

    def media_surprise(self, span: Span) -> float:
        """Mean surprise of the codes of an image or audio with an unknown text."""
        room = self.limits.seq_len - PAIR_SPECIALS - len(span.ids)
        canvas = Canvas(unconditional(Modality.TEXT, max(0, min(_TEXT_TOKENS, room))), span)
        return float(self._surprise(canvas, span.modality).mean())

    def _text_span(self, ids: np.ndarray) -> Span:
        """The text as a beginning: the rest of its slot is masked, so nothing tells the model where it ends."""
        slot = self.limits.text_slot
        if slot is not None and len(ids) < slot:
            return open_ended(Modality.TEXT, slot, ids)
        room = self.limits.seq_len - PAIR_SPECIALS - len(ids)
        return Span(Modality.TEXT, np.concatenate([ids, np.full(max(0, min(_MORE_TOKENS, room)), MASKED, np.int64)]))

    def _media_span(self, num_text: int, beside: str | None) -> Span | None:
        if beside is None:
            return None
        if beside == "image":
            return masked(Modality.IMAGE, self.bundle.image.tokens_per_image)
        stride, slot = self.bundle.audio.num_codebooks, self.limits.audio_slot
        text = max(num_text + _MORE_TOKENS, self.limits.text_slot or 0)
        room = self.limits.seq_len - PAIR_SPECIALS - text
        if slot is not None and slot <= room:
            return open_ended(Modality.AUDIO, slot, stride=stride)
        return masked(Modality.AUDIO, stride * max(1, min(_AUDIO_FRAMES, room // stride)))
