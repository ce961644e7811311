"""Input and output of image tokenizers: square images, as float32 arrays in [-1, 1]."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from triptych.utils.media import WHITE


def resize_with_white_padding(image: Image.Image, size: int) -> Image.Image:
    """Fit the whole image into a square of `size` pixels, centred, with white bars where it is not square."""
    image = image.convert("RGB")
    if image.size == (size, size):
        return image
    longest = max(image.size)
    width, height = (max(1, round(side * size / longest)) for side in image.size)
    fitted = image.resize((width, height), Image.Resampling.BICUBIC)
    square = Image.new("RGB", (size, size), WHITE)
    square.paste(fitted, ((size - width) // 2, (size - height) // 2))
    return square


def to_pixels(images: Sequence[Image.Image]) -> np.ndarray:
    """RGB images of one size -> float32 [B, 3, H, W] in [-1, 1] (the paper's mean 0.5 and deviation 0.5)."""
    bytes_BHWC = np.stack([np.asarray(image) for image in images])
    return np.ascontiguousarray((bytes_BHWC.astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2))


def from_pixels(pixels: np.ndarray) -> list[Image.Image]:
    """The inverse of `to_pixels`; values outside [-1, 1] are clipped."""
    bytes_BHWC = ((np.clip(pixels, -1, 1) + 1) * 127.5).round().astype(np.uint8).transpose(0, 2, 3, 1)
    return [Image.fromarray(np.ascontiguousarray(image)) for image in bytes_BHWC]
