"""Image tokenizer: MoVQ, a convolutional VQ autoencoder whose decoder norms are modulated by the codes.

The network is `diffusers.VQModel(norm_type="spatial")`, the architecture of SBER-MoVQGAN. The same class holds the
paper's tokenizer (270M parameters, 256 x 256 pixels -> 32 x 32 codes of 16,384) and the small demo tokenizer.
"""

import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from triptych.errors import CheckpointError, UserError, did_you_mean
from triptych.tokenizers.base import MAX_RESOLUTION, Tokenizer, check_image_ids, hash_arrays, read_spec, write_spec
from triptych.tokenizers.movq_keys import to_diffusers
from triptych.tokenizers.patch_vq import PatchVQ
from triptych.tokenizers.pixels import from_pixels, resize_with_white_padding, to_pixels
from triptych.utils.arguments import shown
from triptych.utils.json_files import read_json
from triptych.utils.tensors import build, read_tensors
from triptych.vocab import Modality

_WEIGHTS = "diffusion_pytorch_model.safetensors"  # with config.json, what diffusers writes and reads
_SBER = {"67M": (128, 2), "102M": (128, 4), "270M": (256, 2)}  # width of the first level, residual blocks per level


def load_image_tokenizer(folder: Path) -> Tokenizer[Image.Image]:
    """Load a saved `MoVQ` or `PatchVQ`."""
    if read_spec(Path(folder), [MoVQ.kind, PatchVQ.kind])["kind"] == PatchVQ.kind:
        return PatchVQ.load(Path(folder))
    return MoVQ.load(Path(folder))


# -- configurations: keyword arguments of `diffusers.VQModel` ---------------------------------------------------------


def small_config(
    channels: Sequence[int] = (32, 64, 64, 128),
    codes: int = 1024,
    latent_channels: int = 4,
    layers_per_block: int = 1,
    groups: int = 32,
    patch: int = 1,
) -> dict[str, Any]:
    """A MoVQ that halves the image at every level but the last, with attention at the last level, like SBER's.

    With a `patch` above 1 the image is first folded into patches of that width (`pixel_unshuffle`), which is cheaper
    than halving at full resolution. `groups` is for the norms of the encoder; those of the decoder always have 32, so
    widths must be multiples of 32.
    """
    if len(channels) < 2 or any(width % 32 or width % groups for width in channels):
        raise UserError(f"channels must be two or more multiples of 32 and of groups={groups}, got {tuple(channels)}.")
    plain_levels = len(channels) - 1
    return {
        "in_channels": 3 * patch**2,
        "out_channels": 3 * patch**2,
        "block_out_channels": tuple(channels),
        "down_block_types": ("DownEncoderBlock2D",) * plain_levels + ("AttnDownEncoderBlock2D",),
        "up_block_types": ("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * plain_levels,
        "layers_per_block": layers_per_block,
        "latent_channels": latent_channels,
        "vq_embed_dim": latent_channels,
        "num_vq_embeddings": codes,
        "norm_num_groups": groups,
        "norm_type": "spatial",
    }


def sber_config(size: str = "270M") -> dict[str, Any]:
    """SBER-MoVQGAN in one of its published sizes."""
    if size not in _SBER:
        raise UserError(f"no SBER-MoVQGAN of size {size!r}.{did_you_mean(size, list(_SBER))}")
    width, layers = _SBER[size]
    return small_config((width, 2 * width, 2 * width, 4 * width), codes=16_384, layers_per_block=layers)


# -- the tokenizer ----------------------------------------------------------------------------------------------------


@final
class MoVQ:
    """An image of `resolution` x `resolution` pixels <-> `grid` x `grid` codes, row by row.

    Images of another size are first fitted into a white square.

    Every forward pass has exactly `batch_size` images; the last one is filled up with copies. Convolutions round
    differently for another batch shape (2e-6 on CPU), which can move a latent to another code. So the ids of an image
    never depend on the rest of the batch. Values above 1 are faster on a GPU.

    With `local`, the encoder sees one patch at a time, so a code depends on its patch alone. An encoder that sees the
    whole image gives the same patch many codes: finer images, but noise for a model that predicts codes.
    """

    kind = "movq"
    modality = Modality.IMAGE

    def __init__(self, model: Any, resolution: int, batch_size: int = 1, local: bool = False):
        """`model` is a `diffusers.VQModel`, whose annotations a type checker cannot use."""
        self.model = model.eval()
        self.resolution, self.batch_size, self.local = resolution, batch_size, local
        if local and model.config.block_out_channels[-1] < 4 * model.config.norm_num_groups:
            # A single patch ends as one vector; norms over single channels would reduce it to zero.
            raise UserError("a local MoVQ needs at least 4 channels per group in its last level.")
        self.patch = math.isqrt(model.config.in_channels // 3)
        factor = self.patch * 2 ** (len(model.config.block_out_channels) - 1)
        if resolution < factor or resolution % factor:
            raise UserError(f"the resolution must be a multiple of {factor} for this MoVQ, got {resolution}.")
        self.grid = resolution // factor

    @classmethod
    def small(cls, resolution: int = 64, seed: int = 0, local: bool = False, **config: Any) -> "MoVQ":
        """An untrained MoVQ; `config` are arguments of `small_config`."""
        from diffusers import VQModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(VQModel(**small_config(**config)), resolution, local=local)

    @classmethod
    def from_sber(cls, path: str | Path, size: str = "270M", resolution: int = 256) -> "MoVQ":
        """Load an original `movqgan_*.ckpt`. `save` converts it to safetensors."""
        return cls.from_original(path, sber_config(size), resolution)

    @classmethod
    def from_original(cls, path: str | Path, config: Mapping[str, Any], resolution: int) -> "MoVQ":
        """Load a checkpoint with the weight names of the original code into a network of the given configuration."""
        return cls(_build(config, to_diffusers(_read_checkpoint(Path(path))), Path(path)), resolution)

    @classmethod
    def from_folder(cls, folder: str | Path, resolution: int = 256, local: bool = False) -> "MoVQ":
        """Load a folder written by diffusers (Kandinsky's `movq` is one): config.json and safetensors, never pickle."""
        folder = Path(folder)
        try:
            config = read_json(folder / "config.json")
            config = {name: value for name, value in config.items() if not name.startswith("_")}
            config["lookup_from_codebook"] = False  # an option of `VQModel.decode`, which is not used
            weights = read_tensors(folder / _WEIGHTS)
        except (OSError, ValueError, AttributeError, SafetensorError) as error:
            raise CheckpointError(
                f"{folder} is not a diffusers VQModel with config.json and {_WEIGHTS} ({error})."
            ) from error
        return cls(_build(config, weights, folder), resolution, local=local)

    @classmethod
    def load(cls, folder: Path) -> "MoVQ":
        spec = read_spec(folder, [cls.kind])
        resolution = spec.get("resolution")
        local = spec.get("local", False)
        if type(resolution) is not int or not 0 < resolution <= MAX_RESOLUTION or type(local) is not bool:
            raise CheckpointError(
                f"{folder}/tokenizer.json must give the resolution, up to {MAX_RESOLUTION}, and whether it is local, "
                f"got {shown(resolution)} and {shown(local)}."
            )
        return cls.from_folder(folder, resolution, local)

    def save(self, folder: str | Path, half: bool = False) -> None:
        """Write a folder that `load` and diffusers can read.

        `half` stores float16: half the size, but a different tokenizer with its own fingerprint, because rounding
        changes some codes. Tokenize data with the loaded one.
        """
        weights = {name: weight.half() if half else weight for name, weight in self._weights().items()}
        fingerprint = self._hash({name: weight.float() for name, weight in weights.items()})
        folder = Path(folder)
        fields = {"resolution": self.resolution, "vocab_size": self.vocab_size, "fingerprint": fingerprint}
        write_spec(folder, self.kind, **fields, **({"local": True} if self.local else {}))
        self.model.save_config(folder)
        save_file(weights, folder / _WEIGHTS)

    def to(self, device: str | torch.device) -> "MoVQ":
        self.model.to(device)
        return self

    @property
    def vocab_size(self) -> int:
        return self.model.config.num_vq_embeddings

    @property
    def num_codebooks(self) -> int:
        return 1

    @property
    def tokens_per_image(self) -> int:
        return self.grid**2

    @cached_property
    def fingerprint(self) -> str:
        return self._hash(self._weights())

    def _weights(self) -> dict[str, Tensor]:
        return {name: weight.cpu().contiguous() for name, weight in self.model.state_dict().items()}

    def _hash(self, weights: Mapping[str, Tensor]) -> str:
        # Without the rest of the configuration, which gains fields with new releases of diffusers.
        decisive = {name: self.model.config[name] for name in small_config()}
        config = {"kind": self.kind, "resolution": self.resolution, "model": decisive}
        if self.local:
            config["local"] = True
        return hash_arrays(config, {name: weight.numpy() for name, weight in weights.items()})

    @torch.no_grad()
    def encode(self, items: Sequence[Image.Image]) -> list[np.ndarray]:
        images = [resize_with_white_padding(image, self.resolution) for image in items]
        ids: list[np.ndarray] = []
        for batch in _batches(images, self.batch_size):
            latents_BCHW = self.latents(torch.from_numpy(to_pixels(batch)).to(self.model.device))
            for latents_CHW in latents_BCHW:  # one by one: the distances to 16,384 codes take 64 MB per image
                codes = self.model.quantize(latents_CHW[None])[2][2]
                ids.append(codes.cpu().numpy().astype(np.int32))
        return ids[: len(images)]

    @torch.no_grad()
    def decode(self, ids: Sequence[np.ndarray]) -> list[Image.Image]:
        for row in ids:
            check_image_ids(row, self.tokens_per_image, self.vocab_size)
        images: list[Image.Image] = []
        for batch in _batches(list(ids), self.batch_size):
            codes = torch.from_numpy(np.concatenate(batch).astype(np.int64)).to(self.model.device)
            shape_BHWC = (len(batch), self.grid, self.grid, self.model.quantize.vq_embed_dim)
            latents = self.model.quantize.get_codebook_entry(codes, shape_BHWC)
            images += from_pixels(self.pixels(latents).cpu().numpy())
        return images[: len(ids)]

    def latents(self, pixels_BCHW: Tensor) -> Tensor:
        """Images in [-1, 1] -> [B, C, grid, grid]: the encoder's output, one vector per patch."""
        if not self.local:
            return self.model.encode(F.pixel_unshuffle(pixels_BCHW, self.patch)).latents
        size = self.resolution // self.grid
        patches = pixels_BCHW.unfold(2, size, size).unfold(3, size, size)  # [B, C, grid, grid, size, size]
        single = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, pixels_BCHW.shape[1], size, size)
        latents_nC = self.model.encode(F.pixel_unshuffle(single, self.patch)).latents[:, :, 0, 0]
        return latents_nC.view(len(pixels_BCHW), self.grid, self.grid, -1).movedim(-1, 1)

    def pixels(self, latents_BCHW: Tensor) -> Tensor:
        """[B, C, grid, grid] -> the decoder's output: images in about [-1, 1]."""
        return F.pixel_shuffle(self.model.decode(latents_BCHW, force_not_quantize=True).sample, self.patch)


T = TypeVar("T")


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    """Batches of exactly `size`; the last is filled up with copies of its first item."""
    for start in range(0, len(items), size):
        batch = items[start : start + size]
        yield batch + batch[:1] * (size - len(batch))


# -- reading weights --------------------------------------------------------------------------------------------------


def _read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights in a .ckpt. Only tensors are unpickled; a file that would run code is refused."""
    try:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files from before torch 1.6 cannot be memory-mapped
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds pickled objects other than tensors, or is not a checkpoint; it was not loaded. "
            "If you trust it, save its state_dict alone and load that."
        ) from error
    except Exception as error:  # a damaged pickle or zip raises nearly anything
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}: {' '.join(str(error).split())[:200]})."
        ) from error
    weights = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise CheckpointError(f"{path} must hold named tensors, alone or under 'state_dict'.")
    return weights


def _build(config: Mapping[str, Any], weights: Mapping[str, Tensor], origin: Path) -> Any:
    """A network with this configuration and exactly these weights, as float32."""
    from diffusers import VQModel

    return build(lambda: VQModel(**config), weights, origin, "VQModel")
