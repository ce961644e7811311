"""How to sample each modality, and for some uses in another way, by name of the preset."""

from collections.abc import Mapping
from typing import Literal

from triptych.sample.generate import SamplingConfig
from triptych.vocab import Modality

Use = Literal["caption"]  # that has settings of its own, besides those for what is made

# What is best on validation scenes is also what takes few forward passes (bench/fewer_steps.py, docs/performance.md).
_PICTURES = SamplingConfig(sampler="entropy_bounded", temperature=0.7, options={"gamma": 0.1})
_SPEECH = SamplingConfig(sampler="random_order", num_steps=8, temperature=0.0, length="median")
# The model knows better whether a picture fits a sentence than how to find the sentence.
_CAPTIONS = SamplingConfig(sampler="entropy_bounded", temperature=0.7, length="draw", best_of=8, options={"gamma": 0.1})

SAMPLING_PRESETS: dict[str, Mapping[Modality | Use, SamplingConfig]] = {
    "scenes": {
        Modality.TEXT: SamplingConfig(sampler="low_confidence", temperature=0.0, length="mode"),
        Modality.IMAGE: _PICTURES,
        Modality.AUDIO: _SPEECH,
        "caption": _CAPTIONS,
    },
    # The fewest forward passes that are not worse than the best by more than a point, in the same measurements.
    "fast": {
        Modality.TEXT: SamplingConfig(
            sampler="entropy_bounded", temperature=0.0, length="mode", options={"gamma": 0.1}
        ),
        Modality.IMAGE: _PICTURES,
        Modality.AUDIO: _SPEECH,
        "caption": _CAPTIONS,
    },
    # The paper's defaults: one token a step for pictures, 1,000 steps for 30 s of sound.
    "paper": {
        Modality.TEXT: SamplingConfig(sampler="random_order"),
        Modality.IMAGE: SamplingConfig(sampler="random_order", num_steps=1024, guidance_scale=6.0),
        Modality.AUDIO: SamplingConfig(
            sampler="random_order", num_steps=1000, temperature=1.2, top_p=0.9, guidance_scale=3.0
        ),
    },
}
