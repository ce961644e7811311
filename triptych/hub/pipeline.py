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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy as np
import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError, did_you_mean
from triptych.hub.boxes import Box, Repaint, check_box, code_of_pixel, on_square, pixels_of_codes, touched_codes
from triptych.hub.checker import InputChecker
from triptych.hub.directions import GAP, Kind, direction_for
from triptych.hub.format import DtypeName, Limits, SavedModel, read_model, torch_dtype, write_model
from triptych.hub.input_checks import InputCheck, InputChecks
from triptych.hub.inputs import Inputs
from triptych.hub.keywords import Sampling, refuse_keywords
from triptych.hub.measures import Measures
from triptych.hub.source import BUILTIN_MODELS, check_source, download, hub_name, is_run
from triptych.model.transformer import Transformer
from triptych.sample.batch import Callback
from triptych.sample.canvas import MASKED, Canvas, Span, unconditional
from triptych.sample.config import SAMPLING_PRESETS, SamplingConfig, Use
from triptych.sample.generate import generate
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.device import resolve_device
from triptych.utils.media import Audio, AudioLike, ImageLike, load_audio, load_image
from triptych.vocab import Modality, Vocabulary

# Lists of any one kind of image or audio: a plain list[ImageLike] would refuse list[Image].
_Image = TypeVar("_Image", bound=ImageLike)
_Audio = TypeVar("_Audio", bound=AudioLike)

_UNCONDITIONAL_TOKENS = 8  # length of a text that is not given: that of a usual caption


class Pipeline:
    """A model with its tokenizers. Load one with `from_pretrained`."""

    def __init__(
        self,
        model: Transformer,
        bundle: TokenizerBundle,
        limits: Limits,
        *,
        preset: str = "paper",
        card: str | None = None,
        license: str | None = None,
        input_checks: InputChecks | None = None,
        check_inputs: bool = True,
    ):
        if model.vocabulary != bundle.vocabulary:
            raise CheckpointError(
                f"the model has the vocabulary {model.vocabulary}, but its tokenizers have {bundle.vocabulary}."
            )
        self.model, self.bundle, self.limits = model.eval(), bundle, limits
        self.preset, self.card, self.license = preset, card, license
        self._presets = _preset_named(preset)
        self._checker = InputChecker(Measures(self.model, bundle, limits), input_checks, check_inputs)
        self._inputs = Inputs(bundle, limits, self._checker)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def vocabulary(self) -> Vocabulary:
        return self.bundle.vocabulary

    @property
    def words(self) -> tuple[str, ...]:
        """All words the model knows; other words are refused. Empty if it takes any text."""
        return self.limits.words

    @property
    def input_checks(self) -> InputChecks | None:
        """Validation distributions of inputs, made by `triptych calibrate`; None if there are none."""
        return self._checker.checks

    @property
    def check_inputs(self) -> bool:
        """Whether unusual inputs are reported; may be changed. Results are the same either way."""
        return self._checker.is_on

    @check_inputs.setter
    def check_inputs(self, is_on: bool) -> None:
        self._checker.is_on = is_on

    def to(self, device: str | torch.device) -> "Pipeline":
        """Move the model to a device: "auto", "cpu", "cuda", "mps"."""
        if isinstance(device, torch.dtype):
            raise UserError("`to` takes a device; the precision is chosen by from_pretrained(..., dtype=DTYPE).")
        self.model.to(resolve_device(device))
        return self

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.model.parameters())
        size = f"{count / 1e6:.1f}M parameters, {self.vocabulary.size:,} ids"
        return f"Pipeline({size}, preset {self.preset!r}, {self.device})"

    # -- loading and saving -------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: DtypeName | torch.dtype = "float32",
        check_inputs: bool = True,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        **unknown: Any,
    ) -> "Pipeline":
        """Load a model.

        `source` is a built-in name ("scenes"), the folder of a saved model or of a training run, or a model on the
        Hugging Face Hub ("hf://OWNER/NAME"; `revision`, `cache_dir` and `token` are for these). `check_inputs` says
        whether there are warnings about inputs that are unlike the training data.

            pipe = Pipeline.from_pretrained("scenes")
            pipe = Pipeline.from_pretrained("runs/mine", device="cuda", dtype="bfloat16")
        """
        refuse_keywords(unknown, ("device", "dtype", "check_inputs", "revision", "cache_dir", "token"))
        precision = torch_dtype(dtype)
        check_source(source)
        place = resolve_device(device)
        name = None if isinstance(source, Path) else hub_name(source)
        if name is not None:
            folder = download(name, revision=revision, cache_dir=cache_dir, token=token)
        else:
            folder = BUILTIN_MODELS.get(str(source), Path(source))
        if is_run(folder):
            from triptych.hub.export import model_of_run  # reads checkpoints; imported for runs only, it takes long

            saved = model_of_run(folder)
        else:
            saved = read_model(folder)
        pipe = cls(
            saved.model,
            saved.bundle,
            saved.limits,
            preset=saved.preset,
            card=saved.card,
            license=saved.license,
            input_checks=saved.input_checks,
            check_inputs=check_inputs,
        )
        pipe.model.to(device=place, dtype=precision)
        return pipe

    def save_pretrained(
        self, folder: str | Path, *, dtype: DtypeName | None = None, builtin_tokenizers: str | None = None
    ) -> Path:
        """Write weights, configuration, tokenizers and model card to a folder.

        `dtype` is the precision of the stored weights (default: as they are). `builtin_tokenizers` names built-in
        tokenizers to refer to instead of copying them.

            pipe.save_pretrained("models/mine", dtype="float16")
        """
        saved = SavedModel(
            self.model, self.bundle, self.limits, self.preset, self.card, self.license, self.input_checks
        )
        write_model(Path(folder), saved, dtype=dtype, builtin_tokenizers=builtin_tokenizers)
        return Path(folder)

    def push_to_hub(
        self, name: str, *, dtype: DtypeName | None = None, private: bool = False, token: str | bool | None = None
    ) -> str:
        """Upload the model to the Hugging Face Hub as OWNER/NAME; returns its address.

        Example:

            pipe.push_to_hub("me/my-model", dtype="float16")
        """
        import tempfile

        from huggingface_hub import HfApi

        api = HfApi(token=token)
        api.create_repo(name, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, dtype=dtype)
            return str(api.upload_folder(repo_id=name, folder_path=folder))

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

        def canvas(prompt: str) -> Canvas:
            return Canvas(self._inputs.text(prompt, "image"), self._inputs.image_to_draw(), hide_text=True)

        return self._each(text, canvas, Modality.IMAGE, self._image, sampling)

    @overload
    def caption(
        self,
        image: ImageLike,
        prompt: str | None = None,
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> str: ...
    @overload
    def caption(
        self,
        image: list[_Image],
        prompt: str | None = None,
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> list[str]: ...
    def caption(
        self,
        image: ImageLike | list[_Image],
        prompt: str | None = None,
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> str | list[str]:
        """Describe an image, in words that start with `prompt` if there is one.

        `num_tokens` fixes the length; models that were trained without open ends need it.

            pipe.caption("cats.png")
        """

        def read(filled: Canvas) -> str:
            return self._text(filled)[len(self.limits.caption_prompt) if prompt is None else 0 :].strip()

        return self._each(
            image,
            lambda each: self._caption_canvas(each, prompt, num_tokens),
            Modality.TEXT,
            read,
            sampling,
            use="caption",
        )

    @overload
    def answer(
        self, image: ImageLike, question: str, *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> str: ...
    @overload
    def answer(
        self,
        image: ImageLike | list[_Image],
        question: list[str],
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> list[str]: ...
    @overload
    def answer(
        self, image: list[_Image], question: str, *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> list[str]: ...
    def answer(
        self,
        image: ImageLike | list[_Image],
        question: str | list[str],
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> str | list[str]:
        """Answer a question about an image. Several questions about one image are a list of questions.

        Example:

            pipe.answer("cats.png", "how many cats are there?")
        """
        pairs = self._pairs(image, question)

        def canvas(pair: tuple[ImageLike, str]) -> Canvas:
            return Canvas(self._inputs.text_to_write(pair[1], num_tokens, "image"), self._inputs.image(pair[0]))

        texts = self._each(pairs, canvas, Modality.TEXT, self._text, sampling)
        answers = [text[len(asked) :].strip() for text, (_, asked) in zip(texts, pairs)]
        return answers if isinstance(image, list) or not isinstance(question, str) else answers[0]

    @overload
    def text_to_speech(self, text: str, seconds: float | None = None, **sampling: Unpack[Sampling]) -> Audio: ...
    @overload
    def text_to_speech(
        self, text: list[str], seconds: float | None = None, **sampling: Unpack[Sampling]
    ) -> list[Audio]: ...
    def text_to_speech(
        self, text: str | list[str], seconds: float | None = None, **sampling: Unpack[Sampling]
    ) -> Audio | list[Audio]:
        """Speak a text. The model chooses the duration unless `seconds` is given.

        Example:

            pipe.text_to_speech("a picture of three foxes").save("foxes.wav")
        """

        def canvas(prompt: str) -> Canvas:
            return Canvas(self._inputs.text(prompt, "audio"), self._inputs.audio_to_speak(seconds), hide_text=True)

        return self._each(text, canvas, Modality.AUDIO, self._audio, sampling)

    @overload
    def transcribe(self, audio: AudioLike, *, num_tokens: int | None = None, **sampling: Unpack[Sampling]) -> str: ...
    @overload
    def transcribe(
        self, audio: list[_Audio], *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> list[str]: ...
    def transcribe(
        self, audio: AudioLike | list[_Audio], *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> str | list[str]:
        """Write down what is said.

        Example:

            pipe.transcribe("foxes.wav")
        """

        def canvas(recording: AudioLike) -> Canvas:
            return Canvas(self._inputs.text_to_write(num_tokens=num_tokens), self._inputs.audio(recording))

        return self._each(audio, canvas, Modality.TEXT, lambda filled: self._text(filled).strip(), sampling)

    @overload
    def complete(self, text: str, *, num_tokens: int | None = None, **sampling: Unpack[Sampling]) -> str: ...
    @overload
    def complete(
        self, text: list[str], *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> list[str]: ...
    def complete(
        self, text: str | list[str], *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> str | list[str]:
        """Continue a text; the result includes it. An empty text gives a new one.

        Example:

            pipe.complete("there are two", temperature=1.0)
        """
        return self._each(
            text,
            lambda each: Canvas(self._inputs.text_to_write(each, num_tokens)),
            Modality.TEXT,
            self._text,
            sampling,
        )

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
        if repaint not in ("codes", "box", "all"):
            raise UserError(f"repaint must be codes, box or all, got {repaint!r}.")
        original = load_image(image)
        box = check_box(box, original.size)
        square, left, top = on_square(original)  # as the tokenizer does, so that pixels and codes correspond
        moved = (box[0] + left, box[1] + top, box[2] + left, box[3] + top)
        codes = touched_codes(moved, square.width, self._inputs.codes_per_side)
        ids = np.where(codes.reshape(-1), MASKED, self._inputs.image(square).ids)
        painted = self._image(self._refill(Span(Modality.IMAGE, ids), text, sampling)).resize(square.size)
        if repaint == "codes":
            index = code_of_pixel(square.width, len(codes))
            mask = Image.fromarray((codes[np.ix_(index, index)] * 255).astype(np.uint8))
            painted = Image.composite(painted, square, mask)
        elif repaint == "box":
            square.paste(painted.crop(moved), moved)
            painted = square
        return painted.crop((left, top, left + original.width, top + original.height))

    def repainted_box(self, size: tuple[int, int], box: Sequence[int]) -> Box:
        """The pixels that `infill_image` repaints for a box in an image of (width, height): those of whole codes.

        Example:

            pipe.repainted_box((64, 64), (5, 5, 20, 20))
        """
        box, longest, side = check_box(box, size), max(size), self._inputs.codes_per_side
        edges = []
        for low, high, length in ((box[0], box[2], size[0]), (box[1], box[3], size[1])):
            margin = (longest - length) // 2  # of the white square that the image is centred on
            codes = (low + margin) * side // longest, -(-(high + margin) * side // longest)
            first, past = pixels_of_codes(*codes, longest, side)
            edges.append((max(0, first - margin), min(length, past - margin)))
        (left, right), (top, bottom) = edges
        return left, top, right, bottom

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
        if image is not None and audio is not None:
            raise UserError("a text is filled in about an image or about audio, not both.")
        media = None
        if image is not None:
            media = self._inputs.image(image)
        elif audio is not None:
            media = self._inputs.audio(audio)
        beside: Kind | None = "image" if image is not None else "audio" if audio is not None else None
        span = self._inputs.text_with_gaps(text, beside)
        return self._text(self._run([Canvas(span, media)], Modality.TEXT, sampling)[0])

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
        recording = load_audio(audio)
        span = self._inputs.audio(recording)
        is_pair = isinstance(interval, Sequence) and [isinstance(each, int | float) for each in interval] == [
            True,
            True,
        ]
        if not is_pair or not 0 <= interval[0] < interval[1] or interval[0] >= recording.seconds:
            raise UserError(
                f"the interval must be two times within the {recording.seconds:.2f} s of the audio, got {interval!r}."
            )
        codebooks, rate = self._inputs.codebooks, self.bundle.audio.frame_rate
        # Times are decimal and frames are not: a hair beyond a frame's edge does not touch the next frame.
        first = math.floor(interval[0] * rate + 1e-6)
        last = min(math.ceil(min(interval[1], recording.seconds) * rate - 1e-6), len(span.ids) // codebooks)
        ids = span.ids.copy()
        ids[first * codebooks : last * codebooks] = MASKED
        return self._audio(self._refill(Span(Modality.AUDIO, ids), text, sampling))

    def _refill(self, span: Span, text: str | None, sampling: Mapping[str, Any]) -> Canvas:
        """Fill what is masked in an image or audio, following a text or without one."""
        if text is not None:
            given = self._inputs.text(text, "image" if span.modality == Modality.IMAGE else "audio")
            return self._run([Canvas(given, span, hide_text=True)], span.modality, sampling)[0]
        without_text = Canvas(unconditional(Modality.TEXT, _UNCONDITIONAL_TOKENS), span)
        return self._run([without_text], span.modality, {"guidance_scale": 1.0, **sampling})[0]

    # -- chains -------------------------------------------------------------------------------------------------------

    def speech_to_image(
        self, audio: AudioLike, *, num_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> tuple[str, Image.Image]:
        """Transcribe, then draw: the transcript and the image. `sampling` is for the image.

        Example:

            transcript, image = pipe.speech_to_image("foxes.wav")
        """
        canvas = Canvas(self._inputs.text_to_write(num_tokens=num_tokens), self._inputs.audio(audio))
        heard = self._run([canvas], Modality.TEXT, _seed_of(sampling))[0]
        drawn = Canvas(heard.text, self._inputs.image_to_draw(), hide_text=True)
        return self._text(heard).strip(), self._image(self._run([drawn], Modality.IMAGE, sampling)[0])

    def image_to_speech(
        self,
        image: ImageLike,
        seconds: float | None = None,
        *,
        num_tokens: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> tuple[str, Audio]:
        """Caption, then speak: the text and the audio. `sampling` is for the audio.

        Example:

            text, audio = pipe.image_to_speech("cats.png")
        """
        seen = self._run([self._caption_canvas(image, None, num_tokens)], Modality.TEXT, _seed_of(sampling), "caption")[
            0
        ]
        spoken = Canvas(seen.text, self._inputs.audio_to_speak(seconds), hide_text=True)
        return self._text(seen).strip(), self._audio(self._run([spoken], Modality.AUDIO, sampling)[0])

    # -- checks -------------------------------------------------------------------------------------------------------

    @overload
    def check_text(self, text: str, beside: Literal["image", "audio"] | None = None) -> InputCheck: ...
    @overload
    def check_text(self, text: list[str], beside: Literal["image", "audio"] | None = None) -> list[InputCheck]: ...
    def check_text(
        self, text: str | list[str], beside: Literal["image", "audio"] | None = None
    ) -> InputCheck | list[InputCheck]:
        """How unusual a text is, or the beginning of one: alone, or among the texts of images or of speech.

        Example:

            pipe.check_text("a cat and a dog", beside="image").is_unusual
        """
        if beside not in (None, "image", "audio"):
            raise UserError(f"beside must be None, image or audio, got {beside!r}.")
        return _one_or_all(text, lambda each: self._checker.text(*self._inputs.encoded_text(each), beside))

    @overload
    def check_image(self, image: ImageLike) -> InputCheck: ...
    @overload
    def check_image(self, image: list[_Image]) -> list[InputCheck]: ...
    def check_image(self, image: ImageLike | list[_Image]) -> InputCheck | list[InputCheck]:
        """How unusual an image is: its score, the highest usual score, and what was measured.

        Example:

            pipe.check_image("photo.jpg").score
        """
        return _one_or_all(image, lambda each: self._checker.image(*self._inputs.encoded_image(each)))

    @overload
    def check_audio(self, audio: AudioLike) -> InputCheck: ...
    @overload
    def check_audio(self, audio: list[_Audio]) -> list[InputCheck]: ...
    def check_audio(self, audio: AudioLike | list[_Audio]) -> InputCheck | list[InputCheck]:
        """How unusual audio is.

        Example:

            pipe.check_audio("foxes.wav").is_unusual
        """
        return _one_or_all(audio, lambda each: self._checker.audio(*self._inputs.encoded_audio(each)))

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

    # -- any canvas ---------------------------------------------------------------------------------------------------

    def fill(
        self,
        canvases: Sequence[Canvas],
        config: SamplingConfig,
        seed: int | Sequence[int] = 0,
        callback: Callback | None = None,
    ) -> list[Canvas]:
        """Fill canvases of any shape: any known or masked span of any modality.

        Example:

            pipe.fill([Canvas(text, masked(Modality.IMAGE, 16))], SamplingConfig(num_steps=8))
        """
        several = isinstance(seed, Sequence) and not isinstance(seed, str)
        if not all(isinstance(each, int | np.integer) for each in (seed if several else [seed])):  # type: ignore[union-attr]
            raise UserError(f"seed must be a whole number, or one for each request, got {seed!r}.")
        seeds = list(seed) if several else [int(seed) + i for i in range(len(canvases))]  # type: ignore[arg-type]
        if len(seeds) != len(canvases):
            raise UserError(f"expected one seed for all or {len(canvases)} seeds, got {len(seeds)}.")
        for number in seeds:
            if not 0 <= number < 2**64:
                raise UserError(f"seeds must lie between 0 and 2^64 - 1, got {number}.")
        for canvas in canvases:
            # Every span has a BOS and, if its end is not open, an EOS; one TASK token comes first.
            length = 1 + sum(1 + (span.open_slot or len(span.ids) + 1) for span in canvas.spans)
            if length > self.limits.seq_len:
                raise UserError(
                    f"the request has {length} tokens in all, and this model was trained on sequences of at most "
                    f"{self.limits.seq_len}. Shorten a text, the audio or the requested length."
                )
        return generate(self.model, canvases, config, seeds, device=self.device, callback=callback)

    def decode(self, span: Span) -> str | Image.Image | Audio:
        """The text, image or audio of a finished span."""
        return self.bundle[span.modality].decode([span.ids])[0]

    def sampling_config(self, target: Modality, use: Use | None = None, **sampling: Any) -> SamplingConfig:
        """What the given arguments mean for a target: the preset with these fields changed."""
        name = sampling.pop("preset", None)
        presets = self._presets if name is None else _preset_named(name)
        preset = presets[use] if use is not None and use in presets else presets[target]
        fields = SamplingConfig.__dataclass_fields__
        refuse_keywords([key for key in sampling if key not in fields], [*fields, "seed", "callback", "preset"])
        if "sampler" in sampling and sampling["sampler"] != preset.sampler:
            preset = replace(preset, options={})  # those were another sampler's
        return replace(preset, **sampling)

    def _each(
        self,
        items: Any,
        canvas: Callable[[Any], Canvas],
        target: Modality,
        read: Callable[[Canvas], Any],
        sampling: Mapping[str, Any],
        use: Use | None = None,
    ) -> Any:
        """Make canvases, fill them, read the results; one for one, a list for a list."""
        canvases = _one_or_all(items, canvas)
        results = [read(each) for each in self._run(_as_list(canvases), target, sampling, use)]
        return results if isinstance(canvases, list) else results[0]

    def _run(
        self, canvases: Sequence[Canvas], target: Modality, sampling: Mapping[str, Any], use: Use | None = None
    ) -> list[Canvas]:
        changed = dict(sampling)
        seed, callback = changed.pop("seed", 0), changed.pop("callback", None)
        return self.fill(canvases, self.sampling_config(target, use, **changed), seed, callback)

    # -- parts of canvases --------------------------------------------------------------------------------------------

    def _caption_canvas(self, image: ImageLike, prompt: str | None, num_tokens: int | None) -> Canvas:
        prefix = self.limits.caption_prompt if prompt is None else prompt
        text = self._inputs.text_to_write(prefix, num_tokens, "image", is_own=prompt is None)
        return Canvas(text, self._inputs.image(image))

    def _pairs(self, image: Any, question: Any) -> list[tuple[ImageLike, str]]:
        images = image if isinstance(image, list) else [image]
        questions = [question] if isinstance(question, str) or not isinstance(question, Sequence) else list(question)
        images = images * len(questions) if len(images) == 1 else images
        questions = questions * len(images) if len(questions) == 1 else questions
        if len(images) != len(questions):
            raise UserError(f"expected as many questions as images, got {len(questions)} and {len(images)}.")
        pairs = [(each, self._inputs.normalize(asked)) for each, asked in zip(images, questions)]
        if any(not asked.strip() for _, asked in pairs):
            raise UserError("expected a question, got an empty one.")
        return pairs

    def _text(self, canvas: Canvas) -> str:
        text = self.bundle.text.decode([canvas.text.ids])[0]
        return text.strip() if self.limits.words else text

    def _image(self, canvas: Canvas) -> Image.Image:
        assert canvas.media is not None
        return self.bundle.image.decode([canvas.media.ids])[0]

    def _audio(self, canvas: Canvas) -> Audio:
        assert canvas.media is not None
        return self.bundle.audio.decode([canvas.media.ids])[0]


def _preset_named(name: str) -> Mapping[Modality | Use, SamplingConfig]:
    if name not in SAMPLING_PRESETS:
        raise UserError(f"unknown preset {name!r}.{did_you_mean(name, list(SAMPLING_PRESETS))}")
    return SAMPLING_PRESETS[name]


def _one_or_all(items: Any, function: Callable[[Any], Any]) -> Any:
    """The result for one item, or a list of results for a list or tuple. A pair of samples and rate is one item."""
    is_audio = isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], np.ndarray)
    is_several = isinstance(items, list | tuple) and not is_audio
    return [function(item) for item in items] if is_several else function(items)


def _as_list(items: Any) -> list[Any]:
    return items if isinstance(items, list) else [items]


def _seed_of(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": sampling.get("seed", 0)}
