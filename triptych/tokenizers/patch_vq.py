"""Image tokenizer for small data and CPUs: a code is a patch with transparent pixels, and there is no network.

    image -> patches without their background (`backdrop`) -> nearest patch of the codebook
    codes -> patches of the codebook -> on the background -> image

An object has the same codes in every place and on every background: easy to predict for a model of codes.
`fit_patch_vq` fits the codebook.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.backdrop import combine, separate
from triptych.tokenizers.base import check_image_ids, hash_arrays, read_spec, write_spec
from triptych.tokenizers.pixels import from_pixels, resize_with_white_padding, to_pixels
from triptych.vocab import Modality

_CODEBOOK = "codebook.png"
_BLOCK = 16  # patches of one matrix product
_MAX_REMEMBERED = 2**17  # patches
_CHROMA = 2.0  # distances are measured with colours enlarged: the same shape in two colours is two things

# B images, G rows and columns of patches, N = G * G patches, P pixels along a patch, L = 4 P P layers, K codes


@dataclass(frozen=True)
class PatchVQConfig:
    """The shape of the images and the number of codes."""

    resolution: int = 128
    patch: int = 16
    codes: int = 8192

    def __post_init__(self) -> None:
        if min(asdict(self).values()) < 1 or self.resolution % self.patch:
            raise UserError(
                f"a PatchVQ needs positive sizes and a resolution that is a multiple of the patch, got {self}."
            )

    @property
    def grid(self) -> int:
        return self.resolution // self.patch


@final
class PatchVQ:
    """An image of `resolution` x `resolution` pixels <-> one code per patch, row by row.

    Images of another size are first fitted into a white square. All matrix products have the same shape, because others
    round differently: the ids of an image never depend on the rest of the batch.
    """

    kind = "patch-vq"
    modality = Modality.IMAGE

    def __init__(self, codes_KL: np.ndarray, config: PatchVQConfig):
        """`codes_KL`: patches as bytes, see `quantize_codes`."""
        self.config, self._bytes_KL = config, codes_KL
        codes = torch.from_numpy(codes_KL.astype(np.float32)).unflatten(1, (4, -1)) / 255
        self.codebook_KL = torch.cat([2 * codes[:, :3] - 1, codes[:, 3:]], 1).flatten(1)
        self._squares_K = squared_length(self.codebook_KL)
        self._remembered: dict[bytes, int] = {}

    @classmethod
    def untrained(cls, config: PatchVQConfig, seed: int = 0) -> "PatchVQ":
        generator = torch.Generator().manual_seed(seed)
        return cls(quantize_codes(torch.rand(config.codes, 4 * config.patch**2, generator=generator)), config)

    @classmethod
    def load(cls, folder: Path) -> "PatchVQ":
        folder = Path(folder)
        spec = read_spec(folder, [cls.kind])
        try:
            config = PatchVQConfig(**spec["shape"])
            with Image.open(folder / _CODEBOOK) as sheet:
                tokenizer = cls(_from_sheet(sheet, config), config)
        except UserError:
            raise
        except Exception as error:  # a damaged PNG raises errors of many kinds
            raise CheckpointError(f"{folder} is not a saved PatchVQ ({error}).") from error
        if tokenizer.fingerprint != spec.get("fingerprint"):
            raise CheckpointError(f"{folder / _CODEBOOK} is not the file that was saved: its fingerprint differs.")
        return tokenizer

    def save(self, folder: str | Path) -> None:
        """Write a folder that `load` reads."""
        shape = asdict(self.config)
        write_spec(Path(folder), self.kind, vocab_size=self.vocab_size, fingerprint=self.fingerprint, shape=shape)
        _to_sheet(self._bytes_KL, self.config).save(Path(folder) / _CODEBOOK)

    def to(self, device: str | torch.device) -> "PatchVQ":
        self.codebook_KL, self._squares_K = self.codebook_KL.to(device), self._squares_K.to(device)
        return self

    @property
    def resolution(self) -> int:
        return self.config.resolution

    @property
    def grid(self) -> int:
        return self.config.grid

    @property
    def vocab_size(self) -> int:
        return self.config.codes

    @property
    def tokens_per_image(self) -> int:
        return self.grid**2

    @cached_property
    def fingerprint(self) -> str:
        return hash_arrays({"kind": self.kind, **asdict(self.config)}, {"codebook": self._bytes_KL})

    def encode(self, items: Sequence[Image.Image]) -> list[np.ndarray]:
        ids = []
        for image in items:
            pixels = torch.from_numpy(to_pixels([resize_with_white_padding(image, self.resolution)]))
            layers_NL = separate(to_patches(pixels.to(self.codebook_KL.device), self.config.patch))[0]
            ids.append(np.array(self._codes(layers_NL), np.int32))
        return ids

    def _codes(self, layers_NL: Tensor) -> list[int]:
        """The nearest codes. Patches repeat, within an image and between images, so their codes are remembered."""
        keys = [blake2b(row.tobytes(), digest_size=16).digest() for row in layers_NL.cpu().numpy()]
        known = self._remembered  # another thread may put an empty one in its place
        codes = {key: known[key] for key in keys if key in known}
        new = list({key: row for row, key in enumerate(keys) if key not in codes}.items())
        for start in range(0, len(new), _BLOCK):
            names, rows = zip(*new[start : start + _BLOCK])
            block = layers_NL.new_zeros(_BLOCK, layers_NL.shape[1])
            block[: len(rows)] = layers_NL[list(rows)]
            codes |= zip(names, nearest_code(block, self.codebook_KL, self._squares_K).tolist())
        if len(known) + len(new) > _MAX_REMEMBERED:
            known = self._remembered = {}
        known |= codes
        return [codes[key] for key in keys]

    def decode(self, ids: Sequence[np.ndarray]) -> list[Image.Image]:
        images: list[Image.Image] = []
        for row in ids:
            check_image_ids(row, self.tokens_per_image, self.vocab_size)
            codes_N = torch.from_numpy(np.asarray(row, np.int64)).to(self.codebook_KL.device)
            images += from_pixels(to_images(combine(self.codebook_KL[codes_N][None]), self.config.patch).cpu().numpy())
        return images


def to_patches(images_B3HW: Tensor, patch: int) -> Tensor:
    """[B, 3, G P, G P] -> [B, N, 3 P P]."""
    return F.pixel_unshuffle(images_B3HW, patch).flatten(2).transpose(1, 2)


def to_images(patches_BNC: Tensor, patch: int) -> Tensor:
    """The inverse of `to_patches`."""
    grid = math.isqrt(patches_BNC.shape[1])
    return F.pixel_shuffle(patches_BNC.transpose(1, 2).unflatten(2, (grid, grid)), patch)


def enlarge_chroma(layers_NL: Tensor) -> Tensor:
    """Layers in the metric of codes: x . enlarge_chroma(y) is the inner product of x and y."""
    layers = layers_NL.unflatten(1, (4, -1))
    grey = layers[:, :3].mean(1, keepdim=True)
    colors = grey + _CHROMA**2 * (layers[:, :3] - grey)
    return torch.cat([colors, layers[:, 3:]], 1).flatten(1)


def squared_length(layers_NL: Tensor) -> Tensor:
    """[N], in the metric of codes."""
    return (layers_NL * enlarge_chroma(layers_NL)).sum(1)


def nearest_code(layers_NL: Tensor, codes_KL: Tensor, squares_K: Tensor) -> Tensor:
    """[N] index of the nearest code."""
    return (squares_K - 2 * enlarge_chroma(layers_NL) @ codes_KL.T).argmin(1)


def quantize_codes(codes_KL: Tensor) -> np.ndarray:
    """Colours in [-1, 1] and opacity in [0, 1] as bytes, uint8[K, L]."""
    codes = codes_KL.unflatten(1, (4, -1))
    unit = torch.cat([(codes[:, :3] + 1) / 2, codes[:, 3:]], 1)
    return (255 * unit).round().clamp(0, 255).to(torch.uint8).flatten(1).numpy()


_SHEET_COLUMNS = 64


def _to_sheet(codes_KL: np.ndarray, config: PatchVQConfig) -> Image.Image:
    """A picture of the codebook: codes side by side, row by row."""
    rows, side = -(-config.codes // _SHEET_COLUMNS), config.patch
    padded = np.zeros((rows * _SHEET_COLUMNS, codes_KL.shape[1]), np.uint8)
    padded[: config.codes] = codes_KL
    tiles = padded.reshape(rows, _SHEET_COLUMNS, 4, side, side).transpose(0, 3, 1, 4, 2)
    return Image.fromarray(np.ascontiguousarray(tiles.reshape(rows * side, _SHEET_COLUMNS * side, 4)), "RGBA")


def _from_sheet(sheet: Image.Image, config: PatchVQConfig) -> np.ndarray:
    side = config.patch
    tiles = np.asarray(sheet).reshape(-1, side, _SHEET_COLUMNS, side, 4).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(-1, 4 * side**2)[: config.codes]
