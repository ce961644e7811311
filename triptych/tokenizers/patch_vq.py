"""Image tokenizer for small data and CPUs: a code is a patch with transparent pixels, and there is no network.

    image -> patches without their background (`backdrop`) -> nearest patch of the codebook
    codes -> patches of the codebook -> on the background -> image

An object has the same codes in every place and on every background: easy to predict for a model of codes.
A code is one token, or, if the codes have names, two: a pattern and a colour. `fit_patch_vq` fits the codebook,
`fit_patch_names` the names.
"""

import io
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
from safetensors.numpy import save_file
from torch import Tensor

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.backdrop import combine, separate
from triptych.tokenizers.base import MAX_RESOLUTION, check_image_ids, hash_arrays, read_spec, write_spec
from triptych.tokenizers.pixels import from_pixels, resize_with_white_padding, to_pixels
from triptych.utils.arguments import check_fields
from triptych.utils.json_files import read_bounded
from triptych.utils.media import MAX_INPUT_BYTES
from triptych.utils.tensors import read_tensors
from triptych.vocab import Modality

_CODEBOOK, _NAMES = "codebook.png", "names.safetensors"
_BLOCK = 64  # patches of one matrix product
_MAX_REMEMBERED = 2**17  # patches
_CHROMA = 2.0  # distances are measured with colours enlarged: the same shape in two colours is two things

# B images, G rows and columns of patches, N = G * G patches, P pixels along a patch, L = 4 P P layers, K codes,
# A patterns, C colours


@dataclass(frozen=True)
class PatchVQConfig:
    """The shape of the images and the number of codes."""

    resolution: int = 128
    patch: int = 16
    codes: int = 8192

    def __post_init__(self) -> None:
        check_fields(self)
        if min(vars(self).values()) < 1 or self.resolution > MAX_RESOLUTION or self.resolution % self.patch:
            raise UserError(
                f"a PatchVQ needs positive sizes and a resolution that is a multiple of the patch, up to "
                f"{MAX_RESOLUTION}, got {self}."
            )

    @property
    def grid(self) -> int:
        return self.resolution // self.patch


@final
class PatchVQ:
    """An image of `resolution` x `resolution` pixels <-> one code per patch, row by row: one token or two.

    Images of another size are first fitted into a white square. All matrix products have the same shape, because others
    round differently: the ids of an image never depend on the rest of the batch.
    """

    kind = "patch-vq"
    modality = Modality.IMAGE

    def __init__(self, codes_KL: np.ndarray, config: PatchVQConfig, names_K2: np.ndarray | None = None):
        """`codes_KL`: patches as bytes, see `quantize_codes`. `names_K2`: the pattern and the colour of every code."""
        self.config, self._bytes_KL = config, codes_KL
        self._names = None if names_K2 is None else _Names.of(names_K2, codes_KL)
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
            names = read_tensors(folder / _NAMES)["names"].numpy() if spec.get("names") else None
            with Image.open(io.BytesIO(read_bounded(folder / _CODEBOOK, MAX_INPUT_BYTES))) as sheet:
                tokenizer = cls(_from_sheet(sheet, config), config, names)
        except CheckpointError:
            raise
        except Exception as error:  # a damaged PNG raises errors of many kinds
            raise CheckpointError(f"{folder} is not a saved PatchVQ ({error}).") from error
        if tokenizer.fingerprint != spec.get("fingerprint"):
            files = _CODEBOOK if names is None else f"{_CODEBOOK} or {_NAMES}"
            raise CheckpointError(f"{folder / files} is not the file that was saved: its fingerprint differs.")
        return tokenizer

    def save(self, folder: str | Path) -> None:
        """Write a folder that `load` reads."""
        shape = asdict(self.config)
        has_names = {} if self._names is None else {"names": True}
        write_spec(
            Path(folder), self.kind, vocab_size=self.vocab_size, fingerprint=self.fingerprint, shape=shape, **has_names
        )
        _to_sheet(self._bytes_KL, self.config).save(Path(folder) / _CODEBOOK)
        if self._names is not None:
            save_file({"names": self._names.names_K2}, Path(folder) / _NAMES)

    def with_names(self, names_K2: np.ndarray) -> "PatchVQ":
        """The same codebook with two tokens per patch."""
        return PatchVQ(self._bytes_KL, self.config, names_K2)

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
    def num_codebooks(self) -> int:
        return 1 if self._names is None else 2

    @property
    def vocab_size(self) -> int:
        """Codes, or patterns and then colours."""
        return self.config.codes if self._names is None else sum(self._names.sizes)

    @property
    def tokens_per_image(self) -> int:
        return self.num_codebooks * self.grid**2

    @cached_property
    def fingerprint(self) -> str:
        arrays = {"codebook": self._bytes_KL}
        if self._names is not None:
            arrays["names"] = self._names.names_K2
        return hash_arrays({"kind": self.kind, **asdict(self.config)}, arrays)

    def encode(self, items: Sequence[Image.Image]) -> list[np.ndarray]:
        parts = []
        for image in items:
            pixels = torch.from_numpy(to_pixels([resize_with_white_padding(image, self.resolution)]))
            parts.append(separate(to_patches(pixels.to(self.codebook_KL.device), self.config.patch))[0])
        if not parts:
            return []
        codes = np.array(self._codes(torch.cat(parts)), np.int32).reshape(len(parts), -1)
        return [row if self._names is None else self._names.tokens(row) for row in codes]

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
            row = np.asarray(row, np.int64)
            codes_N = torch.from_numpy(row if self._names is None else self._names.codes(row))
            codes_N = codes_N.to(self.codebook_KL.device)
            images += from_pixels(to_images(combine(self.codebook_KL[codes_N][None]), self.config.patch).cpu().numpy())
        return images


@dataclass(frozen=True)
class _Names:
    """The pattern and the colour of every code, and the code of every pattern in every colour."""

    names_K2: np.ndarray
    sizes: tuple[int, int]
    code_AC: np.ndarray

    @classmethod
    def of(cls, names_K2: np.ndarray, codes_KL: np.ndarray) -> "_Names":
        codes = len(codes_KL)
        if np.shape(names_K2) != (codes, 2) or np.min(names_K2) < 0 or np.max(names_K2) >= codes:
            raise UserError(f"names must be two numbers from 0 to {codes - 1} for each of {codes} codes.")
        names_K2 = np.ascontiguousarray(names_K2, np.int32)
        num_patterns, num_colors = map(int, names_K2.max(0) + 1)
        code_AC = np.full((num_patterns, num_colors), -1, np.int64)
        code_AC[names_K2[:, 0], names_K2[:, 1]] = np.arange(codes)
        if (code_AC >= 0).sum() != codes or (code_AC < 0).all(1).any():
            raise UserError("every code needs a name of its own, and every pattern a code.")
        # A model may ask for a pattern in a colour that it does not have: it gets the most similar one.
        layers_K4P = codes_KL.reshape(codes, 4, -1).astype(np.float32)
        opacity_K = layers_K4P[:, 3].sum(1)
        mean_K3 = (layers_K4P[:, :3] * layers_K4P[:, 3:]).sum(2) / np.maximum(opacity_K, 1)[:, None]
        count_C = np.bincount(names_K2[:, 1], minlength=num_colors)
        total_C3 = np.stack([np.bincount(names_K2[:, 1], part, num_colors) for part in mean_K3.T], 1)
        color_C3 = total_C3 / np.maximum(count_C, 1)[:, None]
        distance_CC = np.linalg.norm(color_C3[:, None] - color_C3, axis=2)
        for row_C in code_AC:
            known = np.flatnonzero(row_C >= 0)
            row_C[:] = row_C[known[distance_CC[:, known].argmin(1)]]
        return cls(names_K2, (num_patterns, num_colors), code_AC)

    def tokens(self, codes_N: np.ndarray) -> np.ndarray:
        """[2 N]: a pattern, then a colour, for each patch."""
        return (self.names_K2[codes_N] + np.array([0, self.sizes[0]], np.int32)).reshape(-1)

    def codes(self, tokens: np.ndarray) -> np.ndarray:
        """[N]. A colour in the place of a pattern, or the other way round, is read as some pattern or colour."""
        pattern_N, color_N = tokens.reshape(-1, 2).T
        return self.code_AC[pattern_N % self.sizes[0], (color_N - self.sizes[0]) % self.sizes[1]]


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
    codes_KL = tiles.reshape(-1, 4 * side**2)[: config.codes]
    if len(codes_KL) != config.codes:
        raise ValueError(f"its codebook has {len(codes_KL)} codes, expected {config.codes}")
    return codes_KL
