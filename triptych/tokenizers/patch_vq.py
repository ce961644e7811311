"""Image tokenizer for small data and CPUs: a code per patch, and a transformer that paints all patches together.

    image -> patches -> principal components -> nearest code
    codes -> patches, corrected by a transformer that sees all codes -> image

The encoder sees one patch at a time, so equal patches have equal codes wherever they are: easy to predict for a model
of codes. The decoder sees all codes, so it can paint an object sharper than its single codes describe it. It knows
relative positions only: an object learned in one place is known in every place. `fit_patch_vq` fits both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.base import check_image_ids, hash_arrays, read_spec, write_spec
from triptych.tokenizers.pixels import from_pixels, resize_with_white_padding, to_pixels
from triptych.vocab import Modality

_WEIGHTS = "patch_vq.safetensors"
ENCODER = ("mean", "basis", "inverse", "codebook")  # weights that decide the code of a patch and what it shows

# B images, G rows and columns of patches, N = G * G patches, P pixels along a patch, C components, D width, K codes


@dataclass(frozen=True)
class PatchVQConfig:
    """The shape of the network."""

    resolution: int = 128
    patch: int = 16
    codes: int = 4096
    components: int = 160
    width: int = 256
    layers: int = 6

    def __post_init__(self) -> None:
        if min(asdict(self).values()) < 1 or self.resolution % self.patch or self.width % 32:
            raise UserError(
                "a PatchVQ needs positive sizes, a resolution that is a multiple of the patch, and a width that is a "
                f"multiple of 32, got {self}."
            )

    @property
    def grid(self) -> int:
        return self.resolution // self.patch


class _Block(nn.Module):
    """A transformer block: attention with a learned bias for every offset between two patches, then an MLP."""

    offset: Tensor

    def __init__(self, width: int, heads: int, grid: int):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.offset_bias = nn.Parameter(torch.zeros(heads, (2 * grid - 1) ** 2))
        place = torch.arange(grid)
        row, column = place.repeat_interleave(grid), place.repeat(grid)
        index = (row[:, None] - row + grid - 1) * (2 * grid - 1) + column[:, None] - column + grid - 1
        self.register_buffer("offset", index, persistent=False)

    def forward(self, x_BND: Tensor) -> Tensor:
        batch, patches, width = x_BND.shape
        qkv = self.qkv(self.attention_norm(x_BND)).view(batch, patches, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.offset_bias[:, self.offset]
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=bias[None])
        x_BND = x_BND + self.out(mixed.transpose(1, 2).reshape(batch, patches, width))
        return x_BND + self.down(F.gelu(self.up(self.mlp_norm(x_BND))))


class PatchVQNetwork(nn.Module):
    """Patches -> components -> nearest code -> patches."""

    def __init__(self, config: PatchVQConfig):
        super().__init__()
        self.patch, self.grid = config.patch, config.grid
        pixels = 3 * config.patch**2
        # Fitted by principal components and k-means, not by gradient.
        self.mean = nn.Parameter(torch.zeros(pixels), requires_grad=False)
        self.basis = nn.Parameter(torch.eye(pixels)[:, : config.components].clone(), requires_grad=False)
        self.inverse = nn.Parameter(torch.eye(pixels)[: config.components].clone(), requires_grad=False)
        self.codebook = nn.Parameter(torch.randn(config.codes, config.components), requires_grad=False)
        self.embedding = nn.Embedding(config.codes, config.width)
        self.enter = nn.Linear(config.components, config.width)
        self.blocks = nn.ModuleList(_Block(config.width, config.width // 32, self.grid) for _ in range(config.layers))
        self.norm, self.paint = nn.LayerNorm(config.width), nn.Linear(config.width, pixels)
        for weight in (self.embedding.weight, self.paint.weight, self.paint.bias):
            nn.init.zeros_(weight)  # before training, a patch is painted by its own code alone

    def to_patches(self, images_BCHW: Tensor) -> Tensor:
        """[B, 3, G P, G P] -> [B, N, 3 P P]."""
        return F.pixel_unshuffle(images_BCHW, self.patch).flatten(2).transpose(1, 2)

    def to_images(self, patches_BNP: Tensor) -> Tensor:
        folded = patches_BNP.transpose(1, 2).unflatten(2, (self.grid, self.grid))
        return F.pixel_shuffle(folded, self.patch)

    def encode(self, patches_BNP: Tensor) -> Tensor:
        """The nearest code of every patch, [B, N]."""
        components = (patches_BNP - self.mean) @ self.basis
        return nearest_code(components.flatten(0, 1), self.codebook).view(patches_BNP.shape[:2])

    def decode(self, ids_BN: Tensor) -> Tensor:
        """[B, N] -> patches [B, N, 3 P P] in about [-1, 1]."""
        components = self.codebook[ids_BN]
        x = self.enter(components) + self.embedding(ids_BN)
        for block in self.blocks:
            x = block(x)
        return components @ self.inverse + self.mean + self.paint(self.norm(x))


@final
class PatchVQ:
    """An image of `resolution` x `resolution` pixels <-> one code per patch, row by row.

    Images of another size are first fitted into a white square. Every forward pass has one image, because matrix
    products round differently for another batch shape: the ids of an image never depend on the rest of the batch.
    """

    kind = "patch-vq"
    modality = Modality.IMAGE

    def __init__(self, network: PatchVQNetwork, config: PatchVQConfig):
        self.network, self.config = network.eval(), config

    @classmethod
    def untrained(cls, config: PatchVQConfig, seed: int = 0) -> "PatchVQ":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(PatchVQNetwork(config), config)

    @classmethod
    def load(cls, folder: Path) -> "PatchVQ":
        spec = read_spec(Path(folder), [cls.kind])
        try:
            config = PatchVQConfig(**spec["network"])
            weights = {name: weight.float() for name, weight in load_file(Path(folder) / _WEIGHTS).items()}
            network = cls.untrained(config).network
            network.load_state_dict(weights)
        except (KeyError, TypeError, OSError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{folder} is not a saved PatchVQ ({error}).") from error
        tokenizer = cls(network, config)
        if spec.get("decoder") != tokenizer._hash_decoder(weights):
            raise CheckpointError(f"the decoder in {folder} is not the one that was saved: its fingerprint differs.")
        return tokenizer

    def save(self, folder: str | Path, half: bool = False) -> None:
        """Write a folder that `load` reads. `half` stores float16, which is a tokenizer with its own fingerprint."""
        weights = {name: weight.half() if half else weight for name, weight in self._weights().items()}
        stored = {name: weight.float() for name, weight in weights.items()}
        write_spec(
            Path(folder),
            self.kind,
            vocab_size=self.vocab_size,
            fingerprint=self._hash(stored),
            decoder=self._hash_decoder(stored),
            network=asdict(self.config),
        )
        save_file(weights, Path(folder) / _WEIGHTS)

    def to(self, device: str | torch.device) -> "PatchVQ":
        self.network.to(device)
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
        return self._hash(self._weights())

    def _weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().cpu().contiguous() for name, weight in self.network.state_dict().items()}

    def _hash(self, weights: Mapping[str, Tensor]) -> str:
        """Of the encoder alone: it decides what a code means. A better decoder fits old codes."""
        config = {name: value for name, value in asdict(self.config).items() if name not in ("width", "layers")}
        encoder = {name: weights[name].numpy() for name in ENCODER}
        return hash_arrays({"kind": self.kind, **config}, encoder)

    def _hash_decoder(self, weights: Mapping[str, Tensor]) -> str:
        decoder = {name: weight.numpy() for name, weight in weights.items() if name not in ENCODER}
        return hash_arrays({"kind": self.kind}, decoder)

    @torch.no_grad()
    def encode(self, items: Sequence[Image.Image]) -> list[np.ndarray]:
        ids = []
        for image in items:
            pixels = torch.from_numpy(to_pixels([resize_with_white_padding(image, self.resolution)]))
            codes_N = self.network.encode(self.network.to_patches(pixels.to(self._device)))[0]
            ids.append(codes_N.cpu().numpy().astype(np.int32))
        return ids

    @torch.no_grad()
    def decode(self, ids: Sequence[np.ndarray]) -> list[Image.Image]:
        images: list[Image.Image] = []
        for row in ids:
            check_image_ids(row, self.tokens_per_image, self.vocab_size)
            codes_N = torch.from_numpy(np.asarray(row, np.int64)).to(self._device)
            images += from_pixels(self.network.to_images(self.network.decode(codes_N[None])).cpu().numpy())
        return images

    @property
    def _device(self) -> torch.device:
        return self.network.codebook.device


def nearest_code(latents: Tensor, codes: Tensor) -> Tensor:
    """[N, C], [K, C] -> [N] index of the nearest code."""
    return (codes.square().sum(1) - 2 * latents @ codes.T).argmin(1)
