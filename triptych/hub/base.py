"""What a pipeline is besides its directions: a model with its tokenizers that is loaded, saved, and fills canvases."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError
from triptych.hub.checker import InputChecker
from triptych.hub.format import DtypeName, Limits, SavedModel, torch_dtype, write_model
from triptych.hub.input_checks import InputCheck, InputChecks
from triptych.hub.inputs import Inputs
from triptych.hub.items import for_each
from triptych.hub.keywords import check_own_sampling, check_preset, refuse_keywords, sampling_config, seeds_of
from triptych.hub.load import load_model
from triptych.hub.measures import Measures
from triptych.hub.requests import Request, Requests, check_length
from triptych.hub.source import upload
from triptych.model.transformer import Transformer
from triptych.sample.batch import Callback
from triptych.sample.canvas import Canvas, Span
from triptych.sample.config import SamplingConfig, Use
from triptych.sample.generate import generate
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.arguments import checked, shown
from triptych.utils.device import resolve_device
from triptych.utils.media import Audio, AudioLike, ImageLike
from triptych.vocab import Modality, Vocabulary

# Lists of any one kind of image or audio: a plain list[ImageLike] would refuse list[Image].
ImageItem = TypeVar("ImageItem", bound=ImageLike)
AudioItem = TypeVar("AudioItem", bound=AudioLike)


class BasePipeline:
    """A model with its tokenizers."""

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
        sampling: Mapping[str, Mapping[str, Any]] | None = None,
    ):
        if model.vocabulary != bundle.vocabulary:
            raise CheckpointError(
                f"the model has the vocabulary {model.vocabulary}, but its tokenizers have {bundle.vocabulary}."
            )
        self.model, self.bundle, self.limits = model.eval(), bundle, limits
        self.preset, self.card, self.license = preset, card, license
        check_preset(preset)
        self.sampling = dict(sampling or {})
        check_own_sampling(preset, self.sampling)
        self._checker = InputChecker(Measures(self.model, bundle, limits), input_checks, check_inputs)
        self._inputs = Inputs(bundle, limits, self._checker)
        self._requests = Requests(self._inputs)

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
    def voices(self) -> tuple[str, ...]:
        """Names of the voices that can be asked for. Empty if there are none to choose from."""
        return self.limits.voices

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

    def to(self, device: str | torch.device) -> Self:
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
    ) -> Self:
        """Load a model.

        `source` is a built-in name ("scenes"), the folder of a saved model or of a training run, or a model on the
        Hugging Face Hub ("hf://OWNER/NAME"; `revision`, `cache_dir` and `token` are for these). `check_inputs` says
        whether there are warnings about inputs that are unlike the training data.

            pipe = Pipeline.from_pretrained("scenes")
            pipe = Pipeline.from_pretrained("runs/mine", device="cuda", dtype="bfloat16")
        """
        refuse_keywords(unknown, ("device", "dtype", "check_inputs", "revision", "cache_dir", "token"))
        if not isinstance(source, str | Path):
            raise UserError(f"a model is a name or a folder, got {shown(source)}.")
        precision, place = torch_dtype(dtype), resolve_device(device)
        saved = load_model(source, revision=revision, cache_dir=cache_dir, token=token)
        pipe = cls(
            saved.model,
            saved.bundle,
            saved.limits,
            preset=saved.preset,
            card=saved.card,
            license=saved.license,
            input_checks=saved.input_checks,
            check_inputs=check_inputs,
            sampling=saved.sampling,
        )
        pipe.model.to(device=place, dtype=precision)
        return pipe

    @checked
    def save_pretrained(
        self, folder: str | Path, *, dtype: DtypeName | None = None, builtin_tokenizers: str | None = None
    ) -> Path:
        """Write weights, configuration, tokenizers and model card to a folder.

        `dtype` is the precision of the stored weights (default: as they are). `builtin_tokenizers` names built-in
        tokenizers to refer to instead of copying them.

            pipe.save_pretrained("models/mine", dtype="float16")
        """
        saved = SavedModel(
            self.model,
            self.bundle,
            self.limits,
            self.preset,
            self.card,
            self.license,
            self.input_checks,
            self.sampling,
        )
        write_model(Path(folder), saved, dtype=dtype, builtin_tokenizers=builtin_tokenizers)
        return Path(folder)

    @checked
    def push_to_hub(
        self, name: str, *, dtype: DtypeName | None = None, private: bool = False, token: str | bool | None = None
    ) -> str:
        """Upload the model to the Hugging Face Hub as OWNER/NAME; returns its address.

        Example:

            pipe.push_to_hub("me/my-model", dtype="float16")
        """
        with tempfile.TemporaryDirectory() as folder:
            return upload(self.save_pretrained(folder, dtype=dtype), name, private=private, token=token)

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
        if beside is not None and (not isinstance(beside, str) or beside not in ("image", "audio")):
            raise UserError(f"beside must be None, image or audio, got {shown(beside)}.")
        return for_each(lambda each: self._checker.text(*self._inputs.encoded_text(each), beside), text)

    @overload
    def check_image(self, image: ImageLike) -> InputCheck: ...
    @overload
    def check_image(self, image: list[ImageItem]) -> list[InputCheck]: ...
    def check_image(self, image: ImageLike | list[ImageItem]) -> InputCheck | list[InputCheck]:
        """How unusual an image is: its score, the highest usual score, and what was measured.

        Example:

            pipe.check_image("photo.jpg").score
        """
        return for_each(lambda each: self._checker.image(*self._inputs.encoded_image(each)), image)

    @overload
    def check_audio(self, audio: AudioLike) -> InputCheck: ...
    @overload
    def check_audio(self, audio: list[AudioItem]) -> list[InputCheck]: ...
    def check_audio(self, audio: AudioLike | list[AudioItem]) -> InputCheck | list[InputCheck]:
        """How unusual audio is.

        Example:

            pipe.check_audio("foxes.wav").is_unusual
        """
        return for_each(lambda each: self._checker.audio(*self._inputs.encoded_audio(each)), audio)

    # -- any canvas ---------------------------------------------------------------------------------------------------

    @checked
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
        seeds = seeds_of(seed, len(canvases))
        for canvas in canvases:
            check_length(canvas, self.limits)
        return generate(self.model, canvases, config, seeds, device=self.device, callback=callback)

    @checked
    def decode(self, span: Span) -> str | Image.Image | Audio:
        """The text, image or audio of a finished span."""
        return self.bundle[span.modality].decode([span.ids])[0]

    @checked
    def sampling_config(self, target: Modality, use: Use | None = None, **sampling: Any) -> SamplingConfig:
        """What the given arguments mean for a target: the preset with these fields changed.

        The model's own changes to its preset apply unless a preset is named.
        """
        preset = sampling.pop("preset", None)
        if preset is not None:
            return sampling_config(preset, target, use, sampling)
        return sampling_config(self.preset, target, use, sampling, self.sampling)

    def _make(self, requests: Request | list[Request], sampling: Mapping[str, Any]) -> Any:
        """Fill the canvases of requests and read the results; one for one, a list for a list."""
        several = requests if isinstance(requests, list) else [requests]
        if not several:
            return []
        first = several[0]  # the others ask for the same kind of result
        changes = {**first.defaults, **sampling}
        seed, callback = changes.pop("seed", 0), changes.pop("callback", None)
        config = self.sampling_config(first.target, first.use, **changes)
        filled = self.fill([each.canvas for each in several], config, seed, callback)
        results = [request.read(canvas) for request, canvas in zip(several, filled)]
        return results if isinstance(requests, list) else results[0]
