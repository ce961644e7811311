"""What the evaluation asks of a codec: encode an image or a clip, and decode it again, perhaps from fewer codebooks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from triptych.errors import CheckpointError, UserError
from triptych.eval.pretrained import download
from triptych.hub.source import HUB_PREFIX
from triptych.utils.json_files import read_json

Item = TypeVar("Item")
_FILES = ("*.json", "*.safetensors")


@dataclass(frozen=True, kw_only=True)
class CodecFacts:
    """What a codec is, for the tables of tokenizers."""

    name: str
    """Class and origin: "DacModel (dac_24khz)"."""
    type: str
    """VQ, RVQ, FSQ; "continuous" for one without codes."""
    downsampling: int
    """Pixels along a side, or samples at the codec's rate, for one token."""
    vocabulary: int | None
    """Codes of one codebook; None for a continuous codec."""
    num_codebooks: int = 1
    latent_size: int | None = None
    """Numbers that one code stands for."""
    tokens: int | None = None
    """Per image."""
    resolution: int | None = None
    """Width and height of images."""
    sample_rate: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def bits_per_second(self, codebooks: int) -> float | None:
        if self.vocabulary is None or self.sample_rate is None:
            return None
        return codebooks * self.sample_rate / self.downsampling * float(np.log2(self.vocabulary))


@dataclass(frozen=True)
class Encoded:
    """An item as its codec stores it."""

    codes: np.ndarray | None
    """[codebooks, tokens] integers; None for a continuous codec."""
    state: Any = None
    """What else decoding needs: latents of a continuous codec."""


class MediaCodec(Protocol[Item]):
    """A codec of images or of audio."""

    facts: CodecFacts

    def encode(self, item: Item) -> Encoded: ...

    def decode(self, encoded: Encoded, codebooks: int | None = None) -> Item:
        """From the first `codebooks` codebooks; None takes all."""
        ...


def codec_folder(source: str) -> Path:
    """The local folder of a codec; a name on the hub is downloaded unless it is cached."""
    folder, name = Path(source), source.removeprefix(HUB_PREFIX)
    if folder.exists():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"there is no codec {source!r}; give a folder, OWNER/NAME on the hub, or built-in tokenizers.")
    return download(name, _FILES, f"the codec {name}")


def class_of(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """The class that a folder of diffusers or transformers names, and its configuration."""
    try:
        config = read_json(folder / "config.json")
        name = config.get("_class_name") or (config.get("architectures") or [config.get("model_type")])[0]
    except (OSError, ValueError, AttributeError, IndexError, TypeError) as error:
        raise CheckpointError(f"{folder} has no config.json of a codec ({error!r}).") from error
    if not isinstance(name, str):
        raise CheckpointError(
            f"{folder}/config.json names no class: expected _class_name, architectures or model_type."
        )
    return name, config


def is_saved_tokenizer(folder: Path) -> bool:
    """Whether tokenizer.json is that of this package; transformers writes a file of this name for texts."""
    path = folder / "tokenizer.json"
    return path.exists() and path.stat().st_size < 1 << 16 and '"kind"' in path.read_text()


def short_name(source: str) -> str:
    """The last part of a path or of a name on the hub."""
    return Path(source).name or source
