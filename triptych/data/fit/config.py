"""What decides fitted tokenizers: the settings, and sizes that are chosen by the data where none is given."""

import statistics
from dataclasses import dataclass

from triptych.data.fit.samples import FitSamples
from triptych.errors import UserError, did_you_mean
from triptych.utils.arguments import check_fields

_FRAMES_PER_SECOND = 25
_BYTES_PER_ID = 300  # of text, for each id of the BPE
_PATCHES_PER_CODE = 16
_FRAMES_PER_CODE = 16


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of a fit; None leaves the choice to the data."""

    inputs: tuple[str, ...]
    text_key: str | None = None
    prompt_key: str | None = None
    media_key: str | None = None
    per_line: bool = False
    vocab_size: int | None = None
    """Ids of the text tokenizer."""
    resolution: int | None = None
    """Width and height of images, in pixels."""
    factor: int | None = None
    """Pixels per code, in width and height: 4, 8, 16 or 32."""
    image_kind: str | None = None
    """patch-vq (k-means on patches: drawings, seconds) or movq (a network: photographs)."""
    image_codes: int | None = None
    """Size of the image codebook."""
    image_steps: int = 3000
    """Training steps of a movq."""
    codebooks: int = 2
    """Codebooks of the audio tokenizer; each gives 25 tokens per second."""
    audio_codes: int | None = None
    """Size of each audio codebook."""
    audio_steps: int = 1000
    """Training steps of the audio tokenizer's decoder."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("image_steps", "codebooks"):
            if getattr(self, name) < 1:
                raise UserError(f"{_option(name)} must be at least 1, got {getattr(self, name)}.")
        for name in ("audio_steps", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"{_option(name)} must be 0 or more, got {getattr(self, name)}.")
        if self.image_kind not in (None, *IMAGE_KINDS):
            raise UserError(f"unknown image kind {self.image_kind!r}.{did_you_mean(str(self.image_kind), IMAGE_KINDS)}")
        if self.factor not in (None, *FACTORS):
            raise UserError(f"--factor must be {', '.join(map(str, FACTORS))}, got {self.factor}.")
        for name, least in (("vocab_size", 256), ("image_codes", 2), ("audio_codes", 2), ("resolution", 4)):
            value = getattr(self, name)
            if value is not None and not least <= value <= 2**20:
                raise UserError(f"{_option(name)} must be between {least} and {2**20:,}, got {value}.")


FACTORS = (4, 8, 16, 32)
PATCH_VQ = "patch-vq"
IMAGE_KINDS = (PATCH_VQ, "movq")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the tokenizers; a modality without samples has none."""

    vocab_size: int
    image: tuple[int, int, int] = (0, 0, 0)
    """Resolution, pixels per code and number of codes."""
    audio: tuple[int, int] = (0, 0)
    """Number of codebooks, and codes in each."""

    @classmethod
    def choose(cls, config: FitConfig, samples: FitSamples) -> "Sizes":
        """The given sizes, and for the others a power of two that the samples can fill."""
        vocab_size = config.vocab_size or _power(samples.text_bytes / _BYTES_PER_ID, 512, 16_384)
        image, audio = (0, 0, 0), (0, 0)
        if samples.images:
            resolution = config.resolution or usual_resolution([min(image.size) for image in samples.images])
            factor = config.factor or _usual_factor(resolution)
            if resolution % factor:
                raise UserError(f"--resolution must be a multiple of --factor {factor}, got {resolution}.")
            patches = len(samples.images) * (resolution // factor) ** 2
            image = (resolution, factor, config.image_codes or _power(patches / _PATCHES_PER_CODE, 64, 4096))
        if samples.clips:
            frames = samples.audio_seconds * _FRAMES_PER_SECOND
            codes = config.audio_codes or _power(frames / _FRAMES_PER_CODE, 64, 1024)
            if frames < 2 * codes:
                raise UserError(
                    f"{codes} codes need at least {2 * codes / _FRAMES_PER_SECOND:.0f} s of audio, got "
                    f"{samples.audio_seconds:.0f} s; give more, or a smaller --audio-codes."
                )
            audio = (config.codebooks, codes)
        return cls(vocab_size=vocab_size, image=image, audio=audio)


def _usual_factor(resolution: int) -> int:
    """The smallest factor that gives at most 8 x 8 tokens, or 16 x 16 above 128 pixels."""
    possible = [factor for factor in FACTORS if resolution % factor == 0]
    if not possible:
        raise UserError(f"--resolution must be a multiple of {FACTORS[0]}, got {resolution}.")
    most = 8 if resolution <= 128 else 16
    return next((factor for factor in possible if resolution // factor <= most), possible[-1])


def usual_resolution(sides: list[int]) -> int:
    """64, 128 or 256: the power of two nearest below the median side, with a tolerance."""
    median = statistics.median(sides)
    return 64 if median < 112 else 128 if median < 224 else 256


def _power(value: float, least: int, most: int) -> int:
    """The largest power of two up to `value`, within limits."""
    power = least
    while power * 2 <= min(value, most):
        power *= 2
    return power
