"""How to sample each modality, and for some uses in another way, by name of the preset."""

from collections.abc import Mapping
from typing import Literal

from triptych.sample.generate import Settings
from triptych.vocab import Modality

Use = Literal["caption"]  # that has settings of its own, besides those for what is made

PRESETS: dict[str, Mapping[Modality | Use, Settings]] = {
    # Chosen on validation scenes, those of pictures and sounds with earlier embedded models.
    "scenes": {
        Modality.TEXT: Settings(sampler="low_confidence", temperature=0.0, length="mode"),
        Modality.IMAGE: Settings(sampler="maskgit", temperature=0.7, guidance=1.5),
        Modality.AUDIO: Settings(sampler="low_confidence", temperature=0.0, guidance=1.5, length="median"),
        # The model knows better whether a picture fits a sentence than how to find the sentence.
        "caption": Settings(sampler="random_order", temperature=0.7, length="draw", best_of=8),
    },
    # The paper's defaults: one token a step for pictures, 1,000 steps for 30 s of sound.
    "paper": {
        Modality.TEXT: Settings(sampler="random_order"),
        Modality.IMAGE: Settings(sampler="random_order", steps=1024, guidance=6.0),
        Modality.AUDIO: Settings(sampler="random_order", steps=1000, temperature=1.2, top_p=0.9, guidance=3.0),
    },
}
