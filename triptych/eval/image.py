"""Pictures compared with pictures."""

import numpy as np
from PIL import Image


def psnr(one: Image.Image, other: Image.Image) -> float:
    """Peak signal-to-noise ratio in dB of two pictures of one size."""
    difference = np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    return float(10 * np.log10(255**2 / max(np.square(difference).mean(), 1e-9)))
