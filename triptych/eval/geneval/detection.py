"""Objects in images, and the protocol of what finds them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from PIL import Image

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


@dataclass(frozen=True)
class Detection:
    """An object in an image."""

    name: str
    """Its class."""
    box: Box
    score: float
    """Confidence of the detector, from 0 to 1."""
    color: str | None = None
    """None if the detector does not name colours: another network is asked then."""
    mask: np.ndarray | None = field(default=None, compare=False, repr=False)
    """[H, W] bool: its pixels in the image, if the detector gives them."""


class ObjectDetector(Protocol):
    """Finds objects. A judge that knows the world of its images may name their colours too."""

    name: str
    """For people and records."""
    sha256: str
    """Of its weights; empty if it has none."""
    classes: frozenset[str]
    """What it can find; prompts about other objects are refused."""
    names_colors: bool
    """Whether its detections have colours."""

    def __call__(self, images: Sequence[Image.Image]) -> list[list[Detection]]:
        """The objects of every image, in any order and of any score."""
        ...
