"""`SamplingConfig`: how to sample. `SAMPLING_PRESETS`: a config for each modality, by name of the preset."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from triptych.errors import UserError
from triptych.sample.checks import check_count, check_number
from triptych.sample.names import MOST_CANDIDATES, MOST_STEPS
from triptych.sample.rank import NUM_SCORE_PASSES
from triptych.sample.samplers import make_sampler
from triptych.utils.arguments import shown
from triptych.vocab import Modality

# Beyond these, logits overflow or all tokens are as good as equal.
_MOST_TEMPERATURE, _MOST_GUIDANCE = 1e4, 1e4
_MOST_SCORE_PASSES = 10_000

LengthRule = Literal["draw", "median", "mode"]
Use = Literal["caption"]
"""A use with a preset of its own, besides the preset of the modality it generates."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How to sample. NFE counts forward passes per sequence, including those for guidance, length selection and
    candidate scoring."""

    sampler: str = "random_order"
    """A name in `SAMPLERS`."""
    num_steps: int | None = None
    """Maximum number of sampler steps; None for one step per generated token."""
    temperature: float = 1.0
    """0 takes the most probable token."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with at least this probability; 1 is off."""
    guidance_scale: float = 1.0
    """Classifier-free guidance: logits are uncond + guidance_scale * (cond - uncond). 1 is off; other values double
    the NFE of each step."""
    length: LengthRule = "median"
    """How an open length is chosen from the model's distribution over lengths."""
    single_pass: bool = False
    """Whether a span of open length is filled in the forward pass that chooses its length. That is one forward pass
    instead of one for the first token of a text, one for the length and some for the rest. It suits outputs that are
    determined by the input, such as transcripts."""
    best_of: int = 1
    """Number of candidates per request, each with its own seed; the best by `sample.rank` is returned."""
    num_score_passes: int = NUM_SCORE_PASSES
    """Forward passes that score each side of a candidate."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the sampler, such as gamma of entropy_bounded; block_length for any of them."""

    def __post_init__(self) -> None:
        if self.num_steps is not None:
            check_count("num_steps", self.num_steps, MOST_STEPS)
        check_number("temperature", self.temperature, "of at least 0", lambda x: 0 <= x < math.inf)
        if not (self.temperature == 0 or 1 / _MOST_TEMPERATURE <= self.temperature <= _MOST_TEMPERATURE):
            raise UserError(
                f"temperature must be 0 or from {1 / _MOST_TEMPERATURE:g} to {_MOST_TEMPERATURE:g}, "
                f"got {shown(self.temperature)}."
            )
        check_number("top_p", self.top_p, "above 0 and at most 1", lambda x: 0 < x <= 1)
        check_number("guidance_scale", self.guidance_scale, "of at least 0 (1 is off)", lambda x: 0 <= x < math.inf)
        if self.guidance_scale > _MOST_GUIDANCE:
            raise UserError(f"guidance_scale must be at most {_MOST_GUIDANCE:g}, got {shown(self.guidance_scale)}.")
        if not isinstance(self.length, str) or self.length not in get_args(LengthRule):
            raise UserError(f"length must be draw, median or mode, got {shown(self.length)}.")
        if not isinstance(self.single_pass, bool):
            raise UserError(f"single_pass must be True or False, got {shown(self.single_pass)}.")
        if self.single_pass and self.guidance_scale != 1:
            raise UserError(f"single_pass works without guidance: use guidance_scale=1, got {self.guidance_scale}.")
        check_count("best_of", self.best_of, MOST_CANDIDATES)
        check_count("num_score_passes", self.num_score_passes, _MOST_SCORE_PASSES)
        if not isinstance(self.options, Mapping):
            raise UserError(f"options must map names of sampler options to values, got {shown(self.options)}.")
        make_sampler(self.sampler, self.options)


# The best settings on validation scenes also need few forward passes (bench/fewer_steps.py, docs/performance.md).
_IMAGES = SamplingConfig(sampler="entropy_bounded", temperature=0.7, options={"gamma": 0.1})
_SPEECH = SamplingConfig(sampler="random_order", num_steps=8, temperature=0.0, length="median")
# The model judges whether an image fits a caption better than it finds the caption: hence best_of.
_CAPTIONS = SamplingConfig(sampler="entropy_bounded", temperature=0.7, length="draw", best_of=8, options={"gamma": 0.1})

SAMPLING_PRESETS: dict[str, Mapping[Modality | Use, SamplingConfig]] = {
    "scenes": {
        Modality.TEXT: SamplingConfig(sampler="low_confidence", temperature=0.0, length="mode"),
        Modality.IMAGE: _IMAGES,
        Modality.AUDIO: _SPEECH,
        "caption": _CAPTIONS,
    },
    # The fewest forward passes within one percentage point of the best score, in the same measurements.
    "fast": {
        Modality.TEXT: SamplingConfig(
            sampler="entropy_bounded", temperature=0.0, length="mode", options={"gamma": 0.1}
        ),
        Modality.IMAGE: _IMAGES,
        Modality.AUDIO: _SPEECH,
        "caption": _CAPTIONS,
    },
    # The paper's defaults: one token per step for images, 1,000 steps for 30 s of audio.
    "paper": {
        Modality.TEXT: SamplingConfig(sampler="random_order"),
        Modality.IMAGE: SamplingConfig(sampler="random_order", num_steps=1024, guidance_scale=6.0),
        Modality.AUDIO: SamplingConfig(
            sampler="random_order", num_steps=1000, temperature=1.2, top_p=0.9, guidance_scale=3.0
        ),
    },
}
