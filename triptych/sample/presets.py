"""How to sample each modality, and for some uses in another way, by name of the preset."""

from collections.abc import Mapping
from typing import Literal

from triptych.sample.generate import Settings
from triptych.vocab import Modality

Use = Literal["caption"]  # that has settings of its own, besides those for what is made

# What is best on validation scenes is also what takes few forward passes (bench/fewer_steps.py, docs/performance.md).
_PICTURES = Settings(sampler="entropy_bounded", temperature=0.7, options={"gamma": 0.1})
_SPEECH = Settings(sampler="random_order", steps=8, temperature=0.0, length="median")
# The model knows better whether a picture fits a sentence than how to find the sentence.
_CAPTIONS = Settings(sampler="entropy_bounded", temperature=0.7, length="draw", best_of=8, options={"gamma": 0.1})

PRESETS: dict[str, Mapping[Modality | Use, Settings]] = {
    "scenes": {
        Modality.TEXT: Settings(sampler="low_confidence", temperature=0.0, length="mode"),
        Modality.IMAGE: _PICTURES,
        Modality.AUDIO: _SPEECH,
        "caption": _CAPTIONS,
    },
    # The fewest forward passes that are not worse than the best by more than a point, in the same measurements.
    "fast": {
        Modality.TEXT: Settings(sampler="entropy_bounded", temperature=0.0, length="mode", options={"gamma": 0.1}),
        Modality.IMAGE: _PICTURES,
        Modality.AUDIO: _SPEECH,
        "caption": _CAPTIONS,
    },
    # The paper's defaults: one token a step for pictures, 1,000 steps for 30 s of sound.
    "paper": {
        Modality.TEXT: Settings(sampler="random_order"),
        Modality.IMAGE: Settings(sampler="random_order", steps=1024, guidance=6.0),
        Modality.AUDIO: Settings(sampler="random_order", steps=1000, temperature=1.2, top_p=0.9, guidance=3.0),
    },
}
