"""The Python API: one model, with its tokenizers, in every direction.

    pipe = Pipeline.from_pretrained("scenes")
    picture = pipe.text_to_image("two cats left of a red heart")
    pipe.caption(picture)

Every method takes one item or a list and returns one or a list. Seeds: request i of a list has seed + i, and gives the
same result as when it is asked alone with that seed.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from huggingface_hub import ModelHubMixin
from PIL import Image

from triptych.errors import CheckpointError, UserError, did_you_mean
from triptych.hub.format import BUILTIN_MODELS, Limits, SavedModel, read_config, read_model, write_model
from triptych.model.transformer import Transformer
from triptych.sample.batch import Callback
from triptych.sample.canvas import MASKED, Canvas, Span, known, masked, open_ended, unconditional
from triptych.sample.generate import SamplingConfig, generate
from triptych.sample.presets import SAMPLING_PRESETS, Use
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import WHITE, Audio
from triptych.vocab import Modality, Vocabulary

GAP = "___"
"""In a text: one token to be filled in."""

_UNSAID_TOKENS = 8  # length of a text that is not given: that of a usual caption
Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels; right and bottom are outside, as in PIL."""


class Pipeline(ModelHubMixin, library_name="triptych", tags=["masked-diffusion", "any-to-any"]):
    """A model with its tokenizers. Load one with `from_pretrained`: an embedded name, a folder, or a hub name."""

    def __init__(
        self,
        model: Transformer,
        bundle: TokenizerBundle,
        limits: Limits,
        *,
        presets: str = "scenes",
        card: str | None = None,
    ):
        if model.vocabulary != bundle.vocabulary:
            raise CheckpointError(
                f"the model has the vocabulary {model.vocabulary}, but its tokenizers have {bundle.vocabulary}."
            )
        self.model, self.bundle, self.limits, self.card = model.eval(), bundle, limits, card
        self.presets_name = presets
        self.presets = _preset(presets)
        self.half = False
        """Whether to save weights in float16, at half the size; they are float32 again when loaded."""
        self.embedded_tokenizers: str | None = None
        """Name of embedded tokenizers to refer to when saving, instead of writing copies: for embedded models."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> "Pipeline":
        self.model.to(device)
        return self

    # -- text, pictures, speech ---------------------------------------------------------------------------------------

    @overload
    def text_to_image(self, text: str, **settings: Any) -> Image.Image: ...
    @overload
    def text_to_image(self, text: Sequence[str], **settings: Any) -> list[Image.Image]: ...
    def text_to_image(self, text: str | Sequence[str], **settings: Any) -> Image.Image | list[Image.Image]:
        """Draw what a text says."""
        size = self._image_tokens

        def canvas(prompt: str) -> Canvas:
            return Canvas(self._text(prompt), masked(Modality.IMAGE, size), hide=True)

        return self._each(text, canvas, Modality.IMAGE, self._picture, settings)

    @overload
    def caption(self, image: Image.Image, prompt: str | None = None, **settings: Any) -> str: ...
    @overload
    def caption(self, image: Sequence[Image.Image], prompt: str | None = None, **settings: Any) -> list[str]: ...
    def caption(
        self, image: Image.Image | Sequence[Image.Image], prompt: str | None = None, **settings: Any
    ) -> str | list[str]:
        """Say what a picture shows, in words that begin with a prompt; the model's own is not part of the answer."""

        def canvas(picture: Image.Image) -> Canvas:
            return self._look_at(picture, prompt)

        def read(filled: Canvas) -> str:
            return self._said(filled)[len(self.limits.caption_prompt) if prompt is None else 0 :].strip()

        return self._each(image, canvas, Modality.TEXT, read, settings, use="caption")

    def answer(self, image: Image.Image | Sequence[Image.Image], question: str | Sequence[str], **settings: Any) -> Any:
        """Answer a question about a picture."""
        pairs = _pairs(image, question)

        def canvas(pair: tuple[Image.Image, str]) -> Canvas:
            return Canvas(self._open_text(pair[1]), self._image(pair[0]))

        answers = self._each([*pairs], canvas, Modality.TEXT, self._said, settings)
        cut = [said[len(asked) :].strip() for said, (_, asked) in zip(answers, pairs)]
        return cut if isinstance(image, Sequence) or not isinstance(question, str) else cut[0]

    def speak(self, text: str | Sequence[str], seconds: float | None = None, **settings: Any) -> Any:
        """Read a text aloud; how long that takes is the model's choice, unless given."""

        def canvas(prompt: str) -> Canvas:
            return Canvas(self._text(prompt), self._sound_span(seconds), hide=True)

        return self._each(text, canvas, Modality.AUDIO, self._sound, settings)

    def transcribe(self, sound: Audio | Sequence[Audio], **settings: Any) -> Any:
        """Write down what is said."""

        def canvas(voice: Audio) -> Canvas:
            return Canvas(self._open_text(), self._audio(voice))

        return self._each(sound, canvas, Modality.TEXT, self._said, settings)

    def complete(self, text: str | Sequence[str], **settings: Any) -> Any:
        """Go on with a text, to its end."""
        return self._each(text, lambda t: Canvas(self._open_text(t)), Modality.TEXT, self._said, settings)

    # -- filling in ---------------------------------------------------------------------------------------------------

    def infill_image(
        self, image: Image.Image, box: Box, text: str | None = None, *, keep: bool = True, **settings: Any
    ) -> Image.Image:
        """Paint a rectangle of a picture anew, with a text to follow or without.

        Whole codes are painted: all that the rectangle touches. With `keep`, pixels of other codes stay as they were.
        """
        original = _flat(image)
        _check_box(box, original.size)
        square, left, top = _on_square(original)  # as the tokenizer would, so that pixels and codes correspond
        moved = (box[0] + left, box[1] + top, box[2] + left, box[3] + top)
        cells = _cells(moved, square.width, side=int(self._image_tokens**0.5))
        ids = np.where(cells.reshape(-1), MASKED, self._image(square).ids)
        painted = self._picture(self._refill(Span(Modality.IMAGE, ids), text, settings)).resize(square.size)
        if keep:
            mask = Image.fromarray((cells * 255).astype(np.uint8)).resize(square.size, Image.Resampling.NEAREST)
            painted = Image.composite(painted, square, mask)
        return painted.crop((left, top, left + original.width, top + original.height))

    def infill_text(
        self, text: str, image: Image.Image | None = None, sound: Audio | None = None, **settings: Any
    ) -> str:
        """Fill the gaps of a text, each `___` with one token; about a picture or a sound, if there is one."""
        if image is not None and sound is not None:
            raise UserError("a text is filled in beside a picture or beside a sound, not both.")
        media = self._image(image) if image is not None else self._audio(sound) if sound is not None else None
        return self._said(self._run([Canvas(self._gapped(text), media)], Modality.TEXT, settings)[0])

    def infill_sound(
        self, sound: Audio, interval: tuple[float, float], text: str | None = None, **settings: Any
    ) -> Audio:
        """Say an interval (seconds) of a sound anew, with a text to follow or without."""
        span = self._audio(sound)
        if len(interval) != 2 or not 0 <= interval[0] < interval[1] or interval[0] >= sound.seconds:
            raise UserError(
                f"the interval must be two times within the {sound.seconds:.2f} s of the sound, got {interval}."
            )
        frames, rate = len(span.ids) // self._codebooks, self.bundle.audio.frame_rate
        # Times are decimal and frames are not: a hair beyond a frame's edge does not touch the next frame.
        first, last = math.floor(interval[0] * rate + 1e-6), math.ceil(min(interval[1], sound.seconds) * rate - 1e-6)
        ids = span.ids.copy()
        ids[first * self._codebooks : min(last, frames) * self._codebooks] = MASKED
        return self._sound(self._refill(Span(Modality.AUDIO, ids), text, settings))

    def _refill(self, span: Span, text: str | None, settings: Mapping[str, Any]) -> Canvas:
        """Fill what is masked in media, with a text to follow or with none said."""
        if text is not None:
            return self._run([Canvas(self._text(text), span, hide=True)], span.modality, settings)[0]
        silent = Canvas(unconditional(Modality.TEXT, _UNSAID_TOKENS), span)
        return self._run([silent], span.modality, {"guidance_scale": 1.0, **settings})[0]

    # -- chains -------------------------------------------------------------------------------------------------------

    def speech_to_image(self, sound: Audio, **settings: Any) -> tuple[str, Image.Image]:
        """Listen, then draw: what was heard, and the picture of it."""
        heard = self._run([Canvas(self._open_text(), self._audio(sound))], Modality.TEXT, _seed_of(settings))[0]
        drawn = Canvas(heard.text, masked(Modality.IMAGE, self._image_tokens), hide=True)
        return self._said(heard), self._picture(self._run([drawn], Modality.IMAGE, settings)[0])

    def image_to_speech(self, image: Image.Image, seconds: float | None = None, **settings: Any) -> tuple[str, Audio]:
        """Look, then say what is there: the words and the sound."""
        seen = self._run([self._look_at(image)], Modality.TEXT, _seed_of(settings), "caption")[0]
        spoken = Canvas(seen.text, self._sound_span(seconds), hide=True)
        return self._said(seen), self._sound(self._run([spoken], Modality.AUDIO, settings)[0])

    # -- any canvas ---------------------------------------------------------------------------------------------------

    def fill(
        self,
        canvases: Sequence[Canvas],
        settings: SamplingConfig,
        seed: int | Sequence[int] = 0,
        callback: Callback | None = None,
    ) -> list[Canvas]:
        """Fill canvases of any shape: any known or masked span of any modality."""
        seeds = list(seed) if isinstance(seed, Sequence) else [int(seed) + i for i in range(len(canvases))]
        if len(seeds) != len(canvases):
            raise UserError(f"expected one seed for all or {len(canvases)} seeds, got {len(seeds)}.")
        for number in seeds:
            if not 0 <= number < 2**64:
                raise UserError(f"seeds must lie between 0 and 2^64 - 1, got {number}.")
        return generate(self.model, canvases, settings, seeds, device=self.device, callback=callback)

    def decode(self, span: Span) -> str | Image.Image | Audio:
        """What a finished span is."""
        return self.bundle[span.modality].decode([span.ids])[0]

    def _each(
        self,
        items: Any,
        canvas: Callable[[Any], Canvas],
        target: Modality,
        read: Callable[[Canvas], Any],
        settings: dict[str, Any],
        use: Use | None = None,
    ) -> Any:
        """Make canvases, fill them, read the results; one for one, or a list for a list."""
        several = isinstance(items, Sequence) and not isinstance(items, str)
        listed = list(items) if several else [items]
        filled = self._run([canvas(item) for item in listed], target, settings, use)
        results = [read(each) for each in filled]
        return results if several else results[0]

    def _run(
        self, canvases: Sequence[Canvas], target: Modality, settings: Mapping[str, Any], use: Use | None = None
    ) -> list[Canvas]:
        """`settings` are fields of `Settings` that differ from the preset of the use or target, seed and callback."""
        chosen = dict(settings)
        seed, callback = chosen.pop("seed", 0), chosen.pop("callback", None)
        name = chosen.pop("preset", None)
        presets = self.presets if name is None else _preset(name)
        preset = presets[use] if use is not None and use in presets else presets[target]
        unknown = next((key for key in chosen if key not in SamplingConfig.__dataclass_fields__), None)
        if unknown is not None:
            known_names = [*SamplingConfig.__dataclass_fields__, "seed", "callback", "preset"]
            raise UserError(f"unknown setting {unknown!r}.{did_you_mean(unknown, known_names)}")
        if "sampler" in chosen and chosen["sampler"] != preset.sampler:
            preset = replace(preset, options={})  # those were another sampler's
        return self.fill(canvases, replace(preset, **chosen), seed, callback)

    # -- parts of canvases --------------------------------------------------------------------------------------------

    @property
    def vocabulary(self) -> Vocabulary:
        return self.bundle.vocabulary

    @property
    def _image_tokens(self) -> int:
        return self.bundle.image.tokens_per_image

    @property
    def _codebooks(self) -> int:
        return self.bundle.audio.num_codebooks

    def _encode_text(self, text: str) -> np.ndarray:
        if self.limits.words:
            text = text.lower()  # as it was trained
            self._check_words(text)
        return np.asarray(self.bundle.text.encode([text])[0], np.int64)

    def _text(self, text: str) -> Span:
        text = _clean(text)
        if not text:
            raise UserError("expected a text, got an empty one.")
        ids = self._encode_text(text)
        self._check_length(len(ids), text)
        return known(Modality.TEXT, ids)

    def _check_length(self, tokens: int, text: str) -> None:
        most = self.limits.longest(self.limits.text_slot)
        if tokens > most:
            raise UserError(
                f"the text is {tokens} tokens long, and this model knows texts of at most {most}: {text[:60]!r}... "
                "Shorten it."
            )

    def _open_text(self, prefix: str = "") -> Span:
        prefix = _clean(prefix)
        ids = self._encode_text(prefix) if prefix else np.zeros(0, np.int64)
        self._check_length(len(ids) + 1, prefix)
        return open_ended(Modality.TEXT, _learned(self.limits.text_slot, "Fill a canvas of your own length."), ids)

    def _look_at(self, picture: Image.Image, prompt: str | None = None) -> Canvas:
        """A picture that a text is to describe."""
        return Canvas(self._open_text(self.limits.caption_prompt if prompt is None else prompt), self._image(picture))

    def _gapped(self, text: str) -> Span:
        parts = _clean(text).split(GAP)
        if len(parts) < 2:
            raise UserError(f"expected a text with gaps, written {GAP}, got {text!r}.")
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += [MASKED] if number else []
            # Words carry the space before them, so one behind a gap keeps it, and one before a gap leaves it to it.
            ids += self._encode_text(part.rstrip()).tolist() if part.strip() else []
        self._check_length(len(ids), text)
        return Span(Modality.TEXT, np.array(ids, np.int64))

    def _check_words(self, text: str) -> None:
        """A model of a small world has never seen other words, and would make something up."""
        words = self.limits.words
        for word in re.findall(r"[^\W\d_]+|\d+", text):
            if word not in words:
                nearest = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
                hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
                raise UserError(f"this model does not know the word {word!r}.{hint} It knows {len(words)} words.")

    def _image(self, image: Image.Image) -> Span:
        return known(Modality.IMAGE, self.bundle.image.encode([_flat(image)])[0])

    def _audio(self, sound: Audio) -> Span:
        if not isinstance(sound, Audio):
            raise UserError(f"expected a Sound, got {type(sound).__name__}.")
        if not len(sound.samples):
            raise UserError("expected a sound, got one without samples.")
        ids = self.bundle.audio.encode([sound])[0]
        most = self.limits.longest(self.limits.audio_slot)
        if len(ids) > most:
            seconds = sound.seconds * most / len(ids)
            raise UserError(
                f"the sound is {sound.seconds:.1f} s long, and this model knows at most {seconds:.1f} s. Cut it."
            )
        return known(Modality.AUDIO, ids)

    def _sound_span(self, seconds: float | None) -> Span:
        if seconds is None:
            slot = _learned(self.limits.audio_slot, "Give the seconds.")
            return open_ended(Modality.AUDIO, slot, stride=self._codebooks)
        tokenizer = self.bundle.audio
        most = self.limits.longest(self.limits.audio_slot) // self._codebooks
        frames = round(seconds * tokenizer.frame_rate) if math.isfinite(seconds) else 0
        if not 1 <= frames <= most:
            raise UserError(
                f"seconds must lie between {1 / tokenizer.frame_rate:.2f} and {most / tokenizer.frame_rate:.2f} "
                f"for this model, got {seconds:g}."
            )
        return masked(Modality.AUDIO, frames * self._codebooks)

    def _said(self, canvas: Canvas) -> str:
        return self.bundle.text.decode([canvas.text.ids])[0].strip()

    def _picture(self, canvas: Canvas) -> Image.Image:
        assert canvas.media is not None
        return self.bundle.image.decode([canvas.media.ids])[0]

    def _sound(self, canvas: Canvas) -> Audio:
        assert canvas.media is not None
        return self.bundle.audio.decode([canvas.media.ids])[0]

    # -- saved models -------------------------------------------------------------------------------------------------

    def _save_pretrained(self, save_directory: Path) -> None:
        """Called by `save_pretrained` and `push_to_hub`: weights, configuration, tokenizers, card."""
        saved = SavedModel(self.model, self.bundle, self.limits, self.presets_name, self.card)
        write_model(save_directory, saved, half=self.half, embedded_tokenizers=self.embedded_tokenizers)

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> "Pipeline":  # type: ignore[override]
        """Load an embedded model by name, a saved one by folder, or one from the hub by its name."""
        folder = BUILTIN_MODELS.get(str(source), Path(source))
        if str(source) in BUILTIN_MODELS and not folder.is_dir():
            raise CheckpointError(f"the model {source!r} is not part of this installation: {folder} is missing.")
        if not folder.is_dir() and str(source).count("/") != 1:
            raise UserError(
                f"{str(source)!r} is neither a folder of a saved model nor an embedded one."
                f"{did_you_mean(str(source), list(BUILTIN_MODELS))}"
            )
        if folder.is_dir():
            read_config(folder)  # else the mixin reads it, and less kindly
            return super().from_pretrained(str(folder), **options)
        try:
            return super().from_pretrained(str(source), **options)
        except UserError:
            raise
        except Exception as error:  # the hub raises many kinds: offline, no such model, no access
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"{str(source)!r} is no folder, and the hub gave no such model ({type(error).__name__}: {reason})."
            ) from error

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        device: str | torch.device = "cpu",
        **_: Any,
    ) -> "Pipeline":
        folder = Path(model_id)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            options = {"cache_dir": cache_dir, "force_download": force_download, "token": token}
            folder = Path(
                snapshot_download(model_id, revision=revision, local_files_only=local_files_only, **options)  # type: ignore[arg-type]
            )
        saved = read_model(folder)
        return cls(saved.model.to(device), saved.bundle, saved.limits, presets=saved.presets, card=saved.card)


def _learned(slot: int | None, instead: str) -> int:
    if slot is None:
        raise UserError(f"this model was trained without open ends, so it cannot choose a length. {instead}")
    return slot


def _preset(name: str) -> Mapping[Modality | Use, SamplingConfig]:
    if name not in SAMPLING_PRESETS:
        raise UserError(f"unknown preset {name!r}.{did_you_mean(name, list(SAMPLING_PRESETS))}")
    return SAMPLING_PRESETS[name]


def _pairs(image: Any, question: Any) -> list[tuple[Image.Image, str]]:
    images = list(image) if isinstance(image, Sequence) else [image]
    questions = list(question) if isinstance(question, Sequence) and not isinstance(question, str) else [question]
    if len(images) == 1:
        images *= len(questions)
    if len(questions) == 1:
        questions *= len(images)
    if len(images) != len(questions):
        raise UserError(f"expected as many questions as pictures, got {len(questions)} and {len(images)}.")
    pairs = [(picture, _clean(asked)) for picture, asked in zip(images, questions)]
    if any(not asked for _, asked in pairs):
        raise UserError("expected a question, got an empty one.")
    return pairs


def _seed_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": settings.get("seed", 0)}


def _flat(image: Image.Image) -> Image.Image:
    """In RGB, transparent parts on white."""
    if not isinstance(image, Image.Image):
        raise UserError(f"expected a picture (PIL.Image), got {type(image).__name__}.")
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _on_square(image: Image.Image) -> tuple[Image.Image, int, int]:
    """Centred on a white square, and how far it was moved."""
    longest = max(image.size)
    left, top = ((longest - side) // 2 for side in image.size)
    square = Image.new("RGB", (longest, longest), WHITE)
    square.paste(image, (left, top))
    return square, left, top


def _check_box(box: Box, size: tuple[int, int]) -> None:
    is_box = len(box) == 4 and all(isinstance(side, int | np.integer) for side in box)
    if not (is_box and 0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]):
        raise UserError(f"the box must be left, top, right, bottom within {size[0]} x {size[1]} pixels, got {box}.")


def _cells(box: Box, width: int, side: int) -> np.ndarray:
    """[side, side] bool: the codes that a rectangle of a square picture touches."""
    left, top, right, bottom = box
    cells = np.zeros((side, side), bool)
    cells[top * side // width : -(-bottom * side // width), left * side // width : -(-right * side // width)] = True
    return cells


def _clean(text: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"expected a text, got {type(text).__name__}.")
    return " ".join(text.split())
