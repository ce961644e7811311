"""Rectangles of images, in pixels and in image codes."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from PIL import Image

from triptych.errors import UserError
from triptych.utils.arguments import shown
from triptych.utils.media import WHITE

Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels; right and bottom are exclusive, as in PIL."""

Repaint = Literal["codes", "box", "all"]
"""Which pixels of an infilled image are new: those of all image codes the box touches, those in the box, or all."""


def check_box(box: Sequence[int], size: tuple[int, int]) -> Box:
    """A box that lies within an image of this width and height."""
    is_box = isinstance(box, Sequence) and len(box) == 4 and all(isinstance(side, int | np.integer) for side in box)
    if not (is_box and 0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]):
        within = f"{size[0]} x {size[1]} pixels"
        raise UserError(f"the box must be left, top, right, bottom within {within}, got {shown(box)}.")
    left, top, right, bottom = map(int, box)
    return left, top, right, bottom


def on_square(image: Image.Image) -> tuple[Image.Image, int, int]:
    """The image centred on a white square, and how far it was moved right and down."""
    longest = max(image.size)
    left, top = ((longest - side) // 2 for side in image.size)
    square = Image.new("RGB", (longest, longest), WHITE)
    square.paste(image, (left, top))
    return square, left, top


def touched_codes(box: Box, width: int, side: int) -> np.ndarray:
    """[side, side] bool: the codes of a square image of `width` pixels that a box touches."""
    left, top, right, bottom = box
    codes = np.zeros((side, side), bool)
    codes[top * side // width : -(-bottom * side // width), left * side // width : -(-right * side // width)] = True
    return codes


def masked_codes(mask: np.ndarray, side: int) -> np.ndarray:
    """[side, side] bool: the codes of a square image that the pixels of `mask` [width, width] touch."""
    first = np.arange(side) * len(mask) // side
    past = -(-np.arange(1, side + 1) * len(mask) // side)
    rows = np.stack([mask[low:high].any(0) for low, high in zip(first, past)])
    return np.stack([rows[:, low:high].any(1) for low, high in zip(first, past)], axis=1)


def code_of_pixel(width: int, side: int) -> np.ndarray:
    """[width] the column (or row) of codes that each pixel of a square image belongs to, by the pixel's centre."""
    return (2 * np.arange(width) + 1) * side // (2 * width)


def pixels_of_codes(low: int, high: int, width: int, side: int) -> tuple[int, int]:
    """The first pixel of code `low`, and the first one that is past code `high` - 1."""
    first, past = np.searchsorted(code_of_pixel(width, side), [low, high])
    return int(first), int(past)


def repainted_box(size: tuple[int, int], box: Sequence[int], side: int) -> Box:
    """The pixels that belong to the codes a box touches, in an image of (width, height) and `side` codes a side."""
    is_size = isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)
    if not is_size:
        raise UserError(f"the size must be a width and a height in pixels, got {shown(size)}.")
    box, longest = check_box(box, size), max(size)
    edges = []
    for low, high, length in ((box[0], box[2], size[0]), (box[1], box[3], size[1])):
        margin = (longest - length) // 2  # of the white square that the image is centred on
        codes = (low + margin) * side // longest, -(-(high + margin) * side // longest)
        first, past = pixels_of_codes(*codes, longest, side)
        edges.append((max(0, first - margin), min(length, past - margin)))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def merge_repainted(
    square: Image.Image, painted: Image.Image, box: Box, codes: np.ndarray, repaint: Repaint
) -> Image.Image:
    """A square image with those pixels of `painted` that are to be new; `codes` are the ones the box touches."""
    if repaint == "all":
        return painted
    if repaint == "box":
        merged = square.copy()
        merged.paste(painted.crop(box), box)
        return merged
    index = code_of_pixel(square.width, len(codes))
    mask = Image.fromarray((codes[np.ix_(index, index)] * 255).astype(np.uint8))
    return Image.composite(painted, square, mask)
