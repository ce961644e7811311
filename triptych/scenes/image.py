"""Pictures to pixels."""

from functools import cache

import numpy as np
from PIL import Image

from triptych.scenes.layout import place
from triptych.scenes.picture import Picture
from triptych.scenes.sprites import sprite
from triptych.scenes.world import FULL, Scene, World

# One flat colour each, with small details: gradients would give every patch of an object many versions.
_RGB = {
    "white": (1.0, 1.0, 1.0), "grey": (0.80, 0.81, 0.83), "cream": (0.99, 0.94, 0.80), "sky": (0.72, 0.88, 0.99),
    "grass": (0.67, 0.85, 0.50), "night": (0.19, 0.21, 0.45),
}  # fmt: skip
_BLADES = (
    (9, 118),
    (22, 121),
    (43, 116),
    (59, 120),
    (74, 117),
    (91, 121),
    (105, 116),
    (120, 119),
)  # x, y, of the grass
_STARS = ((7, 5), (40, 9), (73, 4), (106, 10))  # x, y


def draw(picture: Picture, world: World = FULL) -> Image.Image:
    """Draw the objects in their order on the background."""
    pixels = background(picture.background, world.image_size).copy()
    for item in picture.objects:
        rgba = sprite(item.look, item.width, world)
        area = pixels[item.y : item.y + item.width, item.x : item.x + item.width]
        area += rgba[..., 3:] * (rgba[..., :3] - area)
    return Image.fromarray(np.round(pixels * 255).astype(np.uint8))


def scene_image(scene: Scene, rng: np.random.Generator, world: World = FULL) -> Image.Image:
    """An image of the scene, with random positions."""
    return draw(place(scene, rng, world), world)


@cache
def background(name: str, size: int = FULL.image_size) -> np.ndarray:
    """[size, size, 3] float32 in [0, 1]."""
    pixels = np.empty((size, size, 3), dtype=np.float32)
    pixels[:] = _RGB[name]
    if name == "grass":
        for x, y in _BLADES:
            pixels[y : y + 4, x : x + 2] = (0.42, 0.66, 0.30)
    if name == "night":
        for x, y in _STARS:
            pixels[y : y + 2, x : x + 2] = (0.95, 0.93, 0.75)
    return pixels
