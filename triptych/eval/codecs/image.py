"""Image codecs: the tokenizers of this package, and the classes of diffusers and transformers.

    VQ           tokenizers (movq, patch-vq), diffusers VQModel, transformers JanusVQVAE and Emu3VQVAE
    FSQ          diffusers AutoencoderVidTok, on single frames
    continuous   diffusers AutoencoderKL, AutoencoderKLCosmos, AutoencoderVidTok with its KL regularizer

ChameleonVQVAE and GlmImageVQVAE cannot be evaluated: their classes have no decoder. There is no class for the discrete
Cosmos tokenizers, IBQ, Open-MAGVIT2 and UniTok.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from triptych.errors import CheckpointError, UserError
from triptych.eval.codecs.base import (
    CodecFacts,
    Encoded,
    MediaCodec,
    class_of,
    codec_folder,
    is_saved_tokenizer,
    short_name,
)
from triptych.eval.pretrained import find_pretrained, load_weights
from triptych.tokenizers.base import ImageTokenizer
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.tokenizers.image import MoVQ, load_image_tokenizer
from triptych.tokenizers.pixels import from_pixels, to_pixels

ImageCodec = MediaCodec[Image.Image]
_PURPOSE = "an image codec"
_DEFAULT_RESOLUTION = 256


def open_image_codec(source: str, resolution: int | None = None, device: str = "cpu") -> ImageCodec:
    """Open a codec by the folder of a tokenizer, of a bundle, or of a class of diffusers or transformers.

    `resolution` is that of the images; tokenizers that were made for one resolution take no other.
    """
    if source in BUILTIN_TOKENIZERS or (Path(source) / "vocab.json").exists():
        return TokenizerImages(TokenizerBundle.load(source).image, source, resolution, device)
    if source.endswith((".ckpt", ".pt", ".pth")):
        size = next((size for size in ("67M", "102M", "270M") if size in Path(source).name), "270M")
        return TokenizerImages(MoVQ.from_sber(source, size, resolution or _DEFAULT_RESOLUTION), source, None, device)
    folder = codec_folder(source)
    if is_saved_tokenizer(folder):
        tokenizer: Any = load_image_tokenizer(folder)
        return TokenizerImages(tokenizer, source, resolution, device)
    name, _ = class_of(folder)
    wanted = resolution or _DEFAULT_RESOLUTION
    if name == "VQModel":
        return TokenizerImages(MoVQ.from_folder(folder, wanted), source, None, device)
    if name not in _OPENERS:
        raise CheckpointError(f"{source} is a {name}, which is no image codec; there are {', '.join(IMAGE_CLASSES)}.")
    return _OPENERS[name](folder, source, resolution, device)


class TokenizerImages:
    """An image tokenizer of this package."""

    def __init__(self, tokenizer: Any, source: str, resolution: int | None, device: str):
        if resolution not in (None, tokenizer.resolution):
            raise UserError(f"{source} is made for {tokenizer.resolution} pixels, got a resolution of {resolution}.")
        self.tokenizer: ImageTokenizer = tokenizer
        if device != "cpu":
            tokenizer.to(device)
        kind = getattr(tokenizer, "kind", type(tokenizer).__name__)
        side = math.isqrt(tokenizer.tokens_per_image // tokenizer.num_codebooks)
        quantizer = getattr(getattr(tokenizer, "model", None), "quantize", None)
        self.facts = CodecFacts(
            name=f"{kind} ({short_name(source)})",
            type="VQ",
            downsampling=tokenizer.resolution // side,
            vocabulary=tokenizer.vocab_size,
            latent_size=None if quantizer is None else int(quantizer.vq_embed_dim),
            tokens=tokenizer.tokens_per_image,
            resolution=tokenizer.resolution,
        )

    def encode(self, item: Image.Image) -> Encoded:
        return Encoded(np.asarray(self.tokenizer.encode([item])[0])[None])

    def decode(self, encoded: Encoded, codebooks: int | None = None) -> Image.Image:
        assert encoded.codes is not None
        return self.tokenizer.decode([encoded.codes[0]])[0]


class NetworkImages:
    """A network with functions from pixels [1, 3, H, W] in [-1, 1] to codes or latents, and back."""

    def __init__(
        self,
        facts: CodecFacts,
        encode: Callable[[Tensor], Tensor],
        decode: Callable[[Tensor], Tensor],
        device: str = "cpu",
    ):
        self.facts, self._encode, self._decode, self.device = facts, encode, decode, device

    @torch.inference_mode()
    def encode(self, item: Image.Image) -> Encoded:
        encoded_latents = self._encode(torch.from_numpy(to_pixels([item])).to(self.device))
        if self.facts.vocabulary is None:
            return Encoded(None, encoded_latents)
        return Encoded(encoded_latents.flatten()[None].cpu().numpy().astype(np.int64), tuple(encoded_latents.shape))

    @torch.inference_mode()
    def decode(self, encoded: Encoded, codebooks: int | None = None) -> Image.Image:
        given = encoded.state
        if encoded.codes is not None:
            given = torch.from_numpy(encoded.codes[0]).view(encoded.state).to(self.device)
        pixels = self._decode(given)
        return from_pixels(pixels.float().cpu().numpy())[0]


# -- classes of transformers ------------------------------------------------------------------------------------------


def _open_janus(folder: Path, source: str, resolution: int | None, device: str) -> ImageCodec:
    from transformers.models.janus.modeling_janus import JanusVQVAE

    model = load_weights(JanusVQVAE, find_pretrained(folder, ("janus_vqgan",), _PURPOSE), _PURPOSE, device)
    config = model.config
    factor = 2 ** (len(config.channel_multiplier) - 1)
    side = config.num_patches * factor
    if resolution not in (None, side):
        raise UserError(f"{source} is made for {side} pixels, got a resolution of {resolution}.")
    normalize = torch.nn.functional.normalize

    def encode(pixels: Tensor) -> Tensor:
        # The decoder uses codes of length 1, so the nearest one has the largest cosine. `JanusVQVAE.encode` compares
        # vectors before they are normalised, and finds other codes than the ones this network was trained with.
        latents = model.quant_conv(model.encoder(pixels)).flatten(2).transpose(1, 2)
        codes = normalize(model.quantize.embedding.weight, dim=-1)
        return (normalize(latents, dim=-1) @ codes.T).argmax(-1)

    facts = _facts("JanusVQVAE", source, "VQ", side, factor, config.num_embeddings, config.embed_dim)
    return NetworkImages(facts, encode, model.decode, device)


def _open_emu3(folder: Path, source: str, resolution: int | None, device: str) -> ImageCodec:
    from transformers.models.emu3.modeling_emu3 import Emu3VQVAE

    model = load_weights(Emu3VQVAE, find_pretrained(folder, ("emu3_vqgan",), _PURPOSE), _PURPOSE, device)
    config, factor = model.config, int(model.vision_spatial_factor)
    side = _side(source, resolution, factor)

    def encode(pixels: Tensor) -> Tensor:
        sizes = torch.tensor([pixels.shape[2:]])
        return model.encode(pixels, image_sizes=sizes).image_tokens[0][None]

    facts = _facts("Emu3VQVAE", source, "VQ", side, factor, config.codebook_size, config.embed_dim)
    return NetworkImages(facts, encode, model.decode, device)


# -- classes of diffusers ---------------------------------------------------------------------------------------------


def _open_kl(folder: Path, source: str, resolution: int | None, device: str) -> ImageCodec:
    from diffusers import AutoencoderKL

    model = _load(AutoencoderKL, folder, device)
    factor = 2 ** (len(model.config.block_out_channels) - 1)
    side = _side(source, resolution, factor)
    facts = _facts("AutoencoderKL", source, "continuous", side, factor, None, model.config.latent_channels)

    def encode(pixels: Tensor) -> Tensor:
        return model.encode(pixels).latent_dist.mode()

    return NetworkImages(facts, encode, lambda latents: model.decode(latents).sample, device)


def _open_cosmos(folder: Path, source: str, resolution: int | None, device: str) -> ImageCodec:
    from diffusers import AutoencoderKLCosmos

    model = _load(AutoencoderKLCosmos, folder, device)
    factor = int(model.config.spatial_compression_ratio)
    side = _side(source, resolution, factor)
    facts = _facts("AutoencoderKLCosmos", source, "continuous", side, factor, None, model.config.latent_channels)

    def encode(pixels: Tensor) -> Tensor:
        return model.encode(pixels[:, :, None]).latent_dist.mode()

    return NetworkImages(facts, encode, lambda latents: model.decode(latents).sample[:, :, 0], device)


def _open_vidtok(folder: Path, source: str, resolution: int | None, device: str) -> ImageCodec:
    from diffusers import AutoencoderVidTok

    model = _load(AutoencoderVidTok, folder, device)
    if not model.config.is_causal:
        raise CheckpointError(f"{source} needs several frames; only causal AutoencoderVidTok take single images.")
    factor = 2 ** len(model.encoder.spatial_ds)
    side = _side(source, resolution, factor)
    is_discrete = model.config.regularizer == "fsq"

    def encode(pixels: Tensor) -> Tensor:
        # A causal network takes the first frame of a video as if it had stood still before; decoding removes the rest.
        encoded_latents = model.encode(pixels[:, :, None].expand(-1, -1, model.temporal_compression_ratio, -1, -1))
        return encoded_latents[1] if is_discrete else encoded_latents.latent_dist.mode()

    def decode(given: Tensor) -> Tensor:
        return model.decode(given, decode_from_indices=is_discrete)[:, :, 0]

    size = int(model.config.codebook_size) if is_discrete else None
    kind = "FSQ" if is_discrete else "continuous"
    facts = _facts("AutoencoderVidTok", source, kind, side, factor, size, model.config.z_channels)
    return NetworkImages(facts, encode, decode, device)


def _load(model_class: Any, folder: Path, device: str) -> Any:
    """A model of diffusers with exactly the weights of a folder, in float32."""
    path = folder / "diffusion_pytorch_model.safetensors"
    try:
        model = model_class.from_config(model_class.load_config(str(folder), local_files_only=True))
        model.load_state_dict(load_file(path))
    except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder} is no complete {model_class.__name__} with {path.name} ({reason}).") from error
    return model.float().eval().requires_grad_(False).to(device)


def _side(source: str, resolution: int | None, factor: int) -> int:
    side = resolution or _DEFAULT_RESOLUTION
    if side % factor:
        raise UserError(f"the resolution must be a multiple of {factor} for {source}, got {side}.")
    return side


def _facts(
    name: str, source: str, kind: str, side: int, factor: int, vocabulary: int | None, latent_size: int
) -> CodecFacts:
    return CodecFacts(
        name=f"{name} ({short_name(source)})",
        type=kind,
        downsampling=factor,
        vocabulary=vocabulary,
        latent_size=int(latent_size),
        tokens=(side // factor) ** 2,
        resolution=side,
    )


_OPENERS: dict[str, Callable[[Path, str, int | None, str], ImageCodec]] = {
    "JanusVQVAE": _open_janus,
    "Emu3VQVAE": _open_emu3,
    "AutoencoderKL": _open_kl,
    "AutoencoderKLCosmos": _open_cosmos,
    "AutoencoderVidTok": _open_vidtok,
}
IMAGE_CLASSES = ("VQModel", *_OPENERS)
