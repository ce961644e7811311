"""How to sample each modality, by name of the preset."""

from collections.abc import Mapping

from triptych.sample.generate import Settings
from triptych.vocab import Modality

PRESETS: dict[str, Mapping[Modality, Settings]] = {
    # Chosen on validation scenes with an earlier embedded model; with this one, guidance 2.5 is worse.
    "scenes": {
        Modality.TEXT: Settings(sampler="low_confidence", temperature=0.0, length="mode"),
        Modality.IMAGE: Settings(sampler="maskgit", temperature=0.7, guidance=1.5),
        Modality.AUDIO: Settings(sampler="low_confidence", temperature=0.0, guidance=1.5, length="median"),
    },
    # The paper's defaults: one token a step for pictures, 1,000 steps for 30 s of sound.
    "paper": {
        Modality.TEXT: Settings(sampler="random_order"),
        Modality.IMAGE: Settings(sampler="random_order", steps=1024, guidance=6.0),
        Modality.AUDIO: Settings(sampler="random_order", steps=1000, temperature=1.2, top_p=0.9, guidance=3.0),
    },
}
