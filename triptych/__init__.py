"""Triptych: one masked-diffusion model for text, images and audio, pretrained from scratch.

    from triptych import Pipeline

    pipe = Pipeline.from_pretrained("scenes")
    pipe.text_to_image("two cats left of a red heart").save("cats.png")

The names below are imported when they are first used, so that `import triptych` does not load torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from triptych.data.fit import fit_tokenizers as fit_tokenizers
    from triptych.data.tokenize import tokenize as tokenize
    from triptych.eval.evaluate import evaluate as evaluate
    from triptych.hub.pipeline import Pipeline as Pipeline
    from triptych.sample.config import SamplingConfig as SamplingConfig
    from triptych.training.config import RunConfig as RunConfig
    from triptych.training.run import train as train
    from triptych.utils.media import Audio as Audio
    from triptych.vocab import Vocabulary as Vocabulary

_HOME = {
    "Audio": "triptych.utils.media",
    "Pipeline": "triptych.hub.pipeline",
    "RunConfig": "triptych.training.config",
    "SamplingConfig": "triptych.sample.config",
    "Vocabulary": "triptych.vocab",
    "evaluate": "triptych.eval.evaluate",
    "fit_tokenizers": "triptych.data.fit",
    "tokenize": "triptych.data.tokenize",
    "train": "triptych.training.run",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'triptych' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
