"""The image transforms of the paper.

The caller passes the `np.random.Generator`, so that a sample's transform depends on its number alone.
"""

import math

import numpy as np
from PIL import Image

from triptych.tokenizers.pixels import resize_with_white_padding


def paper_transform(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """With even odds a random crop, or the whole image on a white square."""
    if rng.random() < 0.5:
        return random_resized_crop(image, size, rng)
    return resize_with_white_padding(image, size)


def random_resized_crop(
    image: Image.Image, size: int, rng: np.random.Generator, scale: tuple[float, float] = (0.8, 1.0)
) -> Image.Image:
    """A box of `scale` of the area and an aspect ratio of 3:4 to 4:3 (log-uniform), stretched to a square.

    As in torchvision: ten tries to find a box that fits, else the largest central box with an allowed aspect ratio.
    """
    image = image.convert("RGB")
    width, height = image.size
    for _ in range(10):
        area = rng.uniform(*scale) * width * height
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(rng.integers(width - box_width + 1))
            top = int(rng.integers(height - box_height + 1))
            break
    else:
        box_width, box_height = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        box_width, box_height = max(1, box_width), max(1, box_height)
        left, top = (width - box_width) // 2, (height - box_height) // 2
    box = (left, top, left + box_width, top + box_height)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)
